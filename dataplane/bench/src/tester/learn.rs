//! Learning frames: bridges and switches learn the addresses of the receiving ports from these frames.

use dataplane::Result;
use dataplane::clock::Stamp;
use dataplane::header::MacAddr;
use dataplane::lane::NoSink;

use super::{DISCARD_TIME, Tester};

impl Tester {
    /// Sends a frame from the destination MAC address of each stream. Skips streams with several destination addresses.
    /// Skips streams to the address of another host, such as a router, because the tester must not send from this
    /// address.
    pub(super) fn send_learning_frames(&mut self) -> Result<()> {
        let Self { outboxes, streams, lanes, clock, .. } = self;
        let begin = clock.nanos();
        let macs: Vec<MacAddr> = lanes.ports().iter().map(|port| MacAddr(port.mac)).collect();
        let names: Vec<String> = lanes.plan().ports.iter().map(|port| port.config.name.clone()).collect();
        let (lanes, pool) = lanes.parts();
        for stream in streams.iter() {
            let Some((src, dst)) = stream.learning_addresses() else { continue };
            let (Some(outbox), Some(lane)) = (outboxes.get_mut(stream.to), lanes.get_mut(stream.to)) else { continue };
            if macs.get(stream.to) != Some(&src) {
                continue;
            }
            let failed = |error: dataplane::error::VerbError| error.on(&names[stream.to]);
            outbox.push_bytes(&learning_frame(src, dst), Stamp::NONE, pool);
            lane.transmit(pool, outbox);
            // Wait until the port has sent the learning frame, so that the counters of the trial do not contain it.
            while lane.sending() > 0 && clock.nanos().0.saturating_sub(begin.0) < DISCARD_TIME {
                lane.reap(pool, &mut NoSink).map_err(failed)?;
                lane.housekeep(pool).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Returns the shortest Ethernet frame with the type of the Ethernet configuration testing protocol. Hosts ignore the
/// frame.
fn learning_frame(src: MacAddr, dst: MacAddr) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&dst.0);
    frame[6..12].copy_from_slice(&src.0);
    frame[12..14].copy_from_slice(&0x9000u16.to_be_bytes());
    frame
}
