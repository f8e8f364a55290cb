//! Counts the `unsafe` code of every source file, without tests.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::{env, fs};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, File};

use super::{changes, crates, layers, sources};

/// The number of each kind of `unsafe` code in one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Census {
    blocks: usize,
    functions: usize,
    impls: usize,
    traits: usize,
    /// The keyword `unsafe` in the arguments and definitions of macros.
    in_macros: usize,
}

impl Census {
    fn of(file: &File) -> Self {
        let mut census = Self::default();
        census.visit_file(file);
        census
    }
}

/// Writes the cells of a table row.
impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, functions, impls, traits, in_macros } = self;
        write!(f, "{blocks} | {functions} | {impls} | {traits} | {in_macros}")
    }
}

/// Returns the number of times the keyword `unsafe` occurs.
fn keywords(tokens: TokenStream) -> usize {
    let count = |token| match token {
        TokenTree::Group(group) => keywords(group.stream()),
        TokenTree::Ident(word) => usize::from(word == "unsafe"),
        _ => 0,
    };
    tokens.into_iter().map(count).sum()
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"));
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && is_test(attribute))
}

impl Visit<'_> for Census {
    fn visit_expr_unsafe(&mut self, block: &syn::ExprUnsafe) {
        self.blocks += 1;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &syn::Signature) {
        self.functions += usize::from(matches!(signature.safety, syn::Safety::Unsafe(_)));
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &syn::ItemImpl) {
        self.impls += usize::from(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &syn::ItemTrait) {
        self.traits += usize::from(item.unsafety.is_some());
        visit::visit_item_trait(self, item);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.in_macros += keywords(call.tokens.clone());
    }

    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// Returns the table of the files with `unsafe` code.
fn table() -> String {
    let mut rows = BTreeMap::new();
    for crate_folder in layers().into_keys() {
        for path in sources(&crate_folder) {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let census = Census::of(&file);
            if census != Census::default() {
                rows.insert(path.strip_prefix(crates()).unwrap().to_str().unwrap().to_owned(), census);
            }
        }
    }
    let mut table =
        "| file | blocks | functions | impls | traits | in macros |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for (file, census) in rows {
        writeln!(table, "| `{file}` | {census} |").unwrap();
    }
    table
}

const BEGIN: &str = "<!-- begin census -->\n";
const END: &str = "<!-- end census -->\n";

#[test]
fn unsafe_census_matches_its_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/unsafe-census.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the begin marker");
    let (listed, after) = rest.split_once(END).expect("the page has the end marker");
    let table = table();
    if env::var_os("DATAPLANE_UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert!(
        listed == table,
        "the unsafe code changed:\n{}\nhelp: DATAPLANE_UPDATE=1 cargo test --package dataplane --test layering",
        changes(listed, &table)
    );
}

#[test]
fn census_counts_each_kind_of_unsafe_code() {
    let source = "
        unsafe trait A { unsafe fn declared(); }
        unsafe impl A for u8 { unsafe fn declared() {} }
        unsafe fn free() { unsafe { free() } }
        fn safe() { unsafe { free(); unsafe { free() } } }
        macro_rules! m { () => { unsafe { free() } } }
        fn call() { vec![unsafe { 1 }]; }
        #[cfg(test)]
        mod tests { unsafe fn not_counted() {} }
    ";
    let census = Census::of(&syn::parse_file(source).unwrap());
    assert_eq!(census, Census { blocks: 3, functions: 3, impls: 1, traits: 1, in_macros: 2 });
}
