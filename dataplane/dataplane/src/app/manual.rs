//! `manual` and `completions`: generate the manual pages and the completion scripts of shells from the definition of the
//! command line. Packages contain both.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::args;
use super::console::{self, CommandError};

/// Prints the completion script of a shell for a command line. `name` is the name of the program.
pub(super) fn completions(mut definition: Command, name: &str, args: &args::Completions) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, name, &mut script);
    console::print(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for the program and for each of its commands, such as `dataplane-run.1`. `name` is the name of
/// the program.
pub(super) fn manual(definition: Command, name: &str, args: &args::Manual) -> Result<(), CommandError> {
    let mut command = definition.disable_help_subcommand(true).display_name(name).bin_name(name);
    command.build();
    let written = fs::create_dir_all(&args.output).and_then(|()| pages(&command, &args.output));
    written.map_err(|error| CommandError::Failed(format!("{}: {error}", args.output.display())))
}

/// Writes the page of a command and the pages of its subcommands. The pages contain no date, so the same program always
/// writes the same pages.
fn pages(command: &Command, folder: &Path) -> io::Result<()> {
    let source = format!("dataplane {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(source).manual("Dataplane").generate_to(folder)?;
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    subcommands.into_iter().try_for_each(|command| pages(command, folder))
}
