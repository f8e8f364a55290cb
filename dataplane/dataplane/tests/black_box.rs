//! Tests of the black box, through the command line of an app with a faulty stage. With the environment variable
//! [`APP`], this program is the app.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use dataplane::prelude::*;
use dataplane::topology::Topology;
use dataplane_testing::config::Config;
use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Folder, skip, wait_until};
use libtest_mimic::{Arguments, Trial};

/// Set for a process that runs the command line of the app.
const APP: &str = "DATAPLANE_TEST_APP";

/// A stage that panics or hangs if a batch contains a packet to the UDP port `port`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Faulty {
    port: u16,
    #[serde(default)]
    hangs: bool,
    /// The number of batches that the stage passes on before it becomes faulty.
    #[serde(default)]
    after: u32,
}

impl Stage for Faulty {
    fn process(&mut self, _: &Ctx, batch: &mut Batch) {
        if self.after > 0 {
            self.after -= 1;
            return;
        }
        let is_wanted = |packet: &[u8]| packet.get(36..38) == Some(&self.port.to_be_bytes()[..]);
        if batch.iter_mut().any(|packet| is_wanted(packet.data())) {
            if self.hangs {
                loop {
                    std::thread::park();
                }
            }
            panic!("port {}", self.port);
        }
    }
}

fn main() {
    if std::env::var_os(APP).is_some() {
        std::process::exit(App::new().stage::<Faulty>("faulty").exit_status_of(std::env::args_os()));
    }
    let tests: [(&str, fn()); 11] = [
        ("panic_of_a_stage_is_replayed", panic_of_a_stage_is_replayed),
        ("quarantined_stage_writes_the_file_while_the_run_continues", quarantined_stage_writes_the_file),
        ("panic_that_depends_on_state_is_explained_by_its_batch", panic_that_depends_on_state),
        ("stuck_worker_is_explained_by_its_stage", stuck_worker_is_explained_by_its_stage),
        ("stuck_worker_is_named_by_why", stuck_worker_is_named_by_why),
        ("failed_device_writes_the_file", failed_device_writes_the_file),
        ("clients_get_files_on_request", clients_get_files_on_request),
        ("removed_worker_is_not_in_later_files", removed_worker_is_not_in_later_files),
        ("traffic_continues_if_no_file_can_be_written", traffic_continues_if_no_file_can_be_written),
        ("wrong_uses_are_refused_with_a_fix", wrong_uses_are_refused_with_a_fix),
        ("runs_write_a_limited_number_of_files", runs_write_a_limited_number_of_files),
    ];
    let tests = tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit();
}

/// A folder with the config `x.toml`, for the black box `box`.
struct BlackBoxFolder(Folder);

impl BlackBoxFolder {
    /// Writes a config with the stage `faulty` between the link and the stage `tx`.
    fn new(link: &str, runtime: &str, faulty: &str) -> Self {
        let folder = Self(Folder::new());
        let config = Config::new()
            .runtime(&format!("black_box = {{ folder = 'box' }}\n{runtime}"))
            .port("wire", link)
            .stage("parse", "")
            .stage("faulty", faulty)
            .stage("tx", "name = 'out'\nport = 'wire'");
        folder.0.write("x.toml", config.to_string());
        folder
    }

    /// Returns the command line of the app. `@` stands for the path of the folder.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(line.split(' ').map(|word| word.replace('@', &self.0.path().display().to_string())));
        command.env(APP, "1").env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", self.0.path()).stdin(Stdio::null());
        command
    }

    fn app(&self, line: &str) -> (i32, String, String) {
        run(&mut self.command(line))
    }

    /// Starts a run, and waits until the program answers on its control socket.
    fn start(&self) -> RunningProgram {
        let mut command = self.command("run @/x.toml");
        let mut program = RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let socket = self.0.file(&format!("dataplane-{}.sock", program.id()));
        wait_until("the program listens", || {
            assert!(program.try_wait().unwrap().is_none(), "the program has ended");
            socket.exists() && self.received(&program).is_some()
        });
        program
    }

    fn stats(&self, program: &RunningProgram) -> Option<serde_json::Value> {
        let (status, out, _) = self.app(&format!("stats {} --json", program.id()));
        (status == 0).then(|| serde_json::from_str(&out).ok())?
    }

    /// Returns the number of packets that the program has received.
    fn received(&self, program: &RunningProgram) -> Option<u64> {
        self.stats(program)?["ledger"]["rx"].as_u64()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.file("box")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the path of the only file. Checks that only the owner of the file has permissions.
    fn file(&self) -> String {
        let [file] = &self.files()[..] else { panic!("{:?}", self.files()) };
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        file.display().to_string()
    }
}

/// Returns a UDP packet from the port 5000 to a port.
fn packet(port: u16) -> Vec<u8> {
    dataplane::testing::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(5000, port).build()
}

/// Writes a capture of packets to these ports, for the link [`PCAP`].
fn capture(folder: &BlackBoxFolder, ports: &[u16]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, 1u32] {
        bytes.extend(word.to_le_bytes());
    }
    for (number, port) in (0u32..).zip(ports) {
        let mut frame = packet(*port);
        // The black box keeps 128 bytes of a packet.
        frame.resize(frame.len() + 200 * (number % 4) as usize, 0xee);
        for word in [1, number, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    folder.0.write("in.pcap", bytes);
}

const PCAP: &str = "kind = 'pcap', input = 'in.pcap', pace = 'fast'";
/// A generator that needs little CPU time. All packets go to the UDP port 9.
const SLOW: &str = "kind = 'generator', size = 64, flows = 16, rate = '2kpps'";

fn panic_of_a_stage_is_replayed() {
    let folder = BlackBoxFolder::new(PCAP, "", "port = 53");
    capture(&folder, &[80, 81, 53, 82]);
    let (status, _, err) = folder.app("run @/x.toml");
    assert_eq!(status, 1, "{err}");
    let file = folder.file();
    assert!(err.contains("the black box is in ") && err.contains(&format!("--black-box {file}`")), "{err}");
    let (status, out, err) = folder.app(&format!("explain @/x.toml --black-box {file}"));
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("worker 0, burst 1: 4 packets from wire, "), "{out}");
    let path =
        "#3  wire  192.0.2.1 → 192.0.2.2 udp 5000→53  442 bytes\n  parse → faulty\n  panicked in faulty: port 53\n";
    assert!(out.contains(path), "{out}");
    assert_eq!(out.matches("\n  sent on wire\n").count(), 3, "{out}");
    assert!(out.contains("worker 0: stage `faulty` panicked: port 53\n  batch of the stage"), "{out}");
    assert!(out.contains("batch of the stage: 4 packets, with the changes of earlier stages\n    192.0.2.1 → 192.0.2.2 udp 5000→80  42 bytes\n"), "{out}");
    assert!(out.ends_with("\n  the replay panics at #3\n"), "{out}");
    assert!(!err.contains("another config"), "{err}");
    // With another config, the command warns, and explains the packets with this config.
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap().replace("port = 53", "port = 82");
    folder.0.write("y.toml", text);
    let (status, out, err) = folder.app(&format!("explain @/y.toml --black-box {file}"));
    assert!(status == 0 && out.ends_with("\n  the replay panics at #4\n"), "{out}");
    assert!(err.contains("worker 0 used another config (digest ") && err.contains("help: "), "{err}");
    let (_, out, _) = folder.app(&format!("explain @/x.toml --black-box {file} --json"));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["config_matches"], &json["cause"]["kind"]), (&true.into(), &"panic".into()));
    assert_eq!((&json["cause"]["stage"], &json["packets"][2]["fate"]), (&"faulty".into(), &"panicked".into()));
    assert_eq!((&json["packets"][2]["burst"], json["batch"].as_array().unwrap().len()), (&1.into(), 4));
    // The capture reader of the link `pcap`, which knows nothing of black boxes, reads the file.
    let read = dataplane::soft::Capture::load(&fs::File::open(&file).unwrap()).unwrap();
    assert_eq!((read.len(), read.damage.is_none()), (8, true));
    assert_eq!((read.frame(2), read.frame(2).len()), (&[&packet(53)[..], &[0xee; 86]].concat()[..], 128));
}

fn quarantined_stage_writes_the_file() {
    let folder = BlackBoxFolder::new(SLOW, "", "port = 9\non_panic = 'drop'");
    let program = folder.start();
    wait_until("the file exists", || !folder.files().is_empty());
    let before = folder.received(&program).unwrap();
    wait_until("the run continues", || folder.received(&program).unwrap() > before);
    program.signal("-TERM");
    let (status, _, err) = program.end();
    assert!(status == 1 && err.contains("the stage now drops all its packets (on_panic)"), "{err}");
    let (status, out, _) = folder.app(&format!("explain @/x.toml --black-box {}", folder.file()));
    assert!(status == 0 && out.contains("\n  panicked in faulty: port 9\n"), "{out}");
    assert!(out.contains("\n  the replay panics at #"), "{out}");
}

fn panic_that_depends_on_state() {
    let folder = BlackBoxFolder::new(PCAP, "burst = 1", "port = 53\nafter = 2");
    capture(&folder, &[53, 53, 53, 80]);
    assert_eq!(folder.app("run @/x.toml").0, 1);
    // The first bursts are missing in the file, so the replay starts with another state than the run.
    let (_, out, _) = folder.app(&format!("explain @/x.toml --black-box {}", folder.file()));
    assert!(out.ends_with("\n  the replay panics at #3\n"), "{out}");
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap().replace("'box' }", "'box', bursts = 1 }");
    folder.0.write("x.toml", text);
    fs::remove_file(folder.file()).unwrap();
    assert_eq!(folder.app("run @/x.toml").0, 1);
    let (_, out, _) = folder.app(&format!("explain @/x.toml --black-box {}", folder.file()));
    assert!(out.starts_with("worker 0, burst 3: 1 packet from wire, "), "{out}");
    let batch = "batch of the stage: 1 packet, with the changes of earlier stages\n    192.0.2.1 → 192.0.2.2 udp 5000→53  442 bytes\n";
    assert!(out.contains(batch), "{out}");
    assert!(
        out.ends_with("the replay repeats neither a panic nor a stall: the event depends on the state of the run\n"),
        "{out}"
    );
}

fn stuck_worker_is_explained_by_its_stage() {
    let folder = BlackBoxFolder::new(PCAP, "watchdog = '200ms'", "port = 53\nhangs = true");
    capture(&folder, &[80, 53, 81]);
    let mut command = folder.command("run @/x.toml");
    let program = RunningProgram::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until("the file is complete", || {
        let [file] = &folder.files()[..] else { return false };
        dataplane::soft::Capture::load(&fs::File::open(file).unwrap()).is_ok_and(|read| read.len() == 3)
    });
    // The worker never ends.
    drop(program);
    let (status, out, _) = folder.app(&format!("explain @/x.toml --black-box {}", folder.file()));
    assert_eq!(status, 0, "{out}");
    assert!(
        out.contains("#2  wire  192.0.2.1 → 192.0.2.2 udp 5000→53  242 bytes\n  does not leave stage faulty\n"),
        "{out}"
    );
    assert!(out.contains("\nworker 0 makes no progress for 0.") && out.contains(" s: in stage `faulty`; "), "{out}");
    assert!(out.ends_with("\n  the replay is stuck at #2; packets that were not replayed: 1\n"), "{out}");
}

fn stuck_worker_is_named_by_why() {
    let folder = BlackBoxFolder::new(SLOW, "", "port = 9\nhangs = true\nafter = 20");
    let program = folder.start();
    wait_until("`why` names the stuck worker first", || {
        let (status, out, err) = folder.app(&format!("why --json --time 500ms --process {}", program.id()));
        assert_eq!((status, err.as_str()), (0, ""));
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        let first = &found["causes"][0];
        first["kind"] == "worker_blocked"
            && (&first["name"], &first["packets"]) == (&"worker 0".into(), &serde_json::Value::Null)
            && first["evidence"][0].as_str().is_some_and(|message| message.starts_with("worker 0 does not answer"))
            && first["fix"].as_str().is_some_and(|fix| !fix.is_empty())
    });
    // The worker never ends.
    drop(program);
}

fn failed_device_writes_the_file() {
    let folder = BlackBoxFolder::new(PCAP, "burst = 1", "port = 9");
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap();
    let fault = "[[port]]\nfaults = { removal = 0.05, seed = 1 }\n";
    folder.0.write("x.toml", text.replacen("[[port]]\n", fault, 1));
    capture(&folder, &(100..200).collect::<Vec<_>>());
    let (status, _, err) = folder.app("run @/x.toml");
    assert!(status == 1 && err.contains("worker 0 stopped: port wire: "), "{status}: {err}");
    let file = folder.file();
    let recorded = dataplane::soft::Capture::load(&fs::File::open(&file).unwrap()).unwrap().len();
    assert!((2..100).contains(&recorded), "the device failed before or after the capture: {recorded}");
    let (status, out, _) = folder.app(&format!("explain @/x.toml --black-box {file}"));
    assert!(status == 0 && out.contains("\nworker 0: stopped: port wire: "), "{out}");
    // The replay is in memory, so no fault ends the replay.
    assert_eq!(out.matches("\n  sent on wire\n").count(), recorded, "{out}");
    let (_, out, _) = folder.app(&format!("explain @/x.toml --black-box {file} --json"));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["cause"]["kind"], &json["cause"]["worker"]), (&"fault".into(), &0.into()), "{out}");
}

fn clients_get_files_on_request() {
    let folder = BlackBoxFolder::new(SLOW, "workers = 2", "port = 1");
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap().replacen("workers = 1\n", "", 1);
    folder.0.write("x.toml", text);
    let program = folder.start();
    wait_until("packets arrive", || folder.received(&program).unwrap() > 100);
    // Two clients at once.
    let command = |name: &str| {
        let mut command = folder.command(&format!("black-box -w @/{name} --process {}", program.id()));
        RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let (one, other) = (command("one"), command("other"));
    for (client, name) in [(one, "one"), (other, "other")] {
        let (status, _, err) = client.end();
        assert!(status == 0 && err.starts_with("wrote ") && err.ends_with(" bytes\n"), "{err}");
        let file = folder.0.file(name);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let read = dataplane::soft::Capture::load(&fs::File::open(&file).unwrap()).unwrap();
        assert!(read.damage.is_none() && read.len() > 50, "{}", read.len());
        let (status, out, err) = folder.app(&format!("explain @/x.toml --black-box {}", file.display()));
        assert!(status == 0 && out.ends_with("\na client requested the file\n"), "{out}");
        assert!(out.contains("\n  sent on wire\n") && !err.contains("another config"), "{err}");
    }
    // Standard output is a file or a pipe.
    let mut command = folder.command(&format!("black-box -w - --process {}", program.id()));
    let out = command.output().unwrap();
    assert!(out.status.success() && out.stdout.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    let (status, out, err) = folder.app(&format!("black-box -w @/one --json --process {}", program.id()));
    let written: serde_json::Value = serde_json::from_str(&out).unwrap();
    let file = folder.0.file("one");
    assert_eq!((status, err.as_str(), &written["file"]), (0, "", &file.display().to_string().into()));
    assert_eq!(written["bytes"], file.metadata().unwrap().len());
    let (status, out, err) = folder.app(&format!("black-box -w - --json --process {}", program.id()));
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("cannot have the file and JSON; help: name a file, or remove `--json`"), "{err}");
    assert!(folder.files().is_empty());
    let (status, _, err) = folder.app(&format!("black-box -w /dev/full --process {}", program.id()));
    assert!(status == 1 && err.contains("help: the file is not complete; make room on the disk"), "{err}");
    program.signal("-TERM");
    assert_eq!(program.end().0, 0);
}

fn removed_worker_is_not_in_later_files() {
    if Topology::discover().unwrap().cores().iter().filter(|core| core.allowed).count() < 2 {
        return skip("this test needs two cores");
    }
    // Packets circulate between the ports `left` and `right`. The port `seed` inserts them.
    let config = |workers, inputs: &[&str]| {
        let config = Config::new().workers(workers).runtime("black_box = { folder = 'box' }\nbuffers = 16384");
        let config = config.port_with("left", "kind = 'loopback', peer = 'right'", "rx_depth = 256");
        let mut config = config.port_with("right", "kind = 'loopback', peer = 'left'", "rx_depth = 256").input(inputs);
        if inputs.contains(&"seed") {
            config = config.port_with("seed", "kind = 'generator', flows = 16, count = 16", "rx_depth = 256");
        }
        let config = config.stage("ingress", "ports = ['left']\noutputs = { listed = 'to_left' }");
        config
            .stage("tx", "name = 'to_right'\nport = 'right'")
            .stage("tx", "name = 'to_left'\nport = 'left'")
            .to_string()
    };
    let folder = BlackBoxFolder(Folder::new());
    folder.0.write("x.toml", config(1, &["left", "right", "seed"]));
    folder.0.write("one.toml", config(1, &["left", "right"]));
    folder.0.write("two.toml", config(2, &["left", "right"]));
    let program = folder.start();
    wait_until("packets circulate", || folder.received(&program).unwrap() > 100);
    let apply = |config: &str| {
        let (status, _, err) = folder.app(&format!("apply @/{config} --process {}", program.id()));
        assert_eq!(status, 0, "{err}");
    };
    // Returns whether a file from the running program has packets of a worker.
    let has_worker = |config: &str, worker: usize| {
        let (status, _, err) = folder.app(&format!("black-box -w @/file --process {}", program.id()));
        assert_eq!(status, 0, "{err}");
        let (status, out, err) = folder.app(&format!("explain @/{config} --black-box @/file"));
        assert!(status == 0 && !err.contains("another config"), "{err}");
        out.contains(&format!("worker {worker}, burst "))
    };
    apply("one.toml");
    apply("two.toml");
    wait_until("the added worker receives packets", || has_worker("two.toml", 1));
    apply("one.toml");
    wait_until("the other worker receives packets", || has_worker("one.toml", 0));
    assert!(!has_worker("one.toml", 1));
    program.signal("-TERM");
    assert_eq!(program.end().0, 0);
}

fn traffic_continues_if_no_file_can_be_written() {
    // 2000 packets are at least 32 bursts.
    let folder = BlackBoxFolder::new(SLOW, "", "port = 9\non_panic = 'bypass'\nafter = 20");
    let is_logged = |shell: &str| {
        let mut command = Command::new("sh");
        let app = folder.command("run @/x.toml --packets 2000");
        command.args(["-c", shell]).arg("sh").arg(app.get_program()).args(app.get_args());
        command.env(APP, "1").env("XDG_RUNTIME_DIR", folder.0.path()).env_remove("RUST_LOG");
        let (status, _, err) = run(&mut command);
        assert!(status == 1 && err.contains("the black box cannot be written: "), "{status}: {err}");
        assert!(err.contains("the stage is now bypassed (on_panic)") && !err.contains("ledger"), "{err}");
        assert!(folder.files().is_empty(), "{:?}", folder.files());
    };
    // In place of a full disk, a limit on the size of a file: 512 or 1024 bytes, which depends on the shell.
    is_logged("ulimit -f 1; exec \"$@\"");
    // The path of the folder becomes a file after the start.
    fs::remove_dir_all(folder.0.file("box")).unwrap();
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap().replace("after = 20", "after = 1500");
    folder.0.write("x.toml", text);
    let program = folder.start();
    fs::write(folder.0.file("box"), "").unwrap();
    let passed = |stats: serde_json::Value| {
        let faulty = &stats["stages"][1];
        faulty["panics"] == 1 && stats["ledger"]["tx"].as_u64() > Some(100)
    };
    wait_until("the run passes the panic", || folder.stats(&program).is_some_and(passed));
    program.signal("-TERM");
    let (_, _, err) = program.end();
    assert!(err.contains("the black box cannot be written: ") && err.contains("is now bypassed"), "{err}");
}

fn wrong_uses_are_refused_with_a_fix() {
    let folder = BlackBoxFolder::new(SLOW, "", "port = 1");
    let with = |keys: &str| {
        let text = fs::read_to_string(folder.0.file("x.toml")).unwrap().replace("folder = 'box'", keys);
        folder.0.write("y.toml", text);
        folder.app("check @/y.toml")
    };
    for (keys, part) in [
        ("bursts = 0, folder = 'box'", "from 1 to 256"),
        ("bytes = 1024, folder = 'box'", "512"),
        ("bursts = 1", "folder"),
        ("folder = 'x.toml'", "no file can be written in the folder "),
    ] {
        let (status, _, err) = with(keys);
        assert!(status == 2 && err.contains(part), "{keys}: {status}: {err}");
    }
    folder.0.write("text", "text");
    for (line, status, part) in [
        ("explain @/x.toml --black-box @/text", 1, "this file is not a black box; help: "),
        ("explain @/x.toml --black-box @/missing", 1, "missing: "),
        ("explain @/x.toml --black-box /dev/zero", 1, "/dev/zero: a device, not a regular file"),
        ("explain @/x.toml", 2, "<PCAP>"),
        ("explain @/x.toml @/text --black-box @/text", 2, "cannot be used with"),
    ] {
        let (found, _, err) = folder.app(line);
        assert!(found == status && err.contains(part), "{line}: {found}: {err}");
    }
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap();
    folder.0.write("x.toml", text.replace("black_box = { folder = 'box' }\n", ""));
    let program = folder.start();
    let (status, _, err) = folder.app(&format!("black-box -w @/a --process {}", program.id()));
    assert!(status == 1 && err.contains("the config has no black box; help: add `black_box = "), "{err}");
    assert!(!folder.0.file("a").exists());
    let (status, _, err) = folder.app(&format!("capture -w /dev/full --process {}", program.id()));
    assert!(status == 1 && err.contains("help: the file is not complete; make room on the disk"), "{err}");
}

fn runs_write_a_limited_number_of_files() {
    // Each stage panics once.
    let folder = BlackBoxFolder::new(PCAP, "burst = 1", "port = 1");
    let stages: String = (0..18).map(stage).collect();
    let text = fs::read_to_string(folder.0.file("x.toml")).unwrap();
    folder.0.write(
        "x.toml",
        text.replacen("[[pipeline.stage]]\nuse = 'tx'", &format!("{stages}[[pipeline.stage]]\nuse = 'tx'"), 1),
    );
    capture(&folder, &(100..118).collect::<Vec<_>>());
    let (status, _, err) = folder.app("run @/x.toml");
    assert_eq!(status, 1, "{err}");
    assert_eq!((folder.files().len(), err.matches("the black box is in ").count()), (16, 16), "{err}");
    assert_eq!(err.matches("writes no further files: this run has written 16 files").count(), 1, "{err}");
}

fn stage(at: u16) -> String {
    format!("[[pipeline.stage]]\nuse = 'faulty'\nname = 'f{at}'\nport = {}\non_panic = 'bypass'\n", 100 + at)
}
