//! The requests and answers.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::change::{ConfigMistake, Operation};
use crate::observe::{BlackBox, Capture, TracePackets};
use crate::upgrade::TakeOver;

/// The version of the protocol. A change that an old client or an old program cannot handle increments the version.
pub const VERSION: u32 = 1;

/// The maximum length of a request, in bytes, with the newline at its end.
pub const MAX_REQUEST: usize = 2 << 20;

/// The maximum length of the name of a config in a request ([`Apply::path`]), in bytes.
pub const MAX_PATH: usize = 4096;

/// The maximum time that the client and the program wait for each other.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A request: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Request {
    /// The version of the protocol that the client uses: 1.
    pub version: u32,
    /// A number that the client chooses. The answer repeats the number.
    pub id: u64,
    /// The name and the parameters of the request.
    #[serde(flatten)]
    pub call: Call,
}

/// The name of a request, in the field `request`, and the parameters of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Describes the program and the supported versions and requests. The program answers `hello` whatever the version
    /// of the request is.
    Hello {},
    /// Returns the statistics of the run. The part `recent` covers the time since the previous answer on this
    /// connection.
    Stats {},
    /// Returns some rows of a list. The program has the lists in [`LISTS`], and the lists of its stages.
    Show(Show),
    /// Returns the row of a list that applies to a key, such as the route for an address.
    Get(Get),
    /// Returns the level of the log messages, and sets another level if the request has a level.
    Log(Log),
    /// Returns the operations that would change the running program to another config. Changes nothing.
    Plan(NewConfig),
    /// Changes the running program to another config. Either all operations are carried out, or none.
    Apply(Apply),
    /// Confirms the unconfirmed change, so that the change does not revert.
    Confirm {},
    /// Reverts the unconfirmed change. If there is no unconfirmed change, changes the program to the config before the
    /// last change.
    Rollback {},
    /// Returns the history: the start of the program and the last 31 changes.
    History {},
    /// Reads the config file of the run and the files that the config names, and changes the program to this config.
    Reload {},
    /// Starts to capture packets for this connection.
    Capture(Capture),
    /// Starts to trace packets for this connection.
    Trace(TracePackets),
    /// Returns the packets of the capture or trace of this connection since the last answer. Does not wait for packets.
    Packets {},
    /// Returns a part of a file with the last bursts of all workers.
    BlackBox(BlackBox),
    /// Starts an upgrade. The program refuses changes until the connection closes. See [`crate::upgrade`].
    Upgrade {},
    /// Returns the config to the new program of an upgrade.
    TakeOver(TakeOver),
    /// Hands ports and state over to the new program of an upgrade.
    HandOver {},
}

/// The parameters of [`Call::Show`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// The name of the list, such as `ports` or `routes`.
    pub what: String,
    /// The stage whose rows are returned. Default: all stages that have the list, one stage after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The maximum number of rows: 1 to 1000. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// The position at which the listing continues: [`Page::next`] of the previous page. Default: the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The parameters of [`Call::Get`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Get {
    /// The name of the list, such as `routes`.
    pub what: String,
    /// The key, such as an IP address.
    pub key: String,
    /// The stage. Default: the first stage that has this list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

/// The parameters of [`Call::Log`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The new level: `off`, `error`, `warn`, `info`, `debug` or `trace`. Default: the level does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// The result of [`Call::Log`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLevel {
    /// The level of the log messages, or the filter if the environment variable `RUST_LOG` has set a filter.
    pub level: String,
    /// The level before the request.
    pub previous: String,
}

/// The parameters of [`Call::Plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewConfig {
    /// The text of the config. Relative paths start from the folder of the config with which the program was started.
    pub text: String,
    /// The name of the config in messages, at most 4,096 bytes. Default: `new config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The parameters of [`Call::Apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The text of the config. See [`NewConfig::text`].
    pub text: String,
    /// The name of the config in messages, at most 4,096 bytes. Default: `new config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The digest of the config that the change starts from: [`ChangePlan::base`](crate::change::ChangePlan::base). If
    /// the program uses another config, the program refuses the change. Default: any config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The time in seconds after which the change reverts, unless a client sends [`Call::Confirm`]: 1 to 86,400.
    /// Default: the change does not revert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_s: Option<u64>,
}

/// The result of [`Call::Show`]: consecutive rows of one list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Page {
    /// The stage that has the list. `null` for the lists in [`LISTS`].
    pub stage: Option<String>,
    /// The rows. The fields of a row depend on the list.
    #[schemars(with = "Vec<serde_json::Map<String, Value>>")]
    pub rows: Vec<Box<RawValue>>,
    /// The cursor of the next page, or `null` after the last row.
    pub next: Option<String>,
}

/// The result of [`Call::Get`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GetResult {
    /// The stage that has the list.
    pub stage: String,
    /// The row, or `null` if no row applies to the key.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub row: Option<Box<RawValue>>,
}

/// The names of the lists that every program has.
pub const LISTS: [&str; 6] = ["config", "links", "memory", "ports", "stages", "workers"];

/// The default number of rows of a page.
pub const DEFAULT_LIMIT: u32 = 100;

/// The maximum number of rows of a page.
pub const MAX_LIMIT: u32 = 1000;

impl Call {
    /// The names of the requests.
    pub const NAMES: [&str; 18] = [
        "hello",
        "stats",
        "show",
        "get",
        "log",
        "plan",
        "apply",
        "confirm",
        "rollback",
        "history",
        "reload",
        "capture",
        "trace",
        "packets",
        "black_box",
        "upgrade",
        "take_over",
        "hand_over",
    ];

    /// Returns the name of the config in the request.
    fn path(&self) -> Option<&str> {
        match self {
            Self::Plan(config) => config.path.as_deref(),
            Self::Apply(apply) => apply.path.as_deref(),
            _ => None,
        }
    }
}

/// The result of [`Call::Hello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// The version of the program.
    pub version: String,
    /// The process id of the program.
    pub pid: u32,
    /// The path of the config.
    pub config: String,
    /// The time since the program started to listen on the socket, in seconds.
    pub running_s: f64,
    /// The versions of the protocol that the program supports.
    pub protocol_versions: Vec<u32>,
    /// The names of the requests that the program supports.
    pub requests: Vec<String>,
    /// The maximum length of a request, in bytes.
    pub max_request: usize,
}

/// An answer: one line of JSON. An answer has either `result` or `error`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// The number of the request. `null` if the program cannot read the number, or refuses the whole connection.
    pub id: Option<u64>,
    /// The result. The type depends on the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub result: Option<Box<RawValue>>,
    /// The reason why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

/// The reason why the program refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// What is wrong.
    pub message: String,
    /// How to fix the request.
    pub help: String,
    /// The mistakes of a config.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub mistakes: Box<[ConfigMistake]>,
    /// The operations of a change that needs a restart.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub operations: Box<[Operation]>,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is not one JSON object.
    BadJson,
    /// A field is missing, unknown, or has a wrong value.
    BadField,
    /// The program does not support this version of the protocol.
    UnknownVersion,
    /// The program does not support this request.
    UnknownRequest,
    /// There is no list, stage, output or port with this name.
    NotFound,
    /// The request is longer than [`MAX_REQUEST`]. The program closes the connection.
    TooLong,
    /// Too many clients are connected. The program closes the connection.
    TooManyClients,
    /// The config has mistakes.
    WrongConfig,
    /// Another change is in progress or waits for its confirmation, or another client captures or traces packets.
    Busy,
    /// The program uses another config than the config with the digest in [`Apply::base`].
    OtherBase,
    /// The change needs a restart.
    NeedsRestart,
    /// The program cannot carry out the request. The program uses the same config as before.
    Failed,
    /// A code of a later version.
    #[serde(other)]
    Other,
}

fn is_empty<T>(list: &[T]) -> bool {
    list.is_empty()
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(code: ErrorCode, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: help.into(), mistakes: Box::default(), operations: Box::default() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; help: {}", self.message, self.help)
    }
}

/// A request that the program cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedRequest {
    /// The number of the request, if the program can read the number.
    pub id: Option<u64>,
    /// What is wrong.
    pub error: Refusal,
}

impl Request {
    /// Parses a line.
    ///
    /// # Errors
    /// Fails if the line is not one JSON object, if the version or the request is unknown, or if a field is missing,
    /// unknown or wrong.
    pub fn parse(line: &[u8]) -> Result<Self, MalformedRequest> {
        let example = "send one object per line, such as {\"version\":1,\"id\":1,\"request\":\"hello\"}";
        let not_json =
            |why: String| MalformedRequest { id: None, error: Refusal::new(ErrorCode::BadJson, why, example) };
        let mut fields = match serde_json::from_slice(line) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Err(not_json("the request is not a JSON object".to_owned())),
            Err(error) => return Err(not_json(format!("the request is not valid JSON: {error}"))),
        };
        let id = match fields.remove("id") {
            Some(Value::Number(id)) => id.as_u64(),
            _ => None,
        };
        let failed = |code, message, help| Err(MalformedRequest { id, error: Refusal::new(code, message, help) });
        let bad_field = |message: String| failed(ErrorCode::BadField, message, example.to_owned());
        let Some(id) = id else {
            return bad_field("the field `id` is missing, or is not a whole number from 0 to 2^64 - 1".to_owned());
        };
        let version = match fields.remove("version") {
            Some(Value::Number(version)) if version.is_u64() => version.as_u64().unwrap_or_default(),
            _ => return bad_field("the field `version` is missing, or is not a whole number".to_owned()),
        };
        let Some(Value::String(name)) = fields.get("request") else {
            return bad_field("the field `request` is missing, or is not a string".to_owned());
        };
        let name = name.clone();
        let is_known = Call::NAMES.contains(&name.as_str());
        if version != u64::from(VERSION) && name != "hello" {
            let message = format!("the program does not support version {version} of the protocol");
            let help = format!("use version {VERSION}; the request `hello` returns the supported versions");
            return failed(ErrorCode::UnknownVersion, message, help);
        }
        if !is_known {
            let message = format!("unknown request `{}`", name.escape_debug());
            return failed(ErrorCode::UnknownRequest, message, format!("the requests are {}", Call::NAMES.join(", ")));
        }
        match Call::deserialize(Value::Object(fields)) {
            Ok(call) if call.path().is_some_and(|path| path.len() > MAX_PATH) => failed(
                ErrorCode::BadField,
                format!("request `{name}`: the field `path` has more than {MAX_PATH} bytes"),
                "send a shorter path".to_owned(),
            ),
            Ok(call) => Ok(Self { version: VERSION, id, call }),
            Err(error) => failed(
                ErrorCode::BadField,
                // serde does not know the fields that this function has removed.
                format!("request `{name}`: {error}").replace(
                    ", there are no fields",
                    "; the request has no fields except `version`, `id` and `request`",
                ),
                "`dataplane schema control` prints the fields of each request".to_owned(),
            ),
        }
    }
}

impl Response {
    /// Creates an answer with a result.
    ///
    /// # Errors
    /// Fails if the result cannot be represented as JSON.
    pub fn result(id: u64, result: &impl Serialize) -> serde_json::Result<Self> {
        Ok(Self { id: Some(id), result: Some(serde_json::value::to_raw_value(result)?), error: None })
    }

    /// Creates an answer with an error.
    pub fn error(id: Option<u64>, error: Refusal) -> Self {
        Self { id, result: None, error: Some(error) }
    }
}

impl From<MalformedRequest> for Response {
    fn from(MalformedRequest { id, error }: MalformedRequest) -> Self {
        Self::error(id, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (Option<u64>, ErrorCode, String) {
        let MalformedRequest { id, error } = Request::parse(line.as_bytes()).unwrap_err();
        assert!(!error.help.is_empty());
        (id, error.code, error.message)
    }

    #[test]
    fn every_request_is_parsed_from_its_own_json() {
        let show = Show { what: "routes".to_owned(), limit: Some(7), ..Show::default() };
        let get = Get { what: "routes".to_owned(), key: "::1".to_owned(), stage: Some("r".to_owned()) };
        for call in [Call::Hello {}, Call::Stats {}, Call::Show(show), Call::Get(get)] {
            let request = Request { version: VERSION, id: u64::MAX, call };
            let line = serde_json::to_string(&request).unwrap();
            assert_eq!(Request::parse(line.as_bytes()), Ok(request), "{line}");
        }
    }

    #[test]
    fn names_are_the_names_of_the_variants() {
        let unknown = serde_json::from_str::<Call>("{\"request\": \"fly\"}").unwrap_err().to_string();
        for name in Call::NAMES {
            assert!(unknown.contains(&format!("`{name}`")), "{unknown}");
        }
        assert_eq!(unknown.matches('`').count(), 2 * (Call::NAMES.len() + 1), "{unknown}");
    }

    #[test]
    fn error_names_the_mistake_in_a_request() {
        let path = "x".repeat(MAX_PATH + 1);
        let long_path = format!("{{\"version\":1,\"id\":3,\"request\":\"plan\",\"text\":\"\",\"path\":\"{path}\"}}");
        for (line, id, code, part) in [
            ("", None, ErrorCode::BadJson, "not valid JSON: EOF"),
            ("stats", None, ErrorCode::BadJson, "not valid JSON"),
            ("[1]", None, ErrorCode::BadJson, "not a JSON object"),
            ("{\"version\":1,\"request\":\"stats\"}", None, ErrorCode::BadField, "`id`"),
            ("{\"version\":1,\"id\":-1,\"request\":\"stats\"}", None, ErrorCode::BadField, "`id`"),
            ("{\"id\":3,\"request\":\"stats\"}", Some(3), ErrorCode::BadField, "`version`"),
            ("{\"version\":1,\"id\":3}", Some(3), ErrorCode::BadField, "`request`"),
            ("{\"version\":2,\"id\":3,\"request\":\"stats\"}", Some(3), ErrorCode::UnknownVersion, "version 2"),
            ("{\"version\":1,\"id\":3,\"request\":\"fly\\u001b\"}", Some(3), ErrorCode::UnknownRequest, "`fly\\u{1b}`"),
            (
                "{\"version\":1,\"id\":3,\"request\":\"stats\",\"a\":1}",
                Some(3),
                ErrorCode::BadField,
                "unknown field `a`; the request has no fields except `version`, `id` and `request`",
            ),
            ("{\"version\":1,\"id\":3,\"request\":\"show\"}", Some(3), ErrorCode::BadField, "field `what`"),
            (
                "{\"version\":1,\"id\":3,\"request\":\"get\",\"what\":\"a\",\"key\":4}",
                Some(3),
                ErrorCode::BadField,
                "integer `4`",
            ),
            (&long_path, Some(3), ErrorCode::BadField, "the field `path` has more than 4096 bytes"),
        ] {
            let (found, kind, message) = refused(line);
            assert_eq!((found, kind), (id, code), "{line}: {message}");
            assert!(message.contains(part), "{line}: {message}");
        }
    }

    #[test]
    fn hello_is_accepted_for_every_version() {
        let request = Request::parse(b"{\"version\":9,\"id\":0,\"request\":\"hello\"}").unwrap();
        assert_eq!(request.call, Call::Hello {});
    }

    #[test]
    fn error_code_of_a_later_version_is_accepted() {
        let error: Refusal = serde_json::from_str("{\"code\":\"on_fire\",\"message\":\"m\",\"help\":\"h\"}").unwrap();
        assert_eq!(error.code, ErrorCode::Other);
    }
}
