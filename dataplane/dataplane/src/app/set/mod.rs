//! `set`: changes one route, rule or limit of a running program.

mod edit;

use std::time::Duration;

use ipnet::IpNet;
use toml_edit::{InlineTable, Value};

use super::args::{SetAcl, SetChange, SetLimit, SetOptions, SetRoute};
use super::change::{self, CHANGE_TIMEOUT};
use super::console::CommandError;
use super::{args, stats};
use crate::runtime::digest_of;
use dataplane_control::{Apply, Call, Client, Error, ErrorCode};
use edit::{Edit, RemovedEntry};

/// The maximum number of attempts. The command tries again if another client changes the config at the same time.
const ATTEMPTS: usize = 3;

pub(super) fn set(args: &args::Set) -> Result<(), CommandError> {
    let (kind, edit, options) = match &args.change {
        SetChange::Route(route) => ("route", of_route(route), route.options()),
        SetChange::Acl(acl) => ("acl", of_acl(acl), acl.options()),
        SetChange::Limit(limit) => ("limit", of_limit(limit), &limit.options),
    };
    let edit = edit.map_err(CommandError::Usage)?;
    let example = format!("dataplane set {kind} ... --process PROCESS");
    let target = &options.target;
    let mut client = stats::connect(target.socket.as_deref(), target.process, &example)?;
    client.set_timeout(CHANGE_TIMEOUT).map_err(|error| stats::failed(error, &example))?;
    for attempt in 1.. {
        match apply(&mut client, kind, &edit, options, &example)? {
            Err(Error::Refused(_, refusal)) if refusal.code == ErrorCode::OtherBase && attempt < ATTEMPTS => {}
            Err(Error::Refused(_, refusal)) => return Err(change::refused(&refusal, target.json)),
            Err(error) => return Err(stats::failed(error, &example)),
            Ok(answer) => return change::print_applied(&answer, "applied", target.json),
        }
    }
    Ok(())
}

/// Reads the config of the program, edits its text, and applies the new text.
fn apply(
    client: &mut Client,
    kind: &str,
    edit: &Edit,
    options: &SetOptions,
    example: &str,
) -> Result<Result<dataplane_control::Answer, Error>, CommandError> {
    let row = change::config_row(client, example)?;
    let settings = || row.settings.iter().map(String::as_str);
    let text = edit::edit(&row.text, settings(), kind, options.stage.as_deref(), edit).map_err(CommandError::Usage)?;
    let base = Some(digest_of(&row.text, settings()));
    let confirm_s = options.confirm.map(|time: Duration| time.as_secs().max(1));
    Ok(client.call(&Call::Apply(Apply { text, path: Some(row.path), base, confirm_s })))
}

fn of_route(route: &SetRoute) -> Result<Edit, String> {
    let prefix = |text: &str| {
        let help = "help: write a prefix such as 10.0.0.0/8";
        text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| format!("`{text}` is not a prefix; {help}"))
    };
    match route {
        SetRoute::Add { prefix: text, path, .. } => {
            let mut entry = InlineTable::new();
            entry.insert("prefix", Value::from(prefix(text)?.to_string()));
            let path = edit::path(path)?;
            if path.is_empty() {
                return Err(
                    "the route has no path; help: write `via ADDRESS dev PORT`, `dev PORT` or `drop`".to_owned()
                );
            }
            entry.extend(path);
            Ok(Edit::Add { list: "table", entry, before: None })
        }
        SetRoute::Del { prefix: text, path, .. } => {
            let entry = RemovedEntry::Route { prefix: prefix(text)?, path: edit::path(path)? };
            Ok(Edit::Remove { list: "table", what: text.clone(), entry })
        }
    }
}

fn of_acl(acl: &SetAcl) -> Result<Edit, String> {
    match acl {
        SetAcl::Add { rule, before, .. } => {
            Ok(Edit::Add { list: "rules", entry: edit::rule(rule)?, before: before.clone() })
        }
        SetAcl::Del { rule, .. } => {
            let rule = rule.join(" ");
            Ok(Edit::Remove { list: "rules", what: rule.clone(), entry: RemovedEntry::Rule(rule) })
        }
        SetAcl::Default { action, .. } => Ok(Edit::Set(vec![("default".to_owned(), Value::from(action.as_str()))])),
    }
}

fn of_limit(limit: &SetLimit) -> Result<Edit, String> {
    let pairs = limit.values.chunks(2).map(|pair| match pair {
        [key, text] => Ok((key.clone(), edit::value(text))),
        _ => Err(format!("the key `{}` has no value; help: write `KEY VALUE`, such as `burst 500`", pair.concat())),
    });
    Ok(Edit::Set(pairs.collect::<Result<_, String>>()?))
}
