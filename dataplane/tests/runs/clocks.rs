//! By which clock packets are timed, and that the report says so.

use std::collections::BTreeMap;

use dataplane::clock::{ClockSource, ClockState};
use dataplane::telemetry::Report;

use crate::common::{Folder, assert_good};

const COUNT: u64 = 20_000;

/// A generator whose packets go back out where they came in.
fn port(name: &str, keys: &str) -> String {
    format!(
        r#"
        [[port]]
        name = "{name}"
        device = "soft"
        link = {{ kind = "generator", count = {COUNT} }}
        {keys}
        "#
    )
}

fn run(timestamps: &str, ports: &[String], back: &str) -> Report {
    let text = format!(
        r#"
        [runtime]
        workers = 1
        hugepages = "none"
        timestamps = "{timestamps}"
        {}
        [pipeline]
        input = ["a"]
        [[pipeline.stage]]
        use = "tx"
        port = "{back}"
        "#,
        ports.concat()
    );
    let report = Folder::new().run(&text);
    assert_good(&report);
    report
}

/// All packets were timed, by this clock.
fn assert_timed_by(source: ClockSource, report: &Report) {
    let latency = &report.latency_ns;
    assert_eq!((latency.source, latency.count, latency.unmeasured), (source, COUNT, 0), "{report}");
    assert_eq!(latency.by_source, BTreeMap::from([(source, COUNT)]));
    assert_eq!(report.ports[0].stamps.keys().collect::<Vec<_>>(), [&source], "{report}");
    assert!(latency.max < 60_000_000_000 && latency.p50 > 0, "{report}");
}

#[test]
fn a_counter_of_the_devices_own_is_followed() {
    for (bits, drift) in [(24, 90_000), (48, -90_000), (64, 0)] {
        let clock = format!("clock = {{ khz = 156250, bits = {bits}, drift_ppb = {drift}, start = 16777000 }}");
        let report = run("device", &[port("a", &clock)], "a");
        if bits > 24 {
            assert_timed_by(ClockSource::DeviceTicks, &report);
        } else {
            // This one wraps in a tenth of a second. A worker that did not run for so long cannot tell a stamp from the
            // one before.
            let latency = &report.latency_ns;
            assert_eq!(latency.count + latency.unmeasured, COUNT, "{report}");
            assert!(report.ports[0].stamps[&ClockSource::DeviceTicks] > 0, "{report}");
        }
        let [clock] = &report.ports[0].clocks[..] else { panic!("{report}") };
        assert_eq!(clock.source, ClockSource::DeviceTicks);
        assert!(clock.state != ClockState::Invalid && clock.steps > 0, "{report}");
        assert!(report.to_string().contains("clock device_ticks: "), "{report}");
    }
}

#[test]
fn where_it_cannot_be_followed_the_host_stamps() {
    for (keys, why) in [
        ("clock = { says_khz = false }", "the device does not say its frequency"),
        ("clock = { bits = 8 }", "it wraps in less than 8 us"),
        ("clock = { events = [{ at = '0s', kind = 'mute', value = 95 }] }", "ibv_query_rt_values_ex failed"),
    ] {
        let report = run("device", &[port("a", keys)], "a");
        assert_timed_by(ClockSource::Software, &report);
        let [clock] = &report.ports[0].clocks[..] else { panic!("{report}") };
        assert_eq!(clock.state, ClockState::Invalid);
        assert!(clock.fault.as_ref().is_some_and(|fault| fault.contains(why)), "{clock}");
    }
}

#[test]
fn without_device_stamps_a_burst_has_one() {
    for (timestamps, keys) in [("device", "refuse = ['timestamps']"), ("software", ""), ("device", "")] {
        let report = run(timestamps, &[port("a", keys)], "a");
        assert_timed_by(ClockSource::Software, &report);
        assert!(report.ports[0].clocks.is_empty(), "{report}");
    }
    let report = run("none", &[port("a", "")], "a");
    assert_eq!((report.latency_ns.source, report.latency_ns.count), (ClockSource::None, 0));
    assert!(report.ports[0].stamps.is_empty());
}

#[test]
fn a_wall_clock_is_brought_to_the_hosts() {
    const AHEAD: i64 = 37_000_000_000;
    for (ahead, offset) in [(0, 0), (AHEAD, -AHEAD)] {
        let keys = format!("clock = {{ wall_ahead = {ahead} }}");
        let report = run("wallclock", &[port("a", &keys)], "a");
        assert_timed_by(ClockSource::DeviceWallclock, &report);
        let clock = report.ports[0].clocks.iter().find(|clock| clock.source == ClockSource::DeviceWallclock).unwrap();
        assert!((clock.offset_ns - offset).abs() < 1_000_000_000, "{clock}");
    }
    let refused = "clock = { khz = 156250 }\nrefuse = ['wallclock_timestamps']";
    assert_timed_by(ClockSource::DeviceTicks, &run("wallclock", &[port("a", refused)], "a"));
}

/// What is received by one clock and sent by another has no latency: there are two moments and no time between them.
#[test]
fn between_clocks_nothing_is_timed() {
    let ports = [port("a", "clock = { khz = 156250 }"), port("b", "refuse = ['timestamps']")];
    let report = run("device", &ports, "b");
    assert_eq!((report.latency_ns.source, report.latency_ns.count), (ClockSource::None, 0), "{report}");
    assert_eq!(report.latency_ns.unmeasured, COUNT);
    // Between two devices that are both followed there is one line of time.
    let ports = [port("a", "clock = { khz = 156250 }"), port("b", "clock = { khz = 322265, bits = 48 }")];
    let report = run("device", &ports, "b");
    assert_timed_by(ClockSource::DeviceTicks, &report);
}
