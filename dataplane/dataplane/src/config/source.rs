//! The text of a config: a file, and the command-line settings that override it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Byte offsets in a [`Source`]. The offsets of the overrides follow the offsets of the file.
pub type Span = Range<usize>;

/// A config file and its overrides. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Source(Arc<SourceInner>);

#[derive(Debug)]
struct SourceInner {
    path: PathBuf,
    /// The folder from which relative paths start.
    folder: PathBuf,
    parts: Vec<Part>,
}

/// The text of the file, or of one override.
#[derive(Debug)]
pub(super) struct Part {
    name: String,
    /// The text, after `start` spaces. Because of this padding, the parser returns spans that are offsets in the whole
    /// source.
    padded: String,
    start: usize,
    /// The offsets of the line ends, in bytes, relative to the end of the padding.
    line_ends: Vec<usize>,
}

impl Part {
    fn new(name: String, padded: String, start: usize) -> Self {
        let bytes = padded.as_bytes()[start..].iter().enumerate();
        let line_ends = bytes.filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
        Self { name, padded, start, line_ends }
    }
}

/// A position for messages. Lines and columns start at 1, and columns count characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The path of the file, or an override on the command line, such as `--set runtime.burst=32`.
    pub name: String,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// The first line of a span, for display.
pub(super) struct Excerpt<'s> {
    pub(super) position: Position,
    pub(super) line: &'s str,
    /// The span within the line, in bytes.
    pub(super) span: Span,
}

impl Source {
    /// Creates a config from text. Relative paths in the text start from the folder of `path`, which need not exist.
    /// `overrides` are pairs of a dotted key and a TOML value, such as `("runtime.burst", "32")`. A port or stage is
    /// identified by its name or its index: `port.wan.mtu`, `port.0.mtu`.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>, overrides: &[(String, String)]) -> Self {
        let path = path.into();
        let mut parts = vec![Part::new(path.display().to_string(), text.into(), 0)];
        for (key, value) in overrides {
            // Leave one byte between the parts, so that the end of a part is not also the start of the next part.
            let start = parts.last().map_or(0, |part| part.padded.len()) + 1;
            let text = format!("{key}={value}");
            parts.push(Part::new(format!("--set {text}"), " ".repeat(start) + &text, start));
        }
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        Self(Arc::new(SourceInner { path, folder, parts }))
    }

    /// Returns the text of the config file, without the overrides.
    pub fn text(&self) -> &str {
        self.0.parts.first().map_or("", |part| part.padded.as_str())
    }

    /// Returns the overrides, as `KEY=VALUE`.
    pub fn overrides(&self) -> impl Iterator<Item = &str> {
        self.0.parts.iter().skip(1).filter_map(|part| part.padded.get(part.start..))
    }

    /// Returns the path of the config file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Resolves a path in the config. Relative paths start from the folder of the config.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.0.folder.join(path)
    }

    /// Returns the folder from which relative paths in the config start.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns a config with another file, and with the overrides and the folder of this config. `path` is the name of
    /// the file in messages.
    #[must_use]
    pub fn with_file(&self, path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        let overrides: Vec<(String, String)> = self
            .overrides()
            .filter_map(|setting| setting.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let Self(inner) = Self::new(path, text, &overrides);
        let folder = self.folder().to_owned();
        Self(match Arc::try_unwrap(inner) {
            Ok(inner) => Arc::new(SourceInner { folder, ..inner }),
            Err(inner) => inner,
        })
    }

    /// Returns the start position of a span.
    pub fn position(&self, span: &Span) -> Position {
        self.excerpt(span).position
    }

    pub(super) fn file(&self) -> &str {
        &self.0.parts[0].padded
    }

    pub(super) fn override_spans(&self) -> impl Iterator<Item = (&str, Span)> {
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
    fn position_counts_lines_and_characters_from_the_start_of_the_file_or_override() {
        let source = Source::new("a/b.toml", "x = 1\nä = \"é\" # y\n", &[("k".into(), "v".into())]);
        let at = |start: usize| {
            let position = source.position(&(start..start + 1));
            (position.name, position.line, position.column)
        };
        assert_eq!(at(0), ("a/b.toml".into(), 1, 1));
        assert_eq!(at(6), ("a/b.toml".into(), 2, 1));
        assert_eq!(at(9), ("a/b.toml".into(), 2, 3));
        let (_, span) = source.override_spans().next().unwrap();
        assert_eq!(at(span.start + 2), ("--set k=v".into(), 1, 3));
        assert_eq!(source.position(&(usize::MAX - 1..usize::MAX)).name, "--set k=v");
        assert_eq!(source.resolve(Path::new("c.pcap")), Path::new("a/c.pcap"));
        assert_eq!(source.resolve(Path::new("/c.pcap")), Path::new("/c.pcap"));
    }
}
