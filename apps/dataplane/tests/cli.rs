//! The program from outside: exit statuses, what goes to which stream, and what is said.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dataplane/tests/captures");

const CONFIG: &str = r#"
[runtime]
workers = 1
hugepages = "none"

[[port]]
name = "wan"
device = "soft"
link = { kind = "pcap", input = "in.pcap", output = "wan.pcapng" }

[[port]]
name = "lan"
device = "soft"
link = { kind = "pcap", output = "lan.pcapng" }

[pipeline]
input = ["wan"]

[[pipeline.stage]]
use = "parse"
outputs = { arp = "noise" }

[[pipeline.stage]]
name = "edge"
use = "acl"
default = "permit"
rules = [{ action = "deny", protocol = "icmp", src = "192.0.2.1/32" }]
drops = "denied"

[[pipeline.stage]]
name = "swap"
use = "mac_swap"

[[pipeline.stage]]
name = "out"
use = "tx"
port = "lan"

[[pipeline.stage]]
name = "noise"
use = "drop"

[[pipeline.stage]]
name = "denied"
use = "capture"
file = "denied.pcapng"
next = "drop"
"#;

/// A folder of its own, with a config and the capture that it plays; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dataplane-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("x.toml"), CONFIG).unwrap();
        fs::copy(capture("arp-and-ping.pcap"), path.join("in.pcap")).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn capture(name: &str) -> PathBuf {
    Path::new(CAPTURES).join(name)
}

fn command<T: AsRef<OsStr>>(args: &[T]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// The exit status, standard output and standard error of a command line. `@` stands for the folder.
fn dataplane(folder: &Folder, line: &str) -> (i32, String, String) {
    let args: Vec<String> = line.split(' ').map(|arg| arg.replace('@', &folder.0.display().to_string())).collect();
    ended(command(&args).output().unwrap())
}

fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_wrong_command_line_is_status_2_and_help_is_status_0() {
    let folder = Folder::new("usage");
    for line in ["", "fly", "run", "run @/x.toml --for soon", "run @/x.toml --set burst", "graph @/x.toml --format gif"]
    {
        let (status, out, err) = dataplane(&folder, line);
        assert_eq!((status, out.as_str()), (2, ""), "{line}");
        assert!(err.contains("Usage") || err.contains("--help"), "{line}: {err}");
    }
    let (status, out, err) = dataplane(&folder, "--help");
    assert_eq!((status, err.as_str()), (0, ""));
    for command in ["run", "stats", "check", "graph", "explain", "stages", "devices", "topology"] {
        assert!(out.contains(&format!("  {command} ")), "{command}: {out}");
    }
}

#[test]
fn check_prints_the_plan_of_a_config_without_mistakes() {
    let folder = Folder::new("plan");
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert_eq!((status, err.as_str()), (0, ""));
    for part in ["workers   1", "wan: soft pcap", "parse: → edge, arp → noise, other → drop", "swap (mac_swap): → out"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, _) = dataplane(&folder, "check -j @/x.toml --set runtime.burst=32 --set runtime.idle=sleep");
    let plan = json(&out);
    assert_eq!((status, &plan["runtime"]["burst"], &plan["runtime"]["idle"]), (0, &32.into(), &"sleep".into()));
    assert_eq!(plan["nodes"][3]["use"], "tx");
}

#[test]
fn check_shows_every_mistake_with_its_place() {
    let folder = Folder::new("mistakes");
    let mut text = CONFIG.replace("workers = 1", "wrkers = 1").replace("use = \"mac_swap\"", "use = \"mac_swop\"");
    text = text
        .replace("\"deny\"", "\"dney\"")
        .replace("name = \"out\"\nuse = \"tx\"\nport = \"lan\"", "use = \"tx\"\nport = \"lam\"");
    folder.write("x.toml", text);
    let expected = [
        (3, "unknown key `wrkers`", "did you mean `workers`?"),
        (27, "unknown value `dney`", "did you mean `deny`?"),
        (32, "there is no stage `mac_swop`", "did you mean `mac_swap`?"),
        (36, "stage `tx`: there is no port `lam`", "did you mean `lan`?"),
    ];
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert_eq!((status, out.as_str()), (2, ""));
    for (line, message, help) in expected {
        assert!(
            err.contains(&format!("x.toml:{line}:")) && err.contains(message) && err.contains(help),
            "{message}: {err}"
        );
    }
    let last = format!("error: 4 mistakes in {}; there may be more, which", folder.path("x.toml").display());
    assert!(err.contains(&last), "{err}");
    assert!(!err.contains('\x1b'), "no colours where no terminal is");

    let (status, out, err) = dataplane(&folder, "check --json @/x.toml");
    assert_eq!((status, err.as_str()), (2, ""));
    let records = json(&out);
    let records = records.as_array().unwrap();
    assert_eq!(records.len(), expected.len(), "{out}");
    for (record, (line, message, _)) in records.iter().zip(expected) {
        assert_eq!(record["line"], line, "{record}");
        assert!(record["message"].as_str().unwrap().contains(message), "{record}");
    }
    // Every command that takes a config says the same.
    for line in ["run @/x.toml", "graph @/x.toml", "explain @/x.toml @/in.pcap", "topology @/x.toml"] {
        let (status, out, err) = dataplane(&folder, line);
        assert_eq!((status, out.as_str()), (2, ""), "{line}");
        assert!(err.contains("there is no stage `mac_swop`"), "{line}: {err}");
    }
}

#[test]
fn a_capture_and_a_device_that_are_not_there_are_shown_with_their_places() {
    let folder = Folder::new("missing");
    for (input, why) in
        [("absent.pcap", "No such file"), (".", "a folder"), ("x.toml", "not a capture"), ("short", "not a capture")]
    {
        folder.write("short", [0xd4]);
        folder.write("x.toml", CONFIG.replace("input = \"in.pcap\"", &format!("input = \"{input}\"")));
        for command in ["check", "run", "doctor"] {
            let (status, out, err) = dataplane(&folder, &format!("{command} @/x.toml"));
            assert_eq!((status, out.as_str()), (2, ""), "{command} {input}");
            assert!(err.contains("x.toml:9:33") && err.contains(why), "{command} {input}: {err}");
        }
    }
    // To look at a pipeline takes no traffic.
    assert_eq!(dataplane(&folder, "graph @/x.toml").0, 0);

    let port = "name = \"a\"\ndevice = \"none_such\"\n";
    let stage = "use = \"tx\"\nport = \"a\"\n";
    let text =
        format!("[runtime]\nworkers = 1\n[[port]]\n{port}[pipeline]\ninput = [\"a\"]\n[[pipeline.stage]]\n{stage}");
    folder.write("x.toml", text);
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert!(status == 0 && out.contains("a: none_such"), "{out} {err}");
    assert!(err.contains("x.toml:5:10") && err.contains("warning: this host has no RDMA device `none_such`"), "{err}");
    let (status, out, _) = dataplane(&folder, "doctor @/x.toml");
    assert!(status == 1 && out.contains("fails: this host has no RDMA device `none_such`"), "{out}");
}

#[test]
fn a_config_that_cannot_be_read_is_status_2() {
    let folder = Folder::new("absent");
    let (status, out, err) = dataplane(&folder, "check @/y.toml");
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("y.toml: No such file"), "{err}");
    let (status, _, err) = dataplane(&folder, "check @/x.toml --set runtime.burst=0");
    assert_eq!(status, 2);
    assert!(err.contains("--set runtime.burst=0"), "{err}");
}

#[test]
fn a_run_reports_on_standard_output_alone() {
    let folder = Folder::new("run");
    let (status, out, err) = dataplane(&folder, "run @/x.toml --report json");
    assert_eq!(status, 0, "{err}");
    let report = json(&out);
    let ledger = &report["ledger"];
    let packets = report["packets"]["rx"].as_u64().unwrap();
    let dropped = ledger["dropped"].as_u64().unwrap();
    assert!(packets > 0 && dropped > 0, "{ledger}");
    assert_eq!(ledger["unaccounted"], 0);
    assert_eq!(report["packets"]["tx"], packets - dropped);
    assert!(ledger["drops"]["edge.denied"].as_u64().unwrap() > 0, "{ledger}");
    assert!(ledger["drops"]["noise.requested"].as_u64().unwrap() > 0, "{ledger}");
    for key in ["duration_s", "bytes", "rate_mpps", "latency_ns", "costs", "ports", "stages", "workers"] {
        assert!(!report[key].is_null(), "{key}");
    }
    for file in ["lan.pcapng", "denied.pcapng"] {
        assert!(fs::metadata(folder.path(file)).unwrap().len() > 0, "{file}");
    }

    let (status, out, _) = dataplane(&folder, "run @/x.toml --packets 3");
    assert_eq!(status, 0);
    assert!(out.contains("received 3 packets") && out.contains("unaccounted 0"), "{out}");
}

#[test]
fn a_run_that_fails_is_status_1_and_says_why() {
    let folder = Folder::new("failed");
    let held = fs::File::create(folder.path("wan.pcapng")).unwrap();
    held.lock().unwrap();
    let (status, out, err) = dataplane(&folder, "run @/x.toml");
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("wan.pcapng: another port, stage or program writes or plays this file"), "{err}");
    drop(held);

    // Damaged: what comes before is processed and reported.
    let whole = fs::read(capture("arp-and-ping.pcap")).unwrap();
    folder.write("in.pcap", &whole[..whole.len() - 5]);
    let (status, out, err) = dataplane(&folder, "run @/x.toml -j");
    assert_eq!(status, 1, "{err}");
    let report = json(&out);
    assert!(report["packets"]["rx"].as_u64().unwrap() > 0);
    assert_eq!(report["ledger"]["unaccounted"], 0);
    assert!(err.contains("in.pcap") && err.contains("byte"), "{err}");
}

/// Starts a run that does not end by itself, and returns when it runs.
fn endless(folder: &Folder) -> Child {
    let mut child = start_endless(folder, CONFIG);
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("running")), "it ends before it runs");
    child
}

fn start_endless(folder: &Folder, config: &str) -> Child {
    let config =
        config.replace("kind = \"pcap\", input = \"in.pcap\", output = \"wan.pcapng\"", "kind = \"generator\"");
    let config = config.replace("kind = \"pcap\", output = \"lan.pcapng\"", "kind = \"generator\"");
    let path = folder.write("endless.toml", config);
    let mut run = command(&[OsStr::new("run"), path.as_os_str(), OsStr::new("-jv")]);
    run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The rest of a run that was told to end: its report.
fn rest(mut child: Child) -> Value {
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let report = json(&out);
    assert_eq!(report["ledger"]["unaccounted"], 0);
    report
}

#[test]
fn an_interrupt_drains_and_reports() {
    let folder = Folder::new("interrupt");
    // Without a file to read anew, a hangup is the end too.
    for signal in ["-INT", "-TERM", "-HUP"] {
        let child = endless(&folder);
        send(&child, signal);
        rest(child);
    }
}

#[test]
fn an_output_that_fails_is_told_while_the_run_goes_on() {
    let folder = Folder::new("full-endless");
    let mut child = start_endless(&folder, &CONFIG.replace("lan.pcapng", "/dev/full"));
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("/dev/full: No space left")), "it ends without a word");
    assert!(child.try_wait().unwrap().is_none());
    send(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// As when the terminal is gone: what is said on standard error gets nowhere.
#[test]
fn a_run_ends_well_when_nobody_hears_it() {
    let folder = Folder::new("unheard");
    let mut child = endless(&folder);
    drop(child.stderr.take());
    send(&child, "-HUP");
    rest(child);
}

#[test]
fn a_hangup_reads_rules_anew() {
    let folder = Folder::new("hangup");
    folder.write("rules.toml", "rules = []");
    let from = "rules = [{ action = \"deny\", protocol = \"icmp\", src = \"192.0.2.1/32\" }]";
    let mut child = start_endless(&folder, &CONFIG.replace(from, "file = \"rules.toml\""));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut says = |part: &str| {
        let found = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("it does not say `{part}`"))
    };
    says("running");
    folder.write("rules.toml", "rules = [{ action = \"deny\" }]");
    send(&child, "-HUP");
    says("edge: reloaded: rules: 1, before: 0, from ");
    folder.write("rules.toml", "rules = [\n  { action = \"deny\", dst_prot = 1 },\n]");
    send(&child, "-HUP");
    says("edge: not reloaded, all stays as it was:");
    let told = says("rules.toml:2:");
    assert!(told.contains("unknown field `dst_prot`") && told.contains("(the file has `rules = "), "{told}");
    send(&child, "-INT");
    let report = rest(child);
    let edge = report["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == "edge").unwrap();
    let counters = &edge["counters"];
    assert_eq!((&counters["reloads"], &counters["refused"], &counters["rules"]), (&1.into(), &1.into(), &1.into()));
}

/// A hundred thousand rules take a while to be compiled: the end comes meanwhile, and another hangup does not hurry it.
#[test]
fn an_end_does_not_wait_for_rules() {
    let folder = Folder::new("abandoned");
    folder.write("rules.toml", "rules = []");
    let from = "rules = [{ action = \"deny\", protocol = \"icmp\", src = \"192.0.2.1/32\" }]";
    let mut child = start_endless(&folder, &CONFIG.replace(from, "file = \"rules.toml\""));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains("running")));
    let rule = |at: u32| {
        let [_, a, b, c] = at.to_be_bytes();
        format!("{{ action = \"deny\", src = \"10.{a}.{b}.{c}\", dst = \"172.{a}.{b}.{c}\" }},\n")
    };
    folder.write("rules.toml", format!("rules = [\n{}]", (0..99_999).map(rule).collect::<String>()));
    send(&child, "-HUP");
    assert!(lines.any(|line| line.contains("files are read anew")));
    send(&child, "-INT");
    send(&child, "-HUP");
    assert!(lines.any(|line| line.contains("not read anew any more")), "it waited for the rules");
    rest(child);
}

/// As `ulimit -f` has it: who writes the file is told, and the program goes on.
#[test]
fn a_file_that_may_not_grow_ends_no_run() {
    let folder = Folder::new("limited");
    let config = folder.write(
        "limited.toml",
        r#"
        [runtime]
        workers = 1
        hugepages = "none"
        [[port]]
        name = "in"
        device = "soft"
        link = { kind = "generator", size = 100 }
        [pipeline]
        input = ["in"]
        [[pipeline.stage]]
        use = "capture"
        file = "all.pcapng"
        lossless = true
        rotate_bytes = 100_000
        [[pipeline.stage]]
        use = "drop"
        "#,
    );
    let mut run = Command::new("sh");
    run.args(["-c", "ulimit -f 8; exec \"$0\" run \"$1\" -j --packets 5000", env!("CARGO_BIN_EXE_dataplane")]);
    let (status, out, err) = ended(run.arg(config).output().unwrap());
    assert_eq!(status, 1, "{err}");
    assert_eq!(err.matches("packets are left out").count(), 1, "{err}");
    assert!(err.contains("File too large"), "{err}");
    let report = json(&out);
    assert_eq!((&report["packets"]["rx"], &report["ledger"]["unaccounted"]), (&5000.into(), &0.into()));
    // What is there is whole: as many packets as were taken and not lost.
    let mut packets = 0;
    let files = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.to_string_lossy().contains("all_")) {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            packets += u64::from(word(0) == 6);
            rest = &rest[word(4) as usize..];
        }
    }
    let capture = report["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == "capture").unwrap();
    let counted = |name: &str| capture["counters"][name].as_u64().unwrap();
    assert_eq!(counted("taken") - counted("lost"), packets);
    assert!(packets > 0);
}

/// The frames of a capture of little-endian words, if all of it is whole.
fn frames(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let is_ng = word(0) == Some(0x0a0d_0d0a);
    let (mut at, mut frames) = (if is_ng { 0 } else { bytes.len().min(24) }, 0);
    while at < bytes.len() {
        frames += u64::from(!is_ng || word(at)? == 6);
        at += if is_ng { word(at + 4)? } else { 16 + word(at + 8)? };
    }
    (at == bytes.len()).then_some(frames)
}

/// As on a full disk: what is in the file is whole, and what the ledger has as sent and the file has not is told.
#[test]
fn an_output_that_fails_is_cut_to_what_is_whole_and_the_rest_is_told() {
    let folder = Folder::new("full");
    for (output, limit) in [("a.pcap", 0), ("b.pcap", 1), ("c.pcapng", 77), ("d.pcap", 600), ("e.pcapng", 777)] {
        let config = folder.write(
            "full.toml",
            format!(
                r#"
                [runtime]
                workers = 1
                hugepages = "none"
                [[port]]
                name = "in"
                device = "soft"
                link = {{ kind = "generator", size = 101, count = 5000 }}
                [[port]]
                name = "out"
                device = "soft"
                link = {{ kind = "pcap", output = "{output}" }}
                [pipeline]
                input = ["in"]
                [[pipeline.stage]]
                use = "tx"
                port = "out"
                "#
            ),
        );
        let limited = |form: &str| {
            let mut run = Command::new("sh");
            run.args(["-c", "ulimit -f $3; exec \"$0\" run \"$1\" --report $2", env!("CARGO_BIN_EXE_dataplane")]);
            ended(run.arg(&config).arg(form).arg(limit.to_string()).output().unwrap())
        };
        let (status, out, err) = limited("json");
        assert_eq!(status, 1, "{err}");
        let report = json(&out);
        let (ledger, port) = (&report["ledger"], &report["ports"][1]);
        assert_eq!((&ledger["rx"], &ledger["unaccounted"]), (&5000.into(), &0.into()));
        let number = |value: &Value| value.as_u64().unwrap();
        let (sent, lost) = (number(&port["packets"]["tx"]), number(&port["tx_lost"]));
        assert_eq!(sent + ledger["drops"]["out.tx_error"].as_u64().unwrap_or(0), 5000);
        assert_eq!(lost, number(&port["device_counters"]["tx_lost"]));
        assert!(
            err.contains(&format!("{output}: File too large (os error 27): {lost} packets that were sent")),
            "{err}"
        );
        assert_eq!(err.matches("further packets are dropped").count(), 1, "{err}");
        let bytes = fs::read(folder.path(output)).unwrap();
        assert_eq!(frames(&bytes), Some(sent - lost), "{output}: {} bytes", bytes.len());
        assert!(lost > 0 && bytes.len() <= limit * 512, "{output}: {lost} lost, {} bytes", bytes.len());
        // Nearly all that the disk takes is there.
        assert!(bytes.len() + 200 > limit * 512, "{output}: {} bytes", bytes.len());

        let (_, out, _) = limited("human");
        assert!(out.contains("of those that were sent: not in the file of port out"), "{out}");
    }
}

#[test]
fn a_graph_has_every_stage_and_port() {
    let folder = Folder::new("graph");
    for (format, first, last) in
        [("svg", "<svg", "</svg>\n"), ("dot", "digraph", "}\n"), ("mermaid", "flowchart", "\n")]
    {
        let (status, out, err) = dataplane(&folder, &format!("graph @/x.toml --format {format}"));
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(out.starts_with(first) && out.ends_with(last), "{out}");
        for name in ["wan", "lan", "parse", "edge", "swap", "out", "noise", "arp", "drop: other", "drop → denied"] {
            assert!(out.contains(name), "{format}: {name}");
        }
    }
    let (_, svg, _) = dataplane(&folder, "graph @/x.toml");
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    let (status, out, _) = dataplane(&folder, "graph @/x.toml -o @/x.dot");
    assert_eq!((status, out.as_str()), (0, ""));
    assert!(fs::read_to_string(folder.path("x.dot")).unwrap().starts_with("digraph"));
    let (status, _, err) = dataplane(&folder, "graph @/x.toml -o @/none/x.svg");
    assert_eq!(status, 1);
    assert!(err.contains("none/x.svg"), "{err}");

    // Not over the config that it is drawn from, nor over what that plays or writes, by whatever name.
    std::os::unix::fs::symlink(folder.path("x.toml"), folder.path("link.svg")).unwrap();
    folder.write("denied.pcapng", "kept");
    let before = ["x.toml", "in.pcap", "denied.pcapng"].map(|name| fs::read(folder.path(name)).unwrap());
    for (output, what) in [
        ("x.toml", "the config itself"),
        ("link.svg", "the config itself"),
        ("in.pcap", "the input of port"),
        ("denied.pcapng", "the file that stage `denied` writes"),
    ] {
        let (status, _, err) = dataplane(&folder, &format!("graph @/x.toml -o @/{output}"));
        assert_eq!(status, 1, "{err}");
        assert!(err.contains(what) && err.contains("name another file"), "{err}");
    }
    assert!(["x.toml", "in.pcap", "denied.pcapng"].map(|name| fs::read(folder.path(name)).unwrap()) == before);
}

#[test]
fn the_picture_of_the_quickstart_is_up_to_date() {
    let folder = Folder::new("picture");
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let (status, out, _) = dataplane(&folder, &format!("graph {repository}/configs/quickstart.toml"));
    assert_eq!(status, 0);
    let drawn = fs::read_to_string(format!("{repository}/docs/quickstart.svg")).unwrap();
    assert!(
        drawn == out,
        "draw it anew: target/release/dataplane graph configs/quickstart.toml -o docs/quickstart.svg"
    );
}

#[test]
fn explain_tells_the_way_of_every_packet() {
    let folder = Folder::new("explain");
    let (status, out, err) = dataplane(&folder, "explain @/x.toml @/in.pcap");
    assert_eq!((status, err.as_str()), (0, ""));
    let ping = "icmp echo request 1  98 bytes\n  parse → edge (no rule matches: permit) → swap → out lan\n  changed: \
                ethernet.destination 02:00:00:00:00:02 → 02:00:00:00:00:01, ethernet.source 02:00:00:00:00:01 → \
                02:00:00:00:00:02\n  sent on lan\n";
    assert!(out.contains(ping), "{out}");
    assert!(out.contains("  parse [arp] → noise\n  dropped: noise.requested\n"), "{out}");
    assert!(out.contains("\n  dropped: edge.denied\n"), "{out}");
    let written = ["lan.pcapng", "wan.pcapng", "denied.pcapng"].map(|name| folder.path(name).exists());
    assert_eq!(written, [false; 3], "nothing is opened, nothing is written");

    let (status, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap --packets 2");
    assert_eq!(status, 0);
    let packets = json(&out);
    assert_eq!(packets.as_array().unwrap().len(), 2);
    assert_eq!((&packets[1]["number"], &packets[1]["path"][0]["stage"]), (&2.into(), &"parse".into()));
    let (_, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap --packets 0");
    assert_eq!(json(&out), Value::Array(Vec::new()));
}

/// What is explained is what happens: the fates add up to the ledger of a run.
#[test]
fn explain_agrees_with_a_run() {
    let folder = Folder::new("agree");
    for name in fs::read_dir(CAPTURES).unwrap().map(|entry| entry.unwrap().path()) {
        if !name.extension().is_some_and(|end| end == "pcap" || end == "pcapng") {
            continue;
        }
        fs::copy(&name, folder.path("in.pcap")).unwrap();
        let (_, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap");
        let packets = json(&out);
        let packets = packets.as_array().unwrap();
        let (_, out, _) = dataplane(&folder, "run -j @/x.toml");
        let report = json(&out);
        let sent = packets.iter().filter(|packet| packet["fate"] == "sent").count();
        assert_eq!(report["packets"]["tx"], sent, "{}", name.display());
        for (reason, count) in report["ledger"]["drops"].as_object().unwrap() {
            let dropped = packets.iter().filter(|packet| packet["detail"] == reason.as_str()).count();
            assert_eq!(*count, dropped, "{}: {reason}", name.display());
        }
    }
}

#[test]
fn explain_goes_as_far_as_a_capture_is_valid() {
    let folder = Folder::new("damaged");
    let whole = fs::read(capture("arp-and-ping.pcap")).unwrap();
    folder.write("in.pcap", &whole[..whole.len() - 5]);
    let (status, out, err) = dataplane(&folder, "explain -j @/x.toml @/in.pcap");
    assert_eq!(status, 1);
    let count = json(&out).as_array().unwrap().len();
    assert!(count > 0);
    assert!(err.contains("damaged at byte") && err.contains(&format!("the {count} packets before it")), "{err}");

    folder.write("in.pcap", "this is no capture, but long enough to be one");
    let (status, out, err) = dataplane(&folder, "explain @/x.toml @/in.pcap");
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("in.pcap: not a capture"), "{err}");
    let (status, _, err) = dataplane(&folder, "explain @/x.toml @/in.pcap --port lan");
    assert_eq!(status, 2);
    assert!(err.contains("`lan` is no input"), "{err}");
}

#[test]
fn nobody_reading_is_no_failure() {
    let folder = Folder::new("pipe");
    let args = ["explain".into(), folder.path("x.toml"), capture("mixed.pcap")];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let (status, _, err) = ended(child.wait_with_output().unwrap());
    assert_eq!((status, err.as_str()), (0, ""));
}

#[test]
fn stages_are_listed_and_described() {
    let folder = Folder::new("stages");
    let (status, out, err) = dataplane(&folder, "stages");
    assert_eq!((status, err.as_str()), (0, ""));
    let (_, listed, _) = dataplane(&folder, "stages --json");
    for stage in json(&listed).as_array().unwrap() {
        let name = stage["name"].as_str().unwrap();
        assert!(out.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        assert!(stage["summary"].as_str().unwrap().ends_with('.'), "{name}");
        let (status, described, _) = dataplane(&folder, &format!("stages {name}"));
        assert_eq!(status, 0);
        for row in stage["parameters"].as_array().unwrap() {
            assert!(described.contains(row["key"].as_str().unwrap()), "{name}: {row}");
        }
    }
    let (status, out, err) = dataplane(&folder, "stages prase");
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("did you mean `parse`?"), "{err}");
}

#[test]
fn devices_and_topology_describe_the_host() {
    let folder = Folder::new("host");
    let (status, out, _) = dataplane(&folder, "devices");
    assert_eq!(status, 0);
    for part in ["verbs devices\n", "software device", "loopback", "generator", "pcap"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = dataplane(&folder, "devices -j");
    let devices = json(&out);
    let none = devices["verbs"]["devices"].as_array().unwrap().is_empty();
    assert_eq!(none, devices["verbs"]["note"].is_string(), "{devices}");

    let (status, out, _) = dataplane(&folder, "topology @/x.toml");
    assert_eq!(status, 0);
    assert!(out.contains("\nworkers of the config\n  0: core "), "{out}");
    let (_, out, _) = dataplane(&folder, "topology -j @/x.toml");
    let topology = json(&out);
    assert_eq!(topology["workers"].as_array().unwrap().len(), 1);
    assert!(!topology["cores"].as_array().unwrap().is_empty());
}

#[test]
fn the_config_reference_is_up_to_date() {
    let folder = Folder::new("reference");
    let (status, out, _) = dataplane(&folder, "reference");
    assert_eq!(status, 0);
    let written = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config-reference.md");
    let written = fs::read_to_string(written).unwrap();
    assert!(written == out, "write it anew: cargo run -p dataplane-runner -- reference > docs/config-reference.md");
}
