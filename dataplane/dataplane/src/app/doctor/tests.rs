//! Tests the checks with a temporary folder in place of `/sys` and `/proc`, and with made-up interface properties.

use super::interface::{Case, findings};
use super::*;
use crate::config::{PortPlan, Source};
use dataplane_core::units::CoreId;
use dataplane_soft::config::{LinkParameters, PacketConfig, TapConfig, XdpConfig};
use dataplane_soft::{InterfaceFacts, XdpFacts, XdpProgram, XdpSupport};
use dataplane_testing::Folder;
use dataplane_testing::namespace::{in_namespace, ip};

/// A fake host: a temporary folder with the files of `/sys` and `/proc`.
struct Host(Roots, Folder);

impl Host {
    fn new() -> Self {
        let folder = Folder::new();
        let roots = Roots { sys: folder.file("sys"), proc: folder.file("proc") };
        let host = Self(roots, folder);
        // The process has all capabilities, like root.
        host.with_file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
    }

    fn with_file(self, path: &str, text: &str) -> Self {
        self.1.write(path, format!("{text}\n"));
        self
    }
}

fn link<T: serde::de::DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).unwrap()
}

/// Returns the properties of an interface without problems.
fn good() -> InterfaceFacts {
    InterfaceFacts {
        is_up: true,
        is_ethernet: true,
        mtu: 1500,
        driver: Some("ice".to_owned()),
        firmware: None,
        receive_ring: Some((4096, 4096)),
        receive_queues: Some(1),
        lro: Some(false),
        gro: Some(false),
        strips_vlan_tags: Some(false),
        xdp: XdpFacts { support: Some(XdpSupport { native: true, zero_copy: true }), program: None },
    }
}

fn packet() -> PacketConfig {
    link("interface = \"eth9\"")
}

fn tap() -> TapConfig {
    link("name = \"eth9\"")
}

const CORES: [CoreId; 1] = [CoreId(2)];

fn case(link: &dyn LinkParameters) -> Case<'_> {
    Case { name: "eth9", link: Some(link), cores: &CORES, port: None }
}

/// Changes one property of a good interface. Returns the severity and the fix of the only finding.
fn only_finding(
    host: &Host,
    link: &dyn LinkParameters,
    change: impl FnOnce(&mut InterfaceFacts),
) -> (Severity, String) {
    let mut facts = good();
    change(&mut facts);
    let mut found = findings(&host.0, &case(link), &Ok(Some(facts)));
    assert_eq!(found.len(), 1, "{found:#?}");
    (found[0].severity, found.remove(0).fix)
}

#[test]
fn interface_without_problems_has_no_findings() {
    let host = Host::new();
    let xdp: XdpConfig = link("interface = \"eth9\"");
    for link in [&packet() as &dyn LinkParameters, &xdp] {
        assert_eq!(findings(&host.0, &case(link), &Ok(Some(good()))), []);
    }
    let unused = Case { link: None, ..case(&xdp) };
    assert_eq!(findings(&host.0, &unused, &Ok(Some(good()))), []);
}

#[test]
fn each_interface_problem_is_found_with_its_fix() {
    use Severity::{Breaks, Fails, Slow, Unseen};
    let host = Host::new();
    let xdp: XdpConfig = link("interface = \"eth9\"");
    let native: XdpConfig = link("interface = \"eth9\"\nmode = \"native\"");
    let zero: XdpConfig = link("interface = \"eth9\"\ncopy = \"zero\"");
    let none = Some(XdpSupport::default());
    let copied = Some(XdpSupport { native: true, zero_copy: false });
    type Change<'a> = Box<dyn FnOnce(&mut InterfaceFacts) + 'a>;
    let af_packet = packet();
    let cases: Vec<(&dyn LinkParameters, Change<'_>, Severity, &str)> = vec![
        (&af_packet, Box::new(|it| it.is_up = false), Breaks, "ip link set dev eth9 up"),
        (&af_packet, Box::new(|it| it.lro = Some(true)), Breaks, "ethtool -K eth9 lro off"),
        (&af_packet, Box::new(|it| it.gro = Some(true)), Slow, "ethtool -K eth9 gro off"),
        (&af_packet, Box::new(|it| it.receive_ring = Some((256, 4096))), Slow, "ethtool -G eth9 rx 4096"),
        (&xdp, Box::new(|it| it.xdp.support = none), Slow, "mode = \"generic\""),
        (&native, Box::new(|it| it.xdp.support = none), Fails, "mode = \"generic\""),
        (&xdp, Box::new(|it| it.xdp.support = copied), Slow, "copy = \"copy\""),
        (&zero, Box::new(|it| it.xdp.support = copied), Fails, "copy = \"copy\""),
        (&xdp, Box::new(|it| it.strips_vlan_tags = Some(true)), Breaks, "ethtool -K eth9 rxvlan off"),
        (
            &xdp,
            Box::new(|it| it.xdp.program = Some(XdpProgram { program: 8, link: Some(7) })),
            Fails,
            "bpftool link detach id 7",
        ),
        (&xdp, Box::new(|it| it.receive_queues = Some(8)), Breaks, "ethtool -L eth9 combined 1"),
        (&xdp, Box::new(|it| it.driver = Some("veth".to_owned())), Unseen, "ethtool -K PEER tx off txvlan off"),
    ];
    for (link, change, severity, fix) in cases {
        let (found, command) = only_finding(&host, link, change);
        assert!(found == severity && command.contains(fix), "{found:?} {command:?} instead of {severity:?} {fix:?}");
    }
    // VLAN tags that the interface removes do not affect a `packet` link.
    let mut minor = good();
    (minor.gro, minor.strips_vlan_tags) = (Some(true), Some(true));
    let found = findings(&host.0, &case(&packet()), &Ok(Some(minor)));
    assert_eq!(found.len(), 1, "GRO alone: {found:#?}");
}

#[test]
fn missing_interface_fails_except_for_tap() {
    let host = Host::new();
    let found = findings(&host.0, &case(&packet()), &Ok(None));
    assert!(found.len() == 1 && found[0].severity == Severity::Fails, "{found:#?}");
    assert_eq!(findings(&host.0, &case(&tap()), &Ok(None)), []);
}

#[test]
fn fix_names_the_missing_capabilities() {
    let host = Host::new().with_file("proc/self/status", "CapEff:\t0000000000002000\n");
    let xdp: XdpConfig = link("interface = \"eth9\"");
    assert_eq!(findings(&host.0, &case(&packet()), &Ok(Some(good()))), []);
    let (severity, fix) = only_finding(&host, &xdp, |_| {});
    assert!(severity == Severity::Fails && fix.starts_with("setcap cap_net_admin,cap_bpf+ep"), "{fix}");
}

#[test]
fn host_settings_that_affect_the_port_are_found() {
    use Severity::{Breaks, Slow};
    let host = |path: &str, text: &str| Host::new().with_file(path, text);
    let of_packet = [
        ("bridge", "sys/class/net/eth9/brport/state", "3", Breaks, "ip link set dev eth9 nomaster"),
        ("bond", "sys/class/net/eth9/master/mtu", "1500", Breaks, "ip link set dev eth9 nomaster"),
        ("wireless", "sys/class/net/eth9/phy80211/index", "0", Breaks, "wired interface"),
        ("forward", "proc/sys/net/ipv4/conf/eth9/forwarding", "1", Breaks, "net.ipv4.conf.eth9.forwarding=0"),
        ("forward6", "proc/sys/net/ipv6/conf/eth9/forwarding", "1", Breaks, "net.ipv6.conf.eth9.forwarding=0"),
    ];
    for (name, path, text, severity, fix) in of_packet {
        let (found, command) = only_finding(&host(path, text), &packet(), |_| {});
        assert!(found == severity && command.contains(fix), "{name}: {found:?} {command:?}");
    }
    let strict = host("proc/sys/net/ipv4/conf/all/rp_filter", "1");
    let (found, command) = only_finding(&strict, &tap(), |_| {});
    assert!(found == Breaks && command.contains("net.ipv4.conf.eth9.rp_filter=2"), "{command}");
    let loose = strict.with_file("proc/sys/net/ipv4/conf/eth9/rp_filter", "2");
    assert_eq!(
        findings(&loose.0, &case(&tap()), &Ok(Some(good()))),
        [],
        "the kernel uses the larger of the values for `all` and for the interface"
    );

    let busy = host("sys/class/net/eth9/device/msi_irqs/40", "msix").with_file("proc/irq/40/smp_affinity_list", "0-3");
    let (found, command) = only_finding(&busy, &packet(), |_| {});
    assert!(found == Slow && command.contains("/proc/irq/40/smp_affinity_list"), "{command}");
    let placed = busy.with_file("proc/irq/40/effective_affinity_list", "1");
    assert_eq!(findings(&placed.0, &case(&packet()), &Ok(Some(good()))), [], "the effective affinity is used");

    let far = host("sys/class/net/eth9/device/numa_node", "1")
        .with_file("sys/devices/system/cpu/cpu2/node0/cpulist", "0-3")
        .with_file("sys/devices/system/node/node1/cpulist", "4-7");
    let (found, command) = only_finding(&far, &packet(), |_| {});
    assert!(found == Slow && command.contains("4-7"), "{command}");
}

/// Returns the plan of a config.
pub(super) fn plan(text: &str) -> Plan {
    let source = Source::new("test.toml", text, &[]);
    let mut diagnostics = crate::config::Diagnostics::new(&source);
    let registry = dataplane_stages::registry();
    let assembled = crate::runtime::assemble(&source, &registry, Topology::uniform(4), &mut diagnostics);
    assembled.unwrap().unwrap_or_else(|| panic!("{}", diagnostics.render(false))).plan
}

const CONFIG: &str = r#"
    [runtime]
    workers = [0, 1]
    [[port]]
    name = "wan"
    device = "host"
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
fn missing_huge_pages_and_slow_cores_are_reported() {
    let host = Host::new()
        .with_file("sys/devices/system/cpu/isolated", "1")
        .with_file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
        .with_file("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
    let plan = plan(CONFIG);
    let found = host::findings(&host.0, &Topology::uniform(4), Some(&plan));
    let has = |what: &str, fix: &str| found.iter().any(|it| it.what.contains(what) && it.fix.contains(fix));
    assert!(has("0 huge pages of 2 MiB are free", "hugepages-2048kB/nr_hugepages"), "{found:#?}");
    assert!(has("core 1", "echo performance > /sys/devices/system/cpu/cpu1/"), "{found:#?}");
    assert!(
        has("other work on the following cores of workers: 0", "isolcpus=managed_irq,domain,0 "),
        "core 1 is isolated: {found:#?}"
    );
    let sections = examine(&host.0, &Topology::uniform(4), Some(&plan));
    assert_eq!(sections.len(), 2);
    assert_eq!(sections[1].subject, "port `wan`, interface `no-such`");
    assert!(sections[1].findings[0].what.contains("there is no interface `no-such`"), "{sections:#?}");
    let text = text(&sections);
    assert!(
        text.contains("\n  fails: there is no interface `no-such`") && text.contains("\n    fix    run `ip link`"),
        "{text}"
    );
}

#[test]
fn xdp_link_that_starves_the_kernel_is_found() {
    let host = Host::new();
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

#[cfg(not(feature = "ibverbs"))]
#[test]
fn program_without_the_feature_ibverbs_opens_no_rdma_device() {
    let (why, fix) = device::unlisted("mlx5_0").unwrap();
    assert!(why.contains("without the feature") && fix.contains("build the program with the feature"));
}

#[test]
fn missing_rdma_device_is_found() {
    let plan = plan(
        "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\n[pipeline]\ninput = [\"a\"]\n\
         [[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n",
    );
    let found = |host: &Host| device::of_plan(&host.0, &plan, |_| None).remove(0).findings;
    let host = Host::new();
    assert!(found(&host)[0].fix.contains("device = \"host\" or \"soft\""));
    let host = host.with_file("sys/class/infiniband/rdma6/node_type", "1: CA");
    assert!(matches!(&found(&host)[..], [one] if one.severity == Severity::Fails && one.fix.ends_with("rdma6")));
    let host = host.with_file("sys/class/infiniband/rdma7/node_type", "1: CA");
    assert_eq!(found(&host), []);
    let unlisted = |device: &str| (device == "rdma7").then(|| ("it is broken".to_owned(), "fix it".to_owned()));
    let found = device::of_plan(&host.0, &plan, unlisted).remove(0).findings;
    assert!(
        matches!(&found[..], [one] if one.severity == Severity::Fails && one.fix == "fix it"
            && one.what == "the kernel has the RDMA device `rdma7`, but it is broken"),
        "{found:?}"
    );
}

#[test]
fn missing_port_of_an_rdma_device_is_found() {
    let plan = |number: u8| {
        plan(&format!(
            "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\ndevice_port = {number}\n[pipeline]\n\
             input = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n"
        ))
    };
    let host = Host::new().with_file("sys/class/infiniband/rdma7/ports/1/state", "4: ACTIVE");
    let found = |host: &Host, number| device::of_plan(&host.0, &plan(number), |_| None).remove(0);
    assert_eq!(found(&host, 1).findings, []);
    let Section { key, findings, .. } = found(&host, 2);
    assert_eq!((key.as_str(), findings.len()), ("port[0].device_port", 1));
    assert_eq!((findings[0].severity, findings[0].fix.as_str()), (Severity::Fails, "set device_port to 1"));
    let host = host.with_file("sys/class/infiniband/rdma8/ports/1/state", "4: ACTIVE");
    let fix = "set device_port to 1, or device to the RDMA device of the other port: rdma8";
    assert_eq!(found(&host, 2).findings[0].fix, fix);
}

/// A virtual function without trust or without promiscuous mode does not get frames to other MAC addresses. The host of a
/// subfunction selects the frames.
#[test]
fn function_that_may_not_get_all_frames_is_found() {
    const CONFIG: &str = "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\n[pipeline]\n\
                          input = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n";
    const TRUST: &str = "`ip link set dev PF vf N trust on`";
    let with = |keys: &str| CONFIG.replace("rdma7\"", &format!("rdma7\"\n{keys}"));
    let own = with("flow = [{ match = { ethernet = { dst = \"02:00:00:00:00:01\" } } }]");
    // A UD port needs no promiscuous mode, because its datagrams are sent to the address of the device.
    let datagrams = with("qp = \"ud\"\nconnection = { to = \"127.0.0.1:18515\" }");
    let off = with("promiscuous = false");
    let rest = with("flow = [{ frames = \"all_default\" }]");
    // Each key that a fix names passes the check of the config.
    let fixed = [with("flow = [{ priority = 1 }]"), own.replace("flow =", "promiscuous = true\nflow =")];
    assert!(fixed.iter().all(|text| plan(text).ports[0].is_promiscuous()));
    let (key, rule, representor) = ("promiscuous = true", "{ priority = 1 }", &["representor"][..]);
    for (file, by_config) in [
        ("physfn/vendor", [(CONFIG, &[TRUST][..]), (&own, &[key, TRUST]), (&rest, &[rule, TRUST])]),
        ("sfnum", [(CONFIG, representor), (&own, representor), (&rest, representor)]),
        // The run sets the interface of a physical function to promiscuous mode.
        ("sriov_numvfs", [(CONFIG, &[]), (&own, &[]), (&rest, &[])]),
    ] {
        let host = Host::new().with_file(&format!("sys/class/infiniband/rdma7/device/{file}"), "7");
        let found = |text: &str| device::of_plan(&host.0, &plan(text), |_| None).remove(0).findings;
        for (text, fixes) in by_config {
            match &found(text)[..] {
                [] => assert!(fixes.is_empty(), "{file} {text}"),
                [one] => {
                    assert_eq!(one.severity, Severity::Unseen);
                    assert!(!fixes.is_empty() && fixes.iter().all(|fix| one.fix.contains(fix)), "{one:?}");
                    assert_eq!(one.fix.contains(key), fixes.contains(&key), "{one:?}");
                }
                more => panic!("{more:?}"),
            }
        }
        assert_eq!([found(&datagrams), found(&off)], [vec![], vec![]]);
    }
}

/// Without a counter of the driver, a report with `lost 0` does not mean that no packet was lost.
#[cfg(feature = "ibverbs")]
#[test]
fn rdma_device_without_a_counter_of_lost_packets_is_reported() {
    const CONFIG: &str = "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\n[pipeline]\n\
                          input = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n";
    let facts = |host: &Host, text: &str| device::of_plan(&host.0, &plan(text), |_| None).remove(0).facts;
    let host = || Host::new().with_file("sys/class/infiniband/rdma7/ports/1/state", "4: ACTIVE");
    let found = facts(&host(), CONFIG);
    assert!(matches!(&found[..], [one] if one.contains("knows no counter of `rdma7`")), "{found:?}");
    assert_eq!(facts(&Host::new(), CONFIG), [""; 0], "the device does not exist");
    // In another network namespace, the kernel shows no counters of the device.
    let other = host().with_file("sys/class/infiniband/rdma7/device/vendor", "0x15b3");
    let link = other.0.sys.join("class/infiniband/rdma7/device/driver");
    std::os::unix::fs::symlink("../../../bus/pci/drivers/mlx5_core", link).unwrap();
    let found = facts(&other, CONFIG);
    assert!(matches!(&found[..], [one] if one.contains("`rdma7` belongs to another network namespace")), "{found:?}");
    // A reliable connection loses no packets.
    let reliable = CONFIG.replace("rdma7\"", "rdma7\"\nqp = \"rc\"\nconnection = { to = \"127.0.0.1:18515\" }");
    assert_eq!(facts(&host(), &reliable), [""; 0]);
    for (file, is_counted) in [
        ("ports/1/hw_counters/out_of_buffer", true),
        ("hw_counters/out_of_buffer", true),
        ("ports/1/hw_counters/rx_out_of_buffer", true),
        ("ports/1/hw_counters/vport_out_of_buffer", false),
        ("ports/2/hw_counters/out_of_buffer", false),
    ] {
        let host = host().with_file("sys/class/infiniband/rdma7/ports/1/counters/symbol_error", "0");
        let host = host.with_file(&format!("sys/class/infiniband/rdma7/{file}"), "0");
        assert_eq!(facts(&host, CONFIG).is_empty(), is_counted, "{file}");
    }
}

/// In zero-copy mode, a report with `lost 0` does not mean that no packet was lost.
#[test]
fn xdp_port_in_zero_copy_mode_reports_uncounted_losses() {
    let is_reported = |keys: &str, zero_copy: bool| {
        let link: XdpConfig = link(&format!("interface = \"eth9\"\n{keys}"));
        let xdp = XdpFacts { support: Some(XdpSupport { native: true, zero_copy }), program: None };
        let fact = link.uncounted_losses(&InterfaceFacts { xdp, ..good() });
        fact.inspect(|fact| assert!(fact.contains("class/net/eth9"), "{fact}")).is_some()
    };
    assert!(is_reported("", true) && is_reported("copy = \"zero\"", true));
    assert!(!is_reported("", false) && !is_reported("copy = \"copy\"", true));
    assert!(!is_reported("mode = \"generic\"", true));
}

#[test]
fn mtu_that_differs_from_the_config_is_found() {
    let (host, plan) = (Host::new(), plan(CONFIG));
    let port: &PortPlan = &plan.ports[0];
    let link = packet();
    let case = Case { port: Some(port), ..case(&link) };
    let found = findings(&host.0, &case, &Ok(Some(good())));
    assert!(
        found.len() == 1 && found[0].fix == "ip link set dev eth9 mtu 1400, or mtu = 1500 in the config",
        "{found:#?}"
    );
    // The key `mtu` of a port does not allow 65536, which is the MTU of `lo`.
    let found = findings(&host.0, &case, &Ok(Some(InterfaceFacts { mtu: 65536, ..good() })));
    assert!(found[0].fix == "ip link set dev eth9 mtu 1400 (the mtu of a port is 68 to 65000)", "{found:#?}");
}

/// The NIC applies the settings of its interface also to the frames of a raw-packet port.
#[test]
fn interface_of_a_raw_packet_port_on_an_rdma_device_is_checked() {
    use Severity::{Breaks, Slow};
    const CONFIG: &str = "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\n[pipeline]\n\
                          input = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n";
    in_namespace(|| {
        ip("link add eth9 mtu 1400 type veth peer name vb");
        let host = Host::new()
            .with_file("sys/class/infiniband/rdma7/device/net/eth9/mtu", "1400")
            .with_file("sys/class/net/eth9/device/numa_node", "1")
            .with_file("sys/devices/system/node/node1/cpulist", "4-7");
        let cores = 0..4;
        let host = cores
            .fold(host, |host, core| host.with_file(&format!("sys/devices/system/cpu/cpu{core}/node0/cpulist"), "0-3"));
        let found = |keys: &str| {
            let plan = plan(&CONFIG.replace("rdma7\"", &format!("rdma7\"\n{keys}")));
            let sections = examine(&host.0, &Topology::uniform(4), Some(&plan));
            let found = |section: &Section| section.subject == "port `a`, interface `eth9`";
            sections.into_iter().find(found).map(|section| section.findings)
        };
        let findings = found("").unwrap();
        let fixes: Vec<(Severity, &str)> = findings.iter().map(|it| (it.severity, it.fix.as_str())).collect();
        let mtu = "ip link set dev eth9 mtu 1500, or mtu = 1400 in the config";
        let node = "set workers = [..] in the config to cores of 4-7";
        assert_eq!(fixes, [(Breaks, "ip link set dev eth9 up"), (Slow, node), (Breaks, mtu)]);
        assert!(findings[2].effect.contains("the NIC drops longer frames"), "{findings:?}");
        ip("link set eth9 up\nlink set vb up");
        let effects = |keys: &str| -> Vec<String> { found(keys).unwrap().into_iter().map(|it| it.effect).collect() };
        assert!(effects("mtu = 1300")[1].contains("do not fit into a packet buffer"), "{:?}", effects("mtu = 1300"));
        assert_eq!(effects("mtu = 1400").len(), 1, "only the NUMA node");
        let connected = |qp: &str, mtu: u32| {
            found(&format!("qp = \"{qp}\"\nmtu = {mtu}\nconnection = {{ to = \"127.0.0.1:18515\" }}"))
        };
        assert_eq!((connected("rc", 1100), connected("ud", 1010)), (None, Some(Vec::new())));
        let findings = connected("ud", 1100).unwrap();
        let fix = "mtu = 1002 in the config, or `ip link set dev eth9 mtu 2144`";
        assert!(findings.len() == 1 && findings[0].fix == fix, "{findings:?}");
        assert!(
            findings[0].what.contains("the path MTU is 1024, but mtu 1100 of the port needs datagrams of 1114 bytes")
        );
        assert_eq!(findings[0].severity, Severity::Fails);
        // irdma has a path MTU of 2048 on this interface.
        ip("link set eth9 mtu 2100");
        assert_eq!(connected("ud", 1100).unwrap()[0].severity, Severity::Unseen);
    });
}

/// A flow rule of a raw-packet port takes frames before the kernel.
#[test]
fn port_that_takes_the_lacp_frames_of_a_bond_is_found() {
    const CONFIG: &str = "[runtime]\nworkers = 1\n[[port]]\nname = \"a\"\ndevice = \"rdma7\"\nmtu = 1500\n[[port]]\n\
                          name = \"b\"\ndevice = \"soft\"\nlink = { kind = \"loopback\" }\n[pipeline]\ninput = [\"a\"]\n\
                          [[pipeline.stage]]\nuse = \"tx\"\nport = \"a\"\n";
    in_namespace(|| {
        ip("link add eth9 type veth peer name vb\nlink set eth9 up\nlink set vb up");
        let fixes = |mode: &str, keys: &str, input: &str| -> Vec<String> {
            let host = Host::new()
                .with_file("sys/class/infiniband/rdma7/device/net/eth9/mtu", "1500")
                .with_file("sys/class/net/eth9/master/bonding/mode", mode);
            let config = CONFIG.replace("rdma7\"", &format!("rdma7\"\n{keys}")).replace("[\"a\"]", input);
            let sections = examine(&host.0, &Topology::uniform(4), Some(&plan(&config)));
            let section = sections.into_iter().find(|it| it.subject == "port `a`, interface `eth9`").unwrap();
            section.findings.into_iter().map(|it| it.fix).collect()
        };
        let found = fixes("802.3ad 4", "", "[\"a\"]");
        let [fix] = &found[..] else { panic!("{found:?}") };
        let (flow, rest) = fix.split_once(" for the port, or ").unwrap();
        assert!(flow.contains("type = 0x0806") && rest == "`ip link set dev eth9 nomaster`", "{fix}");
        for (mode, keys, input) in [
            ("802.3ad 4", flow, "[\"a\"]"),
            ("active-backup 1", "", "[\"a\"]"),
            ("802.3ad 4", "", "[\"b\"]"),
            ("802.3ad 4", "flow = [{ match = { ethernet = { vlan = 7 } } }]", "[\"a\"]"),
            ("802.3ad 4", "flow = [{ frames = \"sniffer\" }]", "[\"a\"]"),
        ] {
            assert_eq!(fixes(mode, keys, input), [""; 0], "{mode}, {keys}, {input}");
        }
        let lacp = "flow = [{ match = { ethernet = { type = 0x8809, dst = \"01:80:c2:00:00:02\" } } }]";
        for keys in ["flow = [{ match = { ipv4 = {} } }, { priority = 1 }]", lacp] {
            assert_eq!(fixes("802.3ad 4", keys, "[\"a\"]").len(), 1, "{keys}");
        }
    });
}
