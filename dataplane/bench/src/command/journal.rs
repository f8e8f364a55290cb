//! A file to which whole lines of JSON are appended. After an error, such as a full disk, the lines wait in memory.
//! Each later write tries to write the waiting lines again.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use dataplane::{Error, Result};
use dataplane_core::file::LockedFile;
use dataplane_core::stderr;
use serde::Serialize;

use super::output;

/// The file and the lines that are not written yet.
pub(super) struct Journal {
    path: PathBuf,
    file: LockedFile,
    /// The length of the file up to the last whole line.
    length: u64,
    /// The lines that are not written yet.
    waiting: Vec<u8>,
    /// Whether the last write failed.
    is_failing: bool,
}

/// Whether all lines were written.
pub(super) enum Written {
    All,
    /// The lines that were not written, and the reason.
    Partly {
        lines: usize,
        error: io::Error,
    },
}

impl Journal {
    /// Creates the file, or removes the content of an existing file.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = output::create(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file, length: 0, waiting: Vec::new(), is_failing: false })
    }

    /// Writes a line to the disk. If several writes in a row fail, prints one error to standard error. A terminal
    /// that takes no output does not delay the next line.
    pub(super) fn write(&mut self, line: &impl Serialize) {
        // The conversion of these lines to JSON cannot fail.
        let Ok(text) = serde_json::to_vec(line) else { return };
        self.waiting.extend(text);
        self.waiting.push(b'\n');
        match self.flush() {
            Ok(()) if self.is_failing => {
                stderr::write_unless_full(&format!("{}: writing works again\n", self.path.display()));
                self.is_failing = false;
            }
            Err(error) if !self.is_failing => {
                let path = self.path.display();
                let help = "the run goes on, and writes all lines when writing works again";
                self.is_failing = stderr::write_unless_full(&format!("error: {path}: {error}; {help}\n"));
            }
            _ => {}
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.waiting).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.length += self.waiting.len() as u64;
                self.waiting.clear();
                Ok(())
            }
            Err(error) => {
                // Remove the bytes that were written before the error. A device has no length, and keeps the bytes.
                let mut file = &*self.file;
                let _ = file.set_len(self.length).and_then(|()| file.seek(SeekFrom::Start(self.length)));
                Err(error)
            }
        }
    }

    /// Writes the waiting lines. Returns whether all lines of the file were written.
    pub(super) fn finish(mut self) -> Written {
        if self.waiting.is_empty() {
            return Written::All;
        }
        match self.flush() {
            Ok(()) => Written::All,
            Err(error) => {
                let lines = self.waiting.iter().filter(|byte| **byte == b'\n').count();
                Written::Partly { lines, error }
            }
        }
    }
}
