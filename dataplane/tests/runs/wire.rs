//! How runs end, and what they say when they cannot go on.

use std::fs;
use std::time::Duration;

use dataplane::runtime::Options;

use crate::common::{Folder, assert_conserved, assert_good, drops};

/// A generator that is sent back out.
fn config(runtime: &str, link: &str) -> String {
    format!(
        r#"
        [runtime]
        hugepages = "none"
        {runtime}
        [[port]]
        name = "p"
        device = "soft"
        link = {{ {link} }}
        [pipeline]
        input = ["p"]
        [[pipeline.stage]]
        use = "tx"
        port = "p"
        "#
    )
}

const ENDLESS: &str = "kind = 'generator', flows = 10";

/// The output is written in large pieces: a few packets fail at the end, many on the way.
#[test]
fn a_full_disk_is_told_and_nothing_is_lost_by_it() {
    for frames in [10, 20_000] {
        let folder = Folder::new();
        folder.capture("in.pcap", (0..frames).map(|_| [1; 60]));
        let report =
            folder.run(&config("workers = 1", "kind = 'pcap', input = 'in.pcap', output = '/dev/full', pace = 'fast'"));
        assert_conserved(&report);
        assert!(!report.is_good());
        assert_eq!(report.errors.len(), 1, "{report}");
        assert!(report.errors[0].contains("/dev/full") && report.errors[0].contains("No space left"), "{report}");
        assert_eq!(report.packets.rx, frames);
        assert_eq!(report.packets.tx + drops(&report, "p.tx_error"), frames, "{report}");
        assert_eq!(drops(&report, "p.tx_error") > 0, frames > 10, "{report}");
    }
}

/// Whatever fails first, and whenever it does: neither hides the other.
#[test]
fn a_damaged_input_and_a_failed_output_are_both_told() {
    for frames in [10, 20_000] {
        let folder = Folder::new();
        let input = folder.capture("in.pcap", (0..frames).map(|_| [1; 60]));
        let whole = fs::read(&input).unwrap();
        fs::write(&input, &whole[..whole.len() - 1]).unwrap();
        let report = folder.run(&config("workers = 1", "kind = 'pcap', input = 'in.pcap', output = '/dev/full'"));
        assert_conserved(&report);
        let told = |what: &str| report.errors.iter().filter(|error| error.contains(what)).count();
        assert_eq!((told("in.pcap: damaged"), told("No space left"), report.errors.len()), (1, 1, 2), "{report}");
    }
}

#[test]
fn an_output_that_cannot_be_made_is_told_at_once() {
    let folder = Folder::new();
    folder.write("file", "");
    let error = folder.start(&config("workers = 1", "kind = 'pcap', output = 'file/out.pcap'"), Options::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("/file"), "{error}");
}

#[test]
fn a_number_of_packets_is_exact() {
    for packets in [0, 1, 63, 64, 65, 10_000] {
        for runtime in ["workers = 1", "workers = 1\nburst = 7", "workers = 2"] {
            let options = Options { packets: Some(packets), ..Options::default() };
            let report = Folder::new().run_until(&config(runtime, ENDLESS), options);
            assert_good(&report);
            assert_eq!((report.packets.rx, report.packets.tx), (packets, packets), "{report}");
        }
    }
}

#[test]
fn time_ends_a_run_and_so_does_the_word() {
    for idle in ["spin", "pause", "sleep"] {
        for link in [ENDLESS, "kind = 'loopback'"] {
            let text = config(&format!("workers = 1\nidle = '{idle}'"), link);
            let options = Options { duration: Some(Duration::from_millis(20)), ..Options::default() };
            let report = Folder::new().run_until(&text, options);
            assert_good(&report);
            assert_eq!(report.packets.rx > 0, link == ENDLESS, "{report}");

            let folder = Folder::new();
            let run = folder.start(&text, Options::default()).unwrap();
            while run.progress().loops < 20_000 {
                std::thread::yield_now();
            }
            assert!(!run.is_finished());
            run.stop();
            let report = run.join().unwrap();
            assert_good(&report);
            assert_eq!(report.packets.rx, report.packets.tx, "{report}");
        }
    }
}

/// A worker that has slept for want of packets takes them when they come.
#[test]
fn a_sleeping_worker_wakes() {
    let folder = Folder::new();
    // 300 milliseconds apart, at the time of the file.
    let words = |at: u32| [0, at, 60, 60].map(u32::to_le_bytes).concat();
    let bytes = [&crate::common::pcap_header(1)[..], &words(0), &[1; 60], &words(300_000), &[2; 60]].concat();
    folder.write("in.pcap", bytes);
    let report = folder.run(&config(
        "workers = 1\nidle = 'sleep'",
        "kind = 'pcap', input = 'in.pcap', output = 'out.pcap', pace = 'file'",
    ));
    assert_good(&report);
    assert_eq!(crate::common::frames_of(&folder.file("out.pcap")), [[1; 60], [2; 60]]);
}

#[test]
fn what_the_machine_does_not_have_is_told_before_the_run() {
    let folder = Folder::new();
    for (text, message) in [
        (config("workers = [4095]", ENDLESS), "core 4095 doesn't exist"),
        (config("workers = [0, 0]", ENDLESS), "core 0 is given to two workers"),
        (config("workers = 1", ENDLESS).replace("[\"p\"]", "[\"p\", \"p\"]"), "the port `p` is named twice"),
        (config("workers = 1", ENDLESS).replace("port = \"p\"", "port = \"q\""), "there is no port `q`"),
    ] {
        let mistakes = folder.assemble(&text).err().unwrap();
        assert!(mistakes.contains(message) && mistakes.contains("test.toml:"), "{mistakes}");
    }
    assert!(fs::read_dir(folder.file("")).unwrap().next().is_none(), "a check writes nothing");
}

/// A port with a mistake is a port: stages that name it are right.
#[test]
fn a_mistake_in_a_port_is_one_mistake() {
    let text = config("workers = 1", "kind = 'generator', flows = -1");
    let mistakes = Folder::new().assemble(&text).err().unwrap();
    assert!(mistakes.contains("-1") && mistakes.matches("error:").count() == 1, "{mistakes}");
}

/// A wire on which every frame is lost, or is late for ever, keeps no worker from ending.
#[test]
fn faults_that_leave_nothing_do_not_keep_a_run() {
    for faults in ["loss = 1.0", "flap = 1.0", "delay = 1.0, delay_by = '1000s'", "duplicate = 1.0", "reorder = 1.0"] {
        let text = config("workers = 1", ENDLESS).replace(
            "[pipeline]",
            &format!(
                "faults = {{ {faults} }}
        [pipeline]"
            ),
        );
        assert!(text.contains(faults), "{text}");
        let run = Folder::new().start(&text, Options::default()).unwrap();
        while run.progress().loops < 2_000 && !run.is_finished() {
            std::thread::yield_now();
        }
        run.stop();
        let report = run.join().unwrap();
        assert_good(&report);
    }
}

/// The stages that make packets of one are named, whether they copy it or take it apart.
#[test]
fn a_burst_that_may_outgrow_a_batch_is_told_with_what_makes_it_grow() {
    let stage = |keys: &str| format!("[[pipeline.stage]]\n{keys}\n");
    let route = "use = 'route'\ntable = [{ prefix = '0.0.0.0/0', via = '10.0.0.1', port = 'p' }]";
    let fragments = ["use = 'parse'", route, "name = 'cut'\nuse = 'fragment'\nmost = 8"].map(stage).concat();
    let copies = stage("name = 'copy'\nuse = 'mirror'\noutputs = { copy = 'drop' }");
    let both = format!("{fragments}{copies}");
    for (stages, names, fix) in [
        (&fragments, "by what comes out of `cut`", "set burst = 32 or less"),
        (&both, "by what comes out of `cut`, `copy`", "set burst = 16 or less"),
    ] {
        let config = config("workers = 1\nburst = 64", "kind = 'generator'").replacen(
            "[[pipeline.stage]]",
            &format!("{stages}[[pipeline.stage]]"),
            1,
        );
        let said = Folder::new().assemble(&config).err().unwrap();
        assert!(said.contains("a burst of 64 may become more than the 256 packets of a batch"), "{said}");
        assert!(said.contains(names) && said.contains(fix), "{said}");
    }
}

#[test]
fn a_capture_takes_no_file_that_is_another_s() {
    let folder = Folder::new();
    let stage = |file: &str| format!("[[pipeline.stage]]\nname = 'c'\nuse = 'capture'\nfile = '{file}'\n");
    let two = |file: &str, other: &str| {
        let stages = format!("{}{}", stage(file), stage(other).replace("'c'", "'d'"));
        config("workers = 1", "kind = 'pcap', output = 'port.pcap'").replacen(
            "[[pipeline.stage]]",
            &format!("{stages}[[pipeline.stage]]"),
            1,
        )
    };
    for (file, other, expected) in [
        ("a.pcapng", "./a.pcapng", Some("is the file that stage `c` writes")),
        ("a.pcapng", "port.pcap", Some("is the output of port `p`")),
        ("test.toml", "b.pcapng", Some("is the config itself")),
        ("a.pcapng", "b.pcapng", None),
    ] {
        let said = folder.assemble(&two(file, other)).err();
        assert_eq!(expected.is_some(), said.is_some(), "{said:?}");
        assert!(said.is_none_or(|said| said.contains(expected.unwrap())), "{expected:?}");
    }
}
