//! From an expression to a program, by the `tcpdump` of the host.
//!
//! The library that compiles, libpcap, is not linked: it brings a dozen others with it, for an expression at the start
//! of some runs.

use std::io;
use std::process::{Command, Stdio};

use crate::pipeline::Problem;

/// Debian 12 has it in the first place; older ones where only root looks.
const PROGRAMS: [&str; 2] = ["tcpdump", "/usr/sbin/tcpdump"];

/// What `tcpdump -ddd` prints for an expression on Ethernet.
pub(super) fn expression(text: &str) -> Result<String, Problem> {
    let problem = |message: String| Problem::at("expression", message);
    if text.contains('\0') {
        return Err(problem("it has a zero byte".to_owned()).help("take it out"));
    }
    let run = |program: &&str| {
        let arguments = ["-ddd", "-y", "EN10MB", "-s", "65535", "--", text];
        Command::new(program).args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).output()
    };
    let found = PROGRAMS.iter().map(run).find(|done| {
        let missing = done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        !missing
    });
    match found {
        None => {
            let problem = problem("there is no `tcpdump` here to compile it".to_owned());
            Err(problem.help("install it (Debian: apt-get install tcpdump), or write `bytecode`"))
        }
        Some(Err(error)) => Err(problem(format!("`tcpdump` cannot be run: {error}"))),
        Some(Ok(done)) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Some(Ok(done)) => {
            let said = String::from_utf8_lossy(&done.stderr);
            let said = said.trim().trim_start_matches("tcpdump: ");
            Err(problem(format!("`{text}`: {said}")).help("pcap-filter(7) has the language, as in \"tcp port 80\""))
        }
    }
}
