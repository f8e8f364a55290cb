//! Tests of the commands that change a running program.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use dataplane_testing::config::Config;
use dataplane_testing::wait_until;
use serde_json::Value;

use crate::common::{LINK, Running, RuntimeFolder, config, json, number};

/// Returns the config of the program with a changed rule.
fn changed() -> String {
    config(LINK).replace("1024-1027", "1024-1031")
}

/// Returns the text of the config that the program uses.
fn in_force(folder: &RuntimeFolder) -> String {
    let (status, out, error) = folder.dataplane("show config --json --socket @/x.sock");
    assert_eq!((status, error.as_str()), (0, ""));
    json(&out)["rows"][0]["text"].as_str().unwrap().to_owned()
}

/// Runs a command that must end with the exit status `status`. Returns the command's standard output and standard
/// error.
fn ended(folder: &RuntimeFolder, line: &str, status: i32) -> (String, String) {
    let (ended, out, error) = folder.dataplane(&format!("{line} --socket @/x.sock"));
    assert_eq!(ended, status, "{line}: {out}{error}");
    (out, error)
}

fn start(folder: &RuntimeFolder) -> Running {
    folder.run(" --set runtime.control=@/x.sock", Some("x.sock"))
}

#[test]
fn plan_lists_the_operations_for_a_program_and_for_two_files() {
    let folder = RuntimeFolder::new();
    let running = start(&folder);
    folder.0.write("new.toml", changed());
    let operation = "replace stage edge (rules): hitless: the program prepares the new stage before the workers switch to \
                     their new graphs; the stage keeps its counters and the hits of each rule whose name \
                     the new rules also contain\n";
    let (live, _) = ended(&folder, "plan @/new.toml", 0);
    let (offline, _) = ended(&folder, "plan @/x.toml @/new.toml", 0);
    assert!(
        live.starts_with(operation) && live.contains("hitless: `dataplane apply ") && live.contains(" --base "),
        "{live}"
    );
    assert_eq!(offline, format!("{operation}no operation needs a restart, as far as the configs show\n"));
    assert_eq!(ended(&folder, "plan @/x.toml", 0).0, "no difference\n");
    let plan = json(&ended(&folder, "plan @/new.toml --json", 0).0);
    assert_eq!(
        (&plan["operations"][0]["operation"], &plan["operations"][0]["keys"][0]),
        (&"replace_stage".into(), &"rules".into())
    );
    folder.0.write("burst.toml", changed().replace("[runtime]", "[runtime]\nburst = 8"));
    let (text, _) = ended(&folder, "plan @/burst.toml", 0);
    assert!(text.starts_with("change runtime burst: needs a restart: "), "{text}");
    assert!(text.ends_with("1 of 2 operations need a restart\n"), "{text}");
    // Each mistake is printed with its position.
    folder.0.write("wrong.toml", changed().replace("'parse'", "'prase'").replace("default", "dfault"));
    let (_, errors) = ended(&folder, "plan @/wrong.toml", 2);
    let path = folder.path("wrong.toml").display().to_string();
    assert_eq!(errors.matches(&format!("{path}:")).count(), 2, "{errors}");
    assert!(errors.contains("did you mean `parse`?") && errors.contains("2 mistakes in "), "{errors}");
    assert_eq!(in_force(&folder), config(LINK));
    running.end("-TERM");
}

#[test]
fn config_is_applied_confirmed_rolled_back_saved_and_reloaded() {
    let folder = RuntimeFolder::new();
    let running = start(&folder);
    folder.0.write("new.toml", changed());
    let (plan, _) = ended(&folder, "plan @/new.toml --json", 0);
    let base = json(&plan)["base"].as_str().unwrap().to_owned();
    let (out, _) = ended(&folder, &format!("apply @/new.toml --base {base} --confirm 1h"), 0);
    assert!(
        out.contains("applied: change 1, ") && out.ends_with("reverts in 3600 s unless you run `dataplane confirm`\n"),
        "{out}"
    );
    assert_eq!(in_force(&folder), changed());
    let (_, error) = ended(&folder, "save", 1);
    assert!(error.contains("waits for its confirmation") && error.contains("--force"), "{error}");
    let (_, error) = ended(&folder, "apply @/x.toml", 1);
    assert!(error.contains("change 1 waits for its confirmation") && error.contains("dataplane confirm"), "{error}");
    ended(&folder, "confirm", 0);
    assert!(ended(&folder, "confirm", 1).1.contains("no change waits for a confirmation"));
    let (_, error) = ended(&folder, &format!("apply @/new.toml --base {base}"), 1);
    assert!(error.contains(&format!("made for the config {base}")), "{error}");
    // A save does not overwrite a file that the program has not read.
    folder.0.write("x.toml", "# edited\n".to_owned() + &config(LINK));
    let (_, error) = ended(&folder, "save", 1);
    assert!(error.contains("x.toml has changed since the program read the file; help: "), "{error}");
    fs::create_dir(folder.path("folder")).unwrap();
    let (_, error) = ended(&folder, "save @/folder/../x.toml", 1);
    assert!(error.contains("has changed since the program read the file"), "{error}");
    for (file, fix) in [
        ("@/missing/x.toml", "name a file in a folder that exists"),
        // The kernel lets no user create a file in this folder.
        ("/sys/x.toml", "name a file in a folder in which this user may create files"),
        ("@/folder", "name another file"),
    ] {
        let (_, error) = ended(&folder, &format!("save {file}"), 1);
        assert!(error.contains(&format!("; no file was changed; help: {fix}\n")), "{error}");
    }
    folder.0.write("x.toml", config(LINK));
    // `save` without a path writes to the file with which the run started, not to the applied file.
    assert!(ended(&folder, "save", 0).0.ends_with("x.toml\n"));
    assert_eq!(fs::read_to_string(folder.path("x.toml")).unwrap(), changed());
    ended(&folder, "rollback", 0);
    assert_eq!(in_force(&folder), config(LINK));
    ended(&folder, "save @/copy.toml", 0);
    assert_eq!(fs::read_to_string(folder.path("copy.toml")).unwrap(), config(LINK));
    ended(&folder, "reload", 0);
    assert_eq!(in_force(&folder), changed());
    folder.0.write("x.toml", changed().replace("[pipeline]", "[pipline]"));
    let (_, error) = ended(&folder, "reload", 1);
    assert!(error.contains("x.toml:") && error.contains("did you mean `pipeline`?"), "{error}");
    let (history, _) = ended(&folder, "history", 0);
    let causes: Vec<&str> = history.lines().skip(1).map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(causes, ["start", "apply", "rollback", "reload"], "{history}");
    assert_eq!(running.end("-TERM")["ledger"]["unaccounted"], 0);
}

#[test]
fn unconfirmed_change_of_a_killed_client_reverts() {
    let folder = RuntimeFolder::new();
    let running = start(&folder);
    folder.0.write("new.toml", changed());
    let began = Instant::now();
    let mut command = folder.command("apply @/new.toml --confirm 2s --socket @/x.sock");
    let mut client = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("the change", || in_force(&folder) == changed());
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the reverted change", || in_force(&folder) == config(LINK));
    assert!(began.elapsed() >= Duration::from_secs(2), "the change reverted after {:?}", began.elapsed());
    let (history, _) = ended(&folder, "history", 0);
    let states: Vec<&str> = history.lines().skip(1).map(|line| line.split_whitespace().last().unwrap()).collect();
    assert_eq!(states, ["replaced", "reverted", "force"], "{history}");
    assert_eq!(running.end("-TERM")["ledger"]["unaccounted"], 0);
}

#[test]
fn sighup_applies_the_config_file() {
    let folder = RuntimeFolder::new();
    let running = start(&folder);
    folder.0.write("x.toml", changed());
    running.program.signal("-HUP");
    wait_until("the changed config", || in_force(&folder) == changed());
    running.end("-TERM");
}

#[test]
fn upgrade_needs_the_working_directory_of_the_program() {
    let folder = RuntimeFolder::new();
    let directory = folder.path("directory");
    fs::create_dir(&directory).unwrap();
    let mut command = folder.command("run @/x.toml --json --set runtime.control=@/x.sock");
    command.stdout(Stdio::piped()).stderr(Stdio::null()).current_dir(&directory);
    let running = folder.start(&mut command, Some("x.sock"));
    fs::remove_dir(&directory).unwrap();
    let upgrade = format!("upgrade --to {}", env!("CARGO_BIN_EXE_dataplane"));
    let (_, error) = ended(&folder, &upgrade, 1);
    let expected = format!("the working directory {} was deleted; help: run `mkdir -p ", directory.display());
    assert!(error.contains(&expected), "{error}");
    // The new program starts in a new directory with the same path, and refuses the links of this config.
    fs::create_dir(&directory).unwrap();
    let (_, error) = ended(&folder, &upgrade, 1);
    assert!(error.contains("cannot be handed over"), "{error}");
    running.end("-TERM");
}

#[test]
fn single_rules_are_set_and_saved_and_the_rest_of_the_config_stays() {
    let folder = RuntimeFolder::new();
    let running = start(&folder);
    let (out, _) = ended(&folder, "set acl add deny tcp dst_port 23 name telnet", 0);
    assert!(out.starts_with("replace stage edge (rules): hitless: ") && out.contains("applied: change 1, "), "{out}");
    let with_rule = in_force(&folder);
    assert!(
        with_rule.contains(r#"{ action = "deny", protocol = "tcp", dst_port = 23, name = "telnet" }"#),
        "{with_rule}"
    );
    let (rules, _) = ended(&folder, "show acl", 0);
    assert!(rules.contains("telnet"), "{rules}");
    let (out, _) = ended(&folder, "set acl default deny --json --confirm 1h", 0);
    let applied = json(&out);
    assert_eq!((&applied["number"], &applied["confirm_s"]), (&2.into(), &3600.into()));
    ended(&folder, "rollback", 0);
    assert_eq!(in_force(&folder), with_rule);
    ended(&folder, "save", 0);
    assert_eq!(fs::read_to_string(folder.path("x.toml")).unwrap(), with_rule);
    ended(&folder, "set acl del telnet", 0);
    assert_eq!(in_force(&folder), config(LINK));
    for (line, status, expected) in [
        ("set acl add deny udp port 1", 2, "`port` is not a key of a rule"),
        ("set acl add deny udp dst_port 70000", 2, "70000"),
        ("set acl del telnet", 2, "no rule of the config has the name or the text `telnet`"),
        ("set acl del telnet --stage inner", 2, "has the name `inner`; help: the stages are `edge`"),
        ("set route add 10.0.0.0/8 dev wire", 2, "the config has no stage with use = \"route\""),
        ("set route add 10.0.0/8 dev wire", 2, "`10.0.0/8` is not a prefix"),
    ] {
        let (_, error) = ended(&folder, line, status);
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert_eq!(in_force(&folder), config(LINK));
    running.end("-TERM");
}

/// Waits until the program has received packets that no earlier pipeline has handled. Returns the statistics.
fn after_more_packets(running: &Running) -> Value {
    let received = |stats: &Value| number(&stats["packets"]["rx"]);
    let before = received(&running.ask().unwrap());
    let mut stats = Value::Null;
    wait_until("more packets", || {
        stats = running.ask().unwrap();
        received(&stats) > before + 1000
    });
    stats
}

#[test]
fn single_routes_are_set_and_saved_and_the_traffic_follows() {
    let folder = RuntimeFolder::new();
    let router = Config::new()
        .port("wire", LINK)
        .stage("parse", "")
        // The generator sends to 198.19.0.1.
        .stage("route", "name = 'fib'\ntable = [{ prefix = '198.18.0.0/15', port = 'wire' }] # both")
        .stage("tx", "name = 'out'\nport = 'wire'")
        .to_string();
    folder.0.write("x.toml", &router);
    let running = start(&folder);
    let dropped = |stats: &Value| stats["ledger"]["drops"]["fib.blackhole"].as_u64().unwrap_or(0);
    assert_eq!(dropped(&after_more_packets(&running)), 0);
    let (out, _) = ended(&folder, "set route add 198.19.0.0/16 drop", 0);
    assert!(out.starts_with("replace stage fib (table): hitless: ") && out.contains("applied: change 1, "), "{out}");
    let with_route = in_force(&folder);
    assert!(with_route.contains(r#"{ prefix = "198.19.0.0/16", drop = true }"#), "{with_route}");
    assert!(with_route.contains("] # both\n"), "{with_route}");
    let (routes, _) = ended(&folder, "show route get 198.19.0.1", 0);
    assert!(routes.contains("198.19.0.0/16") && routes.contains("blackhole"), "{routes}");
    wait_until("the route drops packets", || dropped(&running.ask().unwrap()) > 0);
    ended(&folder, "save", 0);
    assert_eq!(fs::read_to_string(folder.path("x.toml")).unwrap(), with_route);
    ended(&folder, "set route del 198.19.0.0/16", 0);
    assert_eq!(in_force(&folder), router);
    let before = after_more_packets(&running);
    let after = after_more_packets(&running);
    assert_eq!(dropped(&before), dropped(&after));
    ended(&folder, "set route add 198.19.0.1/32 via 192.0.2.1 dev wire", 0);
    let (routes, _) = ended(&folder, "show route get 198.19.0.1", 0);
    assert!(routes.contains("198.19.0.1/32") && routes.contains("via 192.0.2.1"), "{routes}");
    let sent = |stats: &Value| number(&stats["packets"]["tx"]);
    assert!(sent(&after_more_packets(&running)) > sent(&after));
    assert_eq!(running.end("-TERM")["ledger"]["unaccounted"], 0);
}

#[test]
fn single_limits_are_set_and_saved_and_the_traffic_follows() {
    let folder = RuntimeFolder::new();
    let limited = Config::new()
        .port("wire", LINK)
        .stage("limit", "name = 'police'\npackets_per_second = 1 # few\nburst = 1")
        .stage("tx", "name = 'out'\nport = 'wire'")
        .to_string();
    folder.0.write("x.toml", &limited);
    let running = start(&folder);
    let dropped = |stats: &Value| number(&stats["ledger"]["drops"]["police.rate_exceeded"]);
    assert!(dropped(&after_more_packets(&running)) > 0);
    let (out, _) = ended(&folder, "set limit packets_per_second 1000000000 burst 1000000000", 0);
    assert!(out.starts_with("replace stage police (burst, packets_per_second): hitless: "), "{out}");
    let unlimited = limited.replace("= 1 # few\nburst = 1\n", "= 1000000000 # few\nburst = 1000000000\n");
    assert_ne!(unlimited, limited);
    assert_eq!(in_force(&folder), unlimited);
    let limits = json(&ended(&folder, "show limits --json", 0).0);
    assert_eq!(
        (&limits["rows"][0]["rate_per_s"], &limits["rows"][0]["burst"]),
        (&1_000_000_000.into(), &1_000_000_000.into())
    );
    let before = after_more_packets(&running);
    let after = after_more_packets(&running);
    assert_eq!(dropped(&before), dropped(&after));
    assert!(number(&after["packets"]["tx"]) > number(&before["packets"]["tx"]));
    ended(&folder, "save", 0);
    assert_eq!(fs::read_to_string(folder.path("x.toml")).unwrap(), unlimited);
    ended(&folder, "rollback", 0);
    assert_eq!(in_force(&folder), limited);
    wait_until("the limit drops packets", || dropped(&running.ask().unwrap()) > dropped(&after));
    assert_eq!(running.end("-TERM")["ledger"]["unaccounted"], 0);
}
