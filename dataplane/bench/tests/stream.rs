//! The frames of streams, read with the crate `etherparse`.

use std::collections::BTreeMap;

use dataplane::header::MacAddr;
use dataplane::mem::{Batch, PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane::units::Nanos;
use dataplane_bench::sender::Sender;
use dataplane_bench::signature::{Key, Signature};
use dataplane_bench::stream::{Stream, StreamConfig, StreamPort};
use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};

const KEY: Key = Key::new(7);

fn ports() -> Vec<StreamPort> {
    let port =
        |(name, last): (&str, u8)| StreamPort { name: name.to_owned(), mac: MacAddr([2, 0, 0, 0, 0, last]), mtu: 1500 };
    [("left", 1), ("right", 2)].into_iter().map(port).collect()
}

fn config(keys: &str) -> StreamConfig {
    toml::from_str(keys).unwrap_or_else(|error| panic!("{keys}: {error}"))
}

fn pool() -> Pool {
    let layout = SlotLayout::new(128, 1700, 64).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

/// Returns the first frames of a stream.
fn frames(keys: &str, count: usize) -> Vec<Vec<u8>> {
    let stream = Stream::new(&config(keys), 3, &ports()).unwrap_or_else(|why| panic!("{keys}: {why}"));
    let (mut sender, mut pool, mut frames) = (Sender::new(&stream, 3), pool(), Vec::new());
    let mut batch = Batch::new(&pool);
    sender.start(KEY, None, 1_000_000_000, 0, 0.0);
    for _ in 0..count {
        assert!(sender.send(&mut batch, &mut pool, Nanos(77), 0));
        frames.extend(batch.iter_mut().map(|packet| packet.data().to_vec()));
        batch.free_into(&mut pool);
    }
    frames
}

/// Returns the first frames of a stream, sent in bursts.
fn frames_in_bursts(keys: &str, count: usize) -> Vec<Vec<u8>> {
    let stream = Stream::new(&config(keys), 3, &ports()).unwrap_or_else(|why| panic!("{keys}: {why}"));
    let (mut sender, mut pool, mut frames) = (Sender::new(&stream, 3), pool(), Vec::new());
    let mut batch = Batch::new(&pool);
    sender.start(KEY, None, 1_000_000_000, 0, 0.0);
    for most in (1..).map(|number| 7 * number % 40) {
        let most = most.min(count - frames.len());
        assert_eq!(sender.send_due(&mut batch, &mut pool, Nanos(77), 0, most), most);
        frames.extend(batch.contents().map(|(data, _)| data.to_vec()));
        batch.free_into(&mut pool);
        if frames.len() == count {
            break;
        }
    }
    assert_eq!(sender.sent(), count as u64);
    frames
}

#[test]
fn frames_of_a_burst_are_the_frames_that_are_sent_one_by_one() {
    for keys in [
        "",
        "size = 200",
        "protocol = 'tcp'\nvlan = 5",
        "src_ip = 'fd00::1'\ndst_ip = 'fd00::2'\nsize = 101",
        "size = 'imix'",
        "size = 'imix'\nsrc_port = { first = 1, count = 9 }",
        "src_ip = { first = '10.0.0.1', count = 5, random = true }\ndst_port = [1, 2, 3]",
        "payload = 'ab'",
        "tunnel = { kind = 'vxlan', vni = 1, src_ip = '1.1.1.1', dst_ip = '1.1.1.2' }",
        "protocol = 'icmp'",
        "spacing = 'poisson'\nburst = 3",
    ] {
        let (bursts, single) = (frames_in_bursts(keys, 200), frames(keys, 200));
        for (number, (burst, single)) in bursts.iter().zip(&single).enumerate() {
            assert_eq!(burst, single, "{keys}: packet {number}");
        }
        assert_eq!(bursts.len(), single.len());
    }
}

/// Checks the lengths and checksums of a frame, and its signature. Returns the important fields as text.
fn describe(frame: &[u8], sequence: u64) -> String {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let found = Signature::find(frame, KEY).unwrap();
    assert_eq!((found.signature.stream, found.signature.sequence, found.signature.sent), (3, sequence, 77));
    assert_eq!((found.repaired, found.offset), (false, frame.len() - 18));
    let mut text = String::new();
    for tag in &sliced.link_exts {
        if let LinkExtSlice::Vlan(tag) = tag {
            text += &format!("vlan {} {} ", tag.vlan_identifier().value(), tag.priority_code_point().value());
        }
    }
    match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
            assert_eq!(usize::from(header.total_len), frame.len() - 14 - 4 * sliced.link_exts.len());
            let (source, to) = (ip.header().source_addr(), ip.header().destination_addr());
            text += &format!("{source} {to} ttl {} dscp {}", header.time_to_live, header.dscp.value());
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            text += &format!("{} {} ttl {}", header.source_addr(), header.destination_addr(), header.hop_limit());
        }
        other => panic!("{other:?}"),
    }
    let (v4, v6) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => (Some(ip.header().to_header()), None),
        NetSlice::Ipv6(ip) => (None, Some(ip.header().to_header())),
        _ => (None, None),
    };
    match sliced.transport.as_ref().unwrap() {
        TransportSlice::Udp(udp) => {
            let (header, payload) = (udp.to_header(), udp.payload());
            let sum = v4.as_ref().map(|ip| header.calc_checksum_ipv4(ip, payload).unwrap());
            let sum = sum.or(v6.as_ref().map(|ip| header.calc_checksum_ipv6(ip, payload).unwrap()));
            assert_eq!(sum, Some(header.checksum));
            text += &format!(" udp {} {}", header.source_port, header.destination_port);
        }
        TransportSlice::Tcp(tcp) => {
            let (header, payload) = (tcp.to_header(), tcp.payload());
            let sum = v4.as_ref().map(|ip| header.calc_checksum_ipv4(ip, payload).unwrap());
            let sum = sum.or(v6.as_ref().map(|ip| header.calc_checksum_ipv6(ip, payload).unwrap()));
            assert_eq!(sum, Some(header.checksum));
            text += &format!(" tcp {} {}", header.source_port, header.destination_port);
        }
        TransportSlice::Icmpv4(icmp) => {
            assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum());
            text += &format!(" icmp {:?}", icmp.icmp_type());
        }
        TransportSlice::Icmpv6(icmp) => {
            let ip = v6.unwrap();
            assert!(icmp.is_checksum_valid(ip.source, ip.destination));
            text += &format!(" icmp6 {:?}", icmp.icmp_type());
        }
        other => panic!("{other:?}"),
    }
    text
}

fn described(keys: &str, count: usize) -> Vec<String> {
    let frames = frames(keys, count);
    frames.iter().enumerate().map(|(sequence, frame)| describe(frame, sequence as u64)).collect()
}

#[test]
fn default_stream_sends_the_shortest_udp_frames() {
    let frames = frames("", 2);
    assert!(frames.iter().all(|frame| frame.len() == 60));
    assert_eq!(frames[0][..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    assert_eq!(described("", 2), vec!["198.18.0.1 198.19.0.1 ttl 64 dscp 0 udp 1024 9"; 2]);
}

#[test]
fn checksums_are_right_for_every_protocol_and_length() {
    for ip in [
        "",
        "src_ip = '2001:2::1'\ndst_ip = { first = '2001:2::ffff', count = 5 }",
        "dst_ip = ['10.0.0.1', '10.0.0.9']",
    ] {
        for protocol in ["udp", "tcp", "icmp"] {
            for vlan in ["", "vlan = 7"] {
                for size in [100, 101, 102, 103, 999, 1514] {
                    let ports =
                        "src_port = { first = 0, count = 65536, random = true }\ndst_port = { first = 1, count = 3 }";
                    described(&format!("{ip}\nprotocol = '{protocol}'\nsize = {size}\n{vlan}\n{ports}"), 5);
                }
            }
        }
    }
}

#[test]
fn fields_count_step_repeat_and_take_the_values_of_lists() {
    let keys = "src_ip = { first = '10.0.0.254', count = 3 }\ndst_port = { first = 100, count = 2, step = 10 }\n\
                src_port = [53, 80, 443]\nvlan = [1, 4094]\nvlan_priority = 5\nttl = 9\ndscp = 46";
    assert_eq!(
        described(keys, 4),
        [
            "vlan 1 5 10.0.0.254 198.19.0.1 ttl 9 dscp 46 udp 53 100",
            "vlan 4094 5 10.0.0.255 198.19.0.1 ttl 9 dscp 46 udp 80 110",
            "vlan 1 5 10.0.1.0 198.19.0.1 ttl 9 dscp 46 udp 443 100",
            "vlan 4094 5 10.0.0.254 198.19.0.1 ttl 9 dscp 46 udp 53 110",
        ]
    );
    let macs = frames("src_mac = { first = '02:00:00:00:00:ff', count = 2 }\ndst_mac = ['02:00:00:00:01:00']", 2);
    assert_eq!(macs.iter().map(|frame| &frame[6..12]).collect::<Vec<_>>(), [[2, 0, 0, 0, 0, 255], [2, 0, 0, 0, 1, 0]]);
}

#[test]
fn random_values_differ_and_equal_seeds_repeat_them() {
    let keys = |seed| format!("src_port = {{ first = 1000, count = 1000, random = true }}\nseed = {seed}");
    let first = described(&keys(1), 50);
    assert_eq!(first, described(&keys(1), 50));
    assert_ne!(first, described(&keys(2), 50));
    assert!(first.iter().collect::<std::collections::BTreeSet<_>>().len() > 40);
}

#[test]
fn flows_are_counted_and_start_at_any_number() {
    let flows = |keys: &str| Stream::new(&config(keys), 0, &ports()).unwrap().flows();
    assert_eq!(flows(""), Ok(1));
    let many = "src_ip = { first = '198.18.0.1', count = 251 }\nsrc_port = { first = 1024, count = 64000 }";
    assert_eq!(flows(many), Ok(251 * 64_000));
    // 4 is the least common multiple of 4 and 2.
    assert_eq!(flows("src_port = [1, 2, 3, 4]\ndst_port = { first = 5, count = 2 }"), Ok(4));
    assert!(flows("src_port = { first = 1, count = 9, random = true }").unwrap_err().contains("help: remove `random`"));
    let stream = Stream::new(&config(many), 3, &ports()).unwrap();
    let (mut sender, mut pool) = (Sender::new(&stream, 3), pool());
    let mut batch = Batch::new(&pool);
    let mut headers = |first: u64| {
        sender.start(KEY, None, 1_000_000_000, 0, 0.0);
        sender.set_first_flow(first);
        assert!(sender.send(&mut batch, &mut pool, Nanos(77), 0));
        let text = batch.iter_mut().map(|packet| describe(packet.data(), 0)).collect::<String>();
        batch.free_into(&mut pool);
        text
    };
    assert_eq!(headers(64_002), "198.18.0.249 198.19.0.1 ttl 64 dscp 0 udp 1026 9");
    assert_eq!(headers(251 * 64_000), headers(0));
}

#[test]
fn sizes_have_the_weights_of_the_mix() {
    let mut counts = BTreeMap::new();
    for frame in frames("size = 'imix'", 120) {
        *counts.entry(frame.len()).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([(60, 70), (590, 40), (1514, 10)]));
    let lengths: Vec<usize> =
        frames("size = [{ size = 70, weight = 2 }, { size = 80 }]", 6).iter().map(Vec::len).collect();
    assert_eq!(lengths, [70, 80, 70, 70, 80, 70]);
}

/// Returns the packet inside a tunnel as a frame, and the outer headers as text. Checks the lengths and checksums of the
/// outer headers.
fn unwrap_tunnel(frame: &[u8]) -> (String, Vec<u8>) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let tags: Vec<_> = sliced
        .link_exts
        .iter()
        .map(|tag| match tag {
            LinkExtSlice::Vlan(tag) => {
                format!("vlan {} {} ", tag.vlan_identifier().value(), tag.priority_code_point().value())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let mut text = tags.concat();
    let net = sliced.net.as_ref().unwrap();
    match net {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
            assert_eq!(usize::from(header.total_len), frame.len() - 14 - 4 * sliced.link_exts.len());
            let (source, to) = (ip.header().source_addr(), ip.header().destination_addr());
            text += &format!("{source} {to} ttl {}", header.time_to_live);
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            text += &format!("{} {} ttl {}", header.source_addr(), header.destination_addr(), header.hop_limit());
        }
        other => panic!("{other:?}"),
    }
    if let Some(TransportSlice::Udp(udp)) = &sliced.transport {
        assert_eq!((udp.destination_port(), udp.checksum()), (4789, 0));
        let (header, inner) = udp.payload().split_at(8);
        assert_eq!((header[0], header[7]), (8, 0));
        let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        text += &format!(" vxlan {vni} from {}", udp.source_port());
        return (text, inner.to_vec());
    }
    let content = net.ip_payload_ref().unwrap();
    assert_eq!(content.ip_number.0, 47);
    let header = if content.payload[0] == 0x20 { 8 } else { 4 };
    text += &format!(" gre {:02x?}", &content.payload[..header]);
    let mut inner = vec![0; 12];
    inner.extend(&content.payload[2..4]);
    inner.extend(&content.payload[header..]);
    (text, inner)
}

#[test]
fn tunnels_carry_valid_packets_with_signatures() {
    let outer = "src_ip = '10.0.0.1', dst_ip = ['10.0.0.2', '10.0.0.3'], ttl = 9";
    let outer_v6 = "src_ip = '2001:db8::1', dst_ip = { first = '2001:db8::2', count = 2 }";
    let cases = [
        (format!("kind = 'gre', {outer}"), "10.0.0.3 ttl 9 gre [00, 00, 08, 00]"),
        (format!("kind = 'gre', key = [7, 258], {outer}"), "10.0.0.3 ttl 9 gre [20, 00, 08, 00, 00, 00, 01, 02]"),
        (format!("kind = 'gre', {outer_v6}"), "2001:db8::3 ttl 64 gre [00, 00, 08, 00]"),
        (format!("kind = 'vxlan', {outer}"), "10.0.0.3 ttl 9 vxlan 1 from 49152"),
        (
            format!("kind = 'vxlan', vni = [1, 66051], src_port = {{ first = 50000, count = 2 }}, {outer}"),
            "10.0.0.3 ttl 9 vxlan 66051 from 50001",
        ),
        (format!("kind = 'vxlan', {outer_v6}"), "2001:db8::3 ttl 64 vxlan 1 from 49152"),
    ];
    for (tunnel, expected) in cases {
        for protocol in ["udp", "tcp", "icmp"] {
            for size in ["", "size = 201", "size = 1514"] {
                for vlan in ["", "vlan = 5\n"] {
                    let keys = format!(
                        "{vlan}protocol = '{protocol}'\n{size}\nsrc_port = {{ first = 1, count = 9 }}\n\
                         dst_ip = ['198.19.0.1', '198.19.0.2']\ntunnel = {{ {tunnel} }}"
                    );
                    let all = frames(&keys, 2);
                    let (text, inner) = unwrap_tunnel(&all[1]);
                    assert!(text.ends_with(expected), "{keys}: {text}");
                    assert_eq!(text.starts_with("vlan 5 0"), !vlan.is_empty(), "{keys}: {text}");
                    assert!(describe(&inner, 1).starts_with("198.18.0.1 198.19.0.2 ttl 64"), "{keys}");
                }
            }
        }
    }
    let v6 = "src_ip = '2001:2::1'\ndst_ip = '2001:2::9'\n";
    let (text, inner) = unwrap_tunnel(&frames(&format!("{v6}tunnel = {{ kind = 'gre', {outer} }}"), 1)[0]);
    assert!(text.ends_with("gre [00, 00, 86, dd]"), "{text}");
    assert_eq!(describe(&inner, 0), "2001:2::1 2001:2::9 ttl 64 udp 1024 9");
    let keys = "tunnel = { kind = 'vxlan', src_mac = ['02:00:00:00:00:07', '02:00:00:00:00:08'], dst_mac = '02:00:00:00:00:09',
        src_ip = '10.0.0.1', dst_ip = '10.0.0.2' }";
    let inner = unwrap_tunnel(&frames(keys, 2)[1]).1;
    assert_eq!(inner[..12], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8]);
}

#[test]
fn frames_have_several_vlan_tags() {
    let keys = "tags = [{ id = [100, 200], type = 0x88a8, priority = 3 }, { id = 7 }]\nsize = 100";
    let all = frames(keys, 2);
    assert_eq!(all[1][12..22], [0x88, 0xa8, 0x60, 200, 0x81, 0, 0, 7, 8, 0]);
    assert_eq!(describe(&all[1], 1), "vlan 200 3 vlan 7 0 198.18.0.1 198.19.0.1 ttl 64 dscp 0 udp 1024 9");
}

#[test]
fn raw_headers_and_payloads_are_sent_unchanged() {
    let keys = "raw = '0200 0000 0009 02:00:00:00:00:08 88b5 0000 00ff'\n\
                fields = [{ offset = 14, bytes = 2, values = { first = 0x1234, count = 2 } }]";
    let all = frames(keys, 2);
    assert_eq!(all[1][..18], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5, 0x12, 0x35, 0, 0xff]);
    assert_eq!(all[1].len(), 60);
    let found = Signature::find(&all[1], KEY).unwrap();
    assert_eq!((found.signature.sequence, found.offset), (1, 42));
    let all = frames("payload = '000a 0100'\nsize = 70", 1);
    assert_eq!(all[0][42..46], [0, 10, 1, 0]);
    describe(&all[0], 0);
}

#[test]
fn zipf_values_have_the_probabilities_of_the_law() {
    let keys = "src_port = { first = 1000, count = 100, zipf = 1.2 }";
    let mut counts = [0u32; 100];
    for text in described(keys, 20_000) {
        let port: usize = text.split(' ').rev().nth(1).unwrap().parse().unwrap();
        counts[port - 1000] += 1;
    }
    let weights: Vec<f64> = (1..=100).map(|rank| f64::from(rank).powf(-1.2)).collect();
    let sum: f64 = weights.iter().sum();
    // The chi-square statistic of 99 degrees of freedom is below 200 with a probability of more than 0.9999999.
    let square = counts.iter().zip(&weights).map(|(count, weight)| {
        let expected = weight / sum * 20_000.0;
        (f64::from(*count) - expected).powi(2) / expected
    });
    let square: f64 = square.sum();
    assert!(square < 200.0, "{square}: {counts:?}");
    assert_eq!(described(keys, 50), described(keys, 50));
}

#[test]
fn wrong_streams_are_refused_with_a_fix() {
    for (keys, expected) in [
        ("size = 59", "help: use sizes of 60 to 1514"),
        ("protocol = 'tcp'\nsize = 60", "help: use sizes of 72 to 1514"),
        ("size = 1515", "`size` 1515 does not fit"),
        ("size = []", "help: use 1 to 16 sizes"),
        ("from = 'middle'", "`from` names the unknown port `middle`; help: use one of `left`, `right`"),
        ("src_port = { first = 65000, count = 1000 }", "exceeds the width of the field"),
        ("src_port = { first = 1, count = 0 }", "count 0"),
        ("vlan = 4095", "`vlan` reaches 4095; help: use values up to 4094"),
        ("dst_port = []", "`dst_port` is an empty list"),
        ("src_ip = '::1'", "help: set `dst_ip` to the same family"),
        ("src_ip = ['10.0.0.1', '::1']", "mixes IPv4 and IPv6"),
        ("dst_ip = { first = '255.255.255.255', count = 2 }", "exceeds the width"),
        ("dscp = 64", "`dscp` is 64; help: use a value up to 63"),
        ("weight = 0.0", "`weight` is 0.0; help: use a weight above 0"),
        ("weight = 1e308", "`weight` is 1e308; help: use a weight above 0, and at most 1e9"),
        ("burst = 0", "help: use a burst of at least 1 packet"),
        ("start = '2s'\nstop = '1s'", "`stop` 1s is not after `start` 2s"),
        ("vlan = 1\ntags = [{ id = 2 }]", "help: move the tag of `vlan` into `tags`"),
        ("tags = [{ id = 5000 }]", "`tags.id` reaches 5000; help: use values up to 4094"),
        ("tags = [{ id = 1, priority = 8 }]", "`tags.priority` is 8"),
        ("tags = [{ id = 1, type = 5 }]", "`tags.type` is 0x0005; help: use 0x8100"),
        ("tags = [{ id = 1 }, { id = 1 }, { id = 1 }, { id = 1 }, { id = 1 }]", "help: use at most 4 tags"),
        (
            "tunnel = { kind = 'gre', vni = 1, src_ip = '1.1.1.1', dst_ip = '1.1.1.2' }",
            "`tunnel.vni` belongs to a tunnel",
        ),
        (
            "tunnel = { kind = 'vxlan', vni = 16777216, src_ip = '1.1.1.1', dst_ip = '1.1.1.2' }",
            "`tunnel.vni` reaches 16777216",
        ),
        (
            "tunnel = { kind = 'gre', src_ip = '1.1.1.1', dst_ip = '::2' }",
            "help: set `tunnel.src_ip` to the same family",
        ),
        (
            "size = 60\ntunnel = { kind = 'vxlan', src_ip = '1.1.1.1', dst_ip = '1.1.1.2' }",
            "help: use sizes of 110 to 1514",
        ),
        ("raw = '0200'", "`raw` has 2 bytes; help: start with an Ethernet header"),
        ("raw = '000000000001000000000002 0800'\ndst_port = 5", "`raw` has all headers, so `dst_port` has no effect"),
        (
            "raw = '000000000001000000000002 0800'\nfields = [{ offset = 13, bytes = 2, values = 1 }]",
            "the field of 2 bytes at offset 13 does not fit into the 14 bytes of `raw`; help: use an offset up to 12",
        ),
        (
            "raw = '000000000001000000000002 0800'\nfields = [{ offset = 1, bytes = 1, values = 256 }]",
            "`fields.values` reaches 256; help: use values up to 255",
        ),
        ("fields = [{ offset = 1, bytes = 1, values = 2 }]", "`fields` changes bytes of `raw`"),
        ("payload = '000102'\nsize = 60", "`payload` has 3 bytes, the signature has 18 bytes"),
        ("src_port = { first = 1, count = 9, zipf = 0.0 }", "help: use an exponent above 0"),
        ("src_port = { first = 1, count = 9, zipf = 1.0, random = true }", "help: remove `random`"),
        ("src_ip = { first = '10.0.0.0', count = 2000000, zipf = 1.0 }", "help: use at most 1048576 values"),
    ] {
        let why = Stream::new(&config(keys), 0, &ports()).unwrap_err();
        assert!(why.contains(expected), "{keys}: {why}");
    }
    for (keys, expected) in [
        ("size = 'mix'", "`mix` is not a mix of sizes"),
        ("sizes = 60", "unknown field `sizes`"),
        ("dst_port = -1", "-1 is negative"),
        ("raw = '123'", "`123` is not a list of bytes"),
        ("tunnel = { kind = 'ipip', src_ip = '1.1.1.1', dst_ip = '1.1.1.2' }", "unknown variant `ipip`"),
        ("rate = 'fast'", "is not a rate above 0"),
        ("rate = 1e300", "is too high; help: use at most 1e12 packets per second"),
    ] {
        let why = toml::from_str::<StreamConfig>(keys).unwrap_err().to_string();
        assert!(why.contains(expected), "{keys}: {why}");
    }
}

#[test]
fn page_lists_every_key_of_a_stream() {
    let page = include_str!("../../../docs/benchmark-traffic.md");
    let section = page.split("\n## Keys of a stream\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    // The message about an unknown key lists all keys.
    let why = toml::from_str::<StreamConfig>("unknown = 1").unwrap_err().to_string();
    let keys = why.split("expected one of ").nth(1).unwrap();
    let keys: Vec<&str> = keys.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, keys);
}
