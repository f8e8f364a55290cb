//! Lists the public items of a crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Block, Expr, Fields, File, ImplItem, Item, ItemImpl, TraitItem, Type, Visibility, parse_quote};

/// Returns the listing of the crate with this source folder.
pub(crate) fn of_crate(folder: &Path) -> String {
    let items = load(&folder.join("lib.rs"), folder.to_owned());
    print(items)
}

/// Returns the listing of a source text. The text cannot contain modules that are in other files.
pub(crate) fn of_source(source: &str) -> String {
    print(syn::parse_file(source).unwrap().items)
}

fn print(items: Vec<Item>) -> String {
    let mut names = Names::default();
    names.collect(&items);
    let items = items.into_iter().filter_map(|item| names.public(item)).collect();
    prettyplease::unparse(&File { shebang: None, frontmatter: None, attrs: Vec::new(), items })
}

/// Returns the items of a file, with the items of its submodules inside. `folder` contains the files of the submodules.
fn load(path: &Path, folder: PathBuf) -> Vec<Item> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut items = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).items;
    for item in &mut items {
        let Item::Mod(module) = item else { continue };
        if module.content.is_some() || is_conditional(&module.attrs) {
            continue;
        }
        let inner = folder.join(module.ident.to_string());
        let own_file = inner.with_extension("rs");
        let file = if own_file.is_file() { own_file } else { inner.join("mod.rs") };
        module.content = Some((Default::default(), load(&file, inner)));
        module.semi = None;
    }
    items
}

/// The names of the public types and the private traits of a crate.
#[derive(Default)]
struct Names {
    types: BTreeSet<String>,
    private_traits: BTreeSet<String>,
}

impl Names {
    fn collect(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) if !is_conditional(&module.attrs) => {
                    self.collect(module.content.as_ref().map_or(&[], |(_, items)| items));
                }
                Item::Struct(it) if is_public(&it.vis) => drop(self.types.insert(it.ident.to_string())),
                Item::Enum(it) if is_public(&it.vis) => drop(self.types.insert(it.ident.to_string())),
                Item::Union(it) if is_public(&it.vis) => drop(self.types.insert(it.ident.to_string())),
                Item::Trait(it) if !is_public(&it.vis) => drop(self.private_traits.insert(it.ident.to_string())),
                _ => {}
            }
        }
    }

    /// Returns the public part of an item, or `None` if the item is private.
    fn public(&self, mut item: Item) -> Option<Item> {
        match &mut item {
            Item::Mod(it) if !is_conditional(&it.attrs) => {
                reduce(&mut it.attrs);
                let (_, items) = it.content.as_mut()?;
                *items = std::mem::take(items).into_iter().filter_map(|item| self.public(item)).collect();
                (is_public(&it.vis) || !items.is_empty()).then_some(item)
            }
            Item::Use(it) => shown(&it.vis, &mut it.attrs).then_some(item),
            Item::Type(it) => shown(&it.vis, &mut it.attrs).then_some(item),
            Item::TraitAlias(it) => shown(&it.vis, &mut it.attrs).then_some(item),
            Item::Fn(it) => {
                *it.block = empty();
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Const(it) => {
                *it.expr = unknown();
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Static(it) => {
                *it.expr = unknown();
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Struct(it) => {
                public_fields(&mut it.fields);
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Enum(it) => {
                for variant in &mut it.variants {
                    reduce(&mut variant.attrs);
                    variant.fields.iter_mut().for_each(|field| reduce(&mut field.attrs));
                }
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Trait(it) => {
                it.items.iter_mut().for_each(without_default);
                shown(&it.vis, &mut it.attrs).then_some(item)
            }
            Item::Impl(it) => self.public_impl(it).then_some(item),
            Item::Macro(it) => {
                let is_definition = it.mac.path.is_ident("macro_rules");
                let is_exported = it.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
                let is_listed = (!is_definition || is_exported) && !it.mac.path.is_ident("thread_local");
                it.mac.tokens = without_docs(std::mem::take(&mut it.mac.tokens));
                (is_listed && shown(&parse_quote!(pub), &mut it.attrs)).then_some(item)
            }
            _ => None,
        }
    }

    /// Removes the private part of an `impl`. Returns whether the public API includes the `impl`.
    fn public_impl(&self, it: &mut ItemImpl) -> bool {
        let last = |path: &syn::Path| path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        let is_known = match &*it.self_ty {
            Type::Path(path) => self.types.contains(&last(&path.path)),
            _ => true,
        };
        if !is_known || is_conditional(&it.attrs) {
            return false;
        }
        reduce(&mut it.attrs);
        if let Some((path, _)) = &it.trait_ {
            // The listing shows only that the type implements the trait. The listing of the trait has the items.
            let is_public = !self.private_traits.contains(&last(path));
            it.items.clear();
            return is_public;
        }
        it.items.retain_mut(|item| match item {
            ImplItem::Fn(it) => {
                it.block = empty();
                shown(&it.vis, &mut it.attrs)
            }
            ImplItem::Const(it) => {
                it.expr = unknown();
                shown(&it.vis, &mut it.attrs)
            }
            _ => false,
        });
        !it.items.is_empty()
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Removes the attributes that do not belong to the API. Returns whether the item is public in normal builds.
fn shown(visibility: &Visibility, attributes: &mut Vec<Attribute>) -> bool {
    let is_shown = is_public(visibility) && !is_conditional(attributes);
    reduce(attributes);
    is_shown
}

/// Returns whether an item is only in builds for tests, fuzzing, loom or the documentation.
fn is_conditional(attributes: &[Attribute]) -> bool {
    let is_named =
        |condition: &syn::Path| ["test", "fuzzing", "loom", "doctest"].iter().any(|name| condition.is_ident(name));
    let is_special = |attribute: &Attribute| match attribute.parse_args::<syn::Meta>() {
        Ok(syn::Meta::Path(condition)) => is_named(&condition),
        // `any(test, fuzzing)`
        Ok(syn::Meta::List(list)) if list.path.is_ident("any") => list
            .parse_args_with(syn::punctuated::Punctuated::<syn::Path, syn::Token![,]>::parse_terminated)
            .is_ok_and(|conditions| conditions.iter().all(is_named)),
        _ => false,
    };
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && is_special(attribute))
}

/// Keeps the attributes that belong to the API.
fn reduce(attributes: &mut Vec<Attribute>) {
    let kept = ["cfg", "derive", "must_use", "non_exhaustive", "repr", "deprecated"];
    attributes.retain(|attribute| kept.iter().any(|name| attribute.path().is_ident(name)));
}

fn empty() -> Block {
    parse_quote!({})
}

fn unknown() -> Expr {
    parse_quote!(_)
}

/// Replaces the private fields of a struct by one field `private`, and the types of private tuple fields by `_`.
fn public_fields(fields: &mut Fields) {
    for field in fields.iter_mut() {
        reduce(&mut field.attrs);
    }
    match fields {
        Fields::Named(named) => {
            let all = named.named.len();
            let mut public: Vec<syn::Field> =
                std::mem::take(&mut named.named).into_iter().filter(|field| is_public(&field.vis)).collect();
            if public.len() < all {
                let holder: syn::ItemStruct = parse_quote!(
                    struct S {
                        private: _,
                    }
                );
                public.extend(holder.fields);
            }
            named.named = public.into_iter().collect();
        }
        Fields::Unnamed(tuple) => {
            for field in tuple.unnamed.iter_mut().filter(|field| !is_public(&field.vis)) {
                (field.vis, field.ty) = (Visibility::Inherited, parse_quote!(_));
            }
        }
        Fields::Unit => {}
    }
}

/// Replaces the default body of a trait function by an empty block, and the default value of a trait constant by `_`.
fn without_default(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(it) => {
            reduce(&mut it.attrs);
            if let Some(block) = &mut it.default {
                *block = empty();
            }
        }
        TraitItem::Const(it) => {
            reduce(&mut it.attrs);
            if let Some((_, value)) = &mut it.default {
                *value = unknown();
            }
        }
        TraitItem::Type(it) => reduce(&mut it.attrs),
        _ => {}
    }
}

/// Removes documentation from the arguments of a macro.
fn without_docs(tokens: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    use proc_macro2::{Group, TokenTree};
    let is_doc = |group: &Group| group.stream().into_iter().next().is_some_and(|token| token.to_string() == "doc");
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) if is_doc(&group) => drop(kept.pop()),
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_docs(group.stream()));
                inner.set_span(group.span());
                kept.push(inner.into());
            }
            token => kept.push(token),
        }
    }
    kept.into_iter().collect()
}
