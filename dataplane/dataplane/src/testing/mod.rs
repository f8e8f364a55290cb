//! Test support for stages and for whole configs. The tests need no device and no privileges. [`Harness`] runs packets
//! through one stage. [`Pipeline`] runs packets through all stages of a config.
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

use dataplane_core::error::{Error, Result};
use dataplane_soft::Capture;

mod pipeline;

pub use pipeline::Pipeline;

pub use crate::runtime::{Hop, PathEnd, Trace};
pub use dataplane_core::harness::{Fate, Frame, Harness, HarnessBuilder, Outcome, frame, port};

/// Returns the frames of a pcap or pcapng file.
///
/// # Errors
/// Returns an error if the file cannot be read, is not an Ethernet capture, or is damaged.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testing/captures/dns.pcap");
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
