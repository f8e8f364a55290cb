//! The committed inputs of the fuzzer, in `tools/fuzz/corpus`.

use std::fs;
use std::io::Write;
use std::path::Path;

/// Runs a target of the fuzzer on all inputs of its corpus. If the target panics, the name of the input is printed.
///
/// # Panics
/// If the target panics, or if the corpus is empty or cannot be read.
pub fn replay(target: &str, run: fn(&[u8])) {
    /// Prints the name of the input if the target panics.
    struct Running<'a>(&'a Path);
    impl Drop for Running<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let _ = writeln!(std::io::stderr(), "the fuzz target panicked on the input {}", self.0.display());
            }
        }
    }

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    assert!(!paths.is_empty(), "{} has no inputs", folder.display());
    for path in paths {
        let input = fs::read(&path).unwrap();
        let _running = Running(&path);
        run(&input);
    }
}
