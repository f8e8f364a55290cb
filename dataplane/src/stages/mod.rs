//! The built-in stages, a file each.
