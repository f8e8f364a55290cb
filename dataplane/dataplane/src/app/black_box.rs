//! `black-box`: writes the last bursts of each worker of a running program to a file.

use std::io::{self, IsTerminal, Write};

use super::console::{self, CommandError};
use super::explain::decode;
use super::{args, stats};
use dataplane_control::observe::{BlackBox, BlackBoxPart};
use dataplane_control::{Call, Error};
use dataplane_core::file::{LockedFile, Readers};

pub(super) fn black_box(args: &args::BlackBox) -> Result<(), CommandError> {
    let is_stdout = args.write.as_os_str() == "-";
    if is_stdout && args.target.json {
        let help = "name a file, or remove `--json`";
        return Err(CommandError::Usage(format!("standard output cannot have the file and JSON; help: {help}")));
    }
    if is_stdout && io::stdout().is_terminal() {
        let help = "redirect standard output, or name a file";
        return Err(CommandError::Usage(format!("a terminal cannot show a pcapng file; help: {help}")));
    }
    let example = "dataplane black-box -w FILE --process PROCESS";
    let mut client = stats::connect(args.target.socket.as_deref(), args.target.process, example)?;
    let mut file = Vec::new();
    loop {
        let answer = client.call(&Call::BlackBox(BlackBox { offset: file.len() as u64 }));
        let answer = answer.map_err(|error| match error {
            Error::Refused(_, refusal) => CommandError::Failed(refusal.to_string()),
            error => stats::failed(error, example),
        })?;
        let part: BlackBoxPart = answer.parse().map_err(|error| stats::failed(error, example))?;
        let bytes = decode(&part.bytes);
        file.extend_from_slice(&bytes);
        if bytes.is_empty() || file.len() as u64 >= part.size {
            break;
        }
    }
    let failed = |error: io::Error| console::not_written(args.write.display(), &error);
    if is_stdout {
        return io::stdout().write_all(&file).and_then(|()| io::stdout().flush()).map_err(failed);
    }
    let mut output = LockedFile::output(&args.write, Readers::Owner).map_err(failed)?;
    output.truncate().and_then(|()| output.write_all(&file)).map_err(failed)?;
    if args.target.json {
        let file_name = args.write.display().to_string();
        return console::print_json(&serde_json::json!({ "file": file_name, "bytes": file.len() }));
    }
    console::write_line(&format!("wrote {} bytes", file.len()));
    Ok(())
}
