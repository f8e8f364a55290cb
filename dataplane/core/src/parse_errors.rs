//! Turns the error messages of serde into messages for people, with a suggested fix.

use crate::error::{MAX_NAME_CHARS, shorten};

/// Returns the candidate that is most similar to a misspelt name. Returns `None` if no candidate is similar enough.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if is_long(name) {
        return None;
    }
    let name = name.to_lowercase();
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    let close = candidates.into_iter().filter(|candidate| !is_long(candidate)).filter_map(|candidate| {
        let lower = candidate.to_lowercase();
        // Accept a prefix too, such as `dep` for `depth`.
        let is_prefix = name.len() >= 3 && lower.starts_with(&name);
        // The distance is at least the difference of the lengths. If the lengths differ too much, skip the slow
        // computation of the distance.
        if !is_prefix && lower.chars().count().abs_diff(length) > limit {
            return None;
        }
        let distance = strsim::damerau_levenshtein(&name, &lower);
        (is_prefix || distance <= limit).then_some((distance, candidate))
    });
    close.min().map(|(_, candidate)| candidate)
}

/// Returns `true` if a name is too long for a suggestion. The time to compare two names grows with the product of their
/// lengths.
fn is_long(name: &str) -> bool {
    name.chars().nth(MAX_NAME_CHARS).is_some()
}

/// Returns `true` if a name contains a control character, such as a NUL or a line break. The operating system and the
/// report do not support such names.
pub fn has_control_character(name: &str) -> bool {
    name.contains(char::is_control)
}

/// The help for a name with a control character.
pub const NAME_HELP: &str = "use letters, digits, `-`, `_` and `.` in names";

/// Returns the help for an unknown name: the nearest candidate, or a list of all candidates. `what` is a plural noun.
pub fn suggest(what: &str, name: &str, candidates: &[&str]) -> String {
    const SHOWN: usize = 24;
    if let Some(near) = nearest(name, candidates.iter().copied()) {
        return format!("did you mean `{near}`?");
    }
    if candidates.is_empty() {
        return format!("there are no {what} to choose from");
    }
    let mut names: Vec<&str> = candidates.to_vec();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let list = names.iter().map(|name| format!("`{}`", shorten(name))).collect::<Vec<_>>().join(", ");
    if more == 0 { format!("the {what} are {list}") } else { format!("the {what} are {list} and {more} more") }
}

/// Returns the parts of a text that are in back quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the key in a `missing field` message.
pub fn missing_key(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Returns the message and the help for a missing key.
pub fn missing(key: &str) -> (String, Option<String>) {
    (format!("the key `{key}` is missing"), Some(format!("add `{key} = …` to this table")))
}

/// Returns the message and the help for a serde error. If a config type returns its own error, the help is the text
/// after `; help: ` in this error. `extra_keys` are further valid keys of the table, which the loader removed before
/// serde read the table.
pub fn explain(text: &str, extra_keys: &'static [&'static str]) -> (String, Option<String>) {
    let text = text.trim_end();
    if let Some(rest) = text.strip_prefix("unknown field ") {
        let (name, mut keys) = split_first(rest);
        keys.extend(extra_keys);
        return (format!("unknown key `{}`", shorten(name)), Some(suggest("keys", name, &keys)));
    }
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (name, values) = split_first(rest);
        return (format!("unknown value `{}`", shorten(name)), Some(suggest("values", name, &values)));
    }
    if let Some(key) = missing_key(text) {
        return missing(key);
    }
    if let Some(rest) = text.strip_prefix("invalid type: ")
        && let Some((found, wanted)) = rest.rsplit_once(", expected ")
    {
        let number = found.strip_prefix("string \"").and_then(|found| found.strip_suffix('"'));
        let help = number
            .filter(|number| is_number(wanted) && number.parse::<f64>().is_ok())
            .map(|number| format!("write the number without quotes: {number}"));
        return (format!("expected {}, found {}", plain(wanted), plain(found)), help);
    }
    if let Some(rest) = text.strip_prefix("invalid value: ")
        && let Some((found, wanted)) = rest.rsplit_once(", expected ")
    {
        return (format!("expected {}, found {}", plain(wanted), plain(found)), None);
    }
    // The standard library and the crate `ipnet` return these messages for an invalid address or prefix.
    if text.starts_with("invalid IP") && text.ends_with("syntax") {
        let help = "write an address as 192.0.2.1 or 2001:db8::1, a prefix as 10.0.0.0/8 or 2001:db8::/32";
        return ("this is not a valid IP address or prefix".to_owned(), Some(help.to_owned()));
    }
    match text.split_once("; help: ") {
        Some((message, help)) => (message.to_owned(), Some(help.to_owned())),
        None => (text.to_owned(), None),
    }
}

fn split_first(rest: &str) -> (&str, Vec<&str>) {
    let mut names = quoted(rest);
    if names.is_empty() { ("", names) } else { (names.remove(0), names) }
}

fn is_number(wanted: &str) -> bool {
    matches!(wanted.as_bytes(), [b'u' | b'i' | b'f', b'0'..=b'9' | b's', ..]) || wanted.contains("number")
}

/// Returns plain words for a type or a value in an error of serde, such as `u8` or ``integer `-1` ``.
fn plain(text: &str) -> String {
    let range = |max: u64| format!("a whole number from 0 to {max}");
    match text {
        "u8" => range(u8::MAX.into()),
        "u16" => range(u16::MAX.into()),
        "u32" => range(u32::MAX.into()),
        "u64" | "usize" => "a whole number from 0".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "an array".into(),
        "sequence" => "an array".into(),
        "map" => "a table".into(),
        _ if text.starts_with("struct ") || text == "a map" => "a table".into(),
        _ => match text.split_once(' ') {
            Some(("integer" | "boolean", value)) => value.replace('`', ""),
            Some(("floating", value)) => value.trim_start_matches("point ").replace('`', ""),
            Some(("string", value)) => format!("the string {value}"),
            _ => text.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_suggested_only_if_similar() {
        let names = ["burst", "buffers", "buffer_size", "workers"];
        for (name, near) in [
            ("brst", Some("burst")),
            ("Burst", Some("burst")),
            ("bufers", Some("buffers")),
            ("buffer", Some("buffers")),
            ("work", Some("workers")),
            ("xyz", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, names), near, "{name}");
        }
    }

    #[test]
    fn long_name_gets_no_suggestion_and_is_shortened_in_messages() {
        let long = "é".repeat(100_000);
        assert_eq!(nearest(&long, [&*long]), None);
        assert_eq!(nearest("éé", [&*long, "ée"]), Some("ée"));
        assert_eq!(nearest(&"a".repeat(64), [&*"a".repeat(65)]), None);
        assert_eq!(nearest(&"a".repeat(64), [&*"b".repeat(2), &"a".repeat(63)]), Some(&*"a".repeat(63)));
        assert_eq!(shorten(&long), "é".repeat(64) + "…");
        assert_eq!(shorten(&long[..128]), "é".repeat(64));
        let (message, help) = explain(&format!("unknown field `{long}`, expected `burst`"), &[]);
        assert_eq!(message, format!("unknown key `{}…`", "é".repeat(64)));
        assert_eq!(help.as_deref(), Some("the keys are `burst`"));
    }

    #[test]
    fn serde_errors_become_plain_messages() {
        for (text, message, help) in [
            ("unknown field `brst`, expected `burst` or `idle`", "unknown key `brst`", Some("did you mean `burst`?")),
            ("unknown field `zz`, there are no fields", "unknown key `zz`", Some("there are no keys to choose from")),
            (
                "unknown variant `x`, expected one of `spin`, `pause`",
                "unknown value `x`",
                Some("the values are `pause`, `spin`"),
            ),
            ("missing field `name`", "the key `name` is missing", Some("add `name = …` to this table")),
            (
                "invalid type: string \"64\", expected u16",
                "expected a whole number from 0 to 65535, found the string \"64\"",
                Some("write the number without quotes: 64"),
            ),
            ("invalid type: boolean `true`, expected a string", "expected a string, found true", None),
            ("invalid type: map, expected a sequence", "expected an array, found a table", None),
            ("invalid value: integer `-1`, expected u8", "expected a whole number from 0 to 255, found -1", None),
            ("odd; help: make it even", "odd", Some("make it even")),
        ] {
            assert_eq!(explain(text, &[]), (message.to_owned(), help.map(str::to_owned)));
        }
    }
}
