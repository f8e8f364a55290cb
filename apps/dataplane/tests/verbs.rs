//! Tests of the command `dataplane bench verbs`. Both sides run in one process, on software devices.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use dataplane_testing::program::{RunningProgram, run};
use serde_json::Value;

/// Returns the command `dataplane bench verbs` with the words of `line` as arguments.
fn verbs(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
    command.args(["bench", "verbs"]).args(line.split_whitespace());
    command
}

/// Returns the report of a run on software devices.
fn report(line: &str) -> Value {
    let (status, out, err) = run(&mut verbs(&format!("{line} --device soft --json")));
    assert_eq!(status, 0, "{line}: {out}{err}");
    serde_json::from_str(&out).unwrap()
}

fn number(row: &Value, path: &str) -> f64 {
    row.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {row}"))
}

/// Checks the results of a side: one row for each size.
fn check_results(side: &Value, sizes: &[u64], messages: u64, is_sender: bool) {
    let rows = side["results"].as_array().unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row["bytes"].as_u64().unwrap(), row["iterations"].as_u64().unwrap())).collect();
    assert_eq!(found, sizes.iter().map(|size| (*size, messages)).collect::<Vec<_>>(), "{side}");
    for row in rows {
        if side["test"].as_str().unwrap().ends_with("_lat") {
            let names = ["min", "typical", "p99", "p99_9", "max"];
            let times = names.map(|name| number(row, &format!("/latency_ns/{name}")));
            assert!(times.is_sorted() && times[0] > 0.0, "{row}");
            let average = number(row, "/latency_ns/average");
            assert!(times[0] <= average && average <= times[4], "{row}");
            assert_eq!(row["latency_ns"]["samples"], messages - 1);
            continue;
        }
        // A receiver that finds all messages with one poll, of at most 16 messages, knows no rate.
        if !is_sender && messages <= 16 && row["bandwidth"].is_null() {
            continue;
        }
        let average = number(row, "/bandwidth/average_bytes_per_s");
        let rate = number(row, "/bandwidth/messages_per_s");
        assert!((rate * number(row, "/bytes") / average - 1.0).abs() < 1e-6, "{row}");
        match is_sender {
            true => assert!(number(row, "/bandwidth/peak_bytes_per_s") >= average * 0.999_999, "{row}"),
            false => assert_eq!((&row["bandwidth"]["peak_bytes_per_s"], &row["lost"]), (&Value::Null, &0.into())),
        }
    }
}

#[test]
fn every_test_runs_on_every_transport_that_has_the_operation() {
    for (tests, transports) in [
        (["send_bw", "send_lat"], &["rc", "uc", "ud"][..]),
        (["write_bw", "write_lat"], &["rc", "uc"]),
        (["read_bw", "read_lat"], &["rc"]),
        (["atomic_bw", "atomic_lat"], &["rc"]),
    ] {
        for (test, transport) in tests.iter().flat_map(|test| transports.iter().map(move |transport| (test, transport)))
        {
            for more in ["", "--events"] {
                if *test == "write_lat" && !more.is_empty() {
                    continue;
                }
                let size = if test.starts_with("atomic") { 8 } else { 1000 };
                let client = report(&format!("{test} -t {transport} -s {size} -n 60 {more}"));
                let server = &client["server"];
                for (side, role) in [(&client, "client"), (server, "server")] {
                    assert_eq!((&side["role"], &side["complete"]), (&role.into(), &true.into()), "{client}");
                    assert_eq!((&side["test"], &side["transport"]), (&(*test).into(), &(*transport).into()));
                    assert_eq!((&side["events"], &side["failure"]), (&(!more.is_empty()).into(), &Value::Null));
                    assert_eq!(side["peer"]["is_dataplane"], true);
                }
                check_results(&client, &[size], 60, true);
                match *test {
                    "read_lat" | "atomic_lat" => assert_eq!(server["results"], Value::Array(Vec::new())),
                    // The server has the result of the client.
                    "write_bw" | "read_bw" | "atomic_bw" => {
                        let [own, received] =
                            [&client, server].map(|side| number(&side["results"][0], "/bandwidth/average_bytes_per_s"));
                        assert!((own / received - 1.0).abs() < 1e-6, "{client}");
                    }
                    _ => check_results(server, &[size], 60, false),
                }
            }
        }
    }
}

#[test]
fn all_sizes_run_from_2_bytes_to_8_mebibytes_or_to_the_mtu() {
    let powers = |last: u32| (1..=last).map(|power| 1 << power).collect::<Vec<u64>>();
    for test in ["send_bw", "send_lat"] {
        let client = report(&format!("{test} -t ud -a -n 5 -m 2048"));
        assert_eq!(client["mtu"], 2048);
        check_results(&client, &powers(11), 5, true);
        check_results(&client["server"], &powers(11), 5, false);
    }
    let client = report("write_lat -a -n 5");
    check_results(&client, &powers(23), 5, true);
}

#[test]
fn options_of_the_queues_are_applied() {
    let client = report("send_bw -s 64 -n 500 --tx-depth 16 --rx-depth 8 --cq-mod 4 --inline 64");
    let values = ["tx_depth", "rx_depth", "cq_mod", "inline"].map(|name| client[name].as_u64().unwrap());
    assert_eq!(values, [16, 8, 4, 64]);
    check_results(&client, &[64], 500, true);
    let client = report("atomic_bw --atomic compare_swap -n 100 -o 2");
    assert_eq!(client["atomic"], "compare_swap");
    // The last message requests a completion, although its number is no multiple of --cq-mod.
    check_results(&report("write_bw -s 3 -n 7 --tx-depth 4 --cq-mod 4"), &[3], 7, true);
}

/// With a duration, the rate is of the half of the duration in which messages count.
#[test]
fn test_ends_after_its_duration() {
    for line in ["send_bw", "send_bw -t ud", "send_bw --events", "write_bw --cq-mod 4", "read_bw", "atomic_bw"] {
        let client = report(&format!("{line} -s 8 -D 400ms"));
        for side in [&client, &client["server"]] {
            assert_eq!((&side["complete"], number(side, "/duration_s")), (&true.into(), 0.4), "{line}: {client}");
            let [row] = &side["results"].as_array().unwrap()[..] else { panic!("{line}: {client}") };
            let messages = number(row, "/bandwidth/messages_per_s") * 0.2;
            assert!((messages - number(row, "/iterations")).abs() < 1e-6, "{line}: {client}");
            let unknown = [&row["lost"], &row["bandwidth"]["peak_bytes_per_s"]];
            assert_eq!(unknown, [&Value::Null, &Value::Null], "{line}: {client}");
        }
    }
    let (status, out, err) = run(&mut verbs("write_bw -s 8 -D 100ms --device soft"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains(" Duration        : 0.1[s]\n"), "{out}");
}

#[test]
fn bidirectional_result_is_the_sum_of_both_sides() {
    for (line, sizes, messages) in [
        ("write_bw -s 64 -n 60", &[64][..], Some(60)),
        ("write_bw -t uc -s 64 -n 60 --events", &[64], Some(60)),
        ("read_bw -a -n 5", &(1..24).map(|power| 1 << power).collect::<Vec<_>>(), Some(5)),
        ("atomic_bw -D 200ms", &[8], None),
    ] {
        let client = report(&format!("{line} --bidirectional"));
        let server = &client["server"];
        assert!([&client, server].iter().all(|side| side["complete"] == true && side["bidirectional"] == true));
        let rows = [&client, server].map(|side| side["results"].as_array().unwrap());
        assert_eq!(rows.map(Vec::len), [sizes.len(); 2], "{client}");
        for ((own, other), size) in rows[0].iter().zip(rows[1]).zip(sizes) {
            assert_eq!([&own["bytes"], &other["bytes"]], [*size; 2], "{client}");
            if let Some(messages) = messages {
                assert_eq!([&own["iterations"], &other["iterations"]], [messages; 2], "{client}");
            }
            let rate = |row: &Value, part: &str| number(row, &format!("/{part}/messages_per_s"));
            let sum = rate(own, "outgoing") + rate(other, "outgoing");
            for row in [own, other] {
                assert!((rate(row, "bandwidth") - sum).abs() <= sum * 1e-6, "{client}");
            }
        }
    }
    let (status, out, err) = run(&mut verbs("write_bw -b -s 8 -n 50 --device soft"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains(" RDMA WRITE Bidirectional BW Test\n"), "{out}");
}

#[test]
fn every_queue_pair_has_all_messages() {
    for line in [
        "send_bw -s 64",
        "send_bw -s 1000 --rx-depth 4 --events",
        "send_bw -t ud -s 64",
        "write_bw -t uc -s 64 --tx-depth 7 --cq-mod 3",
        "write_bw -s 8 --bidirectional",
        "read_bw -s 5000",
        "atomic_bw",
    ] {
        let client = report(&format!("{line} -n 50 --queue-pairs 3"));
        for side in [&client, &client["server"]] {
            assert_eq!((&side["complete"], &side["queue_pairs"]), (&true.into(), &3.into()), "{line}: {client}");
            assert_eq!(side["results"][0]["iterations"], 150, "{line}: {client}");
        }
    }
    let client = report("send_bw -a -t ud -n 5 -q 2");
    check_results(&client["server"], &(1..13).map(|power| 1 << power).collect::<Vec<_>>(), 10, false);
    let (status, out, err) = run(&mut verbs("write_bw -q 2 -s 8 -n 50 --device soft"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    for (text, count) in [(" local address: ", 2), (" remote address: ", 2), (" Number of qps   : 2", 1)] {
        assert_eq!(out.matches(text).count(), count, "{out}");
    }
    let line = out.lines().rev().nth(1).unwrap();
    assert!(line.starts_with(" 8          100 "), "{out}");
}

#[test]
fn text_has_the_columns_of_perftest() {
    for (line, columns, cells) in [
        ("send_bw -s 256", " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]", 5),
        (
            "read_bw -s 256 --gbits",
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
            5,
        ),
        (
            "read_lat -s 256",
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]",
            9,
        ),
    ] {
        let (status, out, err) = run(&mut verbs(&format!("{line} -n 50 --device soft")));
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let mut lines = out.lines().skip_while(|line| *line != columns).skip(1);
        let row: Vec<f64> =
            lines.next().unwrap_or_default().split_whitespace().map(|cell| cell.parse().unwrap()).collect();
        assert_eq!((row.len(), row[0], row[1]), (cells, 256.0, 50.0), "{out}");
        assert!(lines.next().is_some_and(|line| line.starts_with("-----")) && !out.contains("INCOMPLETE"), "{out}");
    }
}

#[test]
fn wrong_combinations_are_errors_with_a_fix() {
    for (line, status, expected) in [
        ("read_bw -t uc", 2, "--type uc: only reliable connections have RDMA READ; help: use --type rc"),
        ("atomic_lat -t ud", 2, "--type ud: only reliable connections have atomic operations; help: use --type rc"),
        ("write_bw -t ud", 2, "--type ud: datagrams have no RDMA WRITE; help: use --type rc or --type uc"),
        ("atomic_bw -s 16", 2, "--size 16: atomic operations have exactly 8 bytes; help: remove this option"),
        ("atomic_bw -a", 2, "--all: atomic operations have exactly 8 bytes"),
        ("write_lat -e", 2, "--events: write_lat polls memory"),
        ("read_bw --inline 8", 2, "--inline: the test read_bw does not use this option; help: remove --inline"),
        ("send_lat --tx-depth 4", 2, "--tx-depth: the test send_lat does not use this option"),
        ("send_bw --tx-depth 8 --cq-mod 9", 2, "--cq-mod 9: a queue with 8 sends would never request a completion"),
        ("send_lat -D 1s", 2, "--duration: the test send_lat does not use this option; help: remove --duration"),
        (
            "send_bw -b",
            2,
            "--bidirectional: the test send_bw does not use this option; help: remove --bidirectional (for write_bw",
        ),
        ("send_lat -q 2", 2, "--queue-pairs: the test send_lat does not use this option; help: remove --queue-pairs"),
        ("send_bw -q 513", 2, "--queue-pairs 513: the range is 1 to 512; help: use a number in this range"),
        ("send_bw -q 0", 2, "--queue-pairs 0: the range is 1 to 512"),
        (
            "send_bw -q 3 -n 4000000",
            2,
            "--iterations 4000000: all queue pairs together have at most 10000000 messages; help: use at most --iterations 3333333",
        ),
        ("send_bw -q 512 --tx-depth 3000 -n 3000", 1, "--tx-depth 3000: a queue of soft1 has at most 2048 requests"),
        ("send_bw -D 99ms", 2, "--duration 99ms: the range is 100ms to 4h; help: use a time in this range"),
        ("send_bw -D 1s -n 5", 2, "cannot be used with"),
        ("send_bw --rx-depth 0", 2, "--rx-depth 0: the minimum is 1"),
        ("send_bw -n 4", 2, "--iterations 4: the range is 5 to 10000000"),
        ("send_bw -s 0", 2, "--size 0: the range is 1 to 1073741824"),
        ("send_bw host", 2, "HOST: with --device soft, both sides run in this process; help: remove HOST"),
        (
            "send_bw -t ud -s 4097",
            1,
            "--size 4097: a datagram must fit in the path MTU, 4096 bytes; help: use at most --size 4096",
        ),
        ("send_bw --inline 513", 1, "--inline 513: soft1 grants at most 512 bytes"),
        ("read_bw -o 200", 1, "--outstanding 200: the maximum of soft1 is 128; help: use 1 to 128"),
        ("send_bw -n 100000 --tx-depth 40000", 1, "--tx-depth 40000: a queue of soft1 has at most 32768 requests"),
        ("send_bw -m 8", 1, "`path_mtu` = 8"),
        ("send_bw -g 9", 1, "`gid_index` = 9"),
    ] {
        let (found, out, err) = run(&mut verbs(&format!("{line} --device soft")));
        assert_eq!((found, out.as_str()), (status, ""), "{line}: {err}");
        assert!(err.contains(expected), "{line}: {err}");
    }
    let (status, _, err) = run(&mut verbs("read_bw -t uc -n 4 --inline 8 --device soft"));
    assert_eq!((status, err.matches("help:").count()), (2, 3), "all mistakes are reported at once: {err}");
    let (status, out, err) = run(&mut verbs("send_bw --device nothing0"));
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("nothing0"), "{err}");
}

#[test]
fn signal_ends_the_run_with_the_results_so_far() {
    // The largest sizes take minutes, so the run does not end before the signal.
    let mut command = verbs("send_bw -a -n 5000 --device soft");
    let mut program = RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    let is_row = |line: &String| line.trim_start().starts_with(|first: char| first.is_ascii_digit());
    assert!(lines.any(|line| is_row(&line)), "the first size has a row");
    program.signal("-INT");
    let rest: Vec<String> = lines.collect();
    let (status, _, err) = program.end();
    assert_eq!(status, 1, "{rest:?}{err}");
    assert!(rest.iter().any(|line| line.starts_with("INCOMPLETE: the run ended early after")), "{rest:?}");
    assert!(err.contains("stopped before the end, so the result is incomplete"), "{err}");
}
