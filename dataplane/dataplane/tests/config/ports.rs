//! Tests of ports: valid and invalid keys and values.

use super::{GENERATOR, GOOD, check, records, replaced};

#[test]
fn invalid_links_and_faults_are_reported() {
    let generator = GENERATOR;
    for (from, to, expected) in [
        (
            generator,
            "link = { kind = \"generator\", protocol = \"tcp4\", vlan = 5, size = 57 }",
            &[(11, "a frame of 57 bytes is shorter than its headers of 58 bytes", "set `size` to at least 58")][..],
        ),
        (
            generator,
            "link = { kind = \"generator\", sizes = [{ size = 64 }, { size = 1523, weight = 2 }] }",
            &[(
                11,
                "a frame of 1523 bytes is longer than the mtu of `wan` allows (1522 bytes)",
                "set `size` to at most 1522, or the mtu to at least 1501",
            )],
        ),
        (
            generator,
            "link = { kind = \"generator\", size = 64, sizes = [{ size = 64 }] }",
            &[(11, "`size` and `sizes` cannot be used together", "remove one of the two")],
        ),
        (
            generator,
            "link = { kind = \"generator\", flows = 50000, sizes = [{ size = 1000, weight = 2 }] }",
            &[(
                11,
                "the frames of 50000 flows have 100000000 bytes in total, more than the maximum of 67108864",
                "set `flows` to at most 33554, or reduce the sizes or weights",
            )],
        ),
        (
            generator,
            "link = { kind = \"generator\", src_ip = \"10.0.0.1\", dst_ip = \"fd00::1\" }",
            &[(11, "the packets are IPv4, but `dst_ip` is not an IPv4 address", "change the address or `protocol`")],
        ),
        (
            generator,
            "link = { kind = \"generator\", protocol = \"udp6\", src_ip = \"10.0.0.1\" }",
            &[(11, "the packets are IPv6, but `src_ip` is not an IPv6 address", "change the address or `protocol`")],
        ),
        (
            generator,
            "link = { kind = \"pcap\", output = \"x\", pace = \"file\" }",
            &[(11, "`pace` needs `input`, which is missing", "add `input`, or remove `pace`")],
        ),
        (
            generator,
            "link = { kind = \"pcap\", input = \"x\", snaplen = 64 }",
            &[(11, "`snaplen` needs `output`, which is missing", "add `output`, or remove `snaplen`")],
        ),
        (
            "[\"timestamps\"]",
            "[\"timestamps\", \"rss\"]",
            &[(
                18,
                "`lan` refuses rss and therefore has only one queue, but there are 2 workers",
                "remove \"rss\" from `refuse`, or set workers = 1 in [runtime]",
            )],
        ),
        (
            "[\"timestamps\"]",
            "[\"raw_packet\"]",
            &[(18, "`lan` needs the capability raw_packet for its queue pairs", "remove \"raw_packet\" from `refuse`")],
        ),
        (
            "refuse = [",
            "rss = { fields = [] }\nrefuse = [",
            &[(
                18,
                "`lan` hashes no fields, so one of 2 workers receives every packet",
                "name the fields to hash, such as \"ipv4\", or remove `fields`",
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
                    "the values are `allow_reads`, `drift`, `fail_reads`, `freeze`, `jump`, `resume`, `set`",
                ),
            ],
        ),
        ("loss = 0.5", "flap = 2", &[(17, "expected a probability from 0.0 to 1.0, found 2", "")]),
    ] {
        replaced(from, to, expected);
    }
}

/// Serde accepts an array where a table is expected. The config check must report such an array.
#[test]
fn value_that_is_not_a_table_is_reported() {
    let array = "expected a table, found an array";
    let kind = "expected a table with the key `kind`, found";
    for (from, to, line, message, help) in [
        (GENERATOR, "rss = []", 11, array.to_owned(), "write { fields = …, … }"),
        (GENERATOR, "clock = [1000]", 11, array.to_owned(), "write { bits = …, … }"),
        (GENERATOR, "connection = []", 11, array.to_owned(), "write { access = …, … }"),
        (GENERATOR, "connection = [[\"192.0.2.1:55\"], []]", 11, array.to_owned(), "write { access = …, … }"),
        (GENERATOR, "link = { kind = \"generator\", sizes = [[64]] }", 11, array.to_owned(), "write { size = …, … }"),
        ("{ seed = 7, loss = 0.5 }", "[1, 0.5]", 17, array.to_owned(), "write { corrupt = …, … }"),
        (GENERATOR, "link = \"generator\"", 11, format!("{kind} a string"), "write { kind = \"generator\", … }"),
        (GENERATOR, "link = \"rope\"", 11, format!("{kind} a string"), "write { kind = \"…\", … }"),
        (GENERATOR, "link = []", 11, format!("{kind} an array"), "write { kind = \"…\", … }"),
        (GENERATOR, "link = 7", 11, format!("{kind} a number"), "write { kind = \"…\", … }"),
    ] {
        replaced(from, to, &[(line, &message, help)]);
    }
}

#[test]
fn unused_port_is_only_a_warning() {
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

/// A port that is not an input needs no receive buffers, so any `rx_depth` is accepted.
#[test]
fn only_input_ports_need_receive_buffers() {
    let with_input = check(GOOD, &[]).0.unwrap();
    let text = GOOD.replace("input = [\"wan\", \"lan\"]", "input = [\"wan\"]");
    let set = [("runtime.buffers", "1440"), ("port.lan.rx_depth", "1")];
    let (plan, diagnostics) = check(&text, &set);
    assert_eq!(diagnostics.render(false), "");
    assert_eq!(plan.unwrap().buffers, 256 + 128 + 1024 + 32);
    let (none, diagnostics) = check(&text, &[("runtime.buffers", "1439")]);
    assert!(none.is_none());
    assert_eq!(diagnostics.records()[0].help.as_deref(), Some("set buffers to at least 1440, or remove the key"));
    assert!(check(&text, &[]).0.unwrap().buffers < with_input.buffers);
}

/// In zero-copy mode, the NIC also needs posted buffers for the frames that go to the kernel.
#[test]
fn xdp_ports_that_only_send_need_receive_buffers_for_zero_copy() {
    let buffers = |copy: &str| {
        let link = format!("{{ kind = 'xdp', interface = 'eth1', copy = '{copy}' }}");
        let text = format!(
            "[runtime]\nburst = 32\nworkers = 1\n[[port]]\nname = 'in'\ndevice = 'soft'\nlink = {{ kind = \
             'generator' }}\nrx_depth = 128\ntx_depth = 128\n[[port]]\nname = 'out'\ndevice = 'host'\nlink = \
             {link}\nrx_depth = 4096\ntx_depth = 128\n[pipeline]\ninput = ['in']\n[[pipeline.stage]]\nname = \
             'send'\nuse = 'tx'\nport = 'out'\n"
        );
        let (plan, diagnostics) = check(&text, &[]);
        plan.unwrap_or_else(|| panic!("{diagnostics:?}")).buffers
    };
    assert!(buffers("copy") < 4096);
    assert!(buffers("zero") > 4096 && buffers("auto") > 4096);
}

/// With one worker, a port can refuse every capability except `raw_packet`. A name that is not a capability of
/// [`dataplane::verbs::Capability`] cannot be refused.
#[test]
fn every_capability_except_raw_packets_can_be_refused() {
    for name in dataplane::verbs::Capability::ALL.map(|capability| capability.name()) {
        let (plan, diagnostics) =
            check(GOOD, &[("runtime.workers", "1"), ("port.lan.refuse", &format!("[\"{name}\"]"))]);
        assert_eq!(plan.is_some(), name != "raw_packet", "{}", diagnostics.render(false));
    }
    assert!(check(GOOD, &[("port.lan.refuse", "[\"thread_domain\"]")]).0.is_none());
}

/// The largest buffer size that the config accepts is a valid slot size.
#[test]
fn largest_buffer_size_is_a_valid_slot() {
    let set = [("runtime.buffer_size", "65408"), ("runtime.headroom", "128"), ("port.wan.mtu", "65000")];
    let (plan, diagnostics) = check(GOOD, &set);
    assert_eq!(diagnostics.render(false), "");
    let runtime = plan.unwrap().runtime;
    let (headroom, size) = (runtime.headroom as usize, runtime.buffer_size as usize);
    assert!(dataplane::mem::SlotLayout::new(headroom, size - headroom, 1).is_ok());
    assert!(dataplane::mem::SlotLayout::new(headroom, size + 1 - headroom, 1).is_err());
}

#[test]
fn two_ports_cannot_share_raw_packets_of_a_device_port() {
    let port = |name: &str, more: &str| format!("[[port]]\nname = \"{name}\"\ndevice = \"mlx5_0\"\n{more}\n");
    let rest = "[pipeline]\ninput = [\"a\", \"b\"]\n[[pipeline.stage]]\nuse = \"tx\"\n";
    let text = port("a", "") + &port("b", "") + rest;
    let message = "`b` and `a` both use the raw packets of port 1 of `mlx5_0`".to_owned();
    assert_eq!(
        records(&text),
        [(7, 10, message, "use a different `device` or `device_port` for each port".to_owned())]
    );
    let text = port("a", "") + &port("b", "device_port = 2") + rest;
    assert_eq!(records(&text), []);
    // Several connections can share a device.
    let text = port("a", "qp = \"rc\"\nconnection = { peer = \"b\" }")
        + &port("b", "qp = \"rc\"\nconnection = { peer = \"a\" }")
        + rest;
    assert_eq!(records(&text), []);
    let text = port("a", "refuse = [\"rss\"]") + &port("b", "device_port = 2") + rest;
    assert_eq!(records(&text)[0].2, "a verbs device such as `mlx5_0` has no `refuse`");
}

/// A connection needs the answers to the ARP requests of the kernel. A raw-packet port on the same device port takes these
/// answers from the kernel, unless its flow rules leave ARP to the kernel.
#[test]
fn connection_without_arp_because_of_a_raw_packet_port_is_a_warning() {
    let raw = |more: &str| format!("[[port]]\nname = \"a\"\ndevice = \"mlx5_0\"\n{more}\n");
    let connected = |more: &str| {
        format!(
            "[[port]]\nname = \"b\"\ndevice = \"mlx5_0\"\nqp = \"rc\"\nconnection = {{ to = \"192.0.2.1:18515\" }}\n{more}\n"
        )
    };
    let rest =
        |inputs: &str| format!("[pipeline]\ninput = [{inputs}]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n");
    let both = "\"a\", \"b\"";
    let message = "`a` takes all frames of port 1 of `mlx5_0` from the kernel, also the ARP and neighbour answers that the \
                   connection of `b` needs";
    for flow in ["", "flow = [{ match = { ipv4 = {} }, count = \"x\" }, { priority = 1 }]"] {
        let found = records(&(raw(flow) + &connected("") + &rest(both)));
        assert!(found.len() == 1 && found[0].2 == message && found[0].0 == 7, "{flow}: {found:?}");
        assert!(found[0].3.ends_with("add to `a`: flow = [{ match = { ipv4 = {} } }]"), "{found:?}");
    }
    for text in [
        raw("flow = [{ match = { ipv4 = {} } }]") + &connected("") + &rest(both),
        raw("") + &connected("device_port = 2") + &rest(both),
        // A port that is not in `input` takes no frames.
        raw("") + &connected("") + &rest("\"b\""),
    ] {
        assert_eq!(records(&text), [], "{text}");
    }
}

#[test]
fn link_needs_the_device_of_its_kind() {
    let text = |device: &str, link: &str| {
        format!(
            "[[port]]\nname = \"a\"\ndevice = \"{device}\"\nlink = {{ {link} }}\n[pipeline]\ninput = [\"a\"]\n\
             [[pipeline.stage]]\nuse = \"tx\"\n"
        )
    };
    for (kind, more, device, other) in [
        ("loopback", "", "soft", "host"),
        ("generator", "", "soft", "host"),
        ("pcap", ", output = \"x\"", "soft", "host"),
        ("packet", ", interface = \"eth0\"", "host", "soft"),
        ("tap", ", name = \"dp0\"", "host", "soft"),
        ("xdp", ", interface = \"eth0\"", "host", "soft"),
    ] {
        let link = format!("kind = \"{kind}\"{more}");
        assert_eq!(records(&text(device, &link)), []);
        let message = format!("a link of kind `{kind}` needs the device `{device}`, not `{other}`");
        assert_eq!(records(&text(other, &link)), [(3, 10, message, format!("write device = \"{device}\""))]);
        let (_, _, message, help) = records(&text("mlx5_0", &link)).remove(0);
        assert_eq!(message, "a verbs device such as `mlx5_0` has no `link`");
        assert_eq!(help, format!("remove `link`, or write device = \"{device}\""));
    }
    let (line, _, message, help) = records(
        "[[port]]\nname = \"a\"\ndevice = \"host\"\n[pipeline]\ninput = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\n",
    )
    .remove(0);
    assert_eq!((line, message.as_str()), (1, "the port `a` has no link"));
    assert_eq!(help, "add link = { kind = \"packet\", \"tap\" or \"xdp\" }");
}

#[test]
fn config_has_at_most_255_ports() {
    let port = |at: usize| format!("[[port]]\nname = \"p{at}\"\ndevice = \"soft\"\nlink = {{ kind = \"loopback\" }}\n");
    let config = |ports: usize| format!("{GOOD}{}", (2..ports).map(port).collect::<String>());
    let said = |ports| records(&config(ports)).iter().filter(|(_, _, message, _)| message.contains("port 256")).count();
    assert_eq!((said(255), said(256), said(300)), (0, 1, 1));
}

#[test]
fn address_that_is_listed_twice_is_reported() {
    let wan = "name = \"wan\"";
    let lan = "name = \"lan\"";
    let text = GOOD
        .replacen(wan, &format!("{wan}\naddresses = [\"192.0.2.1/24\", \"2001:db8::1/64\", \"192.0.2.1/30\"]"), 1)
        .replacen(lan, &format!("{lan}\naddresses = [\"198.51.100.1/24\", \"2001:db8::1/128\"]"), 1);
    let found: Vec<_> = records(&text).into_iter().map(|(line, _, message, help)| (line, message, help)).collect();
    let help = "remove one of the two";
    assert_eq!(
        found,
        [(8, "192.0.2.1", help), (16, "2001:db8::1", help)].map(|(line, address, help)| (
            line,
            format!("{address} is already an address of `wan`"),
            help.to_owned()
        ))
    );
}
