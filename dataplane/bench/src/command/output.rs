//! Output of results.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use dataplane::control::printable_lines;
use dataplane::{Error, Result};
use dataplane_core::file::{LockedFile, Readers};
use serde::Serialize;

use crate::html;
use crate::stored::Stored;

/// Writes the HTML page of a result, if there is a path.
pub(super) fn write_page(path: Option<&Path>, result: impl FnOnce() -> Stored) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let page = html::page(&name, &result());
    let written = create(path).and_then(|mut file| file.write_all(page.as_bytes()));
    written.map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Creates an empty file, or removes the content of an existing file. Refuses files and symbolic links of other users.
pub(super) fn create(path: &Path) -> io::Result<LockedFile> {
    let file = LockedFile::output(path, Readers::All)?;
    file.truncate()?;
    Ok(file)
}

/// Prints a result to standard output. Replaces control characters, because the report can quote the file of an earlier
/// result.
pub(super) fn output(report: &(impl Serialize + ToString), json: bool) -> Result<()> {
    if json { print_json(report) } else { print(&printable_lines(&report.to_string())) }
}

pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Wire(error.to_string()))?;
    print(&(printable_lines(&text) + "\n"))
}

pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Wire(format!("standard output: {error}"))),
        // A broken pipe is no error: the reader of standard output needs no more text.
        _ => Ok(()),
    }
}
