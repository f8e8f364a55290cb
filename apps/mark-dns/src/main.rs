//! An app with its own stage. The stage sets a DSCP on DNS packets, so that the network can prioritize them.

use dataplane::prelude::*;

/// Sets the DSCP (RFC 2474) of IPv4 datagrams from or to a UDP port.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    /// The UDP port to match.
    port: u16,
    /// The DSCP to set: 0 to 63.
    dscp: u8,
}

impl Stage for Mark {
    fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
        let fits = (self.dscp < 64).then_some(());
        fits.ok_or_else(|| Problem::at("dscp", "the value exceeds the 6 bits of a DSCP").help("set 0 to 63"))
    }

    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let ours = packet.udp().is_some_and(|udp| [udp.source, udp.destination].contains(&self.port.into()));
            if ours && let Some(ip) = packet.ipv4_mut() {
                ip.set_dscp(self.dscp);
            }
        }
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS)
    }
}

fn main() -> dataplane::Result<()> {
    App::new().stage::<Mark>("mark").run()
}
