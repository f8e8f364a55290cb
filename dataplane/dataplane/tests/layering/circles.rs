//! Finds circles of imports (import cycles) between the source files of a crate.
//!
//! File A imports file B if A names an item of B, in a `use` declaration or in a path. If A uses a name that a `mod.rs`
//! re-exports, A imports the file that defines the item. Paths in the arguments of macros are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{File, Item, ItemMod, Meta, Token, UseTree, Visibility};

use super::{crates, sources};

/// The segments of a path.
type Segments = Vec<String>;

/// The names in one source file.
#[derive(Default)]
struct Module {
    /// The file, relative to the source folder of the crate.
    file: String,
    /// The full path of each imported name.
    imports: BTreeMap<String, Segments>,
    /// The modules that are imported with `*`.
    globs: Vec<Segments>,
    /// The items that the file defines.
    items: BTreeSet<String>,
    /// The child modules that have their own files.
    children: BTreeSet<String>,
    /// The paths in the code, without re-exports of child modules.
    paths: BTreeSet<Segments>,
}

/// The modules of a crate, by their path.
struct Modules(BTreeMap<Segments, Module>);

impl Module {
    fn read(file: String, syntax: &File) -> Self {
        let mut module = Self { file, ..Self::default() };
        module.items = syntax.items.iter().filter_map(defined_name).collect();
        module.children = syntax.items.iter().filter_map(child_name).collect();
        module.visit_file(syntax);
        module
    }

    /// Adds the names of a `use` declaration. `path` is the part before `tree`.
    fn add_use(&mut self, tree: &UseTree, path: &mut Segments, is_reexport: bool) {
        let mut import = |name: String, path: Segments| {
            if !is_reexport {
                self.paths.insert(path.clone());
            }
            self.imports.insert(name, path);
        };
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.add_use(&inner.tree, path, is_reexport);
                path.pop();
            }
            UseTree::Name(name) if name.ident == "self" => {
                import(path.last().cloned().unwrap_or_default(), path.clone());
            }
            UseTree::Name(name) => import(name.ident.to_string(), joined(path, name.ident.to_string())),
            UseTree::Rename(rename) => import(rename.rename.to_string(), joined(path, rename.ident.to_string())),
            UseTree::Glob(_) => {
                if !is_reexport {
                    // No item has the name `*`, so `definition` resolves this path to the file of the imported module.
                    self.paths.insert(joined(path, "*".to_owned()));
                }
                self.globs.push(path.clone());
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, path, is_reexport)),
        }
    }
}

impl Visit<'_> for Module {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let of_child = match &item.tree {
            UseTree::Path(path) => self.children.contains(&path.ident.to_string()),
            _ => false,
        };
        let is_reexport = of_child && !matches!(item.vis, Visibility::Inherited);
        self.add_use(&item.tree, &mut Vec::new(), is_reexport);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// Returns whether an item exists only in test builds: the item has `cfg(test)`, or `cfg(all(...))` with `test` as one
/// of the conditions.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    let needs_test = |condition: &Meta| match condition {
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|conditions| conditions.iter().any(|condition| condition.path().is_ident("test"))),
        condition => condition.path().is_ident("test"),
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(|condition| needs_test(&condition))
    })
}

/// Returns the name of an item that other files can name.
fn defined_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        // A module with its own file is not an item, because `child_name` returns it.
        Item::Mod(item) if item.content.is_some() && !is_test(&item.attrs) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the name of a module that has a file of its own.
fn child_name(item: &Item) -> Option<String> {
    match item {
        Item::Mod(item) if item.content.is_none() => Some(item.ident.to_string()),
        _ => None,
    }
}

fn joined(path: &[String], name: String) -> Segments {
    path.iter().cloned().chain([name]).collect()
}

impl Modules {
    /// Reads the source files of a crate, without its tests.
    fn read(crate_folder: &str) -> Self {
        let root = crates().join(crate_folder).join("src");
        let module = |path: std::path::PathBuf| {
            let file = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let syntax = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let name = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let place = name.split('/').filter(|name| *name != "lib").map(str::to_owned).collect();
            (place, Module::read(file, &syntax))
        };
        Self(sources(crate_folder).into_iter().map(module).collect())
    }

    /// Resolves `path`, as written in the module `place`, to the module whose file defines the item. Returns `None` if
    /// the path names a module, an item of another crate, or a built-in name.
    ///
    /// `visited` contains the imports that the search has already followed.
    fn definition(
        &self,
        place: &Segments,
        path: &[String],
        visited: &mut BTreeSet<(Segments, String)>,
    ) -> Option<Segments> {
        let mut place = place.clone();
        let mut path = path;
        // Whether the search has resolved at least one segment of the path.
        let mut has_resolved_segment = false;
        while let [first, rest @ ..] = path {
            let child = joined(&place, first.clone());
            match first.as_str() {
                "crate" => place.clear(),
                "self" => {}
                "super" => drop(place.pop()),
                _ if self.0.contains_key(&child) => place = child,
                name => {
                    let module = self.0.get(&place)?;
                    if module.items.contains(name) {
                        return Some(place);
                    }
                    // A child module that is not in the map contains tests.
                    if module.children.contains(name) || !visited.insert((place.clone(), name.to_owned())) {
                        return None;
                    }
                    let is_imported =
                        |path: &Segments, visited: &mut _| self.definition(&place, &[path, rest].concat(), visited);
                    if let Some(import) = module.imports.get(name) {
                        return is_imported(import, visited);
                    }
                    let mut globs = module.globs.iter();
                    let found = globs.find_map(|glob| self.definition(&place, &joined(glob, name.to_owned()), visited));
                    // A macro may define names that the syntax does not show.
                    return found.or_else(|| has_resolved_segment.then_some(place));
                }
            }
            has_resolved_segment = true;
            path = rest;
        }
        None
    }

    /// Returns the imports of each file: the imported file, and the first path that names an item of that file.
    fn edges(&self) -> BTreeMap<&str, BTreeMap<&str, String>> {
        let mut edges: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
        for (place, module) in &self.0 {
            let into = edges.entry(&module.file).or_default();
            let named = module
                .paths
                .iter()
                .filter_map(|path| Some((path, self.definition(place, path, &mut BTreeSet::new())?)));
            for (path, found) in named.filter(|(_, found)| found != place) {
                into.entry(&self.0[&found].file).or_insert_with(|| path.join("::"));
            }
        }
        edges
    }
}

/// Returns the imports of each source file of a crate. The paths are relative to the source folder of the crate.
pub(super) fn imports(crate_folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let modules = Modules::read(crate_folder);
    let owned = |(file, imports): (&str, BTreeMap<&str, String>)| {
        (file.to_owned(), imports.into_keys().map(str::to_owned).collect())
    };
    modules.edges().into_iter().map(owned).collect()
}

/// The files of a circle. Each file has a list of its imports from the circle.
pub(super) type Circle = BTreeMap<String, Vec<String>>;

/// Returns the circles of imports in a crate, which are the strongly connected components of the import graph. In a
/// circle, each file imports every other file directly or indirectly.
pub(super) fn circles(crate_folder: &str) -> Vec<Circle> {
    let modules = Modules::read(crate_folder);
    let edges = modules.edges();
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for from in edges.keys() {
        let found = reached.entry(from).or_default();
        let mut open = vec![*from];
        while let Some(file) = open.pop() {
            open.extend(edges[file].keys().filter(|file| found.insert(**file)));
        }
    }
    let mut circles = Vec::new();
    for (file, others) in &reached {
        let circle: BTreeSet<&str> = others.iter().copied().filter(|other| reached[other].contains(file)).collect();
        if circle.first() == Some(file) {
            let imports = |file: &str| {
                let inside = edges[file].iter().filter(|(other, _)| circle.contains(*other));
                inside.map(|(other, path)| format!("{other} ({path})")).collect()
            };
            circles.push(circle.iter().map(|file| ((*file).to_owned(), imports(file))).collect());
        }
    }
    circles
}
