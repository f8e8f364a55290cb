//! Tests with the devices `rxe0` and `rxe1` (software RDMA devices of the Linux kernel). The VM of docs/vm.md connects
//! the two devices with a veth pair. `cargo test` ignores these tests, and `tools/vm/check-contract` runs them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::{SelfTest, VerbsAh, VerbsCq, VerbsDevice, VerbsMr, VerbsPd, VerbsProvider, VerbsQp};
use dataplane_core::mem::{Desc, PageKind, Region, RegionSpec, RunSource, SlotLayout};
use dataplane_core::units::{Gid, QpNum, Rkey};
use dataplane_core::verbs::*;

/// A time limit that no operation exceeds, even on a slow host.
const TIMEOUT: Duration = Duration::from_secs(20);
const QKEY: u32 = 0x1111_1111;
const SIZE: usize = 1 << 16;

/// One side of a connection: a device and its objects.
struct Side {
    device: VerbsDevice,
    pd: VerbsPd,
    mr: VerbsMr,
    cq: VerbsCq,
    granted: CqGranted,
    gid: GidEntry,
}

const DEPTH: u32 = 64;
const CAPS: QpCaps = QpCaps { send_depth: DEPTH, recv_depth: DEPTH, send_sges: 4, recv_sges: 4, inline: 128 };

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn region(bytes: usize) -> Arc<Region> {
    let spec = RegionSpec { bytes, pages: PageKind::Normal, strict: false, node: None };
    Arc::new(Region::allocate(spec).unwrap().0)
}

impl Side {
    fn open(name: &str, api: CqApi) -> Self {
        let device = VerbsProvider.open(name).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(region(SIZE), access() | Access::MW_BIND | Access::RELAXED_ORDERING).unwrap();
        let spec = CqSpec { depth: 4 * DEPTH, fields: PollFields::STANDARD, api, ..CqSpec::default() };
        let (cq, granted) = device.create_cq(&spec, None).unwrap();
        let gid = device.gids(1).unwrap().into_iter().find(|entry| entry.index == 0).unwrap();
        Self { device, pd, mr, cq, granted, gid }
    }

    fn qp(&self, kind: QpType, send_api: SendApi) -> VerbsQp {
        let spec = QpSpec { send_api, ..QpSpec::new(kind, CAPS) };
        self.pd.create_qp(&spec, &self.cq, &self.cq, None).unwrap()
    }

    fn addr(&self) -> u64 {
        self.mr.region().base().as_ptr().addr() as u64
    }

    fn sge(&self, part: Range<usize>) -> Sge {
        assert!(part.end <= SIZE);
        Sge { addr: self.addr() + part.start as u64, length: part.len() as u32, lkey: self.mr.lkey() }
    }

    fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.addr() + at as u64, rkey: self.mr.rkey() }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= SIZE);
        // SAFETY: the range is in the region, and no outstanding request refers to it.
        unsafe { self.mr.region().base().add(at).copy_from(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= SIZE);
        // SAFETY: same as above.
        unsafe { std::slice::from_raw_parts(self.mr.region().base().as_ptr().add(at), len) }.to_vec()
    }

    /// Waits until `count` completions have arrived, and returns them.
    fn completions(&mut self, count: usize) -> Vec<Completion> {
        let until = Instant::now() + TIMEOUT;
        let mut all = Vec::new();
        while all.len() < count {
            assert!(Instant::now() < until, "only {all:?} of {count} completions");
            let Some(mut cursor) = self.cq.start_poll().unwrap() else {
                thread::yield_now();
                continue;
            };
            loop {
                all.push(cursor.get());
                if all.len() == count || !cursor.advance().unwrap() {
                    break;
                }
            }
        }
        all
    }

    fn one(&mut self) -> Completion {
        self.completions(1)[0]
    }
}

/// Opens both devices.
fn sides(api: CqApi) -> (Side, Side) {
    (Side::open("rxe0", api), Side::open("rxe1", api))
}

/// Moves a queue pair to RTS. Datagram queue pairs have no peer. Queue pairs of all other types are connected with the
/// queue pair of the peer.
fn connect(own: &Side, qp: &mut VerbsQp, peer: &Side, remote: QpNum) {
    let kind = qp.kind();
    let (mut attributes, mask) = QpAttributes::init(kind, 1, QKEY);
    attributes.access = access();
    qp.modify(&attributes, mask).unwrap();
    let path = Path { gid: peer.gid.gid, source_gid_index: own.gid.index as u8, hop_limit: 64, ..Path::default() };
    let mut attributes = QpAttributes {
        state: QpState::Rtr,
        path,
        path_mtu: 3,
        dest_qp: remote,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        max_rd_atomic: 4,
        timeout: 14,
        retry_count: 6,
        rnr_retry: 6,
        ..QpAttributes::default()
    };
    type M = AttributeMask;
    let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let reliable = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let (rtr, rts) = match kind {
        QpType::Rc => {
            (connected | reliable, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC)
        }
        QpType::Uc => (connected, M::SQ_PSN),
        _ => (M::empty(), M::SQ_PSN),
    };
    qp.modify(&attributes, M::STATE | rtr).unwrap();
    attributes.state = QpState::Rts;
    qp.modify(&attributes, M::STATE | rts).unwrap();
}

fn pair(a: &Side, b: &Side, kind: QpType, api: SendApi) -> (VerbsQp, VerbsQp) {
    let (mut left, mut right) = (a.qp(kind, api), b.qp(kind, api));
    connect(a, &mut left, b, right.number());
    connect(b, &mut right, a, left.number());
    (left, right)
}

fn recv(qp: &mut VerbsQp, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    // SAFETY: the tests access the memory only after they polled the completion or destroyed the queue pair.
    unsafe { qp.post_recv(&[RecvRequest { wr_id, sges }]) }
}

fn request<'a>(wr_id: u64, op: SendOp<'a>, sges: &'a [Sge]) -> SendRequest<'a, VerbsAh> {
    SendRequest { wr_id, op, flags: SendFlags::SIGNALED, sges, to: None }
}

fn send(qp: &mut VerbsQp, request: SendRequest<'_, VerbsAh>) -> Result<(), PostError> {
    // SAFETY: same as in `recv`.
    unsafe { qp.post_send(&[request]) }
}

fn errno(result: Result<(), PostError>) -> (usize, i32) {
    let refused = result.unwrap_err();
    (refused.accepted, refused.error.errno)
}

fn good(completion: &Completion, wr_id: u64, opcode: WcOpcode) {
    assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::Success), "{completion:?}");
    assert_eq!(completion.opcode(), Some(opcode));
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn device_lists_capabilities_and_reasons_for_missing_ones() {
    let device = VerbsProvider.devices().unwrap().into_iter().find(|device| device.name == "rxe0").unwrap();
    assert_eq!(device.driver, "rxe");
    let capabilities = device.capabilities.unwrap();
    for has in [Capability::Rc, Capability::Uc, Capability::Datagram, Capability::Srq, Capability::MemoryWindow] {
        assert!(capabilities.has.contains(&has), "{has}: {:?}", device.missing);
    }
    let raw = device.missing.iter().find(|missing| missing.capability == Capability::RawPacket).unwrap();
    assert!(raw.why.contains("ibv_create_qp"), "{}", raw.why);
    // Each capability is either present, or missing with a reason.
    assert_eq!(capabilities.has.len() + device.missing.len(), Capability::ALL.len());
    assert!(device.missing.iter().all(|missing| !missing.why.is_empty()));
    assert!(device.library.is_some() && device.queue.is_some());
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn ports_addresses_and_partition_keys_match_the_kernel() {
    let (side, _) = sides(CqApi::Auto);
    let port = side.device.port(1).unwrap();
    assert!(port.is_active() && port.link_layer == LinkLayer::Ethernet && port.active_mtu == 1024, "{port:?}");
    assert_eq!(side.device.port(2).unwrap_err().errno, libc::EINVAL);
    assert_eq!((side.gid.kind, &side.gid.gid.0[..2]), (GidKind::RoceV2, &[0xfe, 0x80][..]));
    assert!(side.gid.interface > 0);
    assert_eq!(side.device.pkey(1, 0), Ok(0xffff));
    assert!(side.device.pkey(1, 1000).is_err());
    assert_eq!(side.device.raw_clock().unwrap_err().errno, libc::EOPNOTSUPP);
    assert!(VerbsProvider.open("nothing7").unwrap_err().to_string().contains("rxe0"));
}

/// Tests every operation of a reliable connection with both send interfaces.
#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn reliable_connection_carries_every_operation() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let (mut a, mut b) = sides(CqApi::Auto);
        let (mut left, mut right) = pair(&a, &b, QpType::Rc, api);
        a.write(0, b"first and second");
        // A send from two elements, received into two elements.
        recv(&mut right, 1, &[b.sge(100..103), b.sge(200..300)]).unwrap();
        send(&mut left, request(2, SendOp::Send, &[a.sge(0..5), a.sge(10..16)])).unwrap();
        good(&a.one(), 2, WcOpcode::Send);
        let got = b.one();
        good(&got, 1, WcOpcode::Recv);
        assert_eq!((got.byte_len(), got.imm(), got.qp_num()), (Some(11), None, Some(right.number())));
        assert_eq!((b.read(100, 3), b.read(200, 8)), (b"fir".to_vec(), b"stsecond".to_vec()));
        // An inline send with immediate data.
        recv(&mut right, 3, &[b.sge(0..64)]).unwrap();
        let inline = SendFlags::INLINE | SendFlags::SIGNALED;
        let imm = 0x1234_5678u32.to_be();
        send(&mut left, SendRequest { flags: inline, ..request(4, SendOp::SendWithImm(imm), &[a.sge(0..5)]) }).unwrap();
        a.write(0, b"FIRST");
        good(&a.one(), 4, WcOpcode::Send);
        let got = b.one();
        good(&got, 3, WcOpcode::Recv);
        assert_eq!((got.imm(), b.read(0, 5)), (Some(imm), b"first".to_vec()));
        // RDMA writes.
        send(&mut left, request(5, SendOp::RdmaWrite(b.remote(1000)), &[a.sge(0..5)])).unwrap();
        good(&a.one(), 5, WcOpcode::RdmaWrite);
        assert_eq!(b.read(1000, 6), b"FIRST\0");
        recv(&mut right, 6, &[]).unwrap();
        send(&mut left, request(7, SendOp::RdmaWriteWithImm(b.remote(2000), imm), &[a.sge(5..16)])).unwrap();
        good(&a.one(), 7, WcOpcode::RdmaWrite);
        let got = b.one();
        good(&got, 6, WcOpcode::RecvRdmaWithImm);
        assert_eq!((got.imm(), b.read(2000, 11)), (Some(imm), b" and second".to_vec()));
        // RDMA reads and atomics.
        send(&mut left, request(8, SendOp::RdmaRead(b.remote(2000)), &[a.sge(3000..3011)])).unwrap();
        good(&a.one(), 8, WcOpcode::RdmaRead);
        assert_eq!(a.read(3000, 11), b" and second");
        b.write(4096, &5u64.to_ne_bytes());
        send(&mut left, request(9, SendOp::FetchAdd { remote: b.remote(4096), add: 37 }, &[a.sge(512..520)])).unwrap();
        good(&a.one(), 9, WcOpcode::FetchAdd);
        assert_eq!((a.read(512, 8), b.read(4096, 8)), (5u64.to_ne_bytes().to_vec(), 42u64.to_ne_bytes().to_vec()));
        let swap = SendOp::CompareSwap { remote: b.remote(4096), compare: 42, swap: 7 };
        send(&mut left, request(10, swap, &[a.sge(512..520)])).unwrap();
        good(&a.one(), 10, WcOpcode::CompSwap);
        assert_eq!((a.read(512, 8), b.read(4096, 8)), (42u64.to_ne_bytes().to_vec(), 7u64.to_ne_bytes().to_vec()));
        // An empty message.
        recv(&mut right, 11, &[]).unwrap();
        send(&mut left, request(12, SendOp::Send, &[])).unwrap();
        good(&a.one(), 12, WcOpcode::Send);
        assert_eq!(b.one().byte_len(), Some(0));
        assert_eq!((left.state(), right.state()), (QpState::Rts, QpState::Rts));
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn datagrams_arrive_and_carry_their_sender() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let (mut a, mut b) = sides(CqApi::Auto);
        let (mut left, mut right) = pair(&a, &b, QpType::Ud, api);
        let path = Path { gid: b.gid.gid, source_gid_index: 0, hop_limit: 64, ..Path::default() };
        let ah = a.pd.create_ah(&path).unwrap();
        assert_eq!(ah.path(), &path);
        let to = Some(Destination { ah: &ah, qp: right.number(), qkey: QKEY });
        a.write(0, b"datagram");
        recv(&mut right, 1, &[b.sge(0..40 + 1024)]).unwrap();
        send(&mut left, SendRequest { to, ..request(2, SendOp::Send, &[a.sge(0..8)]) }).unwrap();
        good(&a.one(), 2, WcOpcode::Send);
        let got = b.one();
        good(&got, 1, WcOpcode::Recv);
        assert_eq!((got.byte_len(), got.src_qp()), (Some(48), Some(left.number())));
        assert!(got.flags().unwrap().contains(WcFlags::GRH));
        assert_eq!(b.read(40, 8), b"datagram");
        // A datagram that is longer than the MTU is refused. The device would drop the datagram and report success.
        let long = [a.sge(0..1025)];
        assert_eq!(errno(send(&mut left, SendRequest { to, ..request(3, SendOp::Send, &long) })), (0, libc::EINVAL));
        assert_eq!(errno(send(&mut left, request(4, SendOp::Send, &[]))), (0, libc::EINVAL));
        let other = a.device.alloc_pd().unwrap().create_ah(&path).unwrap();
        let astray = Some(Destination { ah: &other, qp: right.number(), qkey: QKEY });
        assert_eq!(
            errno(send(&mut left, SendRequest { to: astray, ..request(5, SendOp::Send, &[]) })),
            (0, libc::EINVAL)
        );
        // A datagram with a wrong Q_Key is sent but not received.
        recv(&mut right, 6, &[b.sge(0..1064)]).unwrap();
        let locked = Some(Destination { ah: &ah, qp: right.number(), qkey: QKEY + 1 });
        send(&mut left, SendRequest { to: locked, ..request(7, SendOp::Send, &[]) }).unwrap();
        send(&mut left, SendRequest { to, ..request(8, SendOp::Send, &[a.sge(0..3)]) }).unwrap();
        let both: Vec<u64> = a.completions(2).iter().map(|completion| completion.wr_id).collect();
        assert_eq!(both, [7, 8]);
        assert_eq!(b.one().byte_len(), Some(43));
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn unreliable_connection_sends_and_writes() {
    let (mut a, mut b) = sides(CqApi::Auto);
    let (mut left, mut right) = pair(&a, &b, QpType::Uc, SendApi::Classic);
    a.write(0, b"unreliable");
    recv(&mut right, 1, &[b.sge(0..100)]).unwrap();
    send(&mut left, request(2, SendOp::Send, &[a.sge(0..10)])).unwrap();
    good(&a.one(), 2, WcOpcode::Send);
    good(&b.one(), 1, WcOpcode::Recv);
    recv(&mut right, 3, &[]).unwrap();
    send(&mut left, request(4, SendOp::RdmaWriteWithImm(b.remote(500), 9), &[a.sge(0..10)])).unwrap();
    good(&a.one(), 4, WcOpcode::RdmaWrite);
    good(&b.one(), 3, WcOpcode::RecvRdmaWithImm);
    assert_eq!((b.read(0, 10), b.read(500, 10)), (b"unreliable".to_vec(), b"unreliable".to_vec()));
}

/// Sends many messages with each poll interface. No completion is lost or returned twice.
#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn every_poll_interface_returns_each_completion_once() {
    const MESSAGES: u64 = 3000;
    for (requested, expected) in [
        (CqApi::Auto, None),
        (CqApi::Classic, Some(CqApi::Classic)),
        (CqApi::ExtendedSingle, Some(CqApi::ExtendedSingle)),
        (CqApi::Extended, None),
    ] {
        let (mut a, mut b) = sides(requested);
        assert!(expected.is_none_or(|expected| a.granted.api == expected), "{}", a.granted);
        let (mut left, mut right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
        let layout = SlotLayout::new(64, 256, 128).unwrap();
        left.bind_slots(&a.mr, layout, 0).unwrap();
        right.bind_slots(&b.mr, layout, 1 << 32).unwrap();
        let (mut posted, mut sent, mut done, mut received) = (0u64, 0u64, 0u64, 0u64);
        let mut run = Completions::new();
        let until = Instant::now() + TIMEOUT;
        while received < MESSAGES || done < MESSAGES {
            assert!(Instant::now() < until, "{requested:?}: sent {sent}, done {done}, received {received}");
            while posted < MESSAGES && posted < received + u64::from(DEPTH) {
                // SAFETY: a slot is posted again only after its completion was polled.
                unsafe { right.post_recv_run(&[(posted % 128) as u32]) }.unwrap();
                posted += 1;
            }
            let n = (posted - sent).min(done + u64::from(DEPTH) - sent).min(7);
            if n > 0 {
                let descs: Vec<Desc> = (sent..sent + n)
                    .map(|number| {
                        let slot = (number % 128) as u32;
                        a.write(slot as usize * layout.stride() as usize + 64, &number.to_be_bytes());
                        Desc { slot, offset: 64, len: 8 }
                    })
                    .collect();
                // SAFETY: at most 64 sends are outstanding, and a slot is reused after 128 sends.
                unsafe { left.post_send_run(&RunSource::new(&descs).run(), sent) }.unwrap();
                sent += n;
            }
            a.cq.poll_run(&mut run, 32).unwrap();
            for at in 0..run.len {
                assert!(!run.failed);
                // Only the last send of a run is signaled, so one completion confirms all earlier sends.
                assert!((done..sent).contains(&run.wr_id[at]), "{requested:?}: {} after {done}", run.wr_id[at]);
                done = run.wr_id[at] + 1;
            }
            b.cq.poll_run(&mut run, 32).unwrap();
            for at in 0..run.len {
                let slot = received % 128;
                assert_eq!(
                    (run.wr_id[at], run.byte_len[at], run.failed),
                    ((1 << 32) + slot, 8, false),
                    "{requested:?}"
                );
                let place = slot as usize * layout.stride() as usize + 64;
                assert_eq!(b.read(place, 8), received.to_be_bytes(), "{requested:?}");
                received += 1;
            }
        }
        assert_eq!((sent, done, received), (MESSAGES, MESSAGES, MESSAGES));
    }
}

/// The self-test finds out which poll interface is reliable. The self-test does not read the version of the library.
/// The result must match the quirk table, which lists the defects of each library version.
#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn self_test_agrees_with_the_quirk_table() {
    let (side, _) = sides(CqApi::Auto);
    let batches = side.device.context().quirks.why(crate::quirk::Quirk::BatchPoll);
    println!("{:?}, table: {batches:?}, granted: {}", side.device.self_test(), side.granted);
    match side.device.self_test() {
        SelfTest::Failed(how) => {
            assert!(batches.is_some(), "{how}");
            assert_eq!(side.granted.api, CqApi::Classic);
        }
        // The quirk `BatchPoll` stands for two defects. The self-test detects only the older defect, which versions
        // from 55 on do not have.
        SelfTest::Passed => {
            let version = side.device.context().library.unwrap().to_string();
            assert!(version.parse::<f32>().unwrap() >= 55.0, "{version}");
        }
        SelfTest::Unknown(why) => panic!("{why}"),
    }
    if side.granted.api == CqApi::Classic {
        assert!(side.granted.refused.contains(&Capability::ExtendedCq) && !side.granted.why.is_empty());
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn missing_queue_features_are_reported() {
    let (side, _) = sides(CqApi::Auto);
    let all = CqSpec { depth: 10, fields: PollFields::all(), flags: CqFlags::all(), ..CqSpec::default() };
    // The ports of rxe are Ethernet ports, which have no LID and no service level.
    let path = PollFields::SLID.union(PollFields::SL).union(PollFields::DLID_PATH_BITS);
    let on_ethernet = PollFields::STANDARD.difference(path);
    for api in [CqApi::Auto, CqApi::Classic, CqApi::ExtendedSingle] {
        let (cq, granted) = side.device.create_cq(&CqSpec { api, ..all }, None).unwrap();
        println!("{granted}: {:#?}", granted.why);
        assert_eq!(granted.fields, on_ethernet);
        assert!(cq.depth() >= 10 && granted.depth == cq.depth());
        for none in [Capability::Timestamps, Capability::FlowTag, Capability::IgnoreOverrun, Capability::TagMatching] {
            assert!(granted.refused.contains(&none), "{none}");
        }
        let single = api == CqApi::ExtendedSingle;
        assert_eq!(granted.flags.contains(CqFlags::SINGLE_THREADED), single);
        assert_eq!(granted.refused.contains(&Capability::SingleThreaded), !single);
    }
    for wrong in [CqSpec { depth: 0, ..all }, CqSpec { depth: 1 << 30, ..all }, CqSpec { vector: 99, ..all }] {
        assert_eq!(side.device.create_cq(&wrong, None).unwrap_err().errno, libc::EINVAL);
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn invalid_posts_are_refused_in_every_state() {
    let (a, b) = sides(CqApi::Auto);
    let mut qp = a.qp(QpType::Rc, SendApi::Classic);
    let sges = [a.sge(0..8)];
    let refused = Err((0, libc::EINVAL));
    let try_recv = |qp: &mut VerbsQp| recv(qp, 1, &sges).map_err(|refused| (refused.accepted, refused.error.errno));
    let try_send = |qp: &mut VerbsQp, op| {
        send(qp, request(2, op, &sges)).map_err(|refused| (refused.accepted, refused.error.errno))
    };
    assert_eq!((try_recv(&mut qp), try_send(&mut qp, SendOp::Send)), (refused, refused));
    let (attributes, mask) = QpAttributes::init(QpType::Rc, 1, 0);
    qp.modify(&attributes, mask).unwrap();
    assert_eq!((try_recv(&mut qp), try_send(&mut qp, SendOp::Send)), (Ok(()), refused));
    // State changes that do not exist, and attributes that refer to missing table entries.
    let none = QpAttributes::default();
    let wrong = |state, mask| (QpAttributes { state, ..none }, AttributeMask::STATE | mask);
    for (attributes, mask) in [
        wrong(QpState::Rts, AttributeMask::empty()),
        wrong(QpState::Rtr, AttributeMask::empty()),
        (QpAttributes { pkey_index: 500, ..none }, AttributeMask::PKEY_INDEX),
        (QpAttributes { port: 2, ..none }, AttributeMask::PORT),
    ] {
        assert_eq!(qp.modify(&attributes, mask).unwrap_err().errno, libc::EINVAL, "{mask:?}");
    }
    assert_eq!(qp.query().unwrap().state, QpState::Init);
    let mut qp = a.qp(QpType::Rc, SendApi::Classic);
    connect(&a, &mut qp, &b, QpNum(0x123));
    let atomic = SendOp::FetchAdd { remote: Remote { addr: 4, rkey: Rkey(1) }, add: 1 };
    assert_eq!(try_send(&mut qp, atomic), refused);
    let many = [a.sge(0..1); 33];
    assert_eq!(errno(send(&mut qp, request(3, SendOp::Send, &many))), (0, libc::EINVAL));
    let inline = SendFlags::INLINE;
    let long = [a.sge(0..qp.caps().inline as usize + 1)];
    assert_eq!(
        errno(send(&mut qp, SendRequest { flags: inline, ..request(3, SendOp::Send, &long) })),
        (0, libc::EINVAL)
    );
    // If no outstanding reads are allowed, a device may wait indefinitely before it executes a read.
    let mut qp = a.qp(QpType::Rc, SendApi::Classic);
    connect(&a, &mut qp, &b, QpNum(0x123));
    qp.may_read = false;
    assert_eq!(try_send(&mut qp, SendOp::RdmaRead(b.remote(0))), refused);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn receives_beyond_the_queue_depth_are_refused() {
    let (a, _) = sides(CqApi::Auto);
    let mut qp = a.qp(QpType::Rc, SendApi::Classic);
    let (attributes, mask) = QpAttributes::init(QpType::Rc, 1, 0);
    qp.modify(&attributes, mask).unwrap();
    let requests: Vec<_> = (0..1000).map(|wr_id| RecvRequest { wr_id, sges: &[] }).collect();
    // SAFETY: the requests refer to no memory.
    let (accepted, errno) = errno(unsafe { qp.post_recv(&requests) });
    assert_eq!(errno, libc::ENOMEM);
    assert!((DEPTH as usize..1000).contains(&accepted), "{accepted}");
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn stopped_queue_pair_flushes_all_requests() {
    let (mut a, b) = sides(CqApi::Auto);
    let (mut left, _right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
    for wr_id in 0..5 {
        recv(&mut left, wr_id, &[a.sge(0..8)]).unwrap();
    }
    let (attributes, mask) = QpAttributes::to(QpState::Err);
    left.modify(&attributes, mask).unwrap();
    send(&mut left, request(9, SendOp::Send, &[])).unwrap();
    let all = a.completions(6);
    assert!(all.iter().all(|completion| completion.status == WcStatus::WrFlushErr), "{all:?}");
    assert!(all.iter().all(|completion| completion.qp_num() == Some(left.number()) && completion.opcode().is_none()));
    let ids: BTreeSet<u64> = all.iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, BTreeSet::from([0, 1, 2, 3, 4, 9]));
    // The queue pair can be reset and connected again.
    let (attributes, mask) = QpAttributes::to(QpState::Reset);
    left.modify(&attributes, mask).unwrap();
    connect(&a, &mut left, &b, QpNum(5));
    assert_eq!(left.query().unwrap().state, QpState::Rts);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn failed_completion_changes_the_reported_state() {
    let (mut a, mut b) = sides(CqApi::Auto);
    let (mut left, mut right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
    recv(&mut right, 2, &[]).unwrap();
    send(&mut left, request(1, SendOp::RdmaWrite(Remote { addr: 8, rkey: Rkey(0x77) }), &[a.sge(0..8)])).unwrap();
    let failed = a.one();
    assert_eq!((failed.wr_id, failed.status, failed.byte_len()), (1, WcStatus::RemAccessErr, None));
    assert_eq!(left.state(), QpState::Err);
    assert_eq!(b.one().status, WcStatus::WrFlushErr);
    // Receives that are posted after the failure are flushed too, both before and after the new state was queried.
    recv(&mut right, 3, &[]).unwrap();
    assert_eq!(right.state(), QpState::Err);
    recv(&mut right, 4, &[]).unwrap();
    let late: Vec<_> = b.completions(2).iter().map(|completion| (completion.wr_id, completion.status)).collect();
    assert_eq!(late, [(3, WcStatus::WrFlushErr), (4, WcStatus::WrFlushErr)]);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn armed_queue_wakes_a_waiting_thread() {
    let (a, mut b) = sides(CqApi::Auto);
    let channel = b.device.create_channel().unwrap();
    let spec = CqSpec { depth: 256, fields: PollFields::STANDARD, ..CqSpec::default() };
    b.cq = b.device.create_cq(&spec, Some(&channel)).unwrap().0;
    let (mut left, mut right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
    assert_eq!(channel.wait(Duration::ZERO), Ok(None));
    // The channel acknowledges 32 events at a time, so 70 events need more than two acknowledgements.
    for round in 0..70 {
        recv(&mut right, round, &[]).unwrap();
        b.cq.arm(false).unwrap();
        send(&mut left, request(round, SendOp::Send, &[])).unwrap();
        assert_eq!(channel.wait(TIMEOUT), Ok(Some(b.cq.number())));
        assert_eq!(b.one().wr_id, round);
    }
    // With solicited notification, only a solicited completion raises an event.
    b.cq.arm(true).unwrap();
    for (wr_id, flags) in [(100, SendFlags::SIGNALED), (101, SendFlags::SIGNALED | SendFlags::SOLICITED)] {
        recv(&mut right, wr_id, &[]).unwrap();
        assert_eq!(channel.wait(Duration::from_millis(50)), Ok(None));
        send(&mut left, SendRequest { flags, ..request(wr_id, SendOp::Send, &[]) }).unwrap();
        assert_eq!(b.one().wr_id, wr_id);
    }
    assert_eq!(channel.wait(TIMEOUT), Ok(Some(b.cq.number())));
    // An event that no thread has taken does not block the destruction of the queue.
    recv(&mut right, 102, &[]).unwrap();
    b.cq.arm(false).unwrap();
    send(&mut left, request(102, SendOp::Send, &[])).unwrap();
    assert_eq!(b.one().wr_id, 102);
    drop((left, right, b, channel));
    let (mut cq, _) = a.device.create_cq(&spec, None).unwrap();
    assert_eq!(cq.arm(false).unwrap_err().errno, libc::EINVAL);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn queue_can_be_dropped_while_a_thread_waits() {
    let (a, _) = sides(CqApi::Auto);
    let channel = a.device.create_channel().unwrap();
    let spec = CqSpec { depth: 16, ..CqSpec::default() };
    let (cq, _) = a.device.create_cq(&spec, Some(&channel)).unwrap();
    let waits = channel.clone();
    let thread = thread::spawn(move || waits.wait(Duration::from_millis(300)));
    drop((cq, channel));
    assert_eq!(thread.join().unwrap(), Ok(None));
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn srq_is_shared_and_reports_its_limit() {
    let (a, mut b) = sides(CqApi::Auto);
    let mut srq = b.pd.create_srq(&SrqSpec { depth: 10, sges: 2 }).unwrap();
    assert!(srq.depth() >= 10);
    let make = |b: &Side| b.pd.create_qp(&QpSpec::new(QpType::Rc, CAPS), &b.cq, &b.cq, Some(&srq)).unwrap();
    let mut rights = [make(&b), make(&b)];
    let mut lefts = [a.qp(QpType::Rc, SendApi::Classic), a.qp(QpType::Rc, SendApi::Classic)];
    for (left, right) in lefts.iter_mut().zip(&mut rights) {
        connect(&a, left, &b, right.number());
        connect(&b, right, &a, left.number());
        assert_eq!(errno(recv(right, 1, &[])), (0, libc::EINVAL));
    }
    while b.device.poll_async_event().is_some() {}
    let parts: Vec<[Sge; 1]> = (0..5).map(|at| [b.sge(at * 100..at * 100 + 100)]).collect();
    let requests: Vec<_> = (0..).zip(&parts).map(|(wr_id, sges)| RecvRequest { wr_id, sges }).collect();
    // SAFETY: the memory is accessed only after its completion.
    unsafe { srq.post_recv(&requests) }.unwrap();
    srq.arm_limit(4).unwrap();
    assert_eq!(srq.limit(), Ok(4));
    assert_eq!(b.device.poll_async_event(), None);
    for (turn, left) in (0..).zip([0, 1, 0]) {
        a.write(0, &[turn; 10]);
        send(&mut lefts[left], request(u64::from(turn), SendOp::Send, &[a.sge(0..10)])).unwrap();
        let got = b.one();
        assert_eq!(got.qp_num(), Some(rights[left].number()));
        assert_eq!(b.read(got.wr_id as usize * 100, 10), [turn; 10]);
    }
    let event = b.device.wait_async_event(TIMEOUT);
    assert_eq!(event, Some(AsyncEvent { kind: EventKind::SrqLimitReached, element: srq.number() }));
    assert_eq!(srq.arm_limit(10_000).unwrap_err().errno, libc::EINVAL);
    // SAFETY: the requests refer to no memory.
    let full = errno(unsafe { srq.post_recv(&vec![RecvRequest { wr_id: 0, sges: &[] }; 100]) });
    assert_eq!(full.1, libc::ENOMEM);
    assert!(full.0 >= 8, "{full:?}");
    srq.resize(100).unwrap();
    // SAFETY: the requests refer to no memory.
    unsafe { srq.post_recv(&[RecvRequest { wr_id: 0, sges: &[] }; 50]) }.unwrap();
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn memory_windows_grant_and_revoke_access() {
    let (mut a, mut b) = sides(CqApi::Auto);
    for kind in [MwKind::Type1, MwKind::Type2] {
        let (mut left, mut right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
        let mut window = b.pd.alloc_mw(kind).unwrap();
        let before = window.rkey();
        let mr = b.mr.clone();
        let bind = MwBind {
            wr_id: 1,
            flags: SendFlags::SIGNALED,
            mr: &mr,
            addr: b.addr() + 1000,
            length: 100,
            access: Access::REMOTE_WRITE,
        };
        right.bind_mw(&mut window, &bind).unwrap();
        good(&b.one(), 1, WcOpcode::BindMw);
        assert_ne!(window.rkey(), before);
        a.write(0, b"through it");
        let place = Remote { addr: b.addr() + 1000, rkey: window.rkey() };
        send(&mut left, request(2, SendOp::RdmaWrite(place), &[a.sge(0..10)])).unwrap();
        good(&a.one(), 2, WcOpcode::RdmaWrite);
        assert_eq!(b.read(1000, 10), b"through it");
        if kind == MwKind::Type2 {
            // The peer invalidates the window with a message, and the completion reports the key.
            recv(&mut right, 3, &[]).unwrap();
            send(&mut left, request(4, SendOp::SendWithInv(window.rkey()), &[])).unwrap();
            good(&a.one(), 4, WcOpcode::Send);
            let got = b.one();
            good(&got, 3, WcOpcode::Recv);
            assert_eq!(got.invalidated_rkey(), Some(window.rkey()), "{got:?}");
        } else {
            right.bind_mw(&mut window, &MwBind { length: 0, ..bind }).unwrap();
            good(&b.one(), 1, WcOpcode::BindMw);
        }
        send(&mut left, request(5, SendOp::RdmaWrite(place), &[a.sge(0..10)])).unwrap();
        assert_eq!(a.one().status, WcStatus::RemAccessErr, "{kind:?}");
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn multicast_reaches_members_only() {
    let (mut a, mut b) = sides(CqApi::Auto);
    let (mut left, mut right) = pair(&a, &b, QpType::Ud, SendApi::Classic);
    let group: Gid = "ff0e::1234:5678".parse().unwrap();
    let mut connected = b.qp(QpType::Rc, SendApi::Classic);
    assert_eq!(connected.attach_multicast(group, 0).unwrap_err().errno, libc::EINVAL);
    assert_eq!(right.attach_multicast(b.gid.gid, 0).unwrap_err().errno, libc::EINVAL);
    right.attach_multicast(group, 0).unwrap();
    // The kernel delivers a multicast group only if an interface has joined the group.
    let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
    socket.join_multicast_v6(&group.0.into(), b.gid.interface).unwrap();
    let path = Path { gid: group, source_gid_index: 0, hop_limit: 64, ..Path::default() };
    let ah = a.pd.create_ah(&path).unwrap();
    let to = Some(Destination { ah: &ah, qp: QpNum(0xff_ffff), qkey: QKEY });
    recv(&mut right, 1, &[b.sge(0..1064)]).unwrap();
    a.write(0, b"to all");
    send(&mut left, SendRequest { to, ..request(2, SendOp::Send, &[a.sge(0..6)]) }).unwrap();
    good(&a.one(), 2, WcOpcode::Send);
    good(&b.one(), 1, WcOpcode::Recv);
    assert_eq!(b.read(40, 6), b"to all");
    right.detach_multicast(group, 0).unwrap();
    assert_eq!(right.detach_multicast(group, 0).unwrap_err().errno, libc::EINVAL);
    // A queue pair can be destroyed while it is a member of a multicast group. The next queue pair has another number.
    right.attach_multicast(group, 0).unwrap();
    let number = right.number();
    drop(right);
    assert_ne!(b.qp(QpType::Ud, SendApi::Classic).number(), number);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn datagram_runs_go_to_the_bound_peer() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let (mut a, mut b) = sides(CqApi::Auto);
        let (mut left, mut right) = pair(&a, &b, QpType::Ud, api);
        let layout = SlotLayout::new(0, 1064, 32).unwrap();
        let path = Path { gid: b.gid.gid, hop_limit: 64, ..Path::default() };
        let ah = a.pd.create_ah(&path).unwrap();
        let run: Vec<Desc> = (0..20).map(|slot| Desc { slot, offset: 40, len: 10 + slot as u16 }).collect();
        // SAFETY: the test does not access the slots until they have been sent.
        assert_eq!(errno(unsafe { left.post_send_run(&RunSource::new(&run).run(), 7) }), (0, libc::EINVAL));
        left.bind_slots(&a.mr, layout, 0).unwrap();
        right.bind_slots(&b.mr, layout, 100).unwrap();
        // SAFETY: same as above.
        assert_eq!(errno(unsafe { left.post_send_run(&RunSource::new(&run).run(), 7) }), (0, libc::EINVAL));
        left.bind_peer(Destination { ah: &ah, qp: right.number(), qkey: QKEY }).unwrap();
        let slots: Vec<u32> = (0..32).rev().collect();
        // SAFETY: the test accesses the slots only after they have been received.
        unsafe { right.post_recv_run(&slots) }.unwrap();
        for slot in 0..20 {
            a.write(slot * layout.stride() as usize + 40, &[slot as u8; 10]);
        }
        let mut run = run;
        run.push(Desc { slot: 1, offset: 0, len: 1025 });
        // SAFETY: same as above. The last send is too long, so only the twenty sends before it are posted.
        assert_eq!(errno(unsafe { left.post_send_run(&RunSource::new(&run).run(), 7) }), (20, libc::EINVAL));
        good(&a.one(), 26, WcOpcode::Send);
        for (at, got) in b.completions(20).iter().enumerate() {
            good(got, 131 - at as u64, WcOpcode::Recv);
            assert_eq!(got.byte_len(), Some(50 + at as u32));
            assert_eq!(b.read((31 - at) * layout.stride() as usize + 40, 10), [at as u8; 10]);
        }
        assert!(a.cq.start_poll().unwrap().is_none());
        assert_eq!(left.bind_slots(&a.mr, layout, 0).unwrap_err().errno, libc::EBUSY);
        // SAFETY: the call is refused.
        assert_eq!(errno(unsafe { right.post_recv_run(&[32]) }), (0, libc::EINVAL));
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn drained_send_queue_and_overrun_queue_raise_events() {
    let (a, b) = sides(CqApi::Auto);
    let (mut left, _right) = pair(&a, &b, QpType::Rc, SendApi::Classic);
    while a.device.poll_async_event().is_some() {}
    let (attributes, mask) = QpAttributes::to(QpState::Sqd);
    let notify = QpAttributes { notify_drained: true, ..attributes };
    left.modify(&notify, mask | AttributeMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    let event = a.device.wait_async_event(TIMEOUT);
    assert_eq!(event, Some(AsyncEvent { kind: EventKind::SqDrained, element: left.number().0 }));
    // Raise more completions than the queue can hold.
    let (mut small, granted) = a.device.create_cq(&CqSpec { depth: 1, ..CqSpec::default() }, None).unwrap();
    let mut qp = a.pd.create_qp(&QpSpec::new(QpType::Rc, CAPS), &a.cq, &small, None).unwrap();
    let (attributes, mask) = QpAttributes::init(QpType::Rc, 1, 0);
    qp.modify(&attributes, mask).unwrap();
    for wr_id in 0..u64::from(granted.depth) + 4 {
        recv(&mut qp, wr_id, &[]).unwrap();
    }
    let (attributes, mask) = QpAttributes::to(QpState::Err);
    qp.modify(&attributes, mask).unwrap();
    let event = a.device.wait_async_event(TIMEOUT);
    assert_eq!(event, Some(AsyncEvent { kind: EventKind::CqErr, element: small.number() }));
    let mut run = Completions::new();
    assert!(small.poll_run(&mut run, MAX_RUN).unwrap() > 0);
    // Events that no thread has taken do not block the destruction of their objects.
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn completion_queue_can_be_resized() {
    let (a, _) = sides(CqApi::Auto);
    let (mut cq, granted) = a.device.create_cq(&CqSpec { depth: 4, ..CqSpec::default() }, None).unwrap();
    assert!(cq.resize(100).unwrap() >= 100 && cq.depth() > granted.depth);
    assert_eq!(cq.resize(0).unwrap_err().errno, libc::EINVAL);
    assert_eq!(cq.resize(1 << 30).unwrap_err().errno, libc::EINVAL);
}

/// Objects may be dropped in any order. No object is used after its destruction, and none remains.
#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn objects_can_be_dropped_in_any_order() {
    let own = TempDevice::new("ends");
    let name = &own.name;
    let resources = || {
        let output = Command::new("rdma").args(["resource", "show", name]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = resources();
    for turn in 0..6 {
        let device = VerbsProvider.open(name).unwrap();
        let gid = wait_for(|| device.gids(1).unwrap().first().map(|entry| entry.gid));
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(region(4096), access()).unwrap();
        let (cq, _) = device.create_cq(&CqSpec { depth: 8, ..CqSpec::default() }, None).unwrap();
        let srq = pd.create_srq(&SrqSpec { depth: 4, sges: 1 }).unwrap();
        let mut qp = pd.create_qp(&QpSpec::new(QpType::Ud, CAPS), &cq, &cq, Some(&srq)).unwrap();
        let window = pd.alloc_mw(MwKind::Type2).unwrap();
        let ah = pd.create_ah(&Path { gid, ..Path::default() }).unwrap();
        qp.bind_peer(Destination { ah: &ah, qp: QpNum(1), qkey: 0 }).unwrap();
        let mut all: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(device),
            Box::new(pd),
            Box::new(mr),
            Box::new(cq),
            Box::new(srq),
            Box::new(qp),
            Box::new(window),
            Box::new(ah),
        ];
        if turn % 2 == 1 {
            all.reverse();
        }
        all.rotate_left(turn);
        for object in all {
            drop(object);
        }
    }
    assert_eq!(resources(), before);
}

/// The completion queue has no lock. A queue pair that another thread drops is destroyed together with the completion
/// queue.
#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn queue_that_has_no_lock_refuses_other_threads() {
    let (a, _) = sides(CqApi::Auto);
    let flags = CqFlags::SINGLE_THREADED;
    let spec = CqSpec { depth: 64, flags, api: CqApi::ExtendedSingle, ..CqSpec::default() };
    let (mut cq, granted) = a.device.create_cq(&spec, None).unwrap();
    assert!(granted.flags.contains(flags));
    let mut qp = a.pd.create_qp(&QpSpec::new(QpType::Rc, CAPS), &cq, &cq, None).unwrap();
    let (attributes, mask) = QpAttributes::init(QpType::Rc, 1, 0);
    qp.modify(&attributes, mask).unwrap();
    let mut run = Completions::new();
    assert_eq!(cq.poll_run(&mut run, 1), Ok(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(errno(recv(&mut qp, 1, &[])), (0, libc::EBUSY));
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            assert_eq!(qp.modify(&attributes, mask).unwrap_err().errno, libc::EBUSY);
            drop(qp);
        });
    });
    assert_eq!(cq.poll_run(&mut run, 1), Ok(0));
    let moved = thread::spawn(move || cq.poll_run(&mut Completions::new(), 1).unwrap_err().errno);
    assert_eq!(moved.join().unwrap(), libc::EBUSY);
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn registration_checks_range_access_and_dmabuf() {
    let (a, _) = sides(CqApi::Auto);
    let refused = |part: Range<usize>, access| a.pd.register_part(region(8192), part, access).unwrap_err().errno;
    assert_eq!(refused(0..0, Access::LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refused(0..8193, Access::LOCAL_WRITE), libc::EINVAL);
    assert_eq!(refused(0..8, Access::REMOTE_WRITE), libc::EINVAL);
    assert_eq!(refused(0..8, Access::REMOTE_ATOMIC), libc::EINVAL);
    assert!(a.pd.register_part(region(8192), 0..8, Access::LOCAL_WRITE | Access::ON_DEMAND).is_err());
    let part = a.pd.register_part(region(8192), 4096..8192, access()).unwrap();
    assert_ne!(part.lkey(), a.mr.lkey());
    let spec = RegionSpec { bytes: 2 << 20, pages: PageKind::Huge2M, strict: true, node: None };
    let (huge, _) = Region::allocate(spec).unwrap();
    assert!(a.pd.register(Arc::new(huge), access()).is_ok());
    let file = std::fs::File::open("/dev/null").unwrap();
    let dmabuf = |offset, length, iova| {
        let fd = std::os::fd::AsFd::as_fd(&file);
        a.pd.register_dmabuf(fd, offset, length, iova, Access::LOCAL_WRITE).unwrap_err().errno
    };
    assert_eq!((dmabuf(0, 0, 0), dmabuf(8, 4096, 0)), (libc::EINVAL, libc::EINVAL));
    assert!([libc::EOPNOTSUPP, libc::EINVAL, libc::EBADF].contains(&dmabuf(0, 4096, 0)));
}

/// The environment variable of the child process that a test starts with a small limit of locked memory.
const LOW_MEMLOCK: &str = "DATAPLANE_TEST_SHORT_OF_MEMLOCK";

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn memlock_limit_error_lists_every_remedy() {
    if std::env::var_os(LOW_MEMLOCK).is_some() {
        let pd = VerbsProvider.open("rxe0").unwrap().alloc_pd().unwrap();
        let error = pd.register(region(1 << 20), access()).unwrap_err();
        return println!("errno {}: {}", error.errno, register_error(error, "rxe0", 1 << 20));
    }
    for (limit, errno, message) in [("65536", libc::ENOMEM, "may lock 64KiB"), ("0", libc::EPERM, "may lock no memory")]
    {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", &format!("--memlock={limit}")]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", "--ignored"]);
        command.arg("tests::real::memlock_limit_error_lists_every_remedy");
        let output = command.env(LOW_MEMLOCK, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let remedies = ["`ulimit -l 1127`", "`LimitMEMLOCK=1127K`", "/etc/security/limits.d/", "CAP_IPC_LOCK"];
        for part in [&format!("errno {errno}: memory: rxe0: ibv_reg_mr"), message].into_iter().chain(remedies) {
            assert!(text.contains(part), "{part}: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Calls `look` until it returns a value.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        match look() {
            Some(found) => return found,
            None => assert!(Instant::now() < until),
        }
        thread::yield_now();
    }
}

/// An rxe device on its own veth pair. The end of the test removes the device and the pair.
struct TempDevice {
    name: String,
    interface: String,
}

impl TempDevice {
    fn run(command: &str) -> Result<(), String> {
        let mut words = command.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn new(of: &str) -> Self {
        let (near, far) = (format!("{of}0"), format!("{of}1"));
        Self::run(&format!("ip link add {near} type veth peer name {far}")).unwrap();
        let own = Self { name: format!("rxe{of}"), interface: near.clone() };
        for command in [
            format!("ip link set {near} up"),
            format!("ip link set {far} up"),
            format!("rdma link add {} type rxe netdev {near}", own.name),
        ] {
            Self::run(&command).unwrap();
        }
        own
    }
}

impl Drop for TempDevice {
    fn drop(&mut self) {
        // The removal of the interface also removes the device.
        let _ = Self::run(&format!("ip link delete {}", self.interface));
    }
}

#[test]
#[ignore = "needs the devices rxe0 and rxe1: run tools/vm/check-contract"]
fn port_and_address_changes_raise_events() {
    let own = TempDevice::new("flap");
    let device = VerbsProvider.open(&own.name).unwrap();
    // Other events may arrive in between, such as an address change that follows a link change.
    let expect = |wanted: EventKind| {
        let until = Instant::now() + TIMEOUT;
        while let Some(event) = device.wait_async_event(until.saturating_duration_since(Instant::now())) {
            if event.kind == wanted {
                return assert_eq!(event.element, 1);
            }
        }
        panic!("the event {wanted} does not arrive");
    };
    TempDevice::run("ip link set flap0 down").unwrap();
    expect(EventKind::PortErr);
    assert!(!device.port(1).unwrap().is_active());
    TempDevice::run("ip link set flap0 up").unwrap();
    expect(EventKind::PortActive);
    assert!(device.port(1).unwrap().is_active());
    // The index of the address is not known, so search the whole table.
    let gid: Gid = "fd00:1234::1".parse().unwrap();
    let find = || device.gids(1).unwrap().into_iter().find(|entry| entry.gid == gid);
    assert_eq!(find(), None);
    TempDevice::run("ip addr add fd00:1234::1/64 dev flap0 nodad").unwrap();
    let until = Instant::now() + TIMEOUT;
    while find().is_none() {
        assert!(Instant::now() < until);
        expect(EventKind::GidChange);
    }
    assert_eq!(find().unwrap().kind, GidKind::RoceV2);
}
