//! Tests of the files that a config names. An output never overwrites another file of the run, and no file access
//! blocks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use dataplane::config::Source;
use dataplane::runtime::Options;
use dataplane::telemetry::Report;
use dataplane_testing::wait_until;

use crate::common::{Folder, assembled, assert_conserved, assert_good, captures, drops, frames_of};

/// Returns a config that plays `input` through the stages into `output`.
fn config(input: &str, output: &str, stages: &str) -> String {
    format!(
        r#"
[runtime]
workers = 1
hugepages = "none"
[[port]]
name = "in"
device = "soft"
link = {{ kind = "pcap", input = "{input}" }}
[[port]]
name = "out"
device = "soft"
link = {{ kind = "pcap", output = "{output}" }}
[pipeline]
input = ["in"]
{stages}
[[pipeline.stage]]
use = "tx"
port = "out"
"#
    )
}

const LINE_OF_OUTPUT: &str = "test.toml:12:34";

/// Returns a folder that contains a capture, a hard link and a symbolic link to the capture, dangling links, and a link
/// to the folder itself.
fn folder() -> Folder {
    let folder = Folder::new();
    fs::copy(&captures()[0], folder.file("in.pcap")).unwrap();
    fs::hard_link(folder.file("in.pcap"), folder.file("hard.pcap")).unwrap();
    symlink("in.pcap", folder.file("soft.pcap")).unwrap();
    symlink("nothing.pcapng", folder.file("dangling.pcapng")).unwrap();
    symlink("./dangling.pcapng", folder.file("further.pcapng")).unwrap();
    symlink(".", folder.file("here")).unwrap();
    folder
}

fn make_pipe(folder: &Folder) {
    assert!(Command::new("mkfifo").arg(folder.file("pipe")).status().unwrap().success());
}

#[test]
fn outputs_cannot_alias_other_files() {
    let folder = folder();
    let before = fs::read(folder.file("in.pcap")).unwrap();
    folder.write("rules.toml", "rules = []");
    folder.write("routes.txt", "10.0.0.0/8 drop");
    let capture = |file: &str| format!("[[pipeline.stage]]\nuse = 'capture'\nfile = '{file}'\n");
    let acl =
        "[[pipeline.stage]]\nuse = 'parse'\n[[pipeline.stage]]\nuse = 'acl'\ndefault = 'permit'\nfile = 'rules.toml'";
    let route = "[[pipeline.stage]]\nuse = 'parse'\n[[pipeline.stage]]\nuse = 'route'\nfile = 'here/routes.txt'";
    folder.write("test.toml", "");
    for (output, stages, place, what) in [
        ("./in.pcap", "", LINE_OF_OUTPUT, "is the input of port `in`"),
        ("here/in.pcap", "", LINE_OF_OUTPUT, "is the input of port `in`"),
        ("hard.pcap", "", LINE_OF_OUTPUT, "is the input of port `in`"),
        ("soft.pcap", "", LINE_OF_OUTPUT, "is the input of port `in`"),
        ("test.toml", "", LINE_OF_OUTPUT, "is the config itself"),
        ("x.pcap", &capture("hard.pcap"), "test.toml:17:8", "is the input of port `in`"),
        ("x.pcap", &capture("here/x.pcap"), "test.toml:17:8", "is the output of port `out`"),
        ("nothing.pcapng", &capture("further.pcapng"), "test.toml:17:8", "is the output of port `out`"),
        ("new/x.pcap", &capture("here/new/x.pcap"), "test.toml:17:8", "is the output of port `out`"),
        ("rules.toml", acl, "test.toml:20:8", "is the output of port `out`"),
        ("routes.txt", route, "test.toml:19:8", "is the output of port `out`"),
    ] {
        let error = folder.assemble(&config("in.pcap", output, stages)).err().unwrap();
        for part in [place, what, "name another file"] {
            assert!(error.contains(part), "{output}: {part:?} is not in: {error}");
        }
    }
    let two = [capture("dangling.pcapng"), capture("nothing.pcapng")].concat().replacen("use", "name = 'one'\nuse", 1);
    let error = folder.assemble(&config("in.pcap", "x.pcap", &two)).err().unwrap();
    assert!(error.contains("is the file that stage `one` writes"), "{error}");
    assert_eq!(fs::read(folder.file("in.pcap")).unwrap(), before);

    // Several ports may read the same file, and several outputs may write to /dev/null.
    let text = config("in.pcap", "/dev/null", &capture("/dev/null"));
    assert_good(&folder.run(&text.replace("output = ", "input = \"soft.pcap\", output = ")));
}

/// A run locks its files, so that another run cannot overwrite its inputs or write to its outputs.
#[test]
fn files_of_another_run_are_protected() {
    let folder = folder();
    let before = fs::read(folder.file("in.pcap")).unwrap();
    let endless = config("in.pcap", "out.pcap", "").replace("input = \"in.pcap\"", "input = \"in.pcap\", loop = true");
    let start = |text: &str| folder.start(text, Options::default());
    let first = start(&endless).unwrap();
    for (input, output) in [("vlan.pcap", "hard.pcap"), ("in.pcap", "out.pcap")] {
        fs::copy(&captures()[0], folder.file("vlan.pcap")).unwrap();
        let error = start(&config(input, output, "")).err().unwrap().to_string();
        let message = format!("{}: another port, stage or program uses this file", folder.file(output).display());
        assert!(error.contains(&message), "{error}");
    }
    // Several runs may play the same file.
    assert_good(&folder.run(&config("soft.pcap", "other.pcap", "")));
    first.stop();
    assert_good(&first.join().unwrap());
    assert_eq!(fs::read(folder.file("in.pcap")).unwrap(), before);
    assert_good(&folder.run(&config("in.pcap", "out.pcap", "")));
    assert_good(&folder.run(&config("out.pcap", "in.pcap", "")));
}

/// A `capture` stage opens its file only when the first packet arrives. The stage must not overwrite a file that
/// another run has locked.
#[test]
fn capture_stage_does_not_overwrite_an_input_of_another_run() {
    let folder = folder();
    let held = fs::File::open(folder.file("in.pcap")).unwrap();
    held.lock_shared().unwrap();
    let before = fs::read(folder.file("in.pcap")).unwrap();
    fs::copy(&captures()[0], folder.file("vlan.pcap")).unwrap();
    let text = config("vlan.pcap", "out.pcap", "[[pipeline.stage]]\nuse = 'capture'\nfile = 'hard.pcap'\n");
    let report = folder.run(&text);
    assert!(!report.is_good() && report.errors[0].contains("another port, stage or program"), "{:?}", report.errors);
    assert_eq!(fs::read(folder.file("in.pcap")).unwrap(), before);
}

#[test]
fn pipes_and_devices_are_rejected_without_blocking() {
    let folder = folder();
    make_pipe(&folder);
    let stage = |stage: &str| format!("[[pipeline.stage]]\nuse = 'parse'\n[[pipeline.stage]]\n{stage}\n");
    let [capture, acl, route] = [
        "use = 'capture'\nfile = 'pipe'",
        "use = 'acl'\ndefault = 'deny'\nfile = 'pipe'",
        "use = 'route'\nfile = 'pipe'",
    ]
    .map(stage);
    let acl_of_zeros = acl.replace("'pipe'", "'/dev/zero'");
    let route_of_zeros = route.replace("'pipe'", "'/dev/zero'");
    for (input, output, stages, place, what) in [
        ("pipe", "x.pcap", "", "test.toml:8:33", "pipe: a pipe, not a regular file"),
        ("/dev/zero", "x.pcap", "", "test.toml:8:33", "/dev/zero: a device, not a regular file"),
        ("/dev/null", "x.pcap", "", "test.toml:8:33", "/dev/null: a device, not a regular file"),
        ("in.pcap", "pipe", "", LINE_OF_OUTPUT, "cannot be written: a pipe, not a regular file or a character device"),
        ("in.pcap", ".", "", LINE_OF_OUTPUT, "cannot be written: a folder, not a regular file"),
        ("in.pcap", "in.pcap/x.pcap", "", LINE_OF_OUTPUT, "cannot be written: Not a directory"),
        ("in.pcap", "new/", "", LINE_OF_OUTPUT, "cannot be written: the path does not end in a file name"),
        ("new/.", "x.pcap", "", "test.toml:8:33", "the path does not end in a file name"),
        ("in.pcap", "x.pcap", &capture, "test.toml:19:8", "cannot be written: a pipe"),
        ("in.pcap", "x.pcap", &capture.replace("'pipe'", "'new/'"), "test.toml:19:8", "does not end in a file name"),
        ("in.pcap", "x.pcap", &acl, "test.toml:20:8", "pipe: a pipe, not a regular file"),
        ("in.pcap", "x.pcap", &acl_of_zeros, "test.toml:20:8", "/dev/zero: a device, not a regular file"),
        ("in.pcap", "x.pcap", &route, "test.toml:19:8", "pipe: a pipe, not a regular file"),
        ("in.pcap", "x.pcap", &route_of_zeros, "test.toml:19:8", "/dev/zero: a device, not a regular file"),
    ] {
        let error = folder.assemble(&config(input, output, stages)).err().unwrap_or_else(|| panic!("{input} {output}"));
        for part in [place, what, "help: "] {
            assert!(error.contains(part), "{input} {output}: {part:?} is not in: {error}");
        }
    }
    assert!(!folder.file("x.pcap").exists(), "the check created the output file");
}

/// A run truncates its outputs even if it writes no packets. If the start of a run fails at a later port, the outputs
/// of earlier ports stay unchanged.
#[test]
fn failed_start_does_not_truncate_outputs() {
    let folder = folder();
    make_pipe(&folder);
    let text = config("in.pcap", "out.pcap", "").replace("\"in.pcap\"", "\"in.pcap\", output = \"first.pcap\"");
    let before = fs::read(folder.file("in.pcap")).unwrap();
    fs::write(folder.file("first.pcap"), &before).unwrap();
    let assembly = folder.assemble(&text).unwrap();
    fs::rename(folder.file("pipe"), folder.file("out.pcap")).unwrap();
    let error = dataplane::runtime::Run::start(assembly, Options::default()).err().unwrap().to_string();
    assert!(error.contains("out.pcap: a pipe"), "{error}");
    assert!(fs::read(folder.file("first.pcap")).unwrap() == before);

    fs::remove_file(folder.file("out.pcap")).unwrap();
    assert_good(&folder.run(&text));
    assert_eq!(
        fs::metadata(folder.file("first.pcap")).unwrap().len(),
        24,
        "the truncated output contains more than the header"
    );
    assert_eq!(frames_of(&folder.file("out.pcap")), frames_of(&folder.file("in.pcap")));
}

/// The program resolves file paths relative to the folder of the config. The config `test.toml` has no folder, so an
/// empty file path stays empty. The message then starts with the reason instead of a path.
#[test]
fn empty_path_is_rejected() {
    let text = config("", "", "[[pipeline.stage]]\nuse = 'capture'\nfile = ''\n");
    let error = assembled(&Source::new("test.toml", &text, &[])).err().unwrap();
    for (place, what) in [
        ("test.toml:8:33", "error: the path does not end in a file name"),
        (LINE_OF_OUTPUT, "error: cannot be written: the path does not"),
        ("test.toml:17:8", "cannot be written: the path does not"),
    ] {
        assert!(error.contains(place) && error.contains(what), "{place} {what}: {error}");
    }
    assert_eq!(error.matches("help: ").count(), 3, "{error}");
}

/// A capture of more than 64 GiB is rejected without being read.
#[test]
fn oversized_capture_is_rejected() {
    let folder = folder();
    let file = fs::OpenOptions::new().write(true).open(folder.file("in.pcap")).unwrap();
    let set = |bytes: u64| file.set_len(bytes).unwrap();
    set(64 << 30);
    let assembly = folder.assemble(&config("in.pcap", "x.pcap", "")).unwrap();
    set((64 << 30) + 1);
    let checked = folder.assemble(&config("in.pcap", "x.pcap", "")).err().unwrap();
    let started = dataplane::runtime::Run::start(assembly, Options::default()).err().unwrap().to_string();
    for error in [checked, started] {
        assert!(error.contains("in.pcap: larger than 64 GiB") && error.contains("split the file"), "{error}");
    }
}

/// A file may be replaced by a pipe between the check and the start of the run.
#[test]
fn file_replaced_by_a_pipe_does_not_block() {
    for pipe in ["in.pcap", "out.pcap"] {
        let folder = folder();
        make_pipe(&folder);
        let assembly = folder.assemble(&config("in.pcap", "out.pcap", "")).unwrap();
        fs::rename(folder.file("pipe"), folder.file(pipe)).unwrap();
        let error = dataplane::runtime::Run::start(assembly, Options::default()).err().unwrap().to_string();
        assert!(error.contains(pipe) && error.contains("a pipe, not a"), "{error}");
    }
}

/// Returns a config with a generator so slow that filling the write buffer of the output would take minutes.
fn slowly_to(output: &str) -> String {
    config("", output, "").replace("kind = \"pcap\", input = \"\"", "kind = \"generator\", rate = 20")
}

/// At a low packet rate, the program writes packets to the file long before the write buffer is full. A reader of the
/// file therefore sees recent packets, and a killed program loses few packets.
#[test]
fn output_is_written_while_the_port_runs() {
    let folder = Folder::new();
    let run = folder.start(&slowly_to("out.pcap"), Options::default()).unwrap();
    wait_until("a packet is in the file", || fs::metadata(folder.file("out.pcap")).unwrap().len() > 0);
    run.stop();
    let report = run.join().unwrap();
    assert_good(&report);
    assert_eq!(frames_of(&folder.file("out.pcap")).len() as u64, report.ports[1].packets.tx);
}

/// A full disk is reported even if the run sends too few packets to fill the write buffer. The run reports the error
/// once, not for every packet.
#[test]
fn output_error_during_the_run_is_reported_once() {
    let folder = Folder::new();
    let run = folder.start(&slowly_to("/dev/full"), Options::default()).unwrap();
    let dropped = |report: &Report| report.ledger.dropped > 0;
    wait_until("a packet is dropped", || run.snapshot().is_some_and(|snapshot| dropped(snapshot.report())));
    run.stop();
    let report = run.join().unwrap();
    assert_conserved(&report);
    assert_eq!(drops(&report, "out.tx_error"), report.ledger.dropped, "{report}");
    assert_eq!(report.errors.len(), 1, "{report}");
    assert!(report.errors[0].contains("/dev/full") && report.errors[0].contains("No space left"), "{report}");
}

#[test]
fn output_is_readable_for_its_owner_and_the_group_of_the_config_only() {
    let folder = folder();
    let about = fs::metadata(folder.file("in.pcap")).unwrap();
    // Only root can give a file to any group.
    let group = if about.uid() == 0 { 12_345 } else { about.gid() };
    for (name, keys, mode, owner) in [
        ("alone.pcapng", String::new(), 0o600, None),
        ("group.pcapng", format!("\", group = \"{group}"), 0o640, Some(group)),
    ] {
        assert_good(&folder.run(&config("in.pcap", &format!("{name}{keys}"), "")));
        let about = fs::metadata(folder.file(name)).unwrap();
        assert_eq!(about.mode() & 0o7777, mode, "{name}");
        assert!(owner.is_none_or(|group| about.gid() == group), "{name}: group {}", about.gid());
    }
}
