//! Ports: what each may be, and what it needs.

use super::{GENERATOR, GOOD, check, records, replaced};

#[test]
fn links_and_faults_that_cannot_be_are_named() {
    let generator = GENERATOR;
    for (from, to, expected) in [
        (
            generator,
            "link = { kind = \"generator\", protocol = \"tcp4\", vlan = 5, size = 57 }",
            &[(11, "a frame of 57 bytes is shorter than its headers, which have 58", "make it at least 58")][..],
        ),
        (
            generator,
            "link = { kind = \"generator\", sizes = [{ size = 64 }, { size = 1523, weight = 2 }] }",
            &[(
                11,
                "a frame of 1523 bytes is longer than the mtu of `wan` allows, 1522",
                "make it at most 1522, or the mtu at least 1501",
            )],
        ),
        (
            generator,
            "link = { kind = \"generator\", size = 64, sizes = [{ size = 64 }] }",
            &[(11, "`size` and `sizes` are both given", "take one of them out")],
        ),
        (
            generator,
            "link = { kind = \"generator\", flows = 50000, sizes = [{ size = 1000, weight = 2 }] }",
            &[(
                11,
                "the frames of 50000 flows have 100000000 bytes, more than 67108864",
                "make it at most 33554, or the sizes and weights smaller",
            )],
        ),
        (
            generator,
            "link = { kind = \"generator\", src_ip = \"10.0.0.1\", dst_ip = \"fd00::1\" }",
            &[(11, "the packets are IPv4, and `dst_ip` is no IPv4 address", "change the address or `protocol`")],
        ),
        (
            generator,
            "link = { kind = \"generator\", protocol = \"udp6\", src_ip = \"10.0.0.1\" }",
            &[(11, "the packets are IPv6, and `src_ip` is no IPv6 address", "change the address or `protocol`")],
        ),
        (
            generator,
            "link = { kind = \"pcap\", output = \"x\", pace = \"file\" }",
            &[(11, "`pace` is about `input`, and there is none", "add `input`, or take `pace` out")],
        ),
        (
            generator,
            "link = { kind = \"pcap\", input = \"x\", snaplen = 64 }",
            &[(11, "`snaplen` is about `output`, and there is none", "add `output`, or take `snaplen` out")],
        ),
        (
            "[\"timestamps\"]",
            "[\"timestamps\", \"rss\"]",
            &[(
                18,
                "without rss `lan` has one queue, and there are 2 workers",
                "take \"rss\" out of `refuse`, or write workers = 1 in [runtime]",
            )],
        ),
        (
            "[\"timestamps\"]",
            "[\"raw_packet\"]",
            &[(18, "without raw_packet `lan` cannot carry a pipeline", "take it out of `refuse`")],
        ),
        (
            "refuse = [",
            "rss = { fields = [] }\nrefuse = [",
            &[(
                18,
                "`lan` hashes nothing, so one of 2 workers gets every packet",
                "name what is hashed, such as \"ipv4\", or take `fields` out",
            )],
        ),
        (
            "refuse = [",
            "clock = { bits = 65, drift_ppb = -2000000, events = [{ at = \"1s\", kind = \"melt\" }] }\nrefuse = [",
            &[
                (18, "expected a whole number from 1 to 64, found 65", ""),
                (18, "expected a whole number from -1000000 to 1000000, found -2000000", ""),
                (
                    18,
                    "unknown value `melt`",
                    "the values are `drift`, `freeze`, `jump`, `mute`, `resume`, `set`, `speak`",
                ),
            ],
        ),
        ("loss = 0.5", "flap = 2", &[(17, "expected a probability from 0.0 to 1.0, found 2", "")]),
    ] {
        replaced(from, to, expected);
    }
}

#[test]
fn a_port_that_nothing_uses_is_a_warning_alone() {
    let text =
        GOOD.replace("input = [\"wan\", \"lan\"]", "input = [\"lan\"]").replace("port = \"wan\"", "port = \"lan\"");
    let (plan, diagnostics) = check(&text, &[]);
    assert!(plan.is_some() && !diagnostics.has_errors());
    let records = diagnostics.records();
    assert_eq!((records.len(), records[0].line), (1, 7));
    assert_eq!(records[0].message, "the port `wan` is never used");
    let json = serde_json::to_value(&records).unwrap();
    assert_eq!(json[0]["level"], "warning");
    assert_eq!(json[0]["column"], 8);
}

/// A port that packets are sent to alone needs no buffers to receive into, and its receive ring may be any.
#[test]
fn receive_rings_count_for_inputs_alone() {
    let with_input = check(GOOD, &[]).0.unwrap();
    let text = GOOD.replace("input = [\"wan\", \"lan\"]", "input = [\"wan\"]");
    let set = [("runtime.buffers", "1440"), ("port.lan.rx_depth", "1")];
    let (plan, diagnostics) = check(&text, &set);
    assert_eq!(diagnostics.render(false), "");
    assert_eq!(plan.unwrap().buffers, 256 + 128 + 1024 + 32);
    let (none, diagnostics) = check(&text, &[("runtime.buffers", "1439")]);
    assert!(none.is_none());
    assert_eq!(diagnostics.records()[0].help.as_deref(), Some("make it at least 1440, or take the key out"));
    assert!(check(&text, &[]).0.unwrap().buffers < with_input.buffers);
}

/// Every capability that a config may refuse, alone, with one worker.
#[test]
fn any_capability_but_raw_packets_can_be_refused() {
    for name in dataplane::provider::Capability::ALL.map(|capability| capability.name()) {
        let (plan, diagnostics) =
            check(GOOD, &[("runtime.workers", "1"), ("port.lan.refuse", &format!("[\"{name}\"]"))]);
        assert_eq!(plan.is_some(), name != "raw_packet", "{}", diagnostics.render(false));
    }
    assert!(check(GOOD, &[("port.lan.refuse", "[\"thread_domain\"]")]).0.is_none());
}

/// The largest buffers that the ranges allow can be cut.
#[test]
fn the_largest_buffer_is_a_slot() {
    let set = [("runtime.buffer_size", "65408"), ("runtime.headroom", "128"), ("port.wan.mtu", "65000")];
    let (plan, diagnostics) = check(GOOD, &set);
    assert_eq!(diagnostics.render(false), "");
    let runtime = plan.unwrap().runtime;
    let (headroom, size) = (runtime.headroom as usize, runtime.buffer_size as usize);
    assert!(dataplane::mem::SlotLayout::new(headroom, size - headroom, 1).is_ok());
    assert!(dataplane::mem::SlotLayout::new(headroom, size + 1 - headroom, 1).is_err());
}

#[test]
fn two_ports_cannot_share_the_raw_packets_of_a_device() {
    let port = |name: &str, more: &str| format!("[[port]]\nname = \"{name}\"\ndevice = \"mlx5_0\"\n{more}\n");
    let rest = "[pipeline]\ninput = [\"a\", \"b\"]\n[[pipeline.stage]]\nuse = \"tx\"\n";
    let text = port("a", "") + &port("b", "") + rest;
    let message = "`b` and `a` take the raw packets of port 1 of `mlx5_0`".to_owned();
    assert_eq!(records(&text), [(7, 10, message, "give each its own `device` or `device_port`".to_owned())]);
    let text = port("a", "") + &port("b", "device_port = 2") + rest;
    assert_eq!(records(&text), []);
    // Connections share a device.
    let text = port("a", "qp = \"rc\"\nconnection = { peer = \"b\" }")
        + &port("b", "qp = \"rc\"\nconnection = { peer = \"a\" }")
        + rest;
    assert_eq!(records(&text), []);
    let text = port("a", "refuse = [\"rss\"]") + &port("b", "device_port = 2") + rest;
    assert_eq!(records(&text)[0].2, "`refuse` is for software devices, and `mlx5_0` is none");
}

#[test]
fn there_are_at_most_255_ports() {
    let port = |at: usize| format!("[[port]]\nname = \"p{at}\"\ndevice = \"soft\"\nlink = {{ kind = \"loopback\" }}\n");
    let config = |ports: usize| format!("{GOOD}{}", (2..ports).map(port).collect::<String>());
    let said = |ports| records(&config(ports)).iter().filter(|(_, _, message, _)| message.contains("port 256")).count();
    assert_eq!((said(255), said(256), said(300)), (0, 1, 1));
}
