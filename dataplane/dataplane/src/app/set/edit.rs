//! Edits of the text of a config. Comments and the format of the other lines stay the same.

use ipnet::IpNet;
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, TableLike, Value};

/// The keys of a rule after its action and protocol, in the order in which the program prints the rule.
const RULE_KEYS: [&str; 7] = ["src", "src_port", "dst", "dst_port", "tcp_flags", "vlan", "name"];

/// An edit of a stage.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// Adds an entry to a list, before the entry at this place, or at the end.
    Add { list: &'static str, entry: InlineTable, before: Option<String> },
    /// Removes the matching entries from a list.
    Remove { list: &'static str, what: String, entry: RemovedEntry },
    /// Sets keys.
    Set(Vec<(String, Value)>),
}

/// The entries of a list to remove.
#[derive(Clone, Debug)]
pub(super) enum RemovedEntry {
    /// The routes to a prefix. `path` has further keys that the routes must match.
    Route { prefix: IpNet, path: InlineTable },
    /// The rule with this name or text.
    Rule(String),
}

/// Applies an edit to the stage of a kind in a config. `stage` is the name of the stage, if given. `settings` are the
/// overrides of the command line. Returns the new text.
///
/// # Errors
/// Returns the reason why the edit is not possible, with a help text.
pub(super) fn edit<'a>(
    text: &str,
    settings: impl Iterator<Item = &'a str>,
    kind: &str,
    stage: Option<&str>,
    edit: &Edit,
) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("the config is not valid TOML: {error}"))?;
    let stages = document.get_mut("pipeline").and_then(|pipeline| pipeline.get_mut("stage"));
    let stages: Vec<&mut dyn TableLike> = stages.map(tables).unwrap_or_default();
    let names: Vec<String> =
        stages.iter().map(|stage| text_of(&**stage, "name").or(text_of(&**stage, "use")).unwrap_or_default()).collect();
    let of_kind: Vec<usize> =
        (0..stages.len()).filter(|at| text_of(&*stages[*at], "use").as_deref() == Some(kind)).collect();
    let known: Vec<String> = of_kind.iter().map(|at| format!("`{}`", names[*at])).collect();
    let known = known.join(", ");
    let at = match (stage, &of_kind[..]) {
        (None, []) => {
            return Err(format!("the config has no stage with use = \"{kind}\"; help: add the stage with `apply`"));
        }
        (None, [at]) => *at,
        (None, _) => {
            return Err(format!(
                "the config has {} stages with use = \"{kind}\": {known}; help: add --stage NAME",
                of_kind.len()
            ));
        }
        (Some(name), _) => match of_kind.iter().find(|at| names[**at] == name) {
            Some(at) => *at,
            None if of_kind.is_empty() => {
                return Err(format!("the config has no stage with use = \"{kind}\"; help: add the stage with `apply`"));
            }
            None => {
                return Err(format!(
                    "no stage with use = \"{kind}\" has the name `{name}`; help: the stages are {known}"
                ));
            }
        },
    };
    let keys: Vec<&str> = match edit {
        Edit::Add { list, .. } | Edit::Remove { list, .. } => vec![list],
        Edit::Set(keys) => keys.iter().map(|(key, _)| key.as_str()).collect(),
    };
    for setting in settings {
        let names = [names[at].clone(), at.to_string()];
        let sets = |key: &&&str| names.iter().any(|name| setting.starts_with(&format!("pipeline.stage.{name}.{key}")));
        if keys.iter().any(|key| sets(&key)) {
            return Err(format!(
                "the program was started with --set {setting}; help: restart the program without --set"
            ));
        }
    }
    let Some(stage) = stages.into_iter().nth(at) else { return Err("the stage is gone".to_owned()) };
    match edit {
        Edit::Add { list, entry, before } => add(stage, list, entry, before.as_deref())?,
        Edit::Remove { list, what, entry } => remove(stage, list, what, entry, &names[at])?,
        Edit::Set(keys) => keys.iter().for_each(|(key, value)| set(stage, key, value)),
    }
    Ok(document.to_string())
}

/// Returns the tables of an array of tables, or of an array of inline tables.
fn tables(item: &mut Item) -> Vec<&mut dyn TableLike> {
    match item {
        Item::ArrayOfTables(tables) => tables.iter_mut().map(|table| table as &mut dyn TableLike).collect(),
        Item::Value(Value::Array(array)) => {
            let inline = array.iter_mut().filter_map(Value::as_inline_table_mut);
            inline.map(|table| table as &mut dyn TableLike).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the value of a key as text, without quotes.
fn text_of(table: &dyn TableLike, key: &str) -> Option<String> {
    Some(plain(table.get(key)?.as_value()?))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.value().clone(),
        value => value.clone().decorated("", "").to_string(),
    }
}

/// Returns the text of a rule, as the program prints the rule.
fn rule_text(rule: &dyn TableLike) -> String {
    let action = text_of(rule, "action").unwrap_or_default();
    let mut text = format!("{action} {}", text_of(rule, "protocol").unwrap_or_else(|| "any".to_owned()));
    for key in RULE_KEYS.iter().filter(|key| **key != "name") {
        text_of(rule, key).into_iter().for_each(|value| text += &format!(" {key} {value}"));
    }
    text
}

/// Returns `true` if a rule has this name or this text.
fn is_rule(rule: &dyn TableLike, name: &str) -> bool {
    text_of(rule, "name").as_deref() == Some(name) || rule_text(rule) == name
}

fn add(stage: &mut dyn TableLike, list: &str, entry: &InlineTable, before: Option<&str>) -> Result<(), String> {
    let item = stage.entry(list).or_insert(Item::Value(Value::Array(Array::new())));
    let place = match before {
        Some(name) => {
            let place = tables(item).iter().position(|rule| is_rule(&**rule, name));
            Some(place.ok_or_else(|| no_rule(item, name))?)
        }
        None => None,
    };
    match (item, place) {
        (Item::Value(Value::Array(array)), place) => insert(array, place.unwrap_or(array.len()), entry.clone()),
        (Item::ArrayOfTables(tables), None) => tables.push(entry.clone().into_table()),
        (Item::ArrayOfTables(tables), Some(place)) => {
            let mut all: Vec<Table> = std::mem::take(tables).into_iter().collect();
            all.insert(place, entry.clone().into_table());
            // Without positions, the tables stay in the order of the list.
            all.iter_mut().for_each(|table| table.set_position(None));
            tables.extend(all);
        }
        _ => return Err(format!("`{list}` is not a list; help: write `{list} = []` in the config")),
    }
    Ok(())
}

fn no_rule(item: &mut Item, name: &str) -> String {
    const SHOWN: usize = 20;
    let rules: Vec<String> = tables(item)
        .iter()
        .map(|rule| text_of(&**rule, "name").unwrap_or_else(|| rule_text(&**rule)))
        .take(SHOWN)
        .collect();
    let help = match rules.is_empty() {
        true => "the config has no rules; the rules of a file are changed in the file".to_owned(),
        false => format!("the rules of the config are: {}", rules.join(", ")),
    };
    format!("no rule of the config has the name or the text `{name}`; help: {help}")
}

fn remove(stage: &mut dyn TableLike, list: &str, what: &str, wanted: &RemovedEntry, name: &str) -> Result<(), String> {
    let is_wanted = |entry: &dyn TableLike| match wanted {
        RemovedEntry::Route { prefix, path } => {
            let is_same = |(key, value): (&str, &Value)| text_of(entry, key) == Some(plain(value));
            let of_entry = text_of(entry, "prefix").and_then(|prefix| prefix.parse::<IpNet>().ok());
            of_entry.is_some_and(|entry| entry.trunc() == *prefix) && path.iter().all(is_same)
        }
        RemovedEntry::Rule(name) => is_rule(entry, name),
    };
    let missing = |item: Option<&mut Item>| match (wanted, item) {
        (RemovedEntry::Rule(rule), Some(item)) => no_rule(item, rule),
        (RemovedEntry::Rule(rule), None) => format!("stage `{name}` has no rule `{rule}` in the config"),
        (RemovedEntry::Route { .. }, _) => {
            format!(
                "stage `{name}` has no route to {what} in the config; help: routes of a file are changed in the file"
            )
        }
    };
    let Some(item) = stage.get_mut(list) else { return Err(missing(None)) };
    let places: Vec<usize> =
        tables(item).iter().enumerate().filter(|(_, entry)| is_wanted(&***entry)).map(|(at, _)| at).collect();
    if places.is_empty() {
        return Err(missing(Some(item)));
    }
    for place in places.into_iter().rev() {
        match item {
            Item::Value(Value::Array(array)) => take(array, place),
            Item::ArrayOfTables(tables) => _ = tables.remove(place),
            _ => {}
        }
    }
    Ok(())
}

fn set(stage: &mut dyn TableLike, key: &str, value: &Value) {
    match stage.get_mut(key).and_then(Item::as_value_mut) {
        Some(known) => {
            let decor = known.decor().clone();
            *known = value.clone();
            *known.decor_mut() = decor;
        }
        None => _ = stage.insert(key, Item::Value(value.clone())),
    }
}

/// Returns the text before an entry: the rest of the line of the previous entry, such as a comment, and the lines before
/// the entry.
fn before(text: Option<&RawString>) -> (String, String) {
    let text = text.and_then(RawString::as_str).unwrap_or_default();
    match text.find('\n') {
        Some(end) => (text[..end].to_owned(), text[end..].to_owned()),
        None => (String::new(), text.to_owned()),
    }
}

fn prefix(array: &Array, place: usize) -> (String, String) {
    match array.get(place) {
        Some(value) => before(value.decor().prefix()),
        None => before(Some(array.trailing())),
    }
}

fn set_prefix(array: &mut Array, place: usize, text: String) {
    match array.get_mut(place) {
        Some(value) => value.decor_mut().set_prefix(text),
        None => array.set_trailing(text),
    }
}

/// Inserts an entry. If the list has one entry per line, the new entry gets its own line.
fn insert(array: &mut Array, place: usize, entry: InlineTable) {
    let neighbor = if place < array.len() { place } else { array.len().saturating_sub(1) };
    let indent = array.get(neighbor).map(|value| before(value.decor().prefix()).1).unwrap_or_default();
    let is_multiline = indent.contains('\n');
    if place == array.len()
        && let Some(last) = place.checked_sub(1).and_then(|last| array.get_mut(last))
        && let Some(suffix) = last.decor().suffix().and_then(RawString::as_str).map(str::to_owned)
        && suffix.trim().is_empty()
    {
        // The list has no comma after its last entry, so the space before the closing bracket follows this entry.
        last.decor_mut().set_suffix("");
        if suffix.contains('\n') {
            array.set_trailing(suffix);
            array.set_trailing_comma(true);
        }
    }
    let (rest, lines) = prefix(array, place);
    let mut value = Value::InlineTable(entry);
    let own = match is_multiline {
        true => format!("{rest}\n{}", indent.rsplit('\n').next().unwrap_or_default()),
        false if place == 0 => String::new(),
        false => " ".to_owned(),
    };
    value.decor_mut().set_prefix(own);
    if is_multiline {
        set_prefix(array, place, lines);
    } else if place == 0 && !array.is_empty() {
        set_prefix(array, 0, " ".to_owned());
    }
    array.insert_formatted(place, value);
}

/// Removes an entry with its comment. The comments of the other entries stay.
fn take(array: &mut Array, place: usize) {
    let (rest, own) = prefix(array, place);
    let suffix = array.get(place).and_then(|value| value.decor().suffix()).cloned();
    let (_, next) = match place + 1 == array.len() && !array.trailing_comma() {
        // Without a comma after the last entry, the text before the closing bracket follows this entry.
        true => before(suffix.as_ref()),
        false => prefix(array, place + 1),
    };
    array.remove(place);
    if own.contains('\n') {
        // A comment at the end of the previous line must not contain the next entry or the closing bracket.
        let line_end = match rest.contains('#') && !next.contains('\n') {
            true => format!("\n{}", own.rsplit('\n').next().unwrap_or_default()),
            false => String::new(),
        };
        set_prefix(array, place, format!("{rest}{line_end}{next}"));
    } else if place == 0 && !array.is_empty() {
        set_prefix(array, 0, own);
    }
}

/// Returns the entry of a rule from words, such as `deny tcp dst 10.0.0.0/8 dst_port 22 name no_ssh`.
///
/// # Errors
/// Returns an error message with a help text.
pub(super) fn rule(words: &[String]) -> Result<InlineTable, String> {
    let help = "help: write a rule as `permit` or `deny`, a protocol, and pairs of a key and a value, for example \
                `deny tcp dst 10.0.0.0/8 dst_port 22 name no_ssh`";
    let Some((action, mut words)) = words.split_first() else { return Err(format!("the rule is missing; {help}")) };
    if !["permit", "deny"].contains(&action.as_str()) {
        return Err(format!("`{action}` is not an action; {help}"));
    }
    let mut rule = InlineTable::new();
    rule.insert("action", Value::from(action.as_str()));
    if let Some((protocol, rest)) = words.split_first()
        && protocol != "protocol"
        && !RULE_KEYS.contains(&protocol.as_str())
    {
        rule.insert("protocol", value(protocol));
        words = rest;
    }
    for pair in words.chunks(2) {
        let [key, text] = pair else { return Err(format!("the key `{}` has no value; {help}", pair[0])) };
        if key != "protocol" && !RULE_KEYS.contains(&key.as_str()) {
            return Err(format!(
                "`{key}` is not a key of a rule; help: the keys are protocol, {}",
                RULE_KEYS.join(", ")
            ));
        }
        let value = if key == "name" { Value::from(text.as_str()) } else { value(text) };
        if rule.insert(key.as_str(), value).is_some() {
            return Err(format!("the key `{key}` occurs twice"));
        }
    }
    Ok(rule)
}

/// Returns the path of a route from words, such as `via 192.0.2.1 dev wan`.
///
/// # Errors
/// Returns an error message with a help text.
pub(super) fn path(words: &[String]) -> Result<InlineTable, String> {
    let help = "help: write `via ADDRESS dev PORT`, `dev PORT` or `drop`";
    let mut path = InlineTable::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let key = match word.as_str() {
            "drop" => {
                path.insert("drop", Value::from(true));
                continue;
            }
            "via" => "via",
            "dev" | "port" => "port",
            "weight" => "weight",
            _ => return Err(format!("`{word}` is not a part of a route; {help}")),
        };
        let text = words.next().ok_or_else(|| format!("`{word}` has no value; {help}"))?;
        path.insert(key, if key == "weight" { value(text) } else { Value::from(text.as_str()) });
    }
    Ok(path)
}

/// Returns the TOML value of a word: a number, a truth value or text.
pub(super) fn value(text: &str) -> Value {
    let parsed = text.parse::<Value>().ok();
    parsed
        .filter(|value| value.is_integer() || value.is_float() || value.is_bool())
        .unwrap_or_else(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# The edge.
[pipeline]
input = [\"wan\"] # one port

[[pipeline.stage]]
use = \"route\"
table = [
    { prefix = \"10.0.0.0/8\", port = \"lan\" }, # the office
    # The lab.
    { prefix = \"10.9.0.0/16\", via = \"10.0.0.9\", port = \"lan\" },
    # No more routes.
]

[[pipeline.stage]]
name = \"edge\"
use = \"acl\"
default = \"deny\" # by default
rules = [{ action = \"deny\", protocol = \"tcp\", dst_port = 22, name = \"no_ssh\" }, { action = \"permit\" }]

[[pipeline.stage]]
use = \"limit\"
packets_per_second = 1000 # slow
burst = 10
";

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the lines that an edit removes and adds.
    fn changed(kind: &str, stage: Option<&str>, what: &Edit) -> Result<(Vec<String>, Vec<String>), String> {
        let after = edit(CONFIG, std::iter::empty(), kind, stage, what)?;
        let missing = |one: &str, other: &str| {
            let lines = one.lines().filter(|line| !other.lines().any(|known| known == *line));
            lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(after.ends_with('\n'), CONFIG.ends_with('\n'));
        after.parse::<toml::Table>().unwrap_or_else(|error| panic!("{error}: {after}"));
        Ok((missing(CONFIG, &after), missing(&after, CONFIG)))
    }

    fn route(prefix: &str, text: &str) -> Edit {
        let mut entry = InlineTable::new();
        entry.insert("prefix", Value::from(prefix));
        entry.extend(path(&words(text)).unwrap());
        Edit::Add { list: "table", entry, before: None }
    }

    fn no_route(prefix: &str, text: &str) -> Edit {
        let entry = RemovedEntry::Route { prefix: prefix.parse().unwrap(), path: path(&words(text)).unwrap() };
        Edit::Remove { list: "table", what: prefix.to_owned(), entry }
    }

    fn no_rule(name: &str) -> Edit {
        Edit::Remove { list: "rules", what: name.to_owned(), entry: RemovedEntry::Rule(name.to_owned()) }
    }

    #[test]
    fn added_route_gets_its_own_line_and_comments_stay() {
        let (removed, added) = changed("route", None, &route("192.0.2.0/24", "via 10.0.0.1 dev lan")).unwrap();
        assert_eq!(removed, Vec::<String>::new());
        assert_eq!(added, ["{ prefix = \"192.0.2.0/24\", via = \"10.0.0.1\", port = \"lan\" },"]);
    }

    #[test]
    fn deleted_route_takes_only_its_own_comment() {
        let (removed, added) = changed("route", None, &no_route("10.9.0.0/16", "")).unwrap();
        assert_eq!(removed, ["# The lab.", "{ prefix = \"10.9.0.0/16\", via = \"10.0.0.9\", port = \"lan\" },"]);
        assert_eq!(added, Vec::<String>::new());
        let (removed, added) = changed("route", None, &no_route("10.0.0.0/8", "dev lan")).unwrap();
        assert_eq!(removed, ["{ prefix = \"10.0.0.0/8\", port = \"lan\" }, # the office"]);
        assert_eq!(added, Vec::<String>::new());
        for (prefix, path) in [("10.9.0.0/16", "via 10.0.0.8"), ("10.8.0.0/16", "")] {
            let error = changed("route", None, &no_route(prefix, path)).unwrap_err();
            assert!(
                error.starts_with(&format!("stage `route` has no route to {prefix} in the config; help: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn rules_are_added_and_deleted_by_name_or_text() {
        let entry = rule(&words("permit udp dst_port 53")).unwrap();
        let add = |before: Option<&str>| {
            let before = before.map(str::to_owned);
            changed("acl", None, &Edit::Add { list: "rules", entry: entry.clone(), before }).unwrap().1
        };
        let [ssh, any, dns] = [
            "{ action = \"deny\", protocol = \"tcp\", dst_port = 22, name = \"no_ssh\" }",
            "{ action = \"permit\" }",
            "{ action = \"permit\", protocol = \"udp\", dst_port = 53 }",
        ];
        assert_eq!(add(None), [format!("rules = [{ssh}, {any}, {dns}]")]);
        assert_eq!(add(Some("permit any")), [format!("rules = [{ssh}, {dns}, {any}]")]);
        assert_eq!(add(Some("no_ssh")), [format!("rules = [{dns}, {ssh}, {any}]")]);
        assert_eq!(changed("acl", Some("edge"), &no_rule("no_ssh")).unwrap().1, [format!("rules = [{any}]")]);
        assert_eq!(changed("acl", None, &no_rule("permit any")).unwrap().1, [format!("rules = [{ssh}]")]);
        let error = changed("acl", None, &no_rule("no_telnet")).unwrap_err();
        assert!(error.ends_with("`no_telnet`; help: the rules of the config are: no_ssh, permit any"), "{error}");
        for (text, expected) in [
            ("drop tcp", "`drop` is not an action"),
            ("deny tcp dst_port", "the key `dst_port` has no value"),
            ("deny tcp dport 1", "`dport` is not a key of a rule"),
            ("deny tcp vlan 1 vlan 2", "the key `vlan` occurs twice"),
        ] {
            let error = rule(&words(text)).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn rule_after_a_comment_is_deleted_also_without_a_comma() {
        let [a, b] = ["{ action = \"deny\", name = \"a\" }", "{ action = \"permit\", name = \"b\" }"];
        for (rules, name, expected) in [
            (format!("[\n    {a}, # office\n    {b}\n]"), "b", format!("[\n    {a} # office\n]")),
            (
                format!("[\n    {a}, # office\n    {b} # lab\n    # end\n]"),
                "b",
                format!("[\n    {a} # office\n    # end\n]"),
            ),
            (format!("[ # rules\n    {a}\n]"), "a", "[ # rules\n]".to_owned()),
            (format!("[ # rules\n    {a}]"), "a", "[ # rules\n    ]".to_owned()),
            (format!("[ # rules\n    {a}, ]"), "a", "[ # rules\n     ]".to_owned()),
            (format!("[ # rules\n    {a}, {b}]"), "a", format!("[ # rules\n     {b}]")),
        ] {
            let text = |rules: &str| format!("[[pipeline.stage]]\nuse = \"acl\"\nrules = {rules}\n");
            let after = edit(&text(&rules), std::iter::empty(), "acl", None, &no_rule(name)).unwrap();
            assert_eq!(after, text(&expected));
            after.parse::<toml::Table>().unwrap_or_else(|error| panic!("{error}: {after}"));
        }
    }

    #[test]
    fn value_of_a_limit_is_replaced_and_its_comment_stays() {
        let set = Edit::Set(vec![("packets_per_second".to_owned(), value("2kpps")), ("red".to_owned(), value("pass"))]);
        let (removed, added) = changed("limit", None, &set).unwrap();
        assert_eq!(removed, ["packets_per_second = 1000 # slow"]);
        assert_eq!(added, ["packets_per_second = \"2kpps\" # slow", "red = \"pass\""]);
        for (text, expected) in
            [("1_000", "1_000"), ("true", "true"), ("1-2", "\"1-2\""), ("2026-11-26", "\"2026-11-26\"")]
        {
            assert_eq!(value(text).to_string(), expected);
        }
    }

    #[test]
    fn lists_of_tables_and_missing_lists_are_edited() {
        let text = "[[pipeline.stage]]\nuse = 'acl'\ndefault = 'deny'\n\n[[pipeline.stage.rules]]\naction = 'permit'\nname = 'a'\n\n\
                    [[pipeline.stage]]\nuse = 'tx'\n";
        let entry = rule(&words("deny name b")).unwrap();
        for (before, order) in [(None, ["a", "b"]), (Some("a".to_owned()), ["b", "a"])] {
            let add = Edit::Add { list: "rules", entry: entry.clone(), before };
            let after = edit(text, std::iter::empty(), "acl", None, &add).unwrap();
            let parsed: toml::Table = after.parse().unwrap();
            let rules = parsed["pipeline"]["stage"][0]["rules"].as_array().unwrap().clone();
            let names: Vec<&str> = rules.iter().map(|rule| rule["name"].as_str().unwrap()).collect();
            assert_eq!(names, order, "{after}");
            assert_eq!(parsed["pipeline"]["stage"][1]["use"].as_str(), Some("tx"));
        }
        let gone = edit(text, std::iter::empty(), "acl", None, &no_rule("a")).unwrap();
        assert!(!gone.contains("permit"), "{gone}");
        let text = "pipeline.stage = [{ use = 'route' }]";
        let after = edit(text, std::iter::empty(), "route", None, &route("::/0", "dev lan")).unwrap();
        assert_eq!(
            after.trim_end(),
            "pipeline.stage = [{ use = 'route' , table = [{ prefix = \"::/0\", port = \"lan\" }] }]"
        );
    }

    #[test]
    fn wrong_stage_and_overridden_values_are_reported() {
        let two = format!("{CONFIG}\n[[pipeline.stage]]\nname = \"inner\"\nuse = \"acl\"\n");
        let of = |text: &str, kind: &str, stage: Option<&str>, settings: &[&str]| {
            edit(text, settings.iter().copied(), kind, stage, &no_rule("no_ssh")).unwrap_err()
        };
        for (error, expected) in [
            (of(&two, "acl", None, &[]), "2 stages with use = \"acl\": `edge`, `inner`; help: add --stage NAME"),
            (of(&two, "acl", Some("outer"), &[]), "has the name `outer`; help: the stages are `edge`, `inner`"),
            (of(CONFIG, "nat", None, &[]), "the config has no stage with use = \"nat\""),
            (
                of(CONFIG, "acl", None, &["pipeline.stage.edge.rules=[]"]),
                "started with --set pipeline.stage.edge.rules=[]",
            ),
            (of(CONFIG, "acl", None, &["pipeline.stage.1.rules=[]"]), "started with --set pipeline.stage.1.rules=[]"),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }
}
