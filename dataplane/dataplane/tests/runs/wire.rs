//! Tests of the end of a run, and of the errors of runs that cannot start or continue.

use std::fs;
use std::time::Duration;

use dataplane::runtime::Options;

use crate::common::{Folder, assert_conserved, assert_good, drops};

/// Returns a config that sends the packets of a port back out of the port.
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

/// The program writes the output in large blocks. With few packets, the write error therefore occurs at the end of the
/// run. With many packets, the write error occurs during the run.
#[test]
fn full_disk_is_reported_and_every_packet_counted() {
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

/// The report contains both the input error and the output error, whichever occurs first.
#[test]
fn damaged_input_and_failed_output_are_both_reported() {
    for frames in [10, 20_000] {
        let folder = Folder::new();
        let input = folder.capture("in.pcap", (0..frames).map(|_| [1; 60]));
        let whole = fs::read(&input).unwrap();
        fs::write(&input, &whole[..whole.len() - 1]).unwrap();
        let report = folder.run(&config("workers = 1", "kind = 'pcap', input = 'in.pcap', output = '/dev/full'"));
        assert_conserved(&report);
        let reported = |what: &str| report.errors.iter().filter(|error| error.contains(what)).count();
        assert_eq!(
            (reported("in.pcap: damaged"), reported("No space left"), report.errors.len()),
            (1, 1, 2),
            "{report}"
        );
    }
}

#[test]
fn output_that_cannot_be_created_is_reported_at_the_start() {
    let folder = Folder::new();
    folder.write("file", "");
    let error = folder.start(&config("workers = 1", "kind = 'pcap', output = 'file/out.pcap'"), Options::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("/file"), "{error}");
}

#[test]
fn packet_limit_is_exact() {
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
fn run_ends_after_its_duration_or_when_it_is_stopped() {
    for idle in ["spin", "pause", "sleep", "adaptive"] {
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

/// A worker that sleeps because no packets arrive wakes up when packets arrive.
#[test]
fn sleeping_worker_wakes_up_for_packets() {
    let folder = Folder::new();
    // The packets are 300 ms apart, and the capture is played at its recorded pace.
    let words = |at: u32| [0, at, 60, 60].map(u32::to_le_bytes).concat();
    let bytes = [&crate::common::pcap_header(1)[..], &words(0), &[1; 60], &words(300_000), &[2; 60]].concat();
    folder.write("in.pcap", bytes);
    for idle in ["sleep", "adaptive"] {
        let report = folder.run(&config(
            &format!("workers = 1\nidle = '{idle}'"),
            "kind = 'pcap', input = 'in.pcap', output = 'out.pcap', pace = 'file'",
        ));
        assert_good(&report);
        assert_eq!(crate::common::frames_of(&folder.file("out.pcap")), [[1; 60], [2; 60]]);
        let sleeps = report.workers[0].sleeps.unwrap();
        assert!(sleeps.sleeps > 0 && sleeps.slept_s > 0.0 && sleeps.slept_s < report.duration_s, "{report}");
        assert!(report.to_string().contains(&format!("  {} sleeps, ", sleeps.sleeps)), "{report}");
    }
}

#[test]
fn invalid_cores_and_ports_are_reported_before_the_run() {
    let folder = Folder::new();
    for (text, message) in [
        (config("workers = [4095]", ENDLESS), "core 4095 does not exist"),
        (config("workers = [0, 0]", ENDLESS), "core 0 is listed for two workers"),
        (config("workers = 1", ENDLESS).replace("[\"p\"]", "[\"p\", \"p\"]"), "the port `p` is listed twice"),
        (config("workers = 1", ENDLESS).replace("port = \"p\"", "port = \"q\""), "there is no port `q`"),
    ] {
        let mistakes = folder.assemble(&text).err().unwrap();
        assert!(mistakes.contains(message) && mistakes.contains("test.toml:"), "{mistakes}");
    }
    assert!(fs::read_dir(folder.file("")).unwrap().next().is_none(), "a check must not write files");
}

/// If the config of a port has a mistake, the port still exists for the checks of stages. So a stage that names the
/// port causes no second message.
#[test]
fn mistake_in_a_port_causes_one_message() {
    let text = config("workers = 1", "kind = 'generator', flows = -1");
    let mistakes = Folder::new().assemble(&text).err().unwrap();
    assert!(mistakes.contains("-1") && mistakes.matches("error:").count() == 1, "{mistakes}");
}

/// The workers end even if the wire loses or delays every frame.
#[test]
fn total_loss_or_delay_does_not_block_the_end() {
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

/// The message names the stages that generate additional packets, by copying or by splitting.
#[test]
fn oversized_burst_names_the_stages_that_generate_packets() {
    let stage = |keys: &str| format!("[[pipeline.stage]]\n{keys}\n");
    let route = "use = 'route'\ntable = [{ prefix = '0.0.0.0/0', via = '10.0.0.1', port = 'p' }]";
    let fragments = ["use = 'parse'", route, "name = 'cut'\nuse = 'fragment'\nmost = 8"].map(stage).concat();
    let copies = stage("name = 'copy'\nuse = 'mirror'\noutputs = { copy = 'drop' }");
    let both = format!("{fragments}{copies}");
    for (stages, names, fix) in [
        (&fragments, "because of `cut`", "set burst = 32 or less"),
        (&both, "because of `cut`, `copy`", "set burst = 16 or less"),
    ] {
        let config = config("workers = 1\nburst = 64", "kind = 'generator'").replacen(
            "[[pipeline.stage]]",
            &format!("{stages}[[pipeline.stage]]"),
            1,
        );
        let said = Folder::new().assemble(&config).err().unwrap();
        assert!(said.contains("a burst of 64 packets may become more than 256 packets, the size of a batch"), "{said}");
        assert!(said.contains(names) && said.contains(fix), "{said}");
        // If the config has no key `burst`, the message points to the first stage that generates packets.
        let said = Folder::new().assemble(&config.replace("burst = 64\n", "")).err().unwrap();
        let line = config.replace("burst = 64\n", "").lines().position(|line| line == "name = 'cut'").unwrap();
        assert!(said.contains(&format!("test.toml:{line}:1")), "{said}");
    }
}

#[test]
fn capture_stage_cannot_alias_other_files() {
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
