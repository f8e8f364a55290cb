//! The whole program, with both sides on devices in software.

use std::process::{Command, Output};

use serde_json::Value;

fn pingpong(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pingpong")).args(options).output().unwrap()
}

/// The server's and the client's report of a run that must go well.
fn reports(options: &[&str]) -> [Value; 2] {
    let output = pingpong(&[&["--device", "soft", "--json"], options].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{options:?}: {told}{said}");
    let reports: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    reports.try_into().unwrap()
}

fn check_run(options: &[&str], messages: u64) {
    for (report, role) in reports(options).iter().zip(["server", "client"]) {
        assert_eq!(report["role"], role);
        let counts = [&report["sent"], &report["received"], &report["wrong_size"]];
        assert_eq!(counts, [messages, messages, 0], "{options:?}: {report}");
        assert_eq!(report["failure"], Value::Null);
        if options.contains(&"--check") {
            let found = &report["check"];
            assert_eq!(found["good"], messages, "{options:?}: {report}");
            let bad = ["lost", "duplicated", "reordered", "corrupt"].map(|what| found[what].as_u64().unwrap());
            assert_eq!(bad, [0; 4], "{options:?}: {report}");
        } else {
            assert_eq!(report["check"], Value::Null);
        }
        let latency = &report["latency_ns"];
        if role == "server" {
            assert_eq!(latency, &Value::Null);
            continue;
        }
        assert_eq!((&latency["count"], &latency["source"]), (&messages.into(), &"software".into()), "{report}");
        let quantiles = ["p50", "p90", "p99", "p999", "max"].map(|name| latency[name].as_u64().unwrap());
        assert!(quantiles.is_sorted() && quantiles[0] > 0, "{report}");
    }
}

#[test]
fn messages_of_every_type_go_to_and_fro() {
    for kind in ["rc", "uc", "ud", "srq"] {
        check_run(&["--type", kind, "--iterations", "1000"], 1000);
        check_run(&["--type", kind, "--iterations", "1000", "--check", "--window", "20"], 1000);
        check_run(&["--type", kind, "--iterations", "300", "--check", "--events"], 300);
    }
}

#[test]
fn sizes_are_what_is_asked_for() {
    check_run(&["-n", "10", "--size", "1"], 10);
    check_run(&["-n", "10", "--size", "1000001", "--mtu", "256", "--check", "--rx-depth", "3"], 10);
    check_run(&["-n", "10", "--type", "ud", "--size", "32", "--check"], 10);
    check_run(&["-n", "256", "--type", "srq", "--queue-pairs", "256", "--check"], 256);
    check_run(&["-n", "1", "--type", "srq", "--queue-pairs", "1", "--rx-depth", "1"], 1);
}

#[test]
fn options_have_short_names() {
    let options = "-t srq -n 100 -q 4 -w 2 -r 9 -s 99 -m 512 -i 1 -g 0 -l 1 -p 1 -e -c";
    let [server, client] = reports(&options.split(' ').collect::<Vec<_>>());
    for report in [server, client] {
        let told = ["iterations", "queue_pairs", "window", "size"].map(|name| report[name].as_u64().unwrap());
        assert_eq!(told, [100, 4, 2, 99]);
        assert_eq!(
            (&report["type"], &report["events"], &report["check"]["good"]),
            (&"srq".into(), &true.into(), &100.into())
        );
    }
}

/// Status, what was printed, and what was said.
fn refused(options: &[&str]) -> (Option<i32>, String, String) {
    let output = pingpong(options);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_makes_no_sense_is_refused_all_at_once() {
    let wrong = ["--device", "soft", "-n", "0", "--size", "8", "--check", "--window", "9", "--rx-depth", "8", "host"];
    let (status, printed, said) = refused(&wrong);
    assert_eq!((status, printed.as_str()), (Some(2), ""));
    for why in [
        "--device soft has both sides",
        "--iterations 0: name 1 or more",
        "--size 8: a message has at least 32 bytes here",
        "--rx-depth 8: 9 messages may be under way",
    ] {
        assert!(said.contains(why), "{said}");
    }
    let (status, _, said) = refused(&["--device", "soft", "--type", "srq", "--queue-pairs", "257"]);
    assert!(status == Some(2) && said.contains("--queue-pairs 257: 1 to 256"), "{said}");
    let (status, _, said) = refused(&["--device", "soft", "--type", "xrc"]);
    assert!(status == Some(2) && said.contains("rc, uc, ud, srq"), "{said}");
}

#[test]
fn what_a_device_cannot_do_is_told() {
    let cannot = |options: &[&str]| {
        let (status, _, said) = refused(&[&["--device", "soft", "--deadline", "5"], options].concat());
        assert_eq!(status, Some(1), "{said}");
        said
    };
    assert!(cannot(&["--type", "ud", "--size", "1025"]).contains("--size 1025: soft0 has at most 1024 bytes"));
    assert!(cannot(&["--rx-depth", "1000000"]).contains("--rx-depth 1000000: soft0 has at most"));
    assert!(cannot(&["--mtu", "4096"]).contains("`path_mtu` = 4096"));
    assert!(cannot(&["--gid-index", "9"]).contains("`gid_index` = 9"));
    assert!(cannot(&["--gid", "2001:db8::1"]).contains("2001:db8::1"));
    assert!(cannot(&["--device-port", "2"]).contains("`device_port` = 2"));
}

#[test]
fn a_device_that_there_is_not_is_told() {
    let (status, printed, said) = refused(&["--device", "nothing0"]);
    assert_eq!((status, printed.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains("nothing0"), "{said}");
}
