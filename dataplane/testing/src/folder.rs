//! Temporary folders for tests.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary folder. The folder is removed when this value is dropped.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// If the system has no space for temporary files.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default value should not create a folder")]
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("dataplane-test-").tempdir().unwrap())
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in the folder. The file need not exist.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file and returns its path. Creates missing parent folders of the file.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let file = self.file(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, bytes).unwrap();
        file
    }
}
