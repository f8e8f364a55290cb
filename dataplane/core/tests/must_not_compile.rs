//! Tests the programs in the documentation that must not compile. Each of these programs must fail with exactly the
//! error that the documentation names. rustdoc checks the error code only with a nightly compiler. Without these tests,
//! a program could fail for another reason, such as a renamed type.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

const START: &str = "/// ```compile_fail,";

/// Returns the programs that must not compile, each with its error code, from the text of a source file.
fn programs(source: &str) -> Vec<(String, String)> {
    let mut lines = source.lines().map(str::trim_start);
    let mut programs = Vec::new();
    while let Some(code) = lines.by_ref().find_map(|line| line.strip_prefix(START)) {
        let body = lines.by_ref().take_while(|line| *line != "/// ```");
        let body: String =
            body.map(|line| line.trim_start_matches("/// ").trim_start_matches("///").to_owned() + "\n").collect();
        programs.push((code.to_owned(), body));
    }
    programs
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let nested = entries.map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    nested.flatten().collect()
}

/// Compiles a program, and returns the codes of its errors.
fn error_codes(program: &str) -> BTreeSet<String> {
    // Cargo places the test program in the folder of its libraries.
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libdataplane_core-") && name.ends_with(".rlib")
    };
    let entries = fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().path());
    let core = entries.filter(is_core).max_by_key(built).unwrap();
    let folder = dataplane_testing::Folder::new();
    let source = folder.write("program.rs", format!("fn main() {{\n{program}}}\n"));
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--emit", "metadata", "--error-format", "json", "--out-dir"]).arg(folder.path());
    rustc.arg(format!("-Ldependency={}", libraries.display()));
    rustc.arg("--extern").arg(format!("dataplane_core={}", core.display())).arg(source);
    let output = rustc.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let errors = text.lines().filter(|line| line.contains(r#""level":"error""#));
    let code = |line: &str| Some(line.split_once(r#""code":{"code":""#)?.1.split('"').next()?.to_owned());
    let codes: BTreeSet<String> = errors.filter_map(code).collect();
    assert_eq!(codes.is_empty(), output.status.success(), "{program}{text}");
    codes
}

#[test]
fn programs_fail_with_the_documented_error() {
    assert_eq!(
        error_codes("fn length(batch: &dataplane_core::mem::Batch) -> usize { batch.len() }\n"),
        BTreeSet::new()
    );
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let all: Vec<(String, String)> =
        files.iter().flat_map(|path| programs(&fs::read_to_string(path).unwrap())).collect();
    assert!(all.len() >= 15, "{}", all.len());
    for (code, program) in all {
        assert_eq!(error_codes(&program), BTreeSet::from([code]), "{program}");
    }
}
