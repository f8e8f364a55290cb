//! `flow`, `offload` and `rate_limit` of a port: what they may say, and what is said of their mistakes.

use dataplane::config::{Action, Frames, Offload, Plan, RateLimit};

use super::{check, records};

fn config(device: &str, workers: u32, keys: &str) -> String {
    format!(
        "[runtime]\nworkers = {workers}\n[[port]]\nname = \"wan\"\n{device}\n{keys}\n\
         [pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"tx\"\n"
    )
}

fn planned(workers: u32, keys: &str) -> Plan {
    let (plan, diagnostics) = check(&config("device = 'mlx5_0'", workers, keys), &[]);
    plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))
}

/// Column, message and help of each mistake, all on the line of the keys.
#[track_caller]
fn mistakes(device: &str, keys: &str, expected: &[(usize, &str, &str)]) {
    let found: Vec<_> = records(&config(device, 1, keys))
        .into_iter()
        .map(|(line, column, message, help)| {
            assert_eq!(line, 6, "{message}");
            (column, message, help)
        })
        .collect();
    let expected: Vec<_> =
        expected.iter().map(|&(column, message, help)| (column, message.to_owned(), help.to_owned())).collect();
    assert_eq!(found, expected, "{keys}");
}

#[test]
fn what_is_left_out_changes_nothing() {
    let port = &planned(1, "").ports[0].config;
    assert_eq!((&port.flow, &port.offload[..], &port.rate_limit), (&None, &[][..], &None));
}

#[test]
fn every_key_is_read() {
    let keys = "flow = [{ match = { ethernet = { dst = '02:00:00:00:00:01', type = 0x88cc } }, count = 'lldp', \
                priority = 7 }, { action = 'drop', match = { ipv6 = { src = '2001:db8::/32' }, udp = { dst = 53 } } }, \
                { frames = 'sniffer' }]\n\
                offload = ['checksum', 'vlan_strip', 'fcs', 'delay_drop']\n\
                rate_limit = { kbps = 500000, burst = 9000 }";
    let port = &planned(2, keys).ports[0].config;
    let flows = port.flow.as_ref().unwrap();
    assert_eq!((flows[0].count.as_deref(), flows[0].priority, flows[0].action), (Some("lldp"), 7, Action::Receive));
    assert_eq!(flows[0].headers.as_ref().unwrap().ethernet.as_ref().unwrap().ether_type, Some(0x88cc));
    let headers = flows[1].headers.as_ref().unwrap();
    assert_eq!(headers.ipv6.as_ref().unwrap().src, "2001:db8::/32".parse().ok());
    assert_eq!((flows[1].action, headers.udp.as_ref().unwrap().dst), (Action::Drop, Some(53)));
    assert_eq!(flows[2].frames, Frames::Sniffer);
    assert_eq!(port.offload, [Offload::Checksum, Offload::VlanStrip, Offload::Fcs, Offload::DelayDrop]);
    assert_eq!(port.rate_limit, Some(RateLimit { kbps: 500_000, burst: 9000, packet: 0 }));
    // What a plan shows can be written again.
    let json = serde_json::to_value(port).unwrap();
    assert_eq!(json["flow"][1]["match"]["ipv6"]["src"], "2001:db8::/32");
    assert_eq!(json["offload"][1], "vlan_strip");
}

/// A frame with its check sequence is four bytes longer.
#[test]
fn check_sequences_take_room() {
    let memory = "mtu = 1898\n";
    planned(1, memory);
    mistakes(
        "device = 'mlx5_0'",
        "mtu = 1899",
        &[(
            7,
            "a packet of `wan` has up to 1921 bytes, and a buffer has room for 1920",
            "make buffer_size of [runtime] at least 2049",
        )],
    );
    mistakes(
        "device = 'mlx5_0'",
        "mtu = 1895\noffload = ['fcs']",
        &[(
            7,
            "a packet of `wan` has up to 1921 bytes, and a buffer has room for 1920",
            "make buffer_size of [runtime] at least 2049",
        )],
    );
}

#[test]
fn they_are_for_raw_packets_of_verbs_devices() {
    let of_soft = |key: &str| format!("`{key}` is for verbs devices, and a software device has none");
    let text = config(
        "device = 'soft'\nlink = { kind = 'loopback' }",
        1,
        "flow = [{}]\noffload = ['fcs']\nrate_limit = { kbps = 1 }",
    );
    let found: Vec<String> = records(&text).into_iter().map(|(_, _, message, _)| message).collect();
    assert_eq!(found, ["flow", "offload", "rate_limit"].map(of_soft));
    let text =
        config("device = 'rxe0'\nqp = 'ud'\nconnection = { to = '192.0.2.1:5' }", 1, "rate_limit = { kbps = 1 }");
    let (_, _, message, help) = records(&text).remove(0);
    assert_eq!(message, "`rate_limit` is about raw packets, and `wan` has ud queue pairs");
    assert_eq!(help, "take it out, or write qp = \"raw_packet\"");
}

#[test]
fn what_cannot_be_is_named_at_its_place() {
    let headers = "of rules that match headers, and this one is another";
    for (keys, message, help) in [
        (
            "flow = []",
            "without a rule nothing comes to `wan`",
            "add a rule, or take `flow` out: every frame comes then",
        ),
        ("offload = ['fcs', 'fcs']", "fcs is named twice", "name it once"),
        (
            "offload = ['delay_drop']",
            "delay_drop is of several queues, and with one worker `wan` has one",
            "take it out, or let [runtime] have more workers",
        ),
        ("flow = [{ count = '' }]", "a counter needs a name", "write count = \"dns\""),
        (
            "flow = [{ action = 'drop', dont_trap = true }]",
            "what is dropped goes nowhere else",
            "take `dont_trap` or `action` out",
        ),
        ("flow = [{ match = { ipv4 = {}, ipv6 = {} } }]", "no frame has `ipv4` and `ipv6`", "make two rules of it"),
        ("flow = [{ match = { tcp = {} } }]", "`tcp` goes over IPv4 or IPv6", "say which, if only by ipv4 = {}"),
        (
            "flow = [{ match = { ipv4 = {}, tcp = {}, udp = {} } }]",
            "no frame has `tcp` and `udp`",
            "make two rules of it",
        ),
        ("flow = [{ match = { ethernet = { type = 1 }, ipv4 = {} } }]", "`ipv4` says that already", "take it out"),
        ("flow = [{ match = { ipv6 = { next_header = 6 }, tcp = {} } }]", "`tcp` says that already", "take it out"),
        (
            "flow = [{ match = { inner = { ipv4 = {} } } }]",
            "`inner` is inside of a tunnel, and there is none",
            "add `vxlan`, `gre` or `mpls`, or take `inner` out",
        ),
        ("flow = [{ match = { vxlan = {} } }]", "`vxlan` goes over `udp`", "match those headers too"),
        (
            "flow = [{ match = { ipv4 = {}, udp = {}, gre = {} } }]",
            "`gre` goes over `ipv4` or `ipv6` alone",
            "match those headers too",
        ),
        (
            "flow = [{ match = { ipv4 = {}, tcp = {}, mpls = {} } }]",
            "`mpls` goes over Ethernet or `udp`",
            "match those headers too",
        ),
        (
            "flow = [{ match = { ipv4 = {}, gre = {}, mpls = {} } }]",
            "`gre` and `mpls` are both given",
            "take one of them out",
        ),
        (
            "flow = [{ match = { ethernet = {}, mpls = {}, inner = { udp = {} } } }]",
            "`udp` goes over IPv4 or IPv6",
            "say which, if only by ipv4 = {}",
        ),
        (
            "flow = [{ match = { ipv4 = { src = '192.0.2.1/24' } } }]",
            "`192.0.2.1/24` is no IPv4 address or prefix",
            "write an address, or a prefix without bits behind it, such as \"192.0.2.0/24\"",
        ),
        (
            "flow = [{ match = { ipv6 = { dst = '192.0.2.1' } } }]",
            "`192.0.2.1` is no IPv6 address or prefix",
            "write an address, or a prefix without bits behind it, such as \"192.0.2.0/24\"",
        ),
        (
            "flow = [{ match = { ethernet = { vlan = 4095 } } }]",
            "expected a whole number from 0 to 4094, found 4095",
            "",
        ),
        ("rate_limit = { kbps = 0 }", "expected a whole number from 1 to 4294967295, found 0", ""),
        ("flow = [{ priority = 21845 }]", "expected a whole number from 0 to 21844, found 21845", ""),
    ] {
        let found = records(&config("device = 'mlx5_0'", 1, keys));
        assert_eq!(found.len(), 1, "{keys}: {found:?}");
        let (line, _, said, helped) = &found[0];
        assert_eq!((*line, said.as_str(), helped.as_str()), (6, message, help), "{keys}");
    }
    let place = "flow = [{ frames = 'sniffer', match = {} }]";
    mistakes(
        "device = 'mlx5_0'",
        place,
        &[(39, &format!("`match` is {headers}"), "take it out, or take `frames` out")],
    );
    for key in ["action = 'drop'", "count = 'x'", "dont_trap = true"] {
        let text = config("device = 'mlx5_0'", 1, &format!("flow = [{{ frames = 'all_default', {key} }}]"));
        assert_eq!(records(&text)[0].2, format!("`{}` is {headers}", key.split(' ').next().unwrap()));
    }
}
