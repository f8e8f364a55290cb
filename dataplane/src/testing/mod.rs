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

mod harness;
mod pipeline;
pub mod strategies;

pub use harness::{Fate, Harness, HarnessBuilder, Outcome};
pub use pipeline::Pipeline;

pub use crate::header::build::Frame;
pub use crate::runtime::{End, Hop, Trace};

/// A frame to build on, from 02:00:00:00:00:01 to 02:00:00:00:00:02.
pub fn frame<'a>() -> Frame<'a> {
    Frame::new().ethernet(crate::header::MacAddr([2, 0, 0, 0, 0, 1]), crate::header::MacAddr([2, 0, 0, 0, 0, 2]))
}
