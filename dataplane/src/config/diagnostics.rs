//! The mistakes of a config: collected all, shown each with its place.

use annotate_snippets::{AnnotationKind, Group, Level as Style, Renderer, Snippet, normalize_untrusted_str};
use serde::Serialize;

use super::source::{Source, Span};
use crate::error::{Error, Result};

/// How bad a mistake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The config cannot be run.
    Error,
    /// The config can be run, but likely not as it was meant.
    Warning,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// How bad it is.
    pub level: Level,
    /// Its place.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
}

impl Mistake {
    /// A mistake that keeps the config from being run.
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Self { level: Level::Error, span, message: message.into(), help: None }
    }

    /// A mistake that the config can be run with.
    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(span, message) }
    }

    /// The same with what would be right.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// One mistake, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// How bad it is.
    pub level: Level,
    /// The file, or the flag that the text was given with.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: Option<String>,
}

/// How many mistakes are told apart: nobody reads more.
const MOST: usize = 1000;

/// All mistakes of one config.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    source: Source,
    mistakes: Vec<Mistake>,
    /// The spans of tables of which something could not be read: what they lack may have been there.
    damaged: Vec<Span>,
}

impl Diagnostics {
    /// No mistakes yet.
    pub fn new(source: &Source) -> Self {
        Self { source: source.clone(), mistakes: Vec::new(), damaged: Vec::new() }
    }

    /// The config that they are about.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Adds a mistake. The same one is kept once.
    pub fn push(&mut self, mistake: Mistake) {
        let known = self.mistakes.len();
        if known > MOST || self.mistakes.contains(&mistake) {
            return;
        }
        self.mistakes.push(match known {
            MOST => {
                Mistake::error(mistake.span, format!("there are more than {MOST} mistakes; the others are not shown"))
            }
            _ => mistake,
        });
    }

    /// Whether one of them keeps the config from being run.
    pub fn has_errors(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.level == Level::Error)
    }

    /// The mistakes in the order of their places.
    pub fn mistakes(&self) -> Vec<&Mistake> {
        let mut mistakes: Vec<&Mistake> = self.mistakes.iter().collect();
        mistakes.sort_by_key(|mistake| (mistake.span.start, mistake.span.end));
        mistakes
    }

    /// The mistakes for programs, in the order of their places.
    pub fn records(&self) -> Vec<Record> {
        let record = |mistake: &Mistake| {
            let at = self.source.position(&mistake.span);
            Record {
                level: mistake.level,
                file: at.name,
                line: at.line,
                column: at.column,
                message: mistake.message.clone(),
                help: mistake.help.clone(),
            }
        };
        self.mistakes().into_iter().map(record).collect()
    }

    /// The mistakes for people: message, place, underlined excerpt and what would be right, each ended by an empty
    /// line. Colour is written as ANSI escape sequences, where it is asked for.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for mistake in self.mistakes() {
            text.push_str(&self.render_one(&renderer, mistake));
            text.push_str("\n\n");
        }
        text
    }

    fn render_one(&self, renderer: &Renderer, mistake: &Mistake) -> String {
        let excerpt = self.source.excerpt(&mistake.span);
        let style = match mistake.level {
            Level::Error => Style::ERROR,
            Level::Warning => Style::WARNING,
        };
        // Only the line in question goes to the renderer, which would read the whole file for each mistake.
        let snippet = Snippet::source(excerpt.line)
            .path(excerpt.position.name.as_str())
            .line_start(excerpt.position.line)
            .annotation(AnnotationKind::Primary.span(excerpt.span));
        let mut group: Group<'_> = style.primary_title(mistake.message.as_str()).element(snippet);
        if let Some(help) = &mistake.help {
            group = group.element(Style::HELP.message(normalize_untrusted_str(help)));
        }
        renderer.render(&[group])
    }

    /// The end of set-up for a config with mistakes: all of them, rendered without colour, as one error.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when one of the mistakes is an error.
    pub fn into_result(self) -> Result<()> {
        if self.has_errors() { Err(Error::Config(self.render(false).trim_end().to_owned())) } else { Ok(()) }
    }

    pub(super) fn damage(&mut self, table: Span) {
        self.damaged.push(table);
    }

    pub(super) fn is_damaged(&self, table: &Span) -> bool {
        self.damaged.contains(table)
    }
}
