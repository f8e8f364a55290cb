//! Tests of playing and writing captures. An intact capture comes out unchanged, and damage in a capture is reported.

use std::fs;
use std::path::Path;

use dataplane::telemetry::Report;
use dataplane_testing::config::Config;
use proptest::prelude::*;

use crate::common::{Folder, assert_conserved, assert_good, captures, counter, drops, frames_of, pcap_header};

/// Plays `input` through the stages into `output`.
fn play(folder: &Folder, input: &Path, output: &str, stages: &str) -> Report {
    folder.run(&config(input, output, stages))
}

fn config(input: &Path, output: &str, stages: &str) -> String {
    let link = format!("kind = 'pcap', input = '{}', output = '{output}'", input.display());
    Config::new()
        .runtime("burst = 32")
        .port_with("p", &link, "rx_depth = 64\ntx_depth = 64")
        .stages(stages)
        .stage("tx", "port = 'p'")
        .to_string()
}

const PARSE: &str = "[[pipeline.stage]]\nuse = 'parse'\noutputs = { arp = 'tx', other = 'tx' }";

#[test]
fn captures_come_out_unchanged() {
    let folder = Folder::new();
    for input in captures() {
        let frames = frames_of(&input);
        for (output, stages) in [("out.pcap", ""), ("out.pcapng", ""), ("parsed.pcap", PARSE)] {
            let report = play(&folder, &input, output, stages);
            assert_good(&report);
            assert_eq!(report.ledger.dropped, 0, "{} through {output}: {report}", input.display());
            assert!(frames_of(&folder.file(output)) == frames, "{} through {output}", input.display());
        }
    }
}

#[test]
fn truncated_capture_is_played_up_to_the_cut() {
    let folder = Folder::new();
    for input in captures().iter().filter(|path| ["vlan.pcap", "vlan.pcapng"].iter().any(|name| path.ends_with(name))) {
        let (bytes, frames) = (fs::read(input).unwrap(), frames_of(input));
        let mut shortest = frames.len();
        for cut in (0..bytes.len()).rev().step_by(97) {
            let cut_file = folder.write("cut", &bytes[..cut]);
            let run = match folder.start(&config(&cut_file, "out.pcap", ""), Default::default()) {
                Ok(run) => run,
                Err(error) => {
                    // The file is cut inside its header. A pcapng header may be long, because it names the programs
                    // that wrote the file.
                    assert!(cut < 200, "{cut}: {error}");
                    assert!(error.to_string().contains(cut_file.to_str().unwrap()), "{error}");
                    continue;
                }
            };
            let report = run.join().unwrap();
            assert_conserved(&report);
            let out = frames_of(&folder.file("out.pcap"));
            assert!(frames.starts_with(&out) && out.len() <= shortest, "{cut}");
            shortest = out.len();
            match report.errors.as_slice() {
                // The cut is between two records.
                [] => assert!(report.is_good()),
                [error] => {
                    let whole = match out.len() {
                        0 => "; no frame was played".to_owned(),
                        1 => "; the only frame that precedes this byte was played".to_owned(),
                        frames => format!("; the {frames} frames that precede this byte were played"),
                    };
                    for part in [cut_file.to_str().unwrap(), "damaged at byte ", "the file ends in", &whole] {
                        assert!(error.contains(part), "{part:?} is not in: {error}");
                    }
                    assert!(!report.is_good());
                }
                errors => panic!("{errors:?}"),
            }
        }
        assert!(shortest < 3, "{}: {shortest}", input.display());
    }
}

#[test]
fn unsupported_capture_is_rejected_with_the_reason() {
    let folder = Folder::new();
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let section = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
    let wifi = [1, 20, 105, 65_535, 20];
    for (bytes, reason) in [
        (Vec::new(), "not a capture: shorter than any header"),
        (b"abc".to_vec(), "not a capture: shorter than any header"),
        (b"# a config, not a capture".to_vec(), "not a capture: neither pcap nor pcapng"),
        (pcap_header(1)[..20].to_vec(), "not a capture"),
        (pcap_header(105).to_vec(), "the link type is 105, not Ethernet"),
        (pcap_header(0xffff_ff01).to_vec(), "the link type is 65281, not Ethernet"),
        (words(&[&section[..], &wifi].concat()), "the link type of interface 0 is 105 and not Ethernet"),
    ] {
        let input = folder.write("input", bytes);
        let error = folder.start(&config(&input, "out.pcap", ""), Default::default()).err().unwrap().to_string();
        for part in [input.to_str().unwrap(), reason] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
    let missing = folder.file("missing.pcap");
    let error = folder.start(&config(&missing, "out.pcap", ""), Default::default()).err().unwrap().to_string();
    assert!(error.contains(missing.to_str().unwrap()) && error.contains("No such file"), "{error}");
}

/// The report names the file, the offset of the damaged record, and the number of frames before the record.
#[test]
fn invalid_record_is_reported_with_its_offset() {
    let folder = Folder::new();
    let mut input = fs::read(folder.capture("a.pcap", [[7; 60]])).unwrap();
    let end = input.len();
    // A record with an impossible length.
    input.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    input.extend([0; 60]);
    let pcap = folder.write("in.pcap", &input);
    play(&folder, &pcap, "ng.pcapng", "");
    let mut input = fs::read(folder.file("ng.pcapng")).unwrap();
    let ng_end = input.len();
    // A block whose trailing length differs from its leading length.
    input.extend([6u32, 36, 0, 0, 0, 0, 0, 0, 40].iter().flat_map(|word| word.to_le_bytes()));
    let ng = folder.write("in.pcapng", &input);
    for (input, end, why) in [(pcap, end, "the file ends in the middle of a record"), (ng, ng_end, "no valid record")] {
        let report = play(&folder, &input, "out.pcap", "");
        assert_conserved(&report);
        let [error] = &report.errors[..] else { panic!("{:?}", report.errors) };
        let place = format!("{}: damaged at byte {end}", input.display());
        assert_eq!(*error, format!("{place}: {why}; the only frame that precedes this byte was played"));
    }
}

#[test]
fn empty_capture_is_played() {
    let folder = Folder::new();
    let input = folder.capture::<&[u8]>("empty.pcap", []);
    let report = play(&folder, &input, "out.pcap", PARSE);
    assert_good(&report);
    assert_eq!((report.packets.rx, frames_of(&folder.file("out.pcap")).len()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Plays captures with flipped bits in headers, records and frames, or with random bytes after the header.
    #[test]
    fn damaged_captures_never_panic(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..40),
        early in prop::collection::vec((0..120usize, 0..8u8), 0..2),
        noise in prop::option::of(prop::collection::vec(any::<u8>(), 0..200)),
    ) {
        let folder = Folder::new();
        let all = captures();
        let mut bytes = fs::read(which.get(&all)).unwrap();
        match noise {
            Some(noise) => bytes.splice(24.., noise).for_each(drop),
            None => flips.iter().for_each(|(at, bit)| *at.get_mut(&mut bytes) ^= 1 << bit),
        }
        for (at, bit) in early {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        let input = folder.write("damaged", &bytes);
        match folder.start(&config(&input, "out.pcap", PARSE), Default::default()) {
            Err(error) => prop_assert!(error.to_string().contains(input.to_str().unwrap()), "{}", error),
            Ok(run) => {
                let report = run.join().unwrap();
                assert_conserved(&report);
                for error in &report.errors {
                    for part in [input.to_str().unwrap(), "damaged at byte ", " played"] {
                        prop_assert!(error.contains(part), "{}", error);
                    }
                }
                let sent = frames_of(&folder.file("out.pcap")).len() as u64;
                prop_assert_eq!(sent, report.packets.tx);
                // Every frame of the file is counted as sent, dropped or too long.
                let (rx, long) = (report.packets.rx, counter(&report, 0, "rx_too_long"));
                prop_assert_eq!(report.ports[0].rx_errors, long);
                prop_assert_eq!(rx, sent + report.ledger.dropped);
                prop_assert_eq!(drops(&report, "p.tx_full"), 0);
            }
        }
    }
}
