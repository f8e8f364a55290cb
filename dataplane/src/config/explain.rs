//! Turns what serde says into what a person can act on.

/// The candidate that a misspelt name most likely means, if one is near.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let name = name.to_lowercase();
    let limit = (name.chars().count() / 3).max(1);
    let distance = |candidate: &str| strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
    let close = candidates.into_iter().map(|candidate| (distance(candidate), candidate));
    let close = close.filter(|(distance, candidate)| {
        // `rx` for `rx_depth`: a part of the name is as good as a near one.
        *distance <= limit || (name.len() >= 3 && candidate.to_lowercase().starts_with(&name))
    });
    close.min().map(|(_, candidate)| candidate)
}

/// The help for a name that isn't among the candidates: the nearest one, or all of them. `what` is a plural noun.
pub fn suggest(what: &str, name: &str, candidates: &[&str]) -> String {
    const SHOWN: usize = 24;
    if let Some(near) = nearest(name, candidates.iter().copied()) {
        return format!("did you mean `{near}`?");
    }
    if candidates.is_empty() {
        return format!("there are no {what} here");
    }
    let mut names: Vec<&str> = candidates.to_vec();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let list = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if more == 0 { format!("the {what} are {list}") } else { format!("the {what} are {list} and {more} more") }
}

/// The names in back quotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The key of a `missing field` message.
pub(super) fn missing_key(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.strip_suffix('`')
}

/// The values that an `unknown variant` message offers.
pub(super) fn variants(message: &str) -> Vec<&str> {
    message.strip_prefix("unknown variant ").map_or(Vec::new(), |rest| quoted(rest).into_iter().skip(1).collect())
}

/// The message and the help for an error of serde. In an error that a type raises itself, what follows the first line
/// break is the help. `beside` are keys that the table has besides those that serde names.
pub(super) fn explain(text: &str, beside: &'static [&'static str]) -> (String, Option<String>) {
    let text = text.trim_end();
    if let Some(rest) = text.strip_prefix("unknown field ") {
        let (name, mut keys) = split_first(rest);
        keys.extend(beside);
        return (format!("unknown key `{name}`"), Some(suggest("keys", name, &keys)));
    }
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (name, values) = split_first(rest);
        return (format!("unknown value `{name}`"), Some(suggest("values", name, &values)));
    }
    if let Some(key) = missing_key(text) {
        return (format!("the key `{key}` is missing"), Some(format!("add `{key} = …` to this table")));
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
    // What std and ipnet say of any text that is no address, no prefix.
    if text.starts_with("invalid IP") && text.ends_with("syntax") {
        let help = "addresses are written 192.0.2.1 or 2001:db8::1, prefixes 10.0.0.0/8 or 2001:db8::/32";
        return ("this is no IP address or prefix that fits here".to_owned(), Some(help.to_owned()));
    }
    match text.split_once('\n') {
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

/// The names of Rust and serde in plain words.
fn plain(text: &str) -> String {
    let range = |max: u64| format!("a whole number from 0 to {max}");
    match text {
        "u8" => range(u8::MAX.into()),
        "u16" => range(u16::MAX.into()),
        "u32" => range(u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".into(),
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
    fn the_nearest_name_is_near() {
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
    fn serde_is_put_plainly() {
        for (text, message, help) in [
            ("unknown field `brst`, expected `burst` or `idle`", "unknown key `brst`", Some("did you mean `burst`?")),
            ("unknown field `zz`, there are no fields", "unknown key `zz`", Some("there are no keys here")),
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
            ("odd\nmake it even", "odd", Some("make it even")),
        ] {
            assert_eq!(explain(text, &[]), (message.to_owned(), help.map(str::to_owned)));
        }
    }
}
