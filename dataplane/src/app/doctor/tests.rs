//! Hosts that are made of files, and interfaces that are made up.

use std::fs;
use std::path::Path;

use super::interface::{Case, Used, findings};
use super::*;
use crate::config::{PortPlan, Source, Xdp};
use crate::provider::soft::{InterfaceFacts, XdpProgram, XdpSupport};
use crate::units::CoreId;

/// A host that is made of files, and goes with this.
struct Host(Roots, PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dataplane-doctor-{}-{name}", std::process::id()));
        let roots = Roots { sys: folder.join("sys"), proc: folder.join("proc") };
        let host = Self(roots, folder);
        // All capabilities, as root has them.
        host.has("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
    }

    fn has(self, path: &str, text: &str) -> Self {
        let path = self.1.join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.1);
    }
}

fn link<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

/// An interface that nothing is wrong with.
fn good() -> InterfaceFacts {
    InterfaceFacts {
        is_up: true,
        is_ethernet: true,
        mtu: 1500,
        driver: Some("ice".to_owned()),
        receive_ring: Some((4096, 4096)),
        receive_queues: Some(1),
        lro: Some(false),
        gro: Some(false),
        takes_tags: Some(false),
        xdp: Some(XdpSupport { native: true, zero_copy: true }),
        program: None,
    }
}

const CORES: [CoreId; 1] = [CoreId(2)];

fn case(used: Used<'_>) -> Case<'_> {
    Case { name: "eth9", used, cores: &CORES, port: None }
}

/// What one change of a good interface is found as: severity and fix.
fn one(host: &Host, used: Used<'_>, change: impl FnOnce(&mut InterfaceFacts)) -> (Severity, String) {
    let mut facts = good();
    change(&mut facts);
    let mut found = findings(&host.0, &case(used), &Ok(Some(facts)));
    assert_eq!(found.len(), 1, "{found:#?}");
    (found[0].severity, found.remove(0).fix)
}

#[test]
fn a_good_interface_has_no_findings() {
    let host = Host::new("good");
    let xdp: Xdp = link("interface = \"eth9\"");
    for used in [Used::Packet, Used::Xdp(&xdp), Used::Not] {
        assert_eq!(findings(&host.0, &case(used), &Ok(Some(good()))), []);
    }
}

#[test]
fn what_is_wrong_with_an_interface_is_found_with_its_command() {
    use Severity::{Breaks, Fails, Slow, Unseen};
    let host = Host::new("wrong");
    let xdp: Xdp = link("interface = \"eth9\"");
    let native: Xdp = link("interface = \"eth9\"\nmode = \"native\"");
    let zero: Xdp = link("interface = \"eth9\"\ncopy = \"zero\"");
    let none = Some(XdpSupport::default());
    let copied = Some(XdpSupport { native: true, zero_copy: false });
    type Change<'a> = Box<dyn FnOnce(&mut InterfaceFacts) + 'a>;
    let cases: Vec<(Used<'_>, Change<'_>, Severity, &str)> = vec![
        (Used::Packet, Box::new(|it| it.is_up = false), Breaks, "ip link set dev eth9 up"),
        (Used::Packet, Box::new(|it| it.lro = Some(true)), Breaks, "ethtool -K eth9 lro off"),
        (Used::Packet, Box::new(|it| it.gro = Some(true)), Slow, "ethtool -K eth9 gro off"),
        (Used::Packet, Box::new(|it| it.receive_ring = Some((256, 4096))), Slow, "ethtool -G eth9 rx 4096"),
        (Used::Xdp(&xdp), Box::new(|it| it.xdp = none), Slow, "mode = \"generic\""),
        (Used::Xdp(&native), Box::new(|it| it.xdp = none), Fails, "mode = \"generic\""),
        (Used::Xdp(&xdp), Box::new(|it| it.xdp = copied), Slow, "copy = \"copy\""),
        (Used::Xdp(&zero), Box::new(|it| it.xdp = copied), Fails, "copy = \"copy\""),
        (Used::Xdp(&xdp), Box::new(|it| it.takes_tags = Some(true)), Breaks, "ethtool -K eth9 rxvlan off"),
        (
            Used::Xdp(&xdp),
            Box::new(|it| it.program = Some(XdpProgram { program: 8, link: Some(7) })),
            Fails,
            "bpftool link detach id 7",
        ),
        (Used::Xdp(&xdp), Box::new(|it| it.receive_queues = Some(8)), Breaks, "ethtool -L eth9 combined 1"),
        (
            Used::Xdp(&xdp),
            Box::new(|it| it.driver = Some("veth".to_owned())),
            Unseen,
            "ethtool -K PEER tx off txvlan off",
        ),
    ];
    for (used, change, severity, fix) in cases {
        let (found, command) = one(&host, used, change);
        assert!(found == severity && command.contains(fix), "{found:?} {command:?} instead of {severity:?} {fix:?}");
    }
    // GRO and tags are nothing to a link that does not mind them.
    let mut minor = good();
    (minor.gro, minor.takes_tags) = (Some(true), Some(true));
    let found = findings(&host.0, &case(Used::Packet), &Ok(Some(minor)));
    assert_eq!(found.len(), 1, "GRO alone: {found:#?}");
}

#[test]
fn an_interface_that_is_not_there_fails_and_a_tap_is_made() {
    let host = Host::new("missing");
    let found = findings(&host.0, &case(Used::Packet), &Ok(None));
    assert!(found.len() == 1 && found[0].severity == Severity::Fails, "{found:#?}");
    assert_eq!(findings(&host.0, &case(Used::Tap), &Ok(None)), []);
}

#[test]
fn a_capability_that_is_missing_is_named() {
    let host = Host::new("capabilities").has("proc/self/status", "CapEff:\t0000000000002000\n");
    let xdp: Xdp = link("interface = \"eth9\"");
    assert_eq!(findings(&host.0, &case(Used::Packet), &Ok(Some(good()))), []);
    let (severity, fix) = one(&host, Used::Xdp(&xdp), |_| {});
    assert!(severity == Severity::Fails && fix.starts_with("setcap cap_net_admin,cap_bpf+ep"), "{fix}");
}

#[test]
fn what_the_kernel_does_with_the_interface_is_found() {
    use Severity::{Breaks, Slow};
    let host = |name: &str, path: &str, text: &str| Host::new(name).has(path, text);
    let of_packet = [
        ("bridge", "sys/class/net/eth9/brport/state", "3", Breaks, "ip link set dev eth9 nomaster"),
        ("bond", "sys/class/net/eth9/master/mtu", "1500", Breaks, "ip link set dev eth9 nomaster"),
        ("wireless", "sys/class/net/eth9/phy80211/index", "0", Breaks, "wired interface"),
        ("forward", "proc/sys/net/ipv4/conf/eth9/forwarding", "1", Breaks, "net.ipv4.conf.eth9.forwarding=0"),
        ("forward6", "proc/sys/net/ipv6/conf/eth9/forwarding", "1", Breaks, "net.ipv6.conf.eth9.forwarding=0"),
    ];
    for (name, path, text, severity, fix) in of_packet {
        let (found, command) = one(&host(name, path, text), Used::Packet, |_| {});
        assert!(found == severity && command.contains(fix), "{name}: {found:?} {command:?}");
    }
    let strict = host("filter", "proc/sys/net/ipv4/conf/all/rp_filter", "1");
    let (found, command) = one(&strict, Used::Tap, |_| {});
    assert!(found == Breaks && command.contains("net.ipv4.conf.eth9.rp_filter=2"), "{command}");
    let loose = strict.has("proc/sys/net/ipv4/conf/eth9/rp_filter", "2");
    assert_eq!(findings(&loose.0, &case(Used::Tap), &Ok(Some(good()))), [], "the larger of both holds");

    let busy = host("irq", "sys/class/net/eth9/device/msi_irqs/40", "msix").has("proc/irq/40/smp_affinity_list", "0-3");
    let (found, command) = one(&busy, Used::Packet, |_| {});
    assert!(found == Slow && command.contains("/proc/irq/40/smp_affinity_list"), "{command}");
    let placed = busy.has("proc/irq/40/effective_affinity_list", "1");
    assert_eq!(findings(&placed.0, &case(Used::Packet), &Ok(Some(good()))), [], "where it really comes");

    let far = host("node", "sys/class/net/eth9/device/numa_node", "1")
        .has("sys/devices/system/cpu/cpu2/node0/cpulist", "0-3")
        .has("sys/devices/system/node/node1/cpulist", "4-7");
    let (found, command) = one(&far, Used::Packet, |_| {});
    assert!(found == Slow && command.contains("4-7"), "{command}");
}

/// The plan of a config.
fn plan(text: &str) -> Plan {
    let source = Source::new("test.toml", text, &[]);
    let mut diagnostics = crate::config::Diagnostics::new(&source);
    let registry = crate::stages::registry();
    let assembled = crate::runtime::assemble(&source, &registry, Topology::uniform(4), &mut diagnostics);
    assembled.unwrap_or_else(|| panic!("{}", diagnostics.render(false))).plan
}

const CONFIG: &str = r#"
    [runtime]
    workers = [0, 1]
    [[port]]
    name = "wan"
    device = "soft"
    mtu = 1400
    link = { kind = "packet", interface = "no-such" }
    [pipeline]
    input = ["wan"]
    [[pipeline.stage]]
    name = "out"
    use = "tx"
    port = "wan"
"#;

#[test]
fn a_host_without_huge_pages_and_with_slow_cores_is_told() {
    let host = Host::new("host")
        .has("sys/devices/system/cpu/isolated", "1")
        .has("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
        .has("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
    let plan = plan(CONFIG);
    let found = host::findings(&host.0, &Topology::uniform(4), Some(&plan));
    let has = |what: &str, fix: &str| found.iter().any(|it| it.what.contains(what) && it.fix.contains(fix));
    assert!(has("0 huge pages of 2 MiB are free", "hugepages-2048kB/nr_hugepages"), "{found:#?}");
    assert!(has("core 1", "echo performance > /sys/devices/system/cpu/cpu1/"), "{found:#?}");
    assert!(has("other work on cores 0,", "isolcpus=managed_irq,domain,0 "), "core 1 is isolated: {found:#?}");
    let sections = examine(&host.0, &Topology::uniform(4), Some(&plan));
    assert_eq!(sections.len(), 2);
    assert_eq!(sections[1].subject, "port `wan`, interface `no-such`");
    assert!(sections[1].findings[0].what.contains("no such interface"), "{sections:#?}");
    let text = text(&sections);
    assert!(text.contains("\n  fails: there is no such interface") && text.contains("\n    fix    ip link"), "{text}");
}

#[test]
fn a_kernel_that_is_followed_and_hears_nothing_is_found() {
    let host = Host::new("starved");
    let starved = |link: &str, more: &str| {
        let link = format!("{{ kind = \"xdp\", interface = \"no-such\"{link} }}\n{more}");
        let text = CONFIG.replace("{ kind = \"packet\", interface = \"no-such\" }", &link);
        assert_ne!(text, CONFIG);
        let front = "[[pipeline.stage]]\nuse = \"parse\"\n[[pipeline.stage]]\nuse = \"route\"\nsource = \"kernel\"\n";
        let text = text.replacen("[[pipeline.stage]]", &format!("{front}[[pipeline.stage]]"), 1);
        let sections = interface::of_plan(&host.0, &plan(&text));
        sections.iter().flat_map(|section| &section.findings).any(|it| it.what.contains("takes every frame"))
    };
    assert!(starved("", ""));
    assert!(!starved(", except = [{ ether_type = 0x0806 }]", ""));
    assert!(!starved(", filter = [{ protocol = \"udp\" }]", ""));
    assert!(!starved("", "interface = \"eth9\""));
}

#[test]
fn a_device_that_is_not_there_is_found() {
    let plan = plan(
        "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\n[pipeline]\ninput = [\"a\"]\n\
         [[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n",
    );
    let found = |host: &Host| device::of_plan(&host.0, &plan).remove(0).1.findings;
    let host = Host::new("devices");
    assert!(found(&host)[0].fix.contains("device = \"soft\""));
    let host = host.has("sys/class/infiniband/rdma6/node_type", "1: CA");
    assert!(matches!(&found(&host)[..], [one] if one.severity == Severity::Fails && one.fix.ends_with("rdma6")));
    assert_eq!(found(&host.has("sys/class/infiniband/rdma7/node_type", "1: CA")), []);
}

#[test]
fn an_mtu_of_another_size_is_found() {
    let (host, plan) = (Host::new("mtu"), plan(CONFIG));
    let port: &PortPlan = &plan.ports[0];
    let case = Case { port: Some(port), ..case(Used::Packet) };
    let found = findings(&host.0, &case, &Ok(Some(good())));
    assert!(
        found.len() == 1 && found[0].fix == "ip link set dev eth9 mtu 1400, or mtu = 1500 in the config",
        "{found:#?}"
    );
    // As that of `lo`, which the config cannot have.
    let found = findings(&host.0, &case, &Ok(Some(InterfaceFacts { mtu: 65536, ..good() })));
    assert!(found[0].fix == "ip link set dev eth9 mtu 1400; that of a port is 68 to 65000", "{found:#?}");
}

#[test]
fn a_list_of_numbers_is_read() {
    assert_eq!(numbers("0-2,7"), [0, 1, 2, 7]);
    assert!(numbers("").is_empty());
    assert!(numbers("x,3-").is_empty());
}
