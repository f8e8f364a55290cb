//! Tests of the stage and of the example config. One test changes the file of the stage during a run.

use std::time::Instant;

use dataplane::config::{Diagnostics, Source};
use dataplane::control::Refusal;
use dataplane::control::change::Applied;
use dataplane::pipeline::Registry;
use dataplane::runtime::{ApplyOptions, Options, Run, Snapshot, assemble};
use dataplane::stages::{self, parse::Parse};
use dataplane::telemetry::Report;
use dataplane::testing::{Fate, Harness, frame};
use dataplane::topology::Topology;
use dataplane_testing::config::Config;
use dataplane_testing::{Folder, PATIENCE};

use super::*;

/// Replaces the file with the prefixes atomically.
fn write_list(folder: &Folder, text: &str) {
    fs::rename(folder.write("new", text), folder.file("list")).unwrap();
}

fn registry() -> Registry {
    let mut registry = stages::registry();
    registry.add::<GeoBlock>("geo_block");
    registry
}

/// Applies the config again, and reads the list again, as on SIGHUP.
fn reload(run: &Run) -> Result<Applied, Refusal> {
    let options = ApplyOptions { reads_all_files: true, ..ApplyOptions::default() };
    run.changer().apply(&registry(), &run.source(), &options)
}

fn start(source: &Source) -> Run {
    let registry = registry();
    let mut diagnostics = Diagnostics::new(source);
    let assembly = assemble(source, &registry, Topology::discover().unwrap(), &mut diagnostics).unwrap();
    Run::start(assembly.unwrap_or_else(|| panic!("{}", diagnostics.render(false))), Options::default()).unwrap()
}

fn listed(report: &Report) -> u64 {
    report.stages[1].drops.get("listed").copied().unwrap_or(0)
}

/// Takes snapshots until the report of a snapshot meets the condition `is_met`, and returns this snapshot.
fn until(run: &Run, is_met: impl Fn(&Report) -> bool) -> Snapshot {
    let begin = Instant::now();
    loop {
        match run.snapshot() {
            Some(snapshot) if is_met(snapshot.report()) => return snapshot,
            _ => assert!(begin.elapsed() < PATIENCE && !run.is_finished(), "{}", run.progress().rx),
        }
        std::thread::yield_now();
    }
}

#[test]
fn list_changes_while_packets_flow() {
    let folder = Folder::new();
    write_list(&folder, "192.0.2.0/24\n");
    let config = Config::new()
        .workers(2)
        .port("wan", "kind = 'generator', src_ip = '198.18.0.1', flows = 100")
        .stage("parse", "")
        .stage("geo_block", "name = 'geo'\nfile = 'list'")
        .stage("tx", "port = 'wan'");
    let run = start(&Source::new(folder.file("test.toml"), config.to_string(), &[]));
    let before = until(&run, |report| report.packets.tx > 10_000);
    assert_eq!(listed(before.report()), 0);

    // The background task detects the change without a reload request.
    write_list(&folder, "# all packets of the test\n198.18.0.0/15\n2001:db8::/32\n");
    until(&run, |report| listed(report) > 10_000);

    // `reload` returns after all workers use the new list.
    write_list(&folder, "192.0.2.0/24 # none of the packets\n");
    reload(&run).unwrap();
    let (open, sent) = (until(&run, |_| true), run.progress().tx);
    let later = until(&run, |report| report.packets.tx > sent + 10_000);
    assert_eq!(listed(later.report()), listed(open.report()));

    write_list(&folder, "198.18.0.0/15\n198.18.0.0/33\n");
    let mistakes = reload(&run).unwrap_err().mistakes;
    assert!(mistakes[0].message.contains("list:2: `198.18.0.0/33` is not a prefix"), "{mistakes:?}");
    let sent = run.progress().tx;
    let later = until(&run, |report| report.packets.tx > sent + 10_000);
    assert_eq!(listed(later.report()), listed(open.report()), "the rejected list changed the number of drops");

    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert_eq!(report.packets.rx, report.packets.tx + listed(&report));
}

#[test]
fn packets_of_every_kind_are_looked_up_by_their_source() {
    let folder = Folder::new();
    write_list(&folder, "10.0.0.0/8\n2001:db8::/32\n");
    let builder = Harness::builder().folder(folder.path()).after(Parse::default());
    let mut harness = builder.build::<GeoBlock>("file = 'list'").unwrap();
    let v4 = |source: [u8; 4]| frame().ipv4(source.into(), [10, 0, 0, 1].into());
    let v6 = |source: &str| frame().ipv6(source.parse().unwrap(), "2001:db8::1".parse().unwrap());
    let packets = [
        v4([10, 1, 2, 3]).udp(1, 2).build(),
        v4([11, 1, 2, 3]).udp(1, 2).build(),
        v4([10, 1, 2, 3]).vlan(5).udp(1, 2).build(),
        v4([11, 1, 2, 3]).vlan(5).udp(1, 2).build(),
        v6("2001:db8::2").udp(1, 2).build(),
        v6("2001:db9::2").udp(1, 2).build(),
        v4([10, 9, 9, 9]).udp(1, 2).build(),
    ];
    let fates: Vec<bool> = harness.run(&packets).iter().map(|outcome| outcome.fate == Fate::Next).collect();
    assert_eq!(fates, [false, true, false, true, false, true, false]);
    assert_eq!(harness.run_one(&packets[0]).fate, Fate::Dropped("listed".to_owned()));
}

#[test]
fn list_must_be_a_regular_file() {
    let builder = Harness::builder().after(Parse::default());
    let error = builder.build::<GeoBlock>("file = '/dev/null'").err().unwrap();
    assert!(error.contains("/dev/null: not a regular file"), "{error}");
}

#[test]
fn example_config_drops_the_listed_server() {
    let folder = Folder::new();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("geo-block.toml");
    let output = format!("{:?}", folder.file("sent.pcapng"));
    let source = Source::read(&config, &[("port.wan.link.output".to_owned(), output)]).unwrap();
    let report = start(&source).join().unwrap();
    assert!(report.is_good(), "{report}");
    assert_eq!((report.packets.rx, listed(&report)), (31, 8), "{report}");
}

#[test]
fn the_app_is_short() {
    let lines = include_str!("main.rs").lines().count();
    assert!(lines < 150, "{lines} lines");
}
