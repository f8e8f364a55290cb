//! `graph`: draws the pipeline.

mod diagram;
mod layout;
mod svg;
mod text;

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::{fs, process};

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
                .resources
                .files
                .write(file, "the drawing")
                .map_err(|why| CommandError::Failed(format!("{why}: {}", Files::HELP)))?;
            write(file, &text).map_err(|error| CommandError::Failed(format!("{}: {error}", file.display())))
        }
    }
}

/// Writes a file. If writing fails, for example because the disk is full, an existing file keeps its old content.
fn write(file: &Path, text: &str) -> io::Result<()> {
    // The lock refuses a file that a run is writing to, and accepts only regular files and character devices.
    let held = LockedFile::output(file, Readers::All)?;
    if !held.metadata()?.is_file() {
        return (&*held).write_all(text.as_bytes());
    }
    // Follow symbolic links, so that the rename replaces the file and not the link.
    let file = fs::canonicalize(file)?;
    let new = file.with_file_name(format!(".dataplane-{}", process::id()));
    let renamed = fs::File::create_new(&new).and_then(|mut created| {
        created.set_permissions(held.metadata()?.permissions())?;
        created.write_all(text.as_bytes())?;
        created.sync_all()?;
        fs::rename(&new, &file)
    });
    renamed.inspect_err(|error| {
        if error.kind() != ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&new);
        }
    })
}

fn format_of(file: Option<&Path>) -> Format {
    match file.and_then(Path::extension).and_then(|end| end.to_str()) {
        Some("dot" | "gv") => Format::Dot,
        Some("mmd" | "mermaid") => Format::Mermaid,
        _ => Format::Svg,
    }
}
