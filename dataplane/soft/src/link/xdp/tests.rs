//! Tests of the XDP program. The kernel runs the program on generated frames (`BPF_PROG_TEST_RUN`). The tests compare
//! the verdicts with an implementation of the filter in Rust.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::bpf::{Attach, Program, SocketMap};
use super::btf;
use super::facts::driver_reports_nic_time;
use super::program::{NIC_STAMP, PASS, StampSource, Taken, program};
use super::queue::Queue;
use super::socket::{SocketSpec, XdpSocket, await_release, shows_release};
use super::spec::{Copying, Filter, Selector, XdpSpec};
use super::{HEADROOM, Xdp, explain, native_problem};
use crate::hand_over::HandOver;
use crate::link::interface::Interface;
use crate::tests::xdp::veth;
use dataplane_core::file::host_remedy;
use dataplane_core::mem::{GUARD, PageKind, Region, RegionSpec, SlotLayout};
use dataplane_core::verbs::QpCaps;
use dataplane_testing::namespace::in_namespace;
use dataplane_testing::{PATIENCE, report_skip, skip};

/// `XDP_TX`: the verdict for a taken frame in these tests.
const TAKEN: u32 = 3;

/// Loads the program of a filter. Skips the test and returns `None` if the process is not root or the kernel has no
/// BPF. The program also writes stamps, which do not change the verdict.
fn load(filter: &Filter) -> Option<Program> {
    let code = program(filter, Taken::Verdict(TAKEN), StampSource::Kernel).unwrap();
    // During a run, the process keeps only the capabilities that its links need. The kernel's verifier then accepts
    // fewer programs than from root.
    let as_in_a_run = || {
        let held = capabilities(None)?;
        let kept = held.effective & filter.capabilities();
        let few = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, few)?;
        Program::load(&code)
    };
    match thread::scope(|scope| scope.spawn(as_in_a_run).join().unwrap()) {
        Ok(program) => Some(program),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            skip(format!("cannot load BPF programs: {error}"));
            None
        }
        Err(error) => panic!("the kernel refuses the program of {filter:?}: {error}"),
    }
}

/// A generated frame, and its fields.
#[derive(Clone, Debug)]
struct TestFrame {
    tags: Vec<(u16, u16)>,
    /// The EtherType. The fields `protocol`, `addresses` and `ports` are used only for IPv4 and IPv6.
    ether_type: u16,
    protocol: u8,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: (u16, u16),
    /// The number of IPv6 extension headers, or number of 4-byte words of IPv4 options.
    extras: u8,
    /// 0: not a fragment, 1: the first fragment, 2: a later fragment.
    fragment: u8,
    /// The number of bytes to cut off at the end.
    cut: usize,
}

impl TestFrame {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for (tpid, tag) in &self.tags {
            frame.extend([tpid.to_be_bytes(), tag.to_be_bytes()].concat());
        }
        frame.extend(self.ether_type.to_be_bytes());
        match self.addresses {
            Some((IpAddr::V4(from), IpAddr::V4(to))) => {
                let offset: u16 = if self.fragment == 2 { 77 } else { 0 };
                let more: u16 = if self.fragment == 1 { 0x2000 } else { 0 };
                frame.extend([0x45 + self.extras, 0, 0, 60, 0, 1]);
                frame.extend((offset | more).to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                frame.extend(std::iter::repeat_n([1; 4], usize::from(self.extras)).flatten());
            }
            Some((IpAddr::V6(from), IpAddr::V6(to))) => {
                let mut chain: Vec<u8> = [0, 43, 60].into_iter().cycle().take(usize::from(self.extras)).collect();
                if self.fragment > 0 {
                    chain.push(44);
                }
                chain.push(self.protocol);
                frame.extend([0x60, 0, 0, 0, 0, 40, chain[0], 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                for pair in chain.windows(2) {
                    match pair[0] {
                        44 => frame.extend([pair[1], 0, 0, if self.fragment == 2 { 8 } else { 1 }, 0, 0, 0, 9]),
                        // A routing header with 8 bytes more than the minimum.
                        43 => frame.extend([[pair[1], 1, 0, 0, 0, 0, 0, 0], [0; 8]].concat()),
                        _ => frame.extend([pair[1], 0, 0, 0, 0, 0, 0, 0]),
                    }
                }
            }
            _ => {}
        }
        frame.extend([self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat());
        frame.extend([0; 24]);
        frame.truncate(frame.len() - self.cut.min(frame.len() - 14));
        frame
    }

    fn has_ports(&self) -> bool {
        self.addresses.is_some() && [6, 17, 33, 132, 136].contains(&self.protocol) && self.fragment < 2
    }

    fn is_selected(&self, by: &Selector) -> bool {
        let ports = [self.ports.0, self.ports.1];
        by.ether_type.is_none_or(|it| it == self.ether_type)
            && by.vlan.is_none_or(|it| self.tags.first().is_some_and(|(_, tag)| tag & 0xfff == it))
            && by.protocol.is_none_or(|it| self.addresses.is_some() && self.protocol == it)
            && by.port.is_none_or(|it| self.has_ports() && ports.contains(&it))
            && by
                .prefix
                .is_none_or(|it| self.addresses.is_some_and(|(from, to)| it.contains(&from) || it.contains(&to)))
    }

    fn is_taken(&self, by: &Filter) -> bool {
        let any = |list: &[Selector]| list.iter().any(|selector| self.is_selected(selector));
        !any(&by.except) && (by.take.is_empty() || any(&by.take))
    }
}

fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    // Generate few different addresses, so that prefixes match them. Some addresses have their high bits set, which the
    // program must not treat as sign bits.
    (0..4u8, 0..3u8).prop_map(move |(first, last)| match v6 {
        false => IpAddr::from([[10, 192, 203, 255][usize::from(first)], 1, 128, last]),
        true => {
            let mut octets = [0; 16];
            (octets[0], octets[1], octets[7], octets[15]) =
                ([0xfd, 0x20, 0xff, 0xfe][usize::from(first)], 1, 0x80, last);
            IpAddr::from(octets)
        }
    })
}

fn test_frame() -> impl Strategy<Value = TestFrame> {
    let tag = (prop_oneof![Just(0x8100u16), Just(0x88a8)], (0..8u16, 9..12u16).prop_map(|(pcp, id)| pcp << 13 | id));
    let ip = any::<bool>().prop_flat_map(|v6| (Just(v6), address(v6), address(v6)));
    let kind = prop_oneof![
        4 => ip.prop_map(|(v6, from, to)| (if v6 { 0x86dd } else { 0x0800 }, Some((from, to)))),
        1 => prop_oneof![Just(0x0806u16), Just(0x88b5)].prop_map(|ether_type| (ether_type, None)),
    ];
    let protocol = prop_oneof![Just(6u8), Just(17), Just(1), Just(132), Just(50)];
    (prop::collection::vec(tag, 0..3), kind, protocol, (20..24u16, 20..24u16), 0..4u8, 0..3u8).prop_map(
        |(tags, (ether_type, addresses), protocol, ports, extras, fragment)| TestFrame {
            tags,
            ether_type,
            protocol,
            addresses,
            ports,
            extras,
            fragment,
            cut: 0,
        },
    )
}

fn selector() -> impl Strategy<Value = Selector> {
    let prefix = any::<bool>().prop_flat_map(|v6| (address(v6), 0..=if v6 { 128u8 } else { 32 }));
    let prefix = prefix.prop_map(|(address, length)| IpNet::new(address, length).unwrap());
    (
        prop::option::weighted(0.3, prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x0806), Just(0x88b5)]),
        prop::option::weighted(0.2, 9..12u16),
        prop::option::weighted(0.3, prop_oneof![Just(6u8), Just(17), Just(1), Just(132)]),
        prop::option::weighted(0.3, 20..24u16),
        prop::option::weighted(0.3, prefix),
    )
        .prop_map(|(ether_type, vlan, protocol, port, prefix)| Selector {
            ether_type,
            vlan,
            protocol,
            port,
            prefix,
        })
}

fn filter() -> impl Strategy<Value = Filter> {
    let list = || prop::collection::vec(selector(), 0..4);
    (list(), list()).prop_map(|(take, except)| Filter { take, except })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The verifier accepts every program, and the program's verdict matches the filter.
    #[test]
    fn program_verdict_matches_the_filter(filter in filter(), frames in prop::collection::vec(test_frame(), 60)) {
        let Some(program) = load(&filter) else { return Ok(()) };
        for frame in frames {
            let verdict = program.test(&frame.bytes()).unwrap();
            let expected = if frame.is_taken(&filter) { TAKEN } else { PASS };
            prop_assert_eq!(verdict, expected, "{:?} by {:?}", frame, filter);
        }
    }

    /// For any bytes, the program returns `TAKEN` or `PASS`.
    #[test]
    fn truncated_and_corrupted_frames_get_a_valid_verdict(
        filter in filter(),
        mut frame in test_frame(),
        cut in 0..120usize,
        garbage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let Some(program) = load(&filter) else { return Ok(()) };
        frame.cut = cut;
        let mut bytes = frame.bytes();
        for (at, byte) in garbage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let verdict = program.test(&bytes).unwrap();
        prop_assert!([TAKEN, PASS].contains(&verdict), "{verdict}");
    }
}

#[test]
fn empty_filter_takes_every_frame() {
    let Some(program) = load(&Filter::default()) else { return };
    assert_eq!(program.test(&[0; 14]).unwrap(), TAKEN);
    assert_eq!(program.test(&[0xff; 1500]).unwrap(), TAKEN);
}

#[test]
fn too_long_filter_is_refused() {
    let selector = Selector { prefix: Some("2001:db8::1/128".parse().unwrap()), ..Selector::default() };
    assert!(
        program(
            &Filter { take: vec![selector.clone(); 200], except: Vec::new() },
            Taken::Verdict(TAKEN),
            StampSource::Nothing
        )
        .is_some()
    );
    assert!(
        program(
            &Filter { take: vec![selector; 5_000], except: Vec::new() },
            Taken::Verdict(TAKEN),
            StampSource::Nothing
        )
        .is_none()
    );
}

/// A veth interface has no clock, but its driver supports the kernel function that returns the time. The kernel accepts
/// the program only for the interface to which the program is bound.
#[test]
fn program_with_nic_stamps_is_bound_to_one_interface() {
    in_namespace(|| {
        veth(1, 1500);
        let index = |name| Interface::need(name).unwrap().index;
        let Some(function) = btf::function(NIC_STAMP).filter(|_| driver_reports_nic_time(index("vb")) != Some(false))
        else {
            return report_skip("the kernel is older than 6.3 or has no BTF");
        };
        let selector = Selector { port: Some(9), ..Selector::default() };
        let filter = Filter { take: vec![selector], except: Vec::new() };
        let map = SocketMap::new(1).unwrap();
        let code = program(&filter, Taken::Socket(map.fd()), StampSource::Nic(function)).unwrap();
        let program = Program::load_bound(&code, index("vb")).unwrap();
        assert!(program.attach(index("va"), Attach::Native).is_err());
        assert!(program.attach(index("vb"), Attach::Generic).is_err());
        drop(program.attach(index("vb"), Attach::Native).unwrap());
        assert!(Program::load(&code).is_err(), "the kernel must refuse the program without an interface");
    });
}

#[test]
fn dropped_queue_frees_its_memory_when_the_kernel_has_just_released_it() {
    in_namespace(|| {
        veth(1, 1500);
        // `late`: rounds in which the queue was not released at the last check. `freed`: late rounds in which the drop
        // freed the memory. The kernel may also be faster than the check, or slower than the drop.
        let (mut late, mut freed) = (0, 0);
        for _ in 0..10 {
            let xdp = Arc::new(Xdp::open(&XdpSpec::new("va"), 1514, false).unwrap());
            let layout = SlotLayout::new(HEADROOM.into(), 2048 - usize::from(HEADROOM) - GUARD, 8).unwrap();
            let memory = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
            let region = Arc::new(Region::allocate(memory).unwrap().0);
            let caps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };
            let mut queue = Queue::new(xdp.clone(), 0, caps);
            queue.bind(&region, layout, 0).unwrap();
            queue.open().unwrap();
            xdp.detach(1, true).unwrap();
            assert_eq!(queue.close(), 0);
            // The new program holds these descriptors until the upgrade fails.
            let handed = xdp.detached().unwrap().unwrap();
            xdp.resume(true).unwrap();
            drop(handed);
            let is_late = !queue.is_released();
            let memory = Arc::downgrade(&region);
            drop((queue, region));
            late += usize::from(is_late);
            freed += usize::from(is_late && memory.upgrade().is_none());
        }
        assert!(late == 0 || freed > 0, "{freed} of {late}");
    });
}

#[test]
fn queue_in_use_does_not_count_as_released() {
    in_namespace(|| {
        veth(1, 1500);
        let index = Interface::need("va").unwrap().index;
        let memory = RegionSpec { bytes: 8192, pages: PageKind::Normal, strict: false, node: None };
        let region = Arc::new(Region::allocate(memory).unwrap().0);
        let spec = SocketSpec { bytes: 8192, chunk: 4096, headroom: 0, receives: 1, sends: 1, busy_poll: None };
        let mut user = XdpSocket::new(&region, &spec).map_err(|refused| refused.error).unwrap();
        user.bind(index, 0, Copying::Copy, false, Duration::ZERO).map_err(|refused| refused.error).unwrap();
        assert!(!await_release(&region, index, 0, Duration::ZERO));
        drop(user);
        assert!(await_release(&region, index, 0, PATIENCE));
    });
}

#[test]
fn only_the_error_about_a_missing_queue_shows_its_release() {
    let shows = |errno| shows_release(&std::io::Error::from_raw_os_error(errno));
    assert_eq!([libc::ENODEV, libc::ENXIO, libc::EINVAL].map(shows), [true; 3]);
    assert_eq!([libc::EBUSY, libc::ENOMEM, libc::EPERM].map(shows), [false; 3]);
}

#[test]
fn too_many_open_files_are_reported_with_the_limit_to_raise() {
    let error = std::io::Error::from_raw_os_error(libc::EMFILE);
    let remedy = host_remedy(&error).unwrap();
    assert_eq!(native_problem("p0", &error).1, remedy);
    let text = explain("p0", "loading the XDP program", &error);
    assert_eq!(text, format!("interface `p0`: loading the XDP program: {error}; help: {remedy}"));
}
