//! The text of a config: a file, and the settings of the command line that override it.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// Byte offsets in a [`Source`]. The overrides continue where the file ends.
pub type Span = Range<usize>;

/// The largest config that is read: 1 MiB. Large tables belong in files of their own.
pub const MAX_SIZE: u64 = 1 << 20;

/// A config file and the overrides of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Source(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    parts: Vec<Part>,
}

/// One text with a name of its own.
#[derive(Debug)]
pub(super) struct Part {
    name: String,
    /// As many spaces as bytes come before this part, then the text: parsed as it is, every span of it is right.
    padded: String,
    start: usize,
    /// Where its lines end, in bytes of the text without the spaces.
    line_ends: Vec<usize>,
}

impl Part {
    fn new(name: String, padded: String, start: usize) -> Self {
        let bytes = padded.as_bytes()[start..].iter().enumerate();
        let line_ends = bytes.filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
        Self { name, padded, start, line_ends }
    }
}

/// A place for people: lines and columns start at 1, columns count characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, or the flag that the text was given with.
    pub name: String,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// The first line of a span, to be shown.
pub(super) struct Excerpt<'s> {
    pub(super) position: Position,
    pub(super) line: &'s str,
    /// Where the span is in the line, in bytes.
    pub(super) span: Span,
}

impl Source {
    /// Reads a config file. `overrides` are pairs of a dotted key and a TOML value, such as
    /// `("runtime.burst", "32")`; a port or stage goes by its name or its index: `port.wan.mtu`, `port.0.mtu`.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when the file cannot be read, [`Error::Config`] when it is larger than [`MAX_SIZE`] or not UTF-8.
    pub fn read(path: &Path, overrides: &[(String, String)]) -> Result<Self> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        // One byte past the limit tells a file that is too large, whatever its metadata says.
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(failed)?;
        let name = path.display();
        if bytes.len() as u64 > MAX_SIZE {
            return Err(Error::Config(format!(
                "{name}: a config may have 1 MiB and this one is larger: put large tables into files of their own"
            )));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
            Error::Config(format!("{name}:{line}: byte {at} is not UTF-8: a config is a text file in UTF-8"))
        })?;
        Ok(Self::new(path, text, overrides))
    }

    /// A config that is in memory. Relative paths in it start from the folder of `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>, overrides: &[(String, String)]) -> Self {
        let path = path.into();
        let mut parts = vec![Part::new(path.display().to_string(), text.into(), 0)];
        for (key, value) in overrides {
            // One byte between the parts, so that the end of one is not the start of the next.
            let start = parts.last().map_or(0, |part| part.padded.len()) + 1;
            let text = format!("{key}={value}");
            parts.push(Part::new(format!("--set {text}"), " ".repeat(start) + &text, start));
        }
        Self(Arc::new(Inner { path, parts }))
    }

    /// The file that the config was read from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// A path of the config as the process sees it: relative ones start from the folder of the config.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.0.path.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
    }

    /// Where a span starts.
    pub fn position(&self, span: &Span) -> Position {
        self.excerpt(span).position
    }

    pub(super) fn file(&self) -> &str {
        &self.0.parts[0].padded
    }

    pub(super) fn overrides(&self) -> impl Iterator<Item = (&str, Span)> {
        self.0.parts[1..].iter().map(|part| (part.padded.as_str(), part.start..part.padded.len()))
    }

    pub(super) fn excerpt(&self, span: &Span) -> Excerpt<'_> {
        let parts = &self.0.parts;
        let index = parts.partition_point(|part| part.start <= span.start).saturating_sub(1);
        let part = &parts[index];
        let (text, offset) = (&part.padded[part.start..], part.start);
        let boundary = |at: usize| {
            let at = at.saturating_sub(offset).min(text.len());
            (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
        };
        let start = boundary(span.start);
        let line = part.line_ends.partition_point(|&end| end < start);
        let line_start = if line == 0 { 0 } else { part.line_ends[line - 1] + 1 };
        let line_end = part.line_ends.get(line).copied().unwrap_or(text.len());
        let end = boundary(span.end).clamp(start, line_end);
        let position =
            Position { name: part.name.clone(), line: line + 1, column: text[line_start..start].chars().count() + 1 };
        let line = text[line_start..line_end].trim_end_matches('\r');
        let clip = |at: usize| (at - line_start).min(line.len());
        Excerpt { position, line, span: clip(start)..clip(end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_in_the_right_text() {
        let source = Source::new("a/b.toml", "x = 1\nä = \"é\" # y\n", &[("k".into(), "v".into())]);
        let at = |start: usize| {
            let position = source.position(&(start..start + 1));
            (position.name, position.line, position.column)
        };
        assert_eq!(at(0), ("a/b.toml".into(), 1, 1));
        assert_eq!(at(6), ("a/b.toml".into(), 2, 1));
        assert_eq!(at(9), ("a/b.toml".into(), 2, 3));
        let (_, span) = source.overrides().next().unwrap();
        assert_eq!(at(span.start + 2), ("--set k=v".into(), 1, 3));
        assert_eq!(source.position(&(usize::MAX - 1..usize::MAX)).name, "--set k=v");
        assert_eq!(source.resolve(Path::new("c.pcap")), Path::new("a/c.pcap"));
        assert_eq!(source.resolve(Path::new("/c.pcap")), Path::new("/c.pcap"));
    }

    #[test]
    fn what_cannot_be_a_config_is_refused() {
        let folder = std::env::temp_dir().join(format!("dataplane-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("x.toml");
        for (bytes, part) in [
            (vec![b'#'; MAX_SIZE as usize + 1], "1 MiB"),
            (b"a = 1\nb = \xff".to_vec(), "x.toml:2: byte 10 is not UTF-8"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let error = Source::read(&file, &[]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(Source::read(&file, &[]), Err(Error::File { .. })));
    }
}
