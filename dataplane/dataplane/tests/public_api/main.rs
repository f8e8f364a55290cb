//! Compares the public API of the library crates with the listings in the folder `listings`, so that a review shows
//! every change of the API. The facade crate `dataplane` re-exports the other crates.
//!
//! A listing has the public items of a crate, as Rust code without documentation, private items and function bodies.
//! The listing has every item with the visibility `pub`. Users of the crate can name each of these items, because the
//! lint `unreachable_pub` refuses `pub` for all other items. For items that a macro generates, the listing shows the
//! call of the macro.
//!
//! To update the listings after a change of the API:
//!
//! ```console
//! $ DATAPLANE_UPDATE=1 cargo test --package dataplane --test public_api
//! ```

mod listing;

use std::path::Path;
use std::{env, fs};

/// The crates with a public API, by the names of their folders.
const CRATES: [&str; 7] = ["control", "core", "dataplane", "ibverbs", "soft", "stages", "tables"];

#[test]
fn public_api_matches_its_listings() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut changed = Vec::new();
    for name in CRATES {
        let listing = listing::of_crate(&here.parent().unwrap().join(name).join("src"));
        let path = here.join("tests/public_api/listings").join(format!("{name}.rs"));
        let known = fs::read_to_string(&path).unwrap_or_default();
        if known == listing {
            continue;
        }
        if env::var_os("DATAPLANE_UPDATE").is_some() {
            fs::write(&path, &listing).unwrap();
            continue;
        }
        let differs = known.lines().zip(listing.lines()).position(|(old, new)| old != new);
        let line = differs.unwrap_or_else(|| known.lines().count().min(listing.lines().count()));
        let text = |listing: &str| listing.lines().nth(line).unwrap_or("the end of the listing").trim().to_owned();
        changed.push(format!("{}:{}: `{}` is now `{}`", path.display(), line + 1, text(&known), text(&listing)));
    }
    assert!(
        changed.is_empty(),
        "the public API changed:\n{}\nhelp: DATAPLANE_UPDATE=1 cargo test --package dataplane --test public_api",
        changed.join("\n")
    );
}

#[test]
fn listing_has_public_items_without_bodies() {
    let source = "
        //! Text.
        use std::fmt;
        /// Text.
        #[derive(Clone)]
        #[allow(dead_code)]
        pub struct Shown { /// Text.
            pub a: u8, b: u16 }
        struct Hidden;
        pub(crate) struct AlsoHidden;
        impl Shown { pub fn get(&self) -> u8 { self.a } fn set(&mut self) {} }
        impl fmt::Debug for Shown { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) } }
        impl Hidden { pub fn unreachable() {} }
        impl Clone for Hidden { fn clone(&self) -> Self { Self } }
        pub const LIMIT: usize = 3;
        pub trait Does { const A: u8 = 1; fn a(&self) {} fn b(&self); }
        pub enum Kind { A = 1, B(u8) }
        pub mod inner { pub fn f() {} fn g() {} }
        mod private { fn h() {} }
        numbers! { One = 1 }
        #[cfg(test)]
        mod tests { pub fn t() {} }
        #[cfg(fuzzing)]
        pub fn fuzz() {}
        #[cfg(any(test, fuzzing))]
        pub mod fuzzing { pub fn target() {} }
    ";
    let expected = "\
#[derive(Clone)]
pub struct Shown {
    pub a: u8,
    private: _,
}
impl Shown {
    pub fn get(&self) -> u8 {}
}
impl fmt::Debug for Shown {}
pub const LIMIT: usize = _;
pub trait Does {
    const A: u8 = _;
    fn a(&self) {}
    fn b(&self);
}
pub enum Kind {
    A = 1,
    B(u8),
}
pub mod inner {
    pub fn f() {}
}
numbers! {
    One = 1
}
";
    assert_eq!(listing::of_source(source), expected);
}
