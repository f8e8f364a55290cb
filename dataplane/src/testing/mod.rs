//! Packets in, packets out: tests of stages and of whole configs, without a device and without rights.
//!
//! ```
//! use dataplane::prelude::*;
//! use dataplane::testing::{Fate, Harness, frame};
//!
//! #[derive(serde::Deserialize)]
//! struct Runts { min_len: usize }
//!
//! impl Stage for Runts {
//!     fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
//!         for mut packet in batch.iter_mut() {
//!             if packet.len() < self.min_len {
//!                 packet.drop(Reason::Runt);
//!             }
//!         }
//!     }
//! }
//!
//! let mut harness = Harness::from_toml::<Runts>("min_len = 60")?;
//! let short = frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 2).build();
//! let outcome = harness.run_one(&short);
//! assert_eq!(outcome.fate, Fate::Dropped("runt".to_owned()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use crate::error::{Error, Result};
use crate::pipeline::PortInfo;
use crate::provider::soft::Capture;

mod harness;
mod pipeline;
pub mod strategies;

pub use harness::{Fate, Harness, HarnessBuilder, Outcome};
pub use pipeline::Pipeline;

pub use crate::header::build::Frame;
pub use crate::runtime::{End, Hop, Trace};

/// A port of this name, with link address 02:00:00:00:00:0a and MTU 1500: no interface of the kernel, and without addresses.
pub fn port(name: &str) -> PortInfo {
    PortInfo { name: name.to_owned(), mac: [2, 0, 0, 0, 0, 10], mtu: 1500, interface: None, addresses: Vec::new() }
}

/// The frames of a capture file, pcap or pcapng.
///
/// # Errors
/// The file cannot be read, is no capture of Ethernet, or is damaged.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/dns.pcap");
/// let frames = dataplane::testing::frames_of(path)?;
/// let mut bench = dataplane::testing::Harness::from_toml::<dataplane::stages::parse::Parse>("")?;
/// let outcomes = bench.run(&frames);
/// assert!(outcomes.iter().all(|outcome| !matches!(outcome.fate, dataplane::testing::Fate::Dropped(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn frames_of(path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
    let path = path.as_ref();
    let wrong = |reason: &str| Error::Wire(format!("{}: {reason}", path.display()));
    let file = std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let capture = Capture::read(&file).map_err(|reason| wrong(&reason))?;
    match &capture.damage {
        Some(damage) => Err(wrong(&format!("damaged at byte {}: {}", damage.offset, damage.reason))),
        None => Ok((0..capture.len()).map(|index| capture.frame(index).to_vec()).collect()),
    }
}

/// Tells threads to end when a test leaves this behind, by a panic too: a scope that waits for them would never end otherwise.
#[cfg(test)]
pub(crate) struct Ended<'a>(pub(crate) &'a std::sync::atomic::AtomicBool);

#[cfg(test)]
impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A frame to build on, from 02:00:00:00:00:01 to 02:00:00:00:00:02.
pub fn frame<'a>() -> Frame<'a> {
    Frame::new().ethernet(crate::header::MacAddr([2, 0, 0, 0, 0, 1]), crate::header::MacAddr([2, 0, 0, 0, 0, 2]))
}
