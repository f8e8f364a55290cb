//! The built-in stages, one file each, and the [tables](table) that they look packets up in.

pub mod table;
