//! Reads a config file.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::diagnostics::{Diagnostics, Mistake};
use super::source::{Source, Span};
use dataplane_core::file;

/// The maximum size of a config: 1 MiB. Large tables belong in separate files.
pub const MAX_SIZE: u64 = 1 << 20;

impl Source {
    /// Reads a config file, which must be a regular file. The path `-` means standard input. [`Source::new`] describes
    /// `overrides`.
    ///
    /// # Errors
    ///
    /// Returns one mistake if the file cannot be read, is not a regular file, is larger than [`MAX_SIZE`], or is not
    /// UTF-8.
    pub fn read(path: &Path, overrides: &[(String, String)]) -> Result<Self, Diagnostics> {
        let report = |text: &str, mistake: Mistake| {
            let mut diagnostics = Diagnostics::new(&Self::new(path, text, &[]));
            diagnostics.push(mistake);
            diagnostics
        };
        let failed = |text: &str, span: Span, message: String, help: &str| {
            report(text, Mistake::error(span, message).help(help))
        };
        let mut bytes = Vec::new();
        // Read at most one byte more than the limit. This byte exists only if the file is too large. The size in the
        // metadata of the file may be wrong, so do not use the metadata.
        let input = match path.as_os_str() == "-" {
            true => Ok(Box::new(io::stdin().lock()) as Box<dyn Read>),
            false => file::open(path).map(|file| Box::new(file) as Box<dyn Read>),
        };
        if let Err(error) = input.and_then(|input| input.take(MAX_SIZE + 1).read_to_end(&mut bytes)) {
            let message = format!("the config cannot be read: {error}");
            if let Some(help) = file::host_remedy(&error) {
                return Err(report("", Mistake::host_problem(0..0, message).help(help)));
            }
            let help = match error.kind() {
                ErrorKind::InvalidInput => "name a regular file, or write `-` to read the config from standard input",
                _ => "name a readable file",
            };
            return Err(failed("", 0..0, message, help));
        }
        if bytes.len() as u64 > MAX_SIZE {
            let help = "move large tables to separate files";
            return Err(failed("", 0..0, "the config is larger than 1 MiB".to_owned(), help));
        }
        if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
            let text = String::from_utf8_lossy(&bytes[..at]) + "\u{fffd}";
            let span = text.len() - '\u{fffd}'.len_utf8()..text.len();
            let message = format!("byte {at} is NUL, so the file is not a text file");
            return Err(failed(&text, span, message, "name a text file"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(path, text, overrides)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                // The conversion replaces invalid bytes, and does not change the text before `at`. So `at` is also an
                // offset in `text`.
                let text = String::from_utf8_lossy(error.as_bytes());
                let message = format!("byte {at} is not valid UTF-8");
                Err(failed(&text, at..at + '\u{fffd}'.len_utf8(), message, "save the config as UTF-8 text"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_config_is_a_mistake_with_a_position() {
        let folder = dataplane_testing::Folder::new();
        let file = folder.file("x.toml");
        for (bytes, line, column, message) in [
            (vec![b'#'; MAX_SIZE as usize + 1], 1, 1, "the config is larger than 1 MiB"),
            (b"a = 1\nb = \xff".to_vec(), 2, 5, "byte 10 is not valid UTF-8"),
            (b"a = 1\nb = \0".to_vec(), 2, 5, "byte 10 is NUL, so the file is not a text file"),
        ] {
            folder.write("x.toml", bytes);
            let mistake = Source::read(&file, &[]).unwrap_err().records().remove(0);
            assert_eq!((mistake.line, mistake.column, mistake.message.as_str()), (line, column, message));
            assert!(mistake.help.is_some() && mistake.file.ends_with("x.toml"), "{mistake:?}");
        }
        drop(folder);
        let mistake = Source::read(&file, &[]).unwrap_err().records().remove(0);
        assert_eq!((mistake.line, mistake.column), (1, 1));
        assert!(mistake.message.starts_with("the config cannot be read: No such file"), "{mistake:?}");
    }
}
