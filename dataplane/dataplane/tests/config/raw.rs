//! Tests of the keys `flow`, `offload`, `rate_limit` and `promiscuous` of a port: their values, and the messages about
//! mistakes.

use dataplane::config::{Action, Frames, Offload, Plan};
use dataplane::verbs::RateLimit;

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

/// Checks the column, message and help of each mistake. All mistakes must be on the first line of `keys`.
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
fn omitted_keys_are_empty() {
    let port = &planned(1, "").ports[0].config;
    assert_eq!((&port.flow, &port.offload, &port.rate_limit), (&None, &None, &None));
}

#[test]
fn every_key_is_read() {
    let keys = "flow = [{ match = { ethernet = { dst = '02:00:00:00:00:01', type = 0x88cc } }, count = 'lldp', \
                priority = 7 }, { action = 'drop', match = { ipv6 = { src = '2001:db8::/32' }, udp = { dst = 53 } } }, \
                { frames = 'sniffer' }]\n\
                offload = ['checksum', 'vlan_strip', 'fcs', 'delay_drop']\n\
                rate_limit = { rate = '500Mbps', burst = '9k' }";
    let port = &planned(2, keys).ports[0].config;
    let flows = port.flow.as_ref().unwrap();
    assert_eq!((flows[0].count.as_deref(), flows[0].priority, flows[0].action), (Some("lldp"), 7, Action::Receive));
    assert_eq!(flows[0].headers.as_ref().unwrap().ethernet.as_ref().unwrap().ether_type, Some(0x88cc));
    let headers = flows[1].headers.as_ref().unwrap();
    assert_eq!(headers.ipv6.as_ref().unwrap().src, "2001:db8::/32".parse().ok());
    assert_eq!((flows[1].action, headers.udp.as_ref().unwrap().dst), (Action::Drop, Some(53)));
    assert_eq!(flows[2].frames, Frames::Sniffer);
    assert_eq!(port.offloads(), [Offload::Checksum, Offload::VlanStrip, Offload::Fcs, Offload::DelayDrop]);
    assert_eq!(port.rate_limit, Some(RateLimit { kbps: 500_000, burst: 9000, typical_packet_size: 0 }));
    // The JSON form of a plan uses the same spelling as the config.
    let json = serde_json::to_value(port).unwrap();
    assert_eq!(json["flow"][1]["match"]["ipv6"]["src"], "2001:db8::/32");
    assert_eq!(json["offload"][1], "vlan_strip");
}

/// With the offload `fcs`, received frames include the frame check sequence, so they are four bytes longer.
#[test]
fn offload_fcs_needs_four_more_bytes_of_a_buffer() {
    let memory = "mtu = 1898\n";
    planned(1, memory);
    mistakes(
        "device = 'mlx5_0'",
        "mtu = 1899",
        &[(
            7,
            "a packet of `wan` has up to 1921 bytes, but a buffer holds only 1920",
            "set buffer_size in [runtime] to at least 2049, or mtu to at most 1898",
        )],
    );
    mistakes(
        "device = 'mlx5_0'",
        "mtu = 1895\noffload = ['fcs']",
        &[(
            7,
            "a packet of `wan` has up to 1921 bytes, but a buffer holds only 1920",
            "set buffer_size in [runtime] to at least 2049, or mtu to at most 1894",
        )],
    );
}

#[test]
fn raw_packet_keys_are_refused_on_xdp_links_and_ud_queue_pairs() {
    let keys = "flow = [{}]\noffload = ['fcs']\nrate_limit = { rate = '1kbps' }";
    for link in
        ["device = 'soft'\nlink = { kind = 'loopback' }", "device = 'host'\nlink = { kind = 'tap', name = 't' }"]
    {
        assert_eq!(records(&config(link, 1, keys)), []);
    }
    let text = config("device = 'host'\nlink = { kind = 'xdp', interface = 'lo' }", 1, keys);
    let found: Vec<String> = records(&text).into_iter().map(|(_, _, message, _)| message).collect();
    let of_xdp = |key: &str| {
        format!(
            "`{key}` is not available on `xdp` links, because the kernel reads and writes the packet buffers directly, \
             and the software device does not process the frames"
        )
    };
    assert_eq!(found, ["flow", "offload", "rate_limit"].map(of_xdp));
    let text =
        config("device = 'rxe0'\nqp = 'ud'\nconnection = { to = '192.0.2.1:5' }", 1, "rate_limit = { rate = '1kbps' }");
    let (_, _, message, help) = records(&text).remove(0);
    assert_eq!(message, "`rate_limit` needs raw-packet queue pairs, and `wan` has ud queue pairs");
    assert_eq!(help, "remove the key, or write qp = \"raw_packet\"");
}

/// `packet` and `xdp` links have a key `promiscuous` of their own.
#[test]
fn promiscuous_mode_is_for_raw_packet_ports_of_rdma_devices() {
    let refused = |device: &str| {
        let (_, _, message, help) = records(&config(device, 1, "promiscuous = false")).remove(0);
        (message, help)
    };
    for (link, expected) in [
        ("kind = 'packet', interface = 'lo'", "write the key in `link`"),
        ("kind = 'tap', name = 't'", "remove the key"),
    ] {
        let (message, help) = refused(&format!("device = 'host'\nlink = {{ {link} }}"));
        assert_eq!(message, "`promiscuous` of a port is only for RDMA devices, but `wan` has the device `host`");
        assert_eq!(help, expected);
    }
    let (message, _) = refused("device = 'rxe0'\nqp = 'ud'\nconnection = { to = '192.0.2.1:5' }");
    assert_eq!(message, "`promiscuous` needs raw-packet queue pairs, and `wan` has ud queue pairs");
    let is_promiscuous = |keys: &str| planned(1, keys).ports[0].is_promiscuous();
    assert!(is_promiscuous("") && is_promiscuous("flow = [{}]") && !is_promiscuous("promiscuous = false"));
    let own = "flow = [{ match = { ethernet = { dst = '02:00:00:00:00:01' } } }, { action = 'drop' }]";
    assert!(!is_promiscuous(own) && is_promiscuous(&format!("{own}\npromiscuous = true")));
}

#[test]
fn invalid_values_are_reported_at_their_location() {
    let headers = "needs frames = \"matching\", but this rule has another value of `frames`";
    for (keys, message, help) in [
        (
            "promiscuous = true\nflow = [{ frames = 'all_default' }]",
            "`wan` is promiscuous, so its interface takes the frames of rules with `all_default` or `multicast_default`",
            "remove this key, or use a rule without `match` and with a larger `priority`",
        ),
        (
            "flow = []",
            "`flow` has no rules, so `wan` receives nothing",
            "add a rule, or remove `flow` to receive every frame",
        ),
        ("offload = ['fcs', 'fcs']", "the offload `fcs` is listed twice", "remove one of the two"),
        (
            "offload = ['delay_drop']",
            "delay_drop needs several queues, but `wan` has one queue for its one worker",
            "remove \"delay_drop\" from `offload`, or use more workers in [runtime]",
        ),
        ("flow = [{ count = '' }]", "the name of the counter is empty", "write a name, for example count = \"dns\""),
        (
            "flow = [{ action = 'drop', dont_trap = true }]",
            "`dont_trap` has no effect on frames that are dropped",
            "remove `dont_trap` or `action`",
        ),
        ("flow = [{ match = { ipv4 = {}, ipv6 = {} } }]", "`ipv4` and `ipv6` exclude each other", "write two rules"),
        ("flow = [{ match = { tcp = {} } }]", "`tcp` needs `ipv4` or `ipv6`", "add ipv4 = {} or ipv6 = {}"),
        (
            "flow = [{ match = { ipv4 = {}, tcp = {}, udp = {} } }]",
            "`tcp` and `udp` exclude each other",
            "write two rules",
        ),
        (
            "flow = [{ match = { ethernet = { type = 1 }, ipv4 = {} } }]",
            "`ipv4` already sets `ethernet.type`",
            "remove `ethernet.type`",
        ),
        (
            "flow = [{ match = { ipv6 = { next_header = 6 }, tcp = {} } }]",
            "`tcp` already sets `ipv6.next_header`",
            "remove `ipv6.next_header`",
        ),
        (
            "flow = [{ match = { inner = { ipv4 = {} } } }]",
            "`inner` needs a tunnel, but this rule matches no tunnel",
            "add `vxlan`, `gre` or `mpls`, or remove `inner`",
        ),
        ("flow = [{ match = { vxlan = {} } }]", "`vxlan` needs `udp`", "match the headers that carry the tunnel"),
        (
            "flow = [{ match = { ipv4 = {}, udp = {}, gre = {} } }]",
            "`gre` needs `ipv4` or `ipv6` without `tcp` and `udp`",
            "match the headers that carry the tunnel",
        ),
        (
            "flow = [{ match = { ipv4 = {}, tcp = {}, mpls = {} } }]",
            "`mpls` needs `udp` or no transport header",
            "match the headers that carry the tunnel",
        ),
        (
            "flow = [{ match = { ipv4 = {}, gre = {}, mpls = {} } }]",
            "`gre` and `mpls` cannot be used together",
            "remove one of the two",
        ),
        (
            "flow = [{ match = { ethernet = {}, mpls = {}, inner = { udp = {} } } }]",
            "`udp` needs `ipv4` or `ipv6`",
            "add ipv4 = {} or ipv6 = {}",
        ),
        (
            "flow = [{ match = { ipv4 = { src = '192.0.2.1/24' } } }]",
            "`192.0.2.1/24` is not an IPv4 address or prefix",
            "write an address, or a prefix with host bits of 0, such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
        ),
        (
            "flow = [{ match = { ipv6 = { dst = '192.0.2.1' } } }]",
            "`192.0.2.1` is not an IPv6 address or prefix",
            "write an address, or a prefix with host bits of 0, such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
        ),
        (
            "flow = [{ match = { ethernet = { vlan = 4095 } } }]",
            "expected a whole number from 0 to 4094, found 4095",
            "",
        ),
        (
            "rate_limit = { rate = 1500 }",
            "expected a multiple of 1000 bit/s from \"1kbps\" to \"4294967295kbps\", found 1500",
            "",
        ),
        ("rate_limit = { kbps = 500 }", "unknown key `kbps`", "the key is now `rate`, as in rate = \"5Gbps\""),
        ("flow = [{ priority = 21845 }]", "expected a whole number from 0 to 21844, found 21845", ""),
    ] {
        let found = records(&config("device = 'mlx5_0'", 1, keys));
        assert_eq!(found.len(), 1, "{keys}: {found:?}");
        let (line, _, said, helped) = &found[0];
        assert_eq!((*line, said.as_str(), helped.as_str()), (6, message, help), "{keys}");
    }
    let place = "flow = [{ frames = 'sniffer', match = {} }]";
    mistakes("device = 'mlx5_0'", place, &[(39, &format!("`match` {headers}"), "remove the key, or remove `frames`")]);
    for key in ["action = 'drop'", "count = 'x'", "dont_trap = true"] {
        let text = config("device = 'mlx5_0'", 1, &format!("flow = [{{ frames = 'all_default', {key} }}]"));
        assert_eq!(records(&text)[0].2, format!("`{}` {headers}", key.split(' ').next().unwrap()));
    }
}
