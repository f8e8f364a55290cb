//! Tests of the whole program. Both sides run in one process, on software devices.

use std::process::Command;

use dataplane_testing::program::run;
use serde_json::Value;

/// Runs the program. Returns its exit status, standard output and standard error.
fn pingpong(options: &[&str]) -> (i32, String, String) {
    run(Command::new(env!("CARGO_BIN_EXE_pingpong")).args(options))
}

/// Returns the report of the server and the report of the client after a successful run.
fn reports(options: &[&str]) -> [Value; 2] {
    let (status, stdout, stderr) = pingpong(&[&["--device", "soft", "--json"], options].concat());
    assert_eq!(status, 0, "{options:?}: {stdout}{stderr}");
    let reports: Vec<Value> = serde_json::from_str(&stdout).unwrap();
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
fn messages_of_every_type_are_exchanged() {
    for kind in ["rc", "uc", "ud", "srq"] {
        check_run(&["--type", kind, "--iterations", "1000"], 1000);
        check_run(&["--type", kind, "--iterations", "1000", "--check", "--window", "20"], 1000);
        check_run(&["--type", kind, "--iterations", "300", "--check", "--events"], 300);
    }
}

#[test]
fn size_options_are_applied() {
    check_run(&["-n", "10", "--size", "1"], 10);
    check_run(&["-n", "10", "--size", "1000001", "--mtu", "256", "--check", "--rx-depth", "3"], 10);
    check_run(&["-n", "10", "--type", "ud", "--size", "32", "--check"], 10);
    check_run(&["-n", "256", "--type", "srq", "--queue-pairs", "256", "--check"], 256);
    check_run(&["-n", "1", "--type", "srq", "--queue-pairs", "1", "--rx-depth", "1"], 1);
}

#[test]
fn short_options_are_accepted() {
    let options = "-t srq -n 100 -q 4 -w 2 -r 9 -s 99 -m 512 -i 1 -g 0 -l 1 -p 1 -e -c";
    let [server, client] = reports(&options.split(' ').collect::<Vec<_>>());
    for report in [server, client] {
        let values = ["iterations", "queue_pairs", "window", "size"].map(|name| report[name].as_u64().unwrap());
        assert_eq!(values, [100, 4, 2, 99]);
        assert_eq!(
            (&report["type"], &report["events"], &report["check"]["good"]),
            (&"srq".into(), &true.into(), &100.into())
        );
    }
}

#[test]
fn all_invalid_options_are_reported_together() {
    let wrong = ["--device", "soft", "-n", "0", "--size", "8", "--check", "--window", "9", "--rx-depth", "8", "host"];
    let (status, stdout, stderr) = pingpong(&wrong);
    assert_eq!((status, stdout.as_str()), (2, ""));
    for why in [
        "--device soft runs both sides",
        "--iterations 0: must be 1 or more",
        "--size 8: must be at least 32 bytes",
        "--rx-depth 8: must be at least 9",
    ] {
        assert!(stderr.contains(why), "{stderr}");
    }
    let (status, _, stderr) = pingpong(&["--device", "soft", "--type", "srq", "--queue-pairs", "257"]);
    assert!(status == 2 && stderr.contains("--queue-pairs 257: must be 1 to 256"), "{stderr}");
    let (status, _, stderr) = pingpong(&["--device", "soft", "--type", "xrc"]);
    assert!(status == 2 && stderr.contains("rc, uc, ud, srq"), "{stderr}");
}

#[test]
fn unsupported_device_parameters_are_reported() {
    let cannot = |options: &[&str]| {
        let (status, _, stderr) = pingpong(&[&["--device", "soft", "--deadline", "5"], options].concat());
        assert_eq!(status, 1, "{stderr}");
        stderr
    };
    assert!(
        cannot(&["--type", "ud", "--size", "1025"]).contains("--size 1025: a message of soft0 has at most 1024 bytes")
    );
    assert!(cannot(&["--rx-depth", "1000000"]).contains("--rx-depth 1000000: a queue pair of soft0 has at most"));
    assert!(cannot(&["--mtu", "4096"]).contains("`path_mtu` = 4096"));
    assert!(cannot(&["--gid-index", "9"]).contains("`gid_index` = 9"));
    assert!(cannot(&["--gid", "2001:db8::1"]).contains("2001:db8::1"));
    assert!(cannot(&["--device-port", "2"]).contains("`device_port` = 2"));
}

#[test]
fn unknown_device_is_reported() {
    let (status, stdout, stderr) = pingpong(&["--device", "nothing0"]);
    assert_eq!((status, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("nothing0"), "{stderr}");
}
