//! `tx`: sends packets out by a port.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::vlan::{self, VlanTag};
use dataplane_core::header::{Header, MacAddr};
use dataplane_core::mem::{Batch, Packet, Reason};
use dataplane_core::pipeline::{Contract, Ctx, DefaultTarget, Facts, PortInfo, Problem, Setup, Stage, StageInfo};

/// Sends packets out through a port.
///
/// The maximum length of a frame is the MTU of the port plus the length of the link header. Longer frames are dropped
/// as `too_long`. Up to two VLAN tags count as part of the link header. Padding counts as part of the frame, so a
/// padded frame can be too long although its IP packet fits the MTU. Frames that are padded to 60 bytes, the usual
/// length, are never too long. A frame that is shorter than an Ethernet header is dropped as `runt`. No device can send
/// such a frame, and some devices stop when they get such a frame.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "out"
/// use = "tx"
/// port = "wan"
/// ```
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tx {
    /// The name of the port. Default: the egress port that an earlier stage, such as `route`, has set for each
    /// packet.
    #[serde(default)]
    pub port: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    number: u8,
    /// The maximum length of an untagged frame in bytes, indexed by port.
    #[serde(skip)]
    #[schemars(skip)]
    max_frame: Vec<usize>,
    /// The largest frame length in bytes that every possible egress port can send.
    #[serde(skip)]
    #[schemars(skip)]
    fits_all: u16,
}

impl Stage for Tx {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if batch.lengths_are_within(Ethernet::LEN as u16, self.fits_all) {
            return;
        }
        for mut packet in batch.iter_mut() {
            if packet.len() < Ethernet::LEN {
                packet.drop(Reason::Runt);
                continue;
            }
            let port = if self.port.is_some() { self.number } else { packet.meta().egress };
            // An egress port that does not exist is detected later, where the packet is moved to the port's send queue.
            let Some(max_frame) = self.max_frame.get(usize::from(port)) else { continue };
            if packet.len() > *max_frame && packet.len() > max_frame + tag_bytes(&packet) {
                packet.drop(Reason::TooLong);
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let max_frame = |port: &PortInfo| usize::from(port.mtu) + Ethernet::LEN;
        self.max_frame = setup.ports().iter().map(max_frame).collect();
        let fits_all = match &self.port {
            Some(name) => {
                self.number = setup.port(name, "port")?;
                self.max_frame.get(usize::from(self.number)).copied()
            }
            None => self.max_frame.iter().min().copied(),
        };
        self.fits_all = u16::try_from(fits_all.unwrap_or(0)).unwrap_or(u16::MAX);
        Ok(())
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().drops(&[Reason::Runt, Reason::TooLong]).terminal()
    }

    fn contract(&self) -> Contract {
        Contract::new()
            .needs(if self.port.is_some() { Facts::empty() } else { Facts::EGRESS })
            .exit(if self.port.is_some() { DefaultTarget::Port(self.number) } else { DefaultTarget::Egress })
            .ignores_checksums()
    }
}

/// Returns the length of the first two VLAN tags in bytes.
fn tag_bytes(packet: &Packet<'_>) -> usize {
    let tagged = |tags: usize| {
        let at = 2 * size_of::<MacAddr>() + tags * VlanTag::LEN;
        let tpid = packet.data().get(at..).and_then(|bytes| bytes.first_chunk());
        tpid.is_some_and(|tpid| vlan::is_tag(u16::from_be_bytes(*tpid)))
    };
    (0..2).take_while(|tags| tagged(*tags)).count() * VlanTag::LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame, port};
    use dataplane_core::header::ether_type;

    fn ports() -> [PortInfo; 2] {
        [PortInfo { mtu: 9000, ..port("jumbo") }, PortInfo { mtu: 576, ..port("small") }]
    }

    /// Sends frames to the named port, or to the second port if the parameters name none. Returns their fates.
    fn fates(parameters: &str, frames: &[Vec<u8>]) -> Vec<Fate> {
        struct ToSecond;
        impl Stage for ToSecond {
            fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
                batch.iter_mut().for_each(|mut packet| packet.meta_mut().egress = 1);
            }
        }
        let mut harness = Harness::builder().ports(&ports()).after(ToSecond).build::<Tx>(parameters).unwrap();
        harness.run(frames).into_iter().map(|outcome| outcome.fate).collect()
    }

    #[test]
    fn frame_longer_than_the_mtu_is_dropped() {
        let plain = |len| frame().pad_to(len).build();
        let tagged = |len| frame().vlan(7).pad_to(len).build();
        let twice = |len| frame().tag(ether_type::QINQ, 7).vlan(8).pad_to(len).build();
        let thrice = |len| frame().vlan(7).vlan(8).vlan(9).pad_to(len).build();
        let long = Fate::Dropped("too_long".to_owned());
        let short = Fate::Dropped("runt".to_owned());
        for (mtu, parameters) in [(9000, "port = 'jumbo'"), (576, "port = 'small'"), (576, "")] {
            let just = [plain(mtu + 14), tagged(mtu + 18), twice(mtu + 22), thrice(mtu + 22), vec![0; 14]];
            assert_eq!(fates(parameters, &just), vec![Fate::Next; 5], "{parameters}");
            let above = [plain(mtu + 15), tagged(mtu + 19), twice(mtu + 23), thrice(mtu + 23), vec![0; 13]];
            let expected = [long.clone(), long.clone(), long.clone(), long.clone(), short.clone()];
            assert_eq!(fates(parameters, &above), expected, "{parameters}");
        }
    }

    #[test]
    fn egress_is_needed_only_without_a_named_port() {
        let mut harness = Harness::builder().ports(&ports()).build::<Tx>("port = 'small'").unwrap();
        assert_eq!(
            (harness.stage().contract().exit, harness.stage().contract().needs),
            (DefaultTarget::Port(1), Facts::empty())
        );
        let mut harness = Harness::from_toml::<Tx>("").unwrap();
        assert_eq!(
            (harness.stage().contract().exit, harness.stage().contract().needs),
            (DefaultTarget::Egress, Facts::EGRESS)
        );
        assert!(Tx::info().terminal);
    }

    #[test]
    fn unknown_port_is_refused_with_a_suggestion() {
        let error = Harness::builder().ports(&ports()).build::<Tx>("port = 'smal'").err().unwrap();
        assert_eq!(error, "port: there is no port `smal`; help: did you mean `small`? Ports: jumbo, small");
    }
}
