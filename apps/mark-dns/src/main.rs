//! An app with a stage of its own: gives DNS a DSCP, so that the network behind can let it pass first.

use dataplane::prelude::*;

/// Marks IPv4 datagrams from or to a UDP port with a DSCP (RFC 2474).
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    port: u16,
    dscp: u8,
}

impl Stage for Mark {
    fn needs(&self) -> Facts {
        Facts::HEADERS
    }

    fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
        let fits = (self.dscp < 64).then_some(());
        fits.ok_or_else(|| Problem::at("dscp", "a DSCP has 6 bits").help("0 to 63"))
    }

    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let ours = packet.udp().is_some_and(|udp| [udp.source, udp.destination].contains(&self.port.into()));
            if ours && let Some(ip) = packet.ipv4_mut() {
                ip.set_dscp(self.dscp);
            }
        }
    }
}

fn main() -> dataplane::Result<()> {
    App::new().stage::<Mark>("mark").run()
}
