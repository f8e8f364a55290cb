//! `plan`, `apply`, `confirm`, `rollback`, `history`, `reload` and `save`: change a running program.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::console::{self, CommandError};
use super::{args, stats};
use crate::config::Source;
use crate::runtime::{digest_of, operations};
use dataplane_control::change::{Applied, ChangePlan, ChangeState, History, Operation};
use dataplane_control::rows::ConfigRow;
use dataplane_control::{
    Answer, Apply, Call, Client, Error, ErrorCode, MAX_REQUEST, NewConfig, Refusal, Show, printable,
};
use dataplane_core::file;
use dataplane_core::pipeline::Registry;

/// The maximum time that a command waits for a change. Large tables take long to build.
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) fn plan(registry: &Registry, args: &args::Plan) -> Result<(), CommandError> {
    let plan = match &args.configs[..] {
        [before, after] => {
            let config = |path: &PathBuf| args::Config { path: path.clone(), settings: Vec::new() };
            let [before, after] = [config(before), config(after)];
            let before = console::offline_assembly(&before, registry)?;
            let after = console::offline_assembly(&after, registry)?;
            ChangePlan {
                base: crate::runtime::digest(&before.source),
                digest: crate::runtime::digest(&after.source),
                operations: operations(&before.plan, &after.plan, registry, &BTreeMap::new()),
                warnings: Vec::new(),
            }
        }
        _ => {
            let path = args.configs.first().cloned().unwrap_or_default();
            let text = read(&path)?;
            let config = NewConfig { text, path: Some(path.display().to_string()) };
            let answer = ask(&args.target, &Call::Plan(config), "dataplane plan CONFIG --process PROCESS")?;
            parse(&answer)?
        }
    };
    if args.target.json {
        return console::print_json(&plan);
    }
    plan.warnings.iter().for_each(|warning| console::write_line(&warning.to_string()));
    let mut text = list(&plan.operations);
    text.push_str(&match plan.operations.iter().filter(|operation| !operation.hitless).count() {
        _ if plan.operations.is_empty() => "no difference\n".to_owned(),
        0 if args.configs.len() == 2 => "no operation needs a restart, as far as the configs show\n".to_owned(),
        0 => {
            let config = args.configs.first().map_or_else(|| "CONFIG".into(), |path| path.to_string_lossy());
            format!("hitless: `dataplane apply {config} --base {}` carries out the operations\n", plan.base)
        }
        count => format!("{count} of {} operations need a restart\n", plan.operations.len()),
    });
    console::print(&text)
}

pub(super) fn apply(args: &args::Apply) -> Result<(), CommandError> {
    let call = Call::Apply(Apply {
        text: read(&args.config)?,
        path: Some(args.config.display().to_string()),
        base: args.base.clone(),
        confirm_s: args.confirm.map(|time| time.as_secs().max(1)),
    });
    let answer = ask(&args.target, &call, "dataplane apply CONFIG --process PROCESS")?;
    print_applied(&answer, "applied", args.target.json)
}

pub(super) fn confirm(args: &args::Change) -> Result<(), CommandError> {
    let answer = ask(&args.target, &Call::Confirm {}, "dataplane confirm --process PROCESS")?;
    print_applied(&answer, "confirmed", args.target.json)
}

pub(super) fn rollback(args: &args::Change) -> Result<(), CommandError> {
    let answer = ask(&args.target, &Call::Rollback {}, "dataplane rollback --process PROCESS")?;
    print_applied(&answer, "rolled back", args.target.json)
}

pub(super) fn reload(args: &args::Change) -> Result<(), CommandError> {
    let answer =
        ask(&args.target, &Call::Reload {}, "dataplane reload --process PROCESS").map_err(|error| match error {
            // `Usage` ends the program with exit status 2, which means a wrong argument. `reload` has no config as an
            // argument, so report a wrong config as `Failed`.
            CommandError::Usage(message) => CommandError::Failed(message),
            error => error,
        })?;
    print_applied(&answer, "reloaded", args.target.json)
}

pub(super) fn history(args: &args::Change) -> Result<(), CommandError> {
    let answer = ask(&args.target, &Call::History {}, "dataplane history --process PROCESS")?;
    let history: History = parse(&answer)?;
    if args.target.json {
        return console::print_json(&history);
    }
    let mut text =
        format!("{:>6}  {:<20}  {:<16}  {:<8}  {:>10}  state\n", "change", "time", "config", "cause", "operations");
    for row in history.changes {
        let state = match row.state {
            ChangeState::InForce => "in force",
            ChangeState::Unconfirmed => "unconfirmed",
            ChangeState::Replaced => "replaced",
            ChangeState::Reverted => "reverted",
        };
        let (time, digest, cause) = (utc(row.time_s), printable(&row.digest), printable(&row.cause));
        text += &format!("{:>6}  {time:<20}  {digest:<16}  {cause:<8}  {:>10}  {state}\n", row.number, row.operations);
    }
    console::print(&text)
}

pub(super) fn save(args: &args::Save) -> Result<(), CommandError> {
    let example = "dataplane save --process PROCESS";
    let mut client = stats::connect(args.target.socket.as_deref(), args.target.process, example)?;
    let row = config_row(&mut client, example)?;
    let file = match (&args.file, &row.file) {
        (Some(file), _) => file.clone(),
        (None, Some(file)) => PathBuf::from(file),
        (None, None) => {
            let help = "help: name a file: `dataplane save FILE`";
            return Err(CommandError::Usage(format!("the config of the program came from standard input; {help}")));
        }
    };
    check_save(&mut client, &row, &file, args.force).map_err(CommandError::Failed)?;
    let synced = file::replace(&file, row.text.as_bytes()).map_err(|error| {
        let help = match error.kind() {
            ErrorKind::NotFound => "name a file in a folder that exists",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "name a file in a folder in which this user may create files"
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room on the disk, or name a file on another disk"
            }
            _ => "name another file",
        };
        let error = error.to_string();
        // Some errors have a help of their own, for example if the file belongs to another user.
        let (reason, help) = error.split_once("; help: ").unwrap_or((&error, help));
        CommandError::Failed(format!("cannot save {}: {reason}; no file was changed; help: {help}", file.display()))
    })?;
    if let Err(error) = synced {
        console::write_line(&format!(
            "warning: {} is saved, but a power failure may undo the save, because the folder cannot be synced: {error}",
            file.display()
        ));
    }
    for setting in &row.settings {
        console::write_line(&format!("not in the file: --set {}", printable(setting)));
    }
    match args.target.json {
        true => console::print_json(&serde_json::json!({ "file": file.display().to_string() })),
        false => console::print(&format!("saved {}\n", printable(&file.display().to_string()))),
    }
}

/// Returns the config that the program uses.
pub(super) fn config_row(client: &mut Client, example: &str) -> Result<ConfigRow, CommandError> {
    let show = Show { what: "config".to_owned(), ..Show::default() };
    let page = client.show(show).next().transpose().map_err(|error| stats::failed(error, example))?;
    let row = page.as_ref().and_then(|page| page.rows.first());
    let row = row.ok_or_else(|| CommandError::Failed("the program returned no config".to_owned()))?;
    serde_json::from_str(row.get()).map_err(|error| {
        CommandError::Failed(format!(
            "cannot parse the answer: {error}; help: the program may have another version, so use the `dataplane` of the \
             same version"
        ))
    })
}

/// Checks that a save loses nothing: the config must be confirmed, and the config file must not have changed since the
/// program read the file. Otherwise, returns the reason why the save would lose something.
fn check_save(client: &mut Client, row: &ConfigRow, file: &Path, force: bool) -> Result<(), String> {
    if force {
        return Ok(());
    }
    if row.unconfirmed {
        let help = "help: run `dataplane confirm` first, or save with --force";
        return Err(format!("the config waits for its confirmation, and may revert; {help}"));
    }
    let is_same = |known: PathBuf| fs::canonicalize(file).is_ok_and(|file| file == known);
    let is_config_file = row.file.as_ref().is_some_and(|known| fs::canonicalize(known).is_ok_and(is_same));
    let Some(on_disk) = is_config_file.then(|| fs::read_to_string(file).ok()).flatten() else { return Ok(()) };
    let history = client.call(&Call::History {}).and_then(|answer| answer.parse::<History>());
    let history = history.map_err(|error| error.to_string())?;
    let digest = digest_of(&on_disk, row.settings.iter().map(String::as_str));
    match on_disk == row.text || history.changes.iter().any(|change| change.digest == digest) {
        true => Ok(()),
        false => {
            let help = "help: apply the file with `dataplane reload`, save to another file, or save with --force";
            Err(format!(
                "{} has changed since the program read the file; {help}",
                printable(&file.display().to_string())
            ))
        }
    }
}

/// Reads the text of a config.
fn read(path: &Path) -> Result<String, CommandError> {
    let source = Source::read(path, &[]).map_err(|mistake| {
        console::show(&mistake);
        console::refusal(&mistake)
    })?;
    let text = source.text().to_owned();
    // Check the length as JSON, because JSON needs two bytes for a newline. The path needs at most 6 bytes in JSON for
    // each of its bytes, and the other fields of a request need at most 512 bytes.
    let others = 512 + 6 * path.as_os_str().len();
    if serde_json::to_string(&text).is_ok_and(|json| json.len() + others > MAX_REQUEST) {
        let help = "help: move large tables to separate files";
        return Err(CommandError::Usage(format!("{} is too large for a request; {help}", path.display())));
    }
    Ok(text)
}

/// Sends a request and waits for the answer. If the program refuses the request, prints the mistakes and operations of
/// the refusal. `example` is a command line for the error message.
fn ask(target: &args::Target, call: &Call, example: &str) -> Result<Answer, CommandError> {
    let mut client: Client = stats::connect(target.socket.as_deref(), target.process, example)?;
    client.set_timeout(CHANGE_TIMEOUT).map_err(|error| stats::failed(error, example))?;
    client.call(call).map_err(|error| match error {
        Error::Refused(_, refusal) => refused(&refusal, target.json),
        error => stats::failed(error, example),
    })
}

pub(super) fn refused(refusal: &Refusal, json: bool) -> CommandError {
    if json {
        // The JSON object contains the message, so print no other message.
        return match (console::print_json(refusal), refusal.code) {
            (Err(error), _) => error,
            (Ok(()), ErrorCode::WrongConfig) => CommandError::Usage(String::new()),
            (Ok(()), _) => CommandError::Failed(String::new()),
        };
    }
    refusal.mistakes.iter().for_each(|mistake| console::write_line(&printable(&mistake.to_string())));
    refusal.operations.iter().for_each(|operation| console::write_line(&printable(&operation.to_string())));
    let message = format!("{}; help: {}", printable(&refusal.message), printable(&refusal.help));
    match refusal.code {
        ErrorCode::WrongConfig => CommandError::Usage(message),
        _ => CommandError::Failed(message),
    }
}

fn parse<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<T, CommandError> {
    answer.parse().map_err(|error| {
        CommandError::Failed(format!(
            "{error}; help: the program may have another version, so use the `dataplane` of the same version"
        ))
    })
}

/// Prints the result of a change. `done` describes the change.
pub(super) fn print_applied(answer: &Answer, done: &str, json: bool) -> Result<(), CommandError> {
    let applied: Applied = parse(answer)?;
    if json {
        return console::print_json(&applied);
    }
    applied.warnings.iter().for_each(|warning| console::write_line(&warning.to_string()));
    let mut text = list(&applied.operations);
    text += &format!("{done}: change {}, config {}\n", applied.number, applied.digest);
    if let Some(seconds) = applied.confirm_s {
        text += &format!("reverts in {seconds} s unless you run `dataplane confirm`\n");
    }
    console::print(&text)
}

fn list(operations: &[Operation]) -> String {
    operations.iter().map(|operation| format!("{operation}\n")).collect()
}

/// Returns a time as text, such as `2026-01-31T23:59:59Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // The algorithm is from "chrono-Compatible Low-Level Date Algorithms" by Howard Hinnant. Its years start in March.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
