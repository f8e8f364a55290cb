//! Tests of the schema, the environment and the calibration of a result of `dataplane bench`.

use std::process::Command;

use dataplane_testing::Folder;
use dataplane_testing::program::run;
use serde_json::Value;

const CABLE: &str = r#"
[runtime]
workers = 1
hugepages = "none"
idle = "sleep"

[[port]]
name = "left"
device = "soft"
link = { kind = "loopback", peer = "right" }

[[port]]
name = "right"
device = "soft"
link = { kind = "loopback", peer = "left" }

[[stream]]
size = 200
src_port = { first = 1024, count = 50_000 }
"#;

/// Options with which a busy host neither skips packets nor receives packets late.
const PATIENT: &str = "--catch-up 60s --late 60s --settle 20ms";

fn cable() -> Folder {
    let folder = Folder::new();
    folder.write("lab.toml", CABLE);
    folder
}

/// Runs `dataplane bench` with the words of `line`. Returns the exit status, standard output and standard error.
fn bench(folder: &Folder, line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
    run(command.current_dir(folder.path()).arg("bench").args(line.split_whitespace()))
}

/// Returns the output of a successful command.
fn output(folder: &Folder, line: &str) -> String {
    let (status, out, err) = bench(folder, line);
    assert_eq!(status, 0, "{line}: {out}{err}");
    out
}

/// Returns the result of a trial with 1,000 packets per second.
fn rate(folder: &Folder, options: &str) -> Value {
    let line = format!("rate lab.toml --rate 1kpps --for 10ms --json {PATIENT} {options}");
    serde_json::from_str(&output(folder, &line)).unwrap()
}

/// Adds the properties of a schema to another schema.
fn with_properties(mut schema: Value, of: &Value) -> Value {
    for (key, property) in of["properties"].as_object().into_iter().flatten() {
        schema["properties"][key] = property.clone();
    }
    schema
}

/// Returns the places of a value that a schema does not describe: unknown keys, missing keys, and wrong types.
fn violations(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(path) = schema["$ref"].as_str() {
        let target = root.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path}"));
        return violations(root, &with_properties(target.clone(), schema), value, place);
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[choice].as_array() {
            let found = choices.iter().map(|it| violations(root, &with_properties(it.clone(), schema), value, place));
            return found.min_by_key(Vec::len).unwrap_or_default();
        }
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
    };
    let fits = |name: &Value| name == kind || (name == "number" && kind == "integer");
    let types = &schema["type"];
    if !(types.is_null() || fits(types) || types.as_array().is_some_and(|types| types.iter().any(fits))) {
        return vec![format!("{place}: {kind} instead of {types}")];
    }
    let mut found = Vec::new();
    if let Some(object) = value.as_object() {
        for (key, value) in object {
            let known = [&schema["properties"][key], &schema["additionalProperties"]];
            match known.into_iter().find(|schema| schema.is_object()) {
                Some(schema) => found.extend(violations(root, schema, value, &format!("{place}.{key}"))),
                None => found.push(format!("{place}.{key}: unknown key")),
            }
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(required.filter(|key| !object.contains_key(*key)).map(|key| format!("{place}.{key}: missing")));
    }
    for (number, element) in value.as_array().into_iter().flatten().enumerate() {
        let items = if schema["prefixItems"].is_array() { &schema["prefixItems"][number] } else { &schema["items"] };
        found.extend(violations(root, items, element, &format!("{place}[{number}]")));
    }
    found
}

#[test]
fn schemas_describe_all_results() {
    let folder = cable();
    let json = |line: &str| output(&folder, &format!("{line} lab.toml --json {PATIENT}"));
    let short = "--trial 20ms --first-trial 10ms --sum 20ms --max 2kpps";
    let standard = "--quick --trial 20ms --latency-trial 20ms --burst 10ms --bursts 1 --overload 20ms --max 2kpps \
                    --reset-trial 200ms --reset-command true --sizes 128";
    folder.write("a.json", json("rate --rate 1kpps --for 10ms"));
    json("soak --rate 1kpps --for 100ms --interval 20ms --output soak");
    let flows = "flows --max-flows 20 --rate 1kpps --flush true --max 2kpps --trial 20ms --sum 20ms";
    let mut results = vec![
        ("rate", std::fs::read_to_string(folder.file("a.json")).unwrap()),
        ("search", json(&format!("ndr {short}"))),
        ("calibrate", json("calibrate --for 20ms")),
        ("rfc2544", json(&format!("rfc2544 {standard} --tests throughput,latency,loss,back-to-back,recovery,reset"))),
        ("latency", json("latency --max 2kpps --loads 50% --for 20ms")),
        ("flows", json(flows)),
        ("verbs", output(&folder, "verbs send_lat --device soft --json -n 20")),
        ("compare", output(&folder, "compare --json a.json a.json")),
    ];
    let soak = std::fs::read_to_string(folder.file("soak")).unwrap();
    results.extend(soak.lines().map(|line| ("soak", line.to_owned())));
    for (name, text) in results {
        let schema: Value = serde_json::from_str(&output(&folder, &format!("schema {name}"))).unwrap();
        let result: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(violations(&schema, &schema, &result, name), Vec::<String>::new());
        // The check itself finds an unknown key and a missing key.
        let mut wrong = result.clone();
        let (key, value) = result.as_object().map(|result| result.iter().next().unwrap()).unwrap();
        wrong.as_object_mut().unwrap().remove(key);
        wrong[format!("{key}s")] = value.clone();
        assert!(!violations(&schema, &schema, &wrong, name).is_empty(), "{name} without {key}");
    }
}

#[test]
fn environment_has_the_host_the_ports_and_the_digest_of_the_config() {
    let folder = cable();
    let a = rate(&folder, "");
    let environment = &a["environment"];
    for key in ["version", "kernel", "processor", "config_digest"] {
        assert!(environment[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {environment}");
    }
    let pages = &environment["pages"];
    assert!(pages["kind"] == "none" && pages["bytes"] == 4096 && pages["count"].as_u64() > Some(0), "{pages}");
    let names: Vec<_> = environment["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(names, ["left", "right"]);
    assert_eq!((&environment["ports"][0]["mtu"], &environment["calibration"]), (&1500.into(), &Value::Null));
    assert_eq!(environment["config_digest"], rate(&folder, "")["environment"]["config_digest"]);
    // A change of a setting or of a stream changes the digest, and `compare` names the difference.
    let b = rate(&folder, "--set port.right.mtu=1400");
    folder.write("a.json", a.to_string());
    folder.write("b.json", b.to_string());
    let text = output(&folder, "compare a.json b.json");
    for difference in ["the digest of the config differs: `", "the port right differs: `", "MTU 1500` and `"] {
        assert!(text.contains(difference), "{text}");
    }
    folder.write("lab.toml", CABLE.replace("200", "201"));
    assert_ne!(rate(&folder, "")["environment"]["config_digest"], environment["config_digest"]);
}

#[test]
fn calibration_must_be_from_the_same_ports_host_and_sizes() {
    let folder = cable();
    let calibrate = |config: &str| output(&folder, &format!("calibrate {config} --for 20ms --json {PATIENT}"));
    let own = calibrate("lab.toml");
    folder.write("own.json", &own);
    let line = format!("rate lab.toml --rate 1kpps --for 10ms {PATIENT}");
    let text = output(&folder, &line);
    assert!(text.contains("\nnot calibrated: "), "{text}");
    let text = output(&folder, &format!("{line} --calibration own.json"));
    assert!(!text.contains("not calibrated"), "{text}");
    let report = rate(&folder, "--calibration own.json");
    let calibration = serde_json::from_str::<Value>(&own).unwrap()["calibration"].clone();
    assert_eq!(report["environment"]["calibration"], calibration);

    folder.write("size.toml", CABLE.replace("200", "201"));
    folder.write("port.toml", CABLE.replace("\"left\"", "\"west\""));
    let mut host: Value = serde_json::from_str(&own).unwrap();
    host["max"]["environment"]["cores"] = 4000.into();
    for (name, other, difference) in [
        ("size.json", calibrate("size.toml"), "frame sizes (without the FCS) missing in the calibration: 200"),
        ("port.json", calibrate("port.toml"), "ports: `west ("),
        ("host.json", host.to_string(), "number of cores: `4000` in the calibration"),
    ] {
        folder.write(name, other);
        let (status, out, err) = bench(&folder, &format!("{line} --calibration {name}"));
        assert!(status == 2 && out.is_empty(), "{out}{err}");
        let start = format!("the calibration {name} does not fit this run: {difference}");
        assert!(err.contains(&start) && err.contains("; help: run dataplane bench calibrate"), "{err}");
    }
    // The tests of RFC 2544 use sizes of their own.
    let (status, _, err) = bench(&folder, "rfc2544 lab.toml --sizes 204,64 --max 1kpps --calibration own.json");
    assert!(status == 2 && err.contains("frame sizes (without the FCS) missing in the calibration: 60"), "{err}");
}

#[test]
fn control_characters_of_a_result_do_not_reach_the_terminal() {
    let folder = cable();
    let result = rate(&folder, "");
    let compare = |key: &str, value: Value| {
        let mut changed = result.clone();
        *changed.pointer_mut(key).unwrap() = value;
        folder.write("a.json", result.to_string());
        folder.write("b.json", changed.to_string());
        let (_, out, err) = bench(&folder, "compare a.json b.json");
        let text = out + &err;
        assert!(!text.contains(|char: char| char.is_control() && char != '\n'), "{text:?}");
        text
    };
    let text = compare("/environment/kernel", "\u{1b}[2J\u{9b}".into());
    assert!(text.contains("and `\u{fffd}[2J\u{fffd}`"), "{text}");
    let text = compare("/method", "\u{1b}[2J\u{9b}".into());
    assert!(text.contains("[2J") && text.contains("is unknown"), "{text}");
}
