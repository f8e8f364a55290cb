//! Every flow rule in `docs/config/flow.md` must work on a port with one queue and on a port with two queues. The fake
//! device refuses contradictory rules as the kernel does.

use std::net::IpAddr;

use toml::{Table, Value};

use super::raw::{TestDevice, test_device, try_start};
use dataplane_core::verbs::{
    EthernetMatch, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue, PortsMatch,
    RawDevice, RawSpec, SendApi, TransportMatch, TunnelMatch,
};

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config/flow.md"));

/// Returns the tables in the key `flow` of all ports in the examples of the page.
fn examples() -> Vec<Table> {
    let blocks = PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let ports = blocks.flat_map(|block| array(&mut block.parse().unwrap(), "port"));
    ports.flat_map(|mut port| array(&mut port, "flow")).collect()
}

fn array(table: &mut Table, key: &str) -> Vec<Table> {
    let items = table.remove(key).map_or(Vec::new(), |value| value.as_array().unwrap().clone());
    items.into_iter().map(|item| item.as_table().unwrap().clone()).collect()
}

/// Removes a table and converts it. The conversion must remove every key.
fn section<T>(table: &mut Table, key: &str, convert: impl FnOnce(&mut Table) -> T) -> Option<T> {
    let Value::Table(mut found) = table.remove(key)? else { panic!("`{key}` is not a table") };
    let converted = convert(&mut found);
    assert!(found.is_empty(), "this test does not know {found:?} in `{key}`");
    Some(converted)
}

/// Removes a number, a MAC address, an IP address or a prefix and converts it.
fn bits<const N: usize>(table: &mut Table, key: &str) -> MaskedValue<N> {
    match table.remove(key) {
        None => MaskedValue::ANY,
        Some(Value::Integer(number)) => MaskedValue::exact(number.to_be_bytes()[8 - N..].try_into().unwrap()),
        Some(Value::String(text)) if N == 6 => {
            let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
            MaskedValue::exact(bytes.try_into().unwrap())
        }
        Some(Value::String(text)) => {
            let (address, length) = text.split_once('/').map_or((&*text, "128"), |(address, length)| (address, length));
            let octets: Vec<u8> = match address.parse().unwrap() {
                IpAddr::V4(address) => address.octets().into(),
                IpAddr::V6(address) => address.octets().into(),
            };
            MaskedValue::prefix(octets.try_into().unwrap(), length.parse().unwrap())
        }
        Some(other) => panic!("`{key}` = {other:?}"),
    }
}

fn ports(table: &mut Table) -> PortsMatch {
    PortsMatch { src: bits(table, "src"), dst: bits(table, "dst") }
}

fn headers(table: &mut Table) -> HeaderMatch {
    let ethernet = section(table, "ethernet", |it| EthernetMatch {
        dst: bits(it, "dst"),
        src: bits(it, "src"),
        ether_type: bits(it, "type"),
        vlan_tag: it.remove("vlan").map_or(MaskedValue::ANY, |id| EthernetMatch::vlan(id.as_integer().unwrap() as u16)),
    });
    let v4 = section(table, "ipv4", |it| {
        IpMatch::V4(Ipv4Match {
            src: bits(it, "src"),
            dst: bits(it, "dst"),
            protocol: bits(it, "protocol"),
            tos: bits(it, "tos"),
            ttl: bits(it, "ttl"),
            flags: MaskedValue::ANY,
        })
    });
    let v6 = section(table, "ipv6", |it| {
        IpMatch::V6(Ipv6Match {
            src: bits(it, "src"),
            dst: bits(it, "dst"),
            flow_label: bits(it, "flow_label"),
            next_header: bits(it, "next_header"),
            traffic_class: bits(it, "traffic_class"),
            hop_limit: bits(it, "hop_limit"),
        })
    });
    let tcp = section(table, "tcp", |it| TransportMatch::Tcp(ports(it)));
    let udp = section(table, "udp", |it| TransportMatch::Udp(ports(it)));
    HeaderMatch { ethernet, ip: v4.or(v6), transport: tcp.or(udp) }
}

fn traffic(table: &mut Table) -> FlowTraffic {
    let vxlan = section(table, "vxlan", |it| TunnelMatch::Vxlan { vni: bits(it, "vni") });
    let gre = section(table, "gre", |it| TunnelMatch::Gre {
        flags: MaskedValue::ANY,
        protocol: bits(it, "protocol"),
        key: bits(it, "key"),
    });
    let mpls = section(table, "mpls", |it| {
        let label = it.remove("label").unwrap().as_integer().unwrap() as u32;
        TunnelMatch::Mpls { label: MaskedValue::prefix((label << 12).to_be_bytes(), 20) }
    });
    let inner = section(table, "inner", headers).unwrap_or_default();
    let tunnel = vxlan.or(gre).or(mpls).map(|tunnel| (tunnel, inner));
    FlowTraffic::Headers { outer: headers(table), tunnel }
}

fn rule(test: &TestDevice, mut table: Table) -> FlowRule {
    let traffic = match table.remove("frames").as_ref().map(|frames| frames.as_str().unwrap()) {
        None => section(&mut table, "match", traffic).unwrap_or(FlowTraffic::ANY_HEADERS),
        Some("all_default") => FlowTraffic::AllDefault,
        Some(other) => panic!("this test does not know frames = {other:?}"),
    };
    let rule = FlowRule {
        priority: table.remove("priority").map_or(0, |priority| priority.as_integer().unwrap() as u16),
        tag: table.remove("tag").map(|tag| tag.as_integer().unwrap() as u32),
        drop: table.remove("action").is_some_and(|action| action.as_str() == Some("drop")),
        count: table.remove("count").map(|_| test.device.create_flow_counters().unwrap()),
        dont_trap: table.remove("dont_trap").is_some_and(|value| value.as_bool().unwrap()),
        ..FlowRule::new(traffic)
    };
    assert!(table.is_empty(), "this test does not know {table:?}");
    rule
}

#[test]
fn every_documented_flow_rule_works_with_one_and_two_queues() {
    let examples = examples();
    assert!(examples.len() > 8, "the page has rules");
    let mut failed = Vec::new();
    for (example, queues) in examples.iter().flat_map(|example| [(example, 1), (example, 2)]) {
        let mut test = test_device();
        let rule = rule(&test, example.clone());
        test.set_raw(RawSpec { rules: vec![rule], ..RawSpec::default() });
        let started: Result<Vec<_>, _> =
            (0..queues).map(|at| try_start(&test, (at, queues), SendApi::Classic)).collect();
        if let Err(error) = &started {
            failed.push(format!("{queues} queues, {example}: {error}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
