//! `tx`: where packets leave.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::ethernet::Ethernet;
use crate::header::vlan::{self, VlanTag};
use crate::header::{Header, MacAddr};
use crate::mem::{Batch, Packet, Reason};
use crate::pipeline::{Ctx, Exit, Facts, PortInfo, Problem, Setup, Stage};

/// Sends packets out by a port.
///
/// A frame that is longer than the port's MTU and its link header is dropped as `too_long`; each VLAN tag, up to two,
/// counts as link header. Padding behind the packet counts as the packet does: that of the shortest frames, to 60 bytes,
/// is within any MTU, and what is padded beyond the MTU is too long, even where the packet itself is not. A frame without a
/// whole Ethernet header is dropped as `runt`: no device sends it, and one that is given it may stop.
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
    /// The port; without one, that which a stage before has chosen for each packet, such as `route`.
    #[serde(default)]
    pub port: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    number: u8,
    /// The longest untagged frame of each port, in bytes.
    #[serde(skip)]
    #[schemars(skip)]
    longest: Vec<usize>,
    /// The least of those that a packet may have to fit.
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
            // A port that does not exist is found out where the packet is moved.
            let Some(longest) = self.longest.get(usize::from(port)) else { continue };
            if packet.len() > *longest && packet.len() > longest + tag_bytes(&packet) {
                packet.drop(Reason::TooLong);
            }
        }
    }

    fn is_terminal() -> bool {
        true
    }

    fn needs(&self) -> Facts {
        if self.port.is_some() { Facts::empty() } else { Facts::EGRESS }
    }

    fn exit(&self) -> Exit {
        if self.port.is_some() { Exit::Port(self.number) } else { Exit::Egress }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let longest = |port: &PortInfo| usize::from(port.mtu) + Ethernet::LEN;
        self.longest = setup.ports().iter().map(longest).collect();
        let fits_all = match &self.port {
            Some(name) => {
                self.number = setup.port(name, "port")?;
                self.longest.get(usize::from(self.number)).copied()
            }
            None => self.longest.iter().min().copied(),
        };
        self.fits_all = u16::try_from(fits_all.unwrap_or(0)).unwrap_or(u16::MAX);
        Ok(())
    }
}

/// Bytes of the first two VLAN tags.
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
    use crate::header::ether_type;
    use crate::testing::{Fate, Harness, frame, port};

    fn ports() -> [PortInfo; 2] {
        [PortInfo { mtu: 9000, ..port("jumbo") }, PortInfo { mtu: 576, ..port("small") }]
    }

    /// Sends frames by a port, or by the second port where none is named.
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
    fn what_fits_leaves_and_the_rest_is_too_long() {
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
    fn a_named_port_needs_nothing_and_none_needs_a_choice() {
        let mut harness = Harness::builder().ports(&ports()).build::<Tx>("port = 'small'").unwrap();
        assert_eq!((harness.stage().exit(), harness.stage().needs()), (Exit::Port(1), Facts::empty()));
        let mut harness = Harness::from_toml::<Tx>("").unwrap();
        assert_eq!((harness.stage().exit(), harness.stage().needs()), (Exit::Egress, Facts::EGRESS));
        assert!(Tx::is_terminal());
    }

    #[test]
    fn a_port_that_is_not_there_is_named() {
        let error = Harness::builder().ports(&ports()).build::<Tx>("port = 'smal'").err().unwrap();
        assert_eq!(error, "port: there is no port `smal` (did you mean `small`? Ports: jumbo, small)");
    }
}
