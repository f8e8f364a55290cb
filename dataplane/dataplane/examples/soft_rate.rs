//! Measures the time that the software device needs to receive and send one packet. The loop receives frames from a
//! generator link and sends them back over the same link.
//!
//! `cargo run --release --example soft_rate --no-default-features`
#![allow(unsafe_code, reason = "posting gives the device access to memory")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dataplane::clock::HostClock;
use dataplane::error::Result;
use dataplane::mem::{Desc, PageKind, Region, RegionSpec, RunSource, SlotLayout};
use dataplane::soft::{GeneratorSpec, LinkSpec, SoftDevice, SoftSpec};
use dataplane::verbs::{
    Access, CompletionQueue, Completions, CqSpec, Device, PollFields, ProtectionDomain, QpAttributes, QpCaps, QpSpec,
    QpType, QueuePair,
};

const DEPTH: u32 = 1024;
const PACKETS: usize = 100_000_000;

fn main() -> Result<()> {
    for stamped in [false, true] {
        for burst in [32, 64] {
            println!("burst {burst}, stamps {stamped}: {:.3} ns per packet", measure(burst, stamped)?);
        }
    }
    Ok(())
}

fn measure(burst: usize, stamped: bool) -> Result<f64> {
    let generator = GeneratorSpec { rewrite: false, ..GeneratorSpec::default() };
    let mut spec = SoftSpec::new("soft", LinkSpec::Generator(generator));
    spec.clock = HostClock::new();
    let device = SoftDevice::new(spec)?;
    let fail = |error: dataplane::error::VerbError| error.on("soft");
    let pd = device.alloc_pd().map_err(fail)?;
    let stamps = if stamped { PollFields::TIMESTAMP } else { PollFields::empty() };
    let cq = CqSpec { depth: DEPTH, fields: PollFields::BYTE_LEN | stamps, ..CqSpec::default() };
    let (mut recv_cq, _) = device.create_cq(&cq, None).map_err(fail)?;
    let (mut send_cq, _) = device.create_cq(&cq, None).map_err(fail)?;
    let caps = QpCaps { send_depth: DEPTH, recv_depth: DEPTH, send_sges: 1, recv_sges: 1, inline: 0 };
    let spec = QpSpec::new(QpType::RawPacket, caps);
    let mut qp = pd.create_qp(&spec, &send_cq, &recv_cq, None).map_err(fail)?;

    let layout = SlotLayout::new(128, 1536, 2 * DEPTH as usize)?;
    let memory = RegionSpec { bytes: layout.bytes(), pages: PageKind::Transparent, strict: false, node: None };
    let mr = pd.register(Arc::new(Region::allocate(memory)?.0), Access::LOCAL_WRITE).map_err(fail)?;
    qp.bind_slots(&mr, layout, 0).map_err(fail)?;
    for (attributes, mask) in
        [QpAttributes::init(QpType::RawPacket, 1, 0), QpAttributes::rtr(), QpAttributes::rts(QpType::RawPacket)]
    {
        qp.modify(&attributes, mask).map_err(fail)?;
    }
    let mut posted: VecDeque<u32> = (0..DEPTH).collect();
    // SAFETY: no one else uses the slots, and no slot is posted twice.
    unsafe { qp.post_recv_run(posted.make_contiguous()) }.map_err(|refused| fail(refused.error))?;

    let mut run = Completions::new();
    let mut done = Completions::new();
    let mut descs = [Desc::default(); 256];
    let mut slots = [0; 256];
    let mut count = 0;
    let begin = Instant::now();
    while count < PACKETS {
        let n = recv_cq.poll_run(&mut run, burst).map_err(fail)?;
        // The completion queue serves a single queue pair, so receives complete in the order in which they were posted.
        assert!(run.in_order || n == 0);
        for ((desc, slot), &len) in descs[..n].iter_mut().zip(posted.drain(..n)).zip(&run.byte_len[..n]) {
            *desc = Desc { slot, offset: 128, len: len as u16 };
        }
        // SAFETY: the slots were received, so the device no longer owns the slots. The slots are posted again only
        // after their sends have completed.
        unsafe { qp.post_send_run(&RunSource::new(&descs[..n]).run(), count as u64) }
            .map_err(|refused| fail(refused.error))?;
        count += n;
        send_cq.poll_run(&mut done, burst).map_err(fail)?;
        for (slot, desc) in slots[..n].iter_mut().zip(&descs[..n]) {
            *slot = desc.slot;
        }
        // SAFETY: the poll above has completed the sends of these slots, so the device no longer owns the slots.
        unsafe { qp.post_recv_run(&slots[..n]) }.map_err(|refused| fail(refused.error))?;
        posted.extend(&slots[..n]);
    }
    Ok(begin.elapsed().as_nanos() as f64 / count as f64)
}
