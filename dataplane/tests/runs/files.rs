//! Files of a config: what is written is nobody else's, and nothing is waited for.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::config::Source;
use dataplane::runtime::Options;
use dataplane::telemetry::Report;

use crate::common::{Folder, assembled, assert_conserved, assert_good, captures, drops, frames_of};

/// Plays `input` to `output` through the stages.
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

/// A folder with a capture, and links of all kinds.
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
fn no_output_is_a_file_of_another_by_whatever_name() {
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

    // What several read, or takes all, may be of several.
    let text = config("in.pcap", "/dev/null", &capture("/dev/null"));
    assert_good(&folder.run(&text.replace("output = ", "input = \"soft.pcap\", output = ")));
}

/// Files of a run are kept from another run, whatever the config of either says.
#[test]
fn what_another_run_plays_or_writes_is_left_alone() {
    let folder = folder();
    let before = fs::read(folder.file("in.pcap")).unwrap();
    let endless = config("in.pcap", "out.pcap", "").replace("input = \"in.pcap\"", "input = \"in.pcap\", loop = true");
    let start = |text: &str| folder.start(text, Options::default());
    let first = start(&endless).unwrap();
    for (input, output) in [("vlan.pcap", "hard.pcap"), ("in.pcap", "out.pcap")] {
        fs::copy(&captures()[0], folder.file("vlan.pcap")).unwrap();
        let error = start(&config(input, output, "")).err().unwrap().to_string();
        let told =
            format!("{}: another port, stage or program writes or plays this file", folder.file(output).display());
        assert!(error.contains(&told), "{error}");
    }
    // To play what is played harms nobody.
    assert_good(&folder.run(&config("soft.pcap", "other.pcap", "")));
    first.stop();
    assert_good(&first.join().unwrap());
    assert_eq!(fs::read(folder.file("in.pcap")).unwrap(), before);
    assert_good(&folder.run(&config("in.pcap", "out.pcap", "")));
    assert_good(&folder.run(&config("out.pcap", "in.pcap", "")));
}

/// The same for the file of a stage: it is opened when the first packet comes.
#[test]
fn a_capture_leaves_alone_what_another_run_plays() {
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
fn pipes_and_devices_are_refused_and_not_waited_for() {
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
        ("pipe", "x.pcap", "", "test.toml:8:33", "pipe: a pipe, and no regular file"),
        ("/dev/zero", "x.pcap", "", "test.toml:8:33", "/dev/zero: a device, and no regular file"),
        ("/dev/null", "x.pcap", "", "test.toml:8:33", "/dev/null: a device, and no regular file"),
        ("in.pcap", "pipe", "", LINE_OF_OUTPUT, "cannot be written: a pipe, and neither a regular file nor"),
        ("in.pcap", ".", "", LINE_OF_OUTPUT, "cannot be written: a folder, and neither"),
        ("in.pcap", "in.pcap/x.pcap", "", LINE_OF_OUTPUT, "cannot be written: Not a directory"),
        ("in.pcap", "new/", "", LINE_OF_OUTPUT, "cannot be written: the path does not end in the name of a file"),
        ("new/.", "x.pcap", "", "test.toml:8:33", "the path does not end in the name of a file"),
        ("in.pcap", "x.pcap", &capture, "test.toml:19:8", "cannot be written: a pipe"),
        (
            "in.pcap",
            "x.pcap",
            &capture.replace("'pipe'", "'new/'"),
            "test.toml:19:8",
            "does not end in the name of a file",
        ),
        ("in.pcap", "x.pcap", &acl, "test.toml:20:8", "pipe: a pipe, and no regular file"),
        ("in.pcap", "x.pcap", &acl_of_zeros, "test.toml:20:8", "/dev/zero: a device, and no regular file"),
        ("in.pcap", "x.pcap", &route, "test.toml:19:8", "pipe: a pipe, and no regular file"),
        ("in.pcap", "x.pcap", &route_of_zeros, "test.toml:19:8", "/dev/zero: a device, and no regular file"),
    ] {
        let error = folder.assemble(&config(input, output, stages)).err().unwrap_or_else(|| panic!("{input} {output}"));
        for part in [place, what, "help: "] {
            assert!(error.contains(part), "{input} {output}: {part:?} is not in: {error}");
        }
    }
    assert!(!folder.file("x.pcap").exists(), "nothing is made to look at it");
}

/// An output is emptied by a run that writes it, with packets or without, and not by one that fails at a later port.
#[test]
fn a_run_that_does_not_start_leaves_its_outputs_as_they_were() {
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
    assert_eq!(fs::metadata(folder.file("first.pcap")).unwrap().len(), 24, "nothing but a header");
    assert_eq!(frames_of(&folder.file("out.pcap")), frames_of(&folder.file("in.pcap")));
}

/// Without a folder before it, an empty path stays empty.
#[test]
fn an_empty_path_is_no_file() {
    let text = config("", "", "[[pipeline.stage]]\nuse = 'capture'\nfile = ''\n");
    let error = assembled(&Source::new("test.toml", &text, &[])).err().unwrap();
    for (place, what) in [
        ("test.toml:8:33", "error: the path does not end in the name of a file"),
        (LINE_OF_OUTPUT, "error: cannot be written: the path does not"),
        ("test.toml:17:8", "cannot be written: the path does not"),
    ] {
        assert!(error.contains(place) && error.contains(what), "{place} {what}: {error}");
    }
    assert_eq!(error.matches("help: name a").count(), 3, "{error}");
}

/// It is not read to find out.
#[test]
fn a_capture_that_is_too_long_to_be_held_is_refused() {
    let folder = folder();
    let file = fs::OpenOptions::new().write(true).open(folder.file("in.pcap")).unwrap();
    let set = |bytes: u64| file.set_len(bytes).unwrap();
    set(64 << 30);
    let assembly = folder.assemble(&config("in.pcap", "x.pcap", "")).unwrap();
    set((64 << 30) + 1);
    let checked = folder.assemble(&config("in.pcap", "x.pcap", "")).err().unwrap();
    let started = dataplane::runtime::Run::start(assembly, Options::default()).err().unwrap().to_string();
    for error in [checked, started] {
        assert!(error.contains("in.pcap: it has more than 64 GiB") && error.contains("take it apart"), "{error}");
    }
}

/// Between the check and the run a file may become something else.
#[test]
fn a_file_that_has_become_a_pipe_is_not_waited_for() {
    for pipe in ["in.pcap", "out.pcap"] {
        let folder = folder();
        make_pipe(&folder);
        let assembly = folder.assemble(&config("in.pcap", "out.pcap", "")).unwrap();
        fs::rename(folder.file("pipe"), folder.file(pipe)).unwrap();
        let error = dataplane::runtime::Run::start(assembly, Options::default()).err().unwrap().to_string();
        assert!(error.contains(pipe) && error.contains("a pipe, and n"), "{error}");
    }
}

/// So slow that it would take minutes to fill the memory.
fn slowly_to(output: &str) -> String {
    config("", output, "").replace("kind = \"pcap\", input = \"\"", "kind = \"generator\", rate = 20")
}

fn wait_until(mut it_is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !it_is() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Who looks at an output while little is sent sees it, and a program that is killed loses little of it.
#[test]
fn an_output_is_written_while_the_port_runs() {
    let folder = Folder::new();
    let run = folder.start(&slowly_to("out.pcap"), Options::default()).unwrap();
    wait_until(|| fs::metadata(folder.file("out.pcap")).unwrap().len() > 0);
    run.stop();
    let report = run.join().unwrap();
    assert_good(&report);
    assert_eq!(frames_of(&folder.file("out.pcap")).len() as u64, report.ports[1].packets.tx);
}

/// A disk that is full is noticed then, and not only when much is sent.
#[test]
fn an_output_that_fails_while_the_port_runs_is_told_once() {
    let folder = Folder::new();
    let run = folder.start(&slowly_to("/dev/full"), Options::default()).unwrap();
    let dropped = |report: &Report| report.ledger.dropped > 0;
    wait_until(|| run.snapshot().is_some_and(|snapshot| dropped(snapshot.report())));
    run.stop();
    let report = run.join().unwrap();
    assert_conserved(&report);
    assert_eq!(drops(&report, "out.tx_error"), report.ledger.dropped, "{report}");
    assert_eq!(report.errors.len(), 1, "{report}");
    assert!(report.errors[0].contains("/dev/full") && report.errors[0].contains("No space left"), "{report}");
}
