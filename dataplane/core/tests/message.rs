//! Messages between two software devices, and requests that the module `lane::message` refuses.

use dataplane_core::clock::Clocks;
use dataplane_core::lane::message::*;
use dataplane_core::lane::{self, LaneSpec, RawWiring, Stamping};
use dataplane_core::mem::{PageKind, Pool, RecvFields, Region, RegionSpec, SlotLayout};
use dataplane_core::units::Lkey;
use dataplane_core::verbs::{Access, Completion, Device, Path, QpSpec};
use dataplane_core::verbs::{
    CqSpec, Destination, PollFields, QpAttributes, QpCaps, QpType, RecvRequest, SendFlags, SendOp, SendRequest, Sge,
    WcStatus,
};
use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftPd, SoftSpec};

const CAPS: QpCaps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 3, recv_sges: 3, inline: 64 };
const QKEY: u32 = 7;

/// A UD queue pair in RTS, with its completion queue and memory.
struct Endpoint {
    qp: MessageQueuePair<SoftDevice>,
    cq: <SoftDevice as Device>::Cq,
    buffer: Buffer<SoftDevice>,
    domain: MessageDomain<SoftDevice>,
    device: SoftDevice,
}

impl Endpoint {
    fn new(device: SoftDevice) -> Self {
        let domain = MessageDomain::new(&device).unwrap();
        let spec = CqSpec { depth: 32, fields: PollFields::STANDARD, ..CqSpec::default() };
        let cq = device.create_cq(&spec, None).unwrap().0;
        let mut qp = domain.create_qp(&QpSpec::new(QpType::Ud, CAPS), &cq, &cq, None).unwrap();
        for (attributes, mask) in
            [QpAttributes::init(QpType::Ud, 1, QKEY), QpAttributes::rtr(), QpAttributes::rts(QpType::Ud)]
        {
            qp.modify(&attributes, mask).unwrap();
        }
        let buffer = domain.buffer(5000, Access::LOCAL_WRITE).unwrap();
        Self { qp, cq, buffer, domain, device }
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        poll(&mut self.cq, &mut completions, 32).unwrap();
        completions
    }

    fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.poll().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    fn send_to(&mut self, peer: &Self, wr_id: u64, flags: SendFlags, sges: &[Sge]) -> Result<(), i32> {
        let gid = peer.device.gids(1).unwrap()[0].gid;
        let ah = self.domain.create_ah(&Path { gid, ..Path::default() }).unwrap();
        let to = Some(Destination { ah: &ah, qp: peer.qp.number(), qkey: QKEY });
        let flags = flags | SendFlags::SIGNALED;
        let request = SendRequest { wr_id, op: SendOp::Send, flags, sges, to };
        self.qp.post_send(&[request]).map_err(|refused| refused.error.errno)
    }
}

fn pair() -> (Endpoint, Endpoint) {
    let (a, b) = LoopbackLink::pair();
    let spec = |name, last, link| SoftSpec { mac: [2, 0, 0, 0, 0, last], ..SoftSpec::new(name, link) };
    let end = |name, last, link| Endpoint::new(SoftDevice::new(spec(name, last, LinkSpec::Loopback(link))).unwrap());
    (end("a", 1, a), end("b", 2, b))
}

#[test]
fn message_arrives_with_the_sent_bytes() {
    let (mut a, mut b) = pair();
    let text: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
    a.buffer.write(10, &text);
    b.qp.post_recv(&[RecvRequest { wr_id: 5, sges: &[b.buffer.sge(100..2000)] }]).unwrap();
    let parts = [a.buffer.sge(10..11), a.buffer.sge(11..300), a.buffer.sge(300..1010)];
    a.send_to(&b, 4, SendFlags::empty(), &parts).unwrap();
    assert_eq!(a.statuses(), [(4, WcStatus::Success)]);
    let received = b.poll();
    assert_eq!((received.len(), received[0].wr_id, received[0].byte_len()), (1, 5, Some(1040)));
    assert_eq!(b.buffer.to_vec(140..1140), text);
    assert_eq!(b.buffer.to_vec(1140..1200), [0; 60], "nothing is written beyond the message");
}

#[test]
fn inline_bytes_are_copied_when_the_send_is_posted() {
    let (mut a, mut b) = pair();
    a.buffer.write(0, b"before");
    b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[b.buffer.sge(0..100)] }]).unwrap();
    // The provider ignores the keys of the elements of an inline send.
    let sges = [a.buffer.sge(0..2), a.buffer.sge(2..2), a.buffer.sge(2..6)].map(|sge| Sge { lkey: Lkey(99), ..sge });
    a.send_to(&b, 1, SendFlags::INLINE, &sges).unwrap();
    a.buffer.write(0, b"after.");
    assert_eq!(b.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(b.buffer.to_vec(40..46), b"before");
}

/// The provider copies the bytes of an inline send, without a check of the key by the device. A wrong address could
/// therefore send any memory of the process.
#[test]
fn inline_bytes_outside_of_buffers_are_refused() {
    let (mut a, b) = pair();
    let inside = a.buffer.sge(4990..5000);
    let secret = *b"no buffer's";
    for wrong in [
        Sge { addr: secret.as_ptr() as u64, length: 4, lkey: a.buffer.lkey() },
        a.buffer.sge(4990..5001),
        Sge { addr: a.buffer.addr() - 1, ..inside },
        Sge { addr: u64::MAX, ..inside },
        // A buffer of another protection domain.
        b.buffer.sge(0..4),
    ] {
        assert_eq!(a.send_to(&b, 1, SendFlags::INLINE, &[inside, wrong]), Err(libc::EFAULT), "{wrong:?}");
    }
    let gone = a.domain.buffer(64, Access::empty()).unwrap().sge(0..4);
    assert_eq!(a.send_to(&b, 1, SendFlags::INLINE, &[gone]), Err(libc::EFAULT));
    assert_eq!(a.send_to(&b, 1, SendFlags::INLINE, &[inside]), Ok(()));
    // A request that is longer than the inline limit is refused before any byte is copied.
    for length in [65, u32::MAX] {
        let long = Sge { length, ..a.buffer.sge(0..1) };
        assert_eq!(a.send_to(&b, 1, SendFlags::INLINE, &[long]), Err(libc::EINVAL));
        assert_eq!(a.send_to(&b, 1, SendFlags::INLINE, &[inside, long, long]), Err(libc::EINVAL));
    }
}

#[test]
fn send_from_invalid_memory_completes_with_loc_prot_err() {
    let gone = |end: &Endpoint| end.domain.buffer(64, Access::LOCAL_WRITE).unwrap().sge(0..64);
    let wrongs: [fn(&Endpoint, &Endpoint) -> Sge; 5] = [
        |a, _| Sge { lkey: Lkey(0xdead_beef), ..a.buffer.sge(0..64) },
        |a, _| a.buffer.sge(4990..5001),
        |_, b| b.buffer.sge(0..64),
        |a, _| a.buffer.sge(usize::MAX - 7..usize::MAX),
        |a, _| a.buffer.sge(1 << 40..(1 << 40) + 64),
    ];
    for wrong in wrongs {
        let (mut a, b) = pair();
        let sge = wrong(&a, &b);
        a.send_to(&b, 1, SendFlags::empty(), &[sge]).unwrap();
        assert_eq!(a.statuses(), [(1, WcStatus::LocProtErr)], "{sge:?}");
    }
    let (mut a, b) = pair();
    let sge = gone(&a);
    a.send_to(&b, 1, SendFlags::empty(), &[sge]).unwrap();
    assert_eq!(a.statuses(), [(1, WcStatus::LocProtErr)]);
}

/// The length of an element has 32 bits. A longer part must not become a short or empty element.
#[test]
fn element_of_4_gib_is_not_shortened_to_an_empty_element() {
    let (mut a, b) = pair();
    for (part, length) in [(0..1 << 32, u32::MAX), (7..(1 << 32) + 6, u32::MAX), (0..(1 << 33) + 5, u32::MAX)] {
        assert_eq!(a.buffer.sge(part).length, length);
    }
    let sge = a.buffer.sge(0..1 << 32);
    a.send_to(&b, 1, SendFlags::empty(), &[sge]).unwrap();
    assert_eq!(a.statuses(), [(1, WcStatus::LocLenErr)]);
}

#[test]
fn mixed_inline_and_plain_requests_are_posted_in_order() {
    let (mut a, mut b) = pair();
    a.buffer.write(0, b"0123456789");
    for wr_id in 0..8 {
        let at = 100 * wr_id as usize;
        b.qp.post_recv(&[RecvRequest { wr_id, sges: &[b.buffer.sge(at..at + 100)] }]).unwrap();
    }
    let gid = b.device.gids(1).unwrap()[0].gid;
    let ah = a.domain.create_ah(&Path { gid, ..Path::default() }).unwrap();
    let to = Some(Destination { ah: &ah, qp: b.qp.number(), qkey: QKEY });
    let sges: Vec<[Sge; 1]> = (0..9).map(|at| [a.buffer.sge(at..at + 1)]).collect();
    let requests: Vec<_> = (0..9u64)
        .map(|wr_id| {
            let flags = if wr_id % 3 == 0 { SendFlags::INLINE } else { SendFlags::empty() } | SendFlags::SIGNALED;
            SendRequest { wr_id, op: SendOp::Send, flags, sges: &sges[wr_id as usize], to }
        })
        .collect();
    let refused = a.qp.post_send(&requests).unwrap_err();
    assert_eq!((refused.accepted, refused.error.errno), (8, libc::ENOMEM));
    let all: Vec<_> = (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(a.statuses(), all);
    assert_eq!(b.statuses(), all);
    let received: Vec<u8> = (0..8).map(|wr_id| b.buffer.to_vec(100 * wr_id + 40..100 * wr_id + 41)[0]).collect();
    assert_eq!(received, b"01234567");
}

#[test]
fn buffer_can_be_shared_with_other_threads() {
    let (a, _) = pair();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let buffer = a.buffer.clone();
            scope.spawn(move || (0..100).for_each(|at| buffer.write(at, &[thread + 1; 50])));
        }
        (0..100).for_each(|at| a.buffer.to_vec(at..at + 50).iter().for_each(|byte| assert!(*byte <= 4)));
    });
    assert_ne!(a.buffer.to_vec(149 - 50..149), [0; 50]);
}

#[test]
#[should_panic(expected = "8 bytes at 4993 of a buffer of 5000")]
fn copy_beyond_the_buffer_panics() {
    pair().0.buffer.write(4993, &[0; 8]);
}

/// A device whose protection domain registers a smaller region than the caller asks for.
#[derive(Clone)]
struct ShortDevice(SoftDevice);

#[derive(Clone)]
struct ShortDomain(SoftPd);

#[allow(unsafe_code, reason = "the test needs a provider that breaks its contract")]
mod short {
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    use dataplane_core::error::VerbError;
    use dataplane_core::mem::{PageKind, Region, RegionSpec};
    use dataplane_core::units::Ticks;
    use dataplane_core::verbs::*;
    use dataplane_soft::{SoftAh, SoftChannel, SoftCq, SoftDevice, SoftMr, SoftMw, SoftQp, SoftSrq};

    use super::{ShortDevice, ShortDomain};

    // SAFETY: `checks_every_key` returns `false`, which guarantees nothing. All other methods call the methods of the
    // software device.
    unsafe impl Device for ShortDevice {
        type Pd = ShortDomain;
        type Cq = SoftCq;
        type Channel = SoftChannel;

        fn name(&self) -> &str {
            self.0.name()
        }
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }
        fn checks_every_key(&self) -> bool {
            false
        }
        fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
            self.0.port(port)
        }
        fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError> {
            self.0.gids(port)
        }
        fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError> {
            self.0.pkey(port, index)
        }
        fn timebase(&self) -> dataplane_core::clock::Timebase {
            self.0.timebase()
        }
        fn raw_clock(&self) -> Result<Ticks, VerbError> {
            self.0.raw_clock()
        }
        fn alloc_pd(&self) -> Result<ShortDomain, VerbError> {
            self.0.alloc_pd().map(ShortDomain)
        }
        fn create_channel(&self) -> Result<SoftChannel, VerbError> {
            self.0.create_channel()
        }
        fn create_cq(&self, spec: &CqSpec, on: Option<&SoftChannel>) -> Result<(SoftCq, CqGranted), VerbError> {
            SoftDevice::create_cq(&self.0, spec, on)
        }
        fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
            self.0.wait_async_event(timeout)
        }
    }

    // SAFETY: each registration keeps the region that it registers (`other`) alive, so no memory is freed too early.
    // The registered region is not the region of the caller, which breaks the contract of `register_part`. The tests
    // check that the caller notices.
    unsafe impl ProtectionDomain for ShortDomain {
        type Mr = SoftMr;
        type Qp = SoftQp;
        type Cq = SoftCq;
        type Srq = SoftSrq;
        type Ah = SoftAh;
        type Mw = SoftMw;

        fn keep_mapped(&self, _: Arc<Region>) {
            panic!("the memory of a refused registration must not stay mapped");
        }
        fn register_part(&self, _: Arc<Region>, _: Range<usize>, access: Access) -> Result<SoftMr, VerbError> {
            let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
            let (other, _) = Region::allocate(spec).unwrap();
            self.0.register_part(other.into(), 0..4096, access)
        }
        fn alloc_mw(&self, kind: MwKind) -> Result<SoftMw, VerbError> {
            self.0.alloc_mw(kind)
        }
        fn create_ah(&self, path: &Path) -> Result<SoftAh, VerbError> {
            self.0.create_ah(path)
        }
        fn create_srq(&self, spec: &SrqSpec) -> Result<SoftSrq, VerbError> {
            self.0.create_srq(spec)
        }
        fn create_qp(
            &self,
            spec: &QpSpec,
            send: &SoftCq,
            recv: &SoftCq,
            srq: Option<&SoftSrq>,
        ) -> Result<SoftQp, VerbError> {
            self.0.create_qp(spec, send, recv, srq)
        }
    }
}

/// If the domain accepted this buffer, `write` would access memory outside the registered region, which is smaller than
/// the buffer.
#[test]
fn buffer_is_refused_if_the_provider_registers_another_region() {
    let (link, _peer) = LoopbackLink::pair();
    let device = ShortDevice(SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(link))).unwrap());
    let domain = MessageDomain::new(&device).unwrap();
    let error = domain.buffer(8192, Access::LOCAL_WRITE).unwrap_err().to_string();
    assert!(error.contains("registered another region"), "{error}");
}

/// If the lane could be opened, the device would write to memory that the lane does not keep mapped.
#[test]
fn lane_is_refused_if_the_provider_registers_another_region() {
    let (link, _peer) = LoopbackLink::pair();
    let device = ShortDevice(SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(link))).unwrap());
    let layout = SlotLayout::new(128, 1920, 16).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
    let spec = LaneSpec {
        kind: QpType::RawPacket,
        queue: (0, 1),
        recv_depth: 4,
        send_depth: 4,
        stamps: Stamping::None,
        recv_fields: RecvFields::empty(),
        sleeps: false,
    };
    let (pd, wiring) = (device.alloc_pd().unwrap(), Box::new(RawWiring { port: 1 }));
    let opened = lane::open(&device, &pd, &mut pool, spec, wiring, Default::default(), &Clocks::default());
    let error = opened.err().unwrap().to_string();
    assert!(error.contains("registered another region"), "{error}");
}
