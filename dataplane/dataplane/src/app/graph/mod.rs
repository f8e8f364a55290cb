//! `graph`: draws the pipeline.

mod diagram;
mod layout;
mod svg;
mod text;

use std::io::Write;
use std::path::Path;

use super::args::{self, GraphFormat as Format};
use super::console::{self, CommandError};
use dataplane_core::file::{LockedFile, Readers};
use dataplane_core::pipeline::{Files, Registry};
use diagram::Diagram;

pub(super) fn graph(registry: &Registry, args: &args::Graph) -> Result<(), CommandError> {
    let mut assembly = console::offline_assembly(&args.config, registry)?;
    let diagram = Diagram::of(&assembly);
    let text = match args.format.unwrap_or_else(|| format_of(args.output.as_deref())) {
        Format::Svg => svg::draw(&diagram),
        Format::Dot => text::dot(&diagram),
        Format::Mermaid => text::mermaid(&diagram),
    };
    match &args.output {
        None => console::print(&text),
        Some(file) => {
            assembly
                .files
                .write(file, "the drawing")
                .map_err(|why| CommandError::Failed(format!("{why}: {}", Files::HELP)))?;
            let written = LockedFile::output(file, Readers::All).and_then(|held| {
                held.empty()?;
                (&*held).write_all(text.as_bytes())
            });
            written.map_err(|error| CommandError::Failed(format!("{}: {error}", file.display())))
        }
    }
}

fn format_of(file: Option<&Path>) -> Format {
    match file.and_then(Path::extension).and_then(|end| end.to_str()) {
        Some("dot" | "gv") => Format::Dot,
        Some("mmd" | "mermaid") => Format::Mermaid,
        _ => Format::Svg,
    }
}
