//! Storm control: limits the frames that the bridge floods.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::parameter::rate_share;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::{Header, MacAddr};
use dataplane_core::mem::{Packet, Reason};
use dataplane_core::pipeline::Problem;
use dataplane_core::units::PacketRate;
use dataplane_tables::bucket::TokenBucket;

/// The rate limits of the frames that each port floods. The rates are for all workers together, and each worker gets an
/// equal share, but at least one frame per second. `burst` applies to each worker in full.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StormControl {
    /// The maximum rate of broadcast frames. Default: no limit.
    broadcast: Option<PacketRate>,
    /// The maximum rate of multicast frames. Broadcast frames do not count. Default: no limit.
    multicast: Option<PacketRate>,
    /// The maximum rate of frames to unknown unicast addresses. Default: no limit.
    unknown_unicast: Option<PacketRate>,
    /// The number of frames of each kind from one port that a worker can flood at once: 1 or more. Default: 100.
    #[serde(default = "burst")]
    burst: u64,
}

fn burst() -> u64 {
    100
}

/// The drop reason of each kind of flooded frames: broadcast, multicast, and unknown unicast.
const REASONS: [Reason; 3] = [Reason::of_stage(5), Reason::of_stage(6), Reason::of_stage(7)];

/// The meters of one worker.
#[derive(Debug)]
pub(super) struct StormMeter {
    /// For each port number, the meters of the kinds in [`REASONS`].
    ports: Vec<[Option<TokenBucket>; 3]>,
}

impl StormMeter {
    /// Creates the meters for ports with these numbers. `worker` is the index of this worker and the number of workers.
    pub(super) fn new(
        limits: &StormControl,
        ports: impl Iterator<Item = u8>,
        worker: (usize, usize),
    ) -> Result<Self, Problem> {
        if limits.burst == 0 {
            return Err(Problem::at("storm_control.burst", "0 passes no frame").help("set `burst` to 1 or more"));
        }
        let rates = [limits.broadcast, limits.multicast, limits.unknown_unicast];
        if rates.iter().all(Option::is_none) {
            let problem = Problem::at("storm_control", "no rate is set");
            return Err(problem.help("set broadcast, multicast or unknown_unicast"));
        }
        let meter = |PacketRate(rate)| TokenBucket::new(rate_share(rate, worker), limits.burst, 0);
        let meters = rates.map(|rate| rate.map(meter));
        let last = ports.max().map_or(0, usize::from);
        Ok(Self { ports: vec![meters; last + 1] })
    }

    /// Returns the drop reason if the frame exceeds its rate. `now` is in nanoseconds.
    pub(super) fn admit(&mut self, packet: &Packet<'_>, now: u64) -> Result<(), Reason> {
        let Ok(link) = Ethernet::view(packet.data()) else { return Ok(()) };
        let kind = match link.destination {
            MacAddr::BROADCAST => 0,
            other if other.is_multicast() => 1,
            _ => 2,
        };
        let meter = self.ports.get_mut(usize::from(packet.ingress())).and_then(|meters| meters[kind].as_mut());
        let passes = meter.is_none_or(|meter| meter.take(now, 1));
        if passes { Ok(()) } else { Err(REASONS[kind]) }
    }
}
