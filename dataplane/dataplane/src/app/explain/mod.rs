//! `explain`: shows the path of every packet of a capture or of a black box through a pipeline.

mod black_box;
mod capture;
mod fields;
mod packet;

use std::sync::Arc;

pub(super) use self::fields::summary;
pub(super) use self::packet::{decode, explained, text};
use super::args;
use super::console::CommandError;
use dataplane_core::pipeline::Registry;

pub(super) fn explain(registry: &Arc<Registry>, args: &args::Explain) -> Result<(), CommandError> {
    match (&args.black_box, &args.capture) {
        (Some(file), _) => black_box::explain(registry, args, file),
        (None, Some(capture)) => capture::explain(registry, args, capture),
        // The parser of the command line requires one of them.
        (None, None) => Err(CommandError::Usage("no capture is given; help: name a pcap or pcapng file".to_owned())),
    }
}
