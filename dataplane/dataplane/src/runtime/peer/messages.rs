//! The messages of a port with a peer. Each message is a packet with its Ethernet header.

use crate::config::{ETHERNET_HEADER, Port, Qp, interface_mtu_for_datagrams};
use dataplane_core::connect::{LocalPort, NegotiatedParameters};
use dataplane_core::error::{Error, Result};
use dataplane_core::verbs::{LinkLayer, QpType};
use dataplane_soft::config::MAX_HEADER;

/// The messages that a port sends.
#[derive(Clone, Debug)]
pub(crate) struct PortMessages {
    /// The name of the port in the config.
    port: String,
    qp: Qp,
    /// The maximum length of a packet without Ethernet header and VLAN tags, in bytes.
    mtu: u32,
}

impl PortMessages {
    /// Returns the messages of a port.
    pub(crate) fn of(port: &Port) -> Self {
        Self { port: port.name.clone(), qp: port.qp, mtu: port.max_packet() }
    }

    /// Returns the length of the longest message without VLAN tags, in bytes.
    fn longest(&self) -> u32 {
        self.mtu.saturating_add(ETHERNET_HEADER)
    }

    /// Checks whether the datagrams of the port can carry its packets.
    ///
    /// # Errors
    /// The path MTU of the device is too small.
    pub(crate) fn check(&self, device: &str, local: &LocalPort) -> Result<()> {
        let Self { port, mtu, .. } = self;
        let (longest, most) = (self.longest(), local.max_message);
        if self.qp != Qp::Ud || longest <= most {
            return Ok(());
        }
        let of_interface = interface_mtu_for_datagrams(*mtu).filter(|_| local.link_layer == LinkLayer::Ethernet);
        let of_interface = of_interface.map_or_else(String::new, |mtu| {
            format!(", or the MTU of the network interface of `{device}` to at least {mtu}")
        });
        Err(Error::Config(format!(
            "port `{port}`: mtu {mtu} needs datagrams of {longest} bytes, but the path MTU of `{device}` is {most}; help: \
             set mtu = {}{of_interface}",
            most.saturating_sub(MAX_HEADER)
        )))
    }

    /// Returns a warning if the peer does not receive all messages of the port.
    pub(crate) fn warning(&self, agreed: &NegotiatedParameters) -> Option<String> {
        let Self { port, mtu, .. } = self;
        let (longest, most) = (self.longest(), agreed.max_message);
        if receives_nothing(agreed) {
            return Some(format!(
                "port `{port}`: the peer posts no receives, so packets to the peer are dropped as `not_connected`; help: \
                 add the port of the peer to `input` of the peer's pipeline, or send no packets to `{port}`"
            ));
        }
        if longest <= most {
            return None;
        }
        let of_peer = if self.qp == Qp::Ud { "the MTU of the interface or `buffer_size`" } else { "`buffer_size`" };
        Some(format!(
            "port `{port}`: the peer receives messages of up to {most} bytes, but mtu {mtu} needs {longest}, so longer \
             packets are dropped as `too_long`; help: set mtu = {}, or raise {of_peer} at the peer",
            most.saturating_sub(MAX_HEADER)
        ))
    }
}

/// Returns whether the peer posts no receives. A message on a reliable connection to this peer would end the connection
/// with `IBV_WC_RNR_RETRY_EXC_ERR`. For the other types of queue pairs, the peer drops the message.
pub(super) fn receives_nothing(agreed: &NegotiatedParameters) -> bool {
    agreed.remote.transport == QpType::Rc && agreed.remote.receive_depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::connect::{Connector, EndpointParameters, QueuePairEndpoint};
    use dataplane_core::units::QpNum;
    use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

    fn messages(qp: &str, mtu: u32) -> PortMessages {
        PortMessages::of(
            &toml::from_str(&format!("name = 'wan'\ndevice = 'mlx5_0'\nqp = '{qp}'\nmtu = {mtu}")).unwrap(),
        )
    }

    /// Returns a connector for a port of a device with a path MTU of 1024.
    fn connector(kind: QpType) -> Connector {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        let device = SoftDevice::new(SoftSpec { mtu: 1500, ..SoftSpec::new("mlx5_0", link) }).unwrap();
        Connector::new(&device, kind, EndpointParameters { allow_self: true, ..Default::default() }).unwrap()
    }

    #[test]
    fn mtu_above_the_path_mtu_is_refused_for_datagrams() {
        for (qp, kind, mtu, expected) in [
            ("ud", QpType::Ud, 1010, None),
            ("rc", QpType::Rc, 1500, None),
            (
                "ud",
                QpType::Ud,
                1500,
                Some("set mtu = 1002, or the MTU of the network interface of `mlx5_0` to at least 2144"),
            ),
            (
                "ud",
                QpType::Ud,
                4000,
                Some("set mtu = 1002, or the MTU of the network interface of `mlx5_0` to at least 4192"),
            ),
            ("ud", QpType::Ud, 5000, Some("set mtu = 1002")),
        ] {
            let found = messages(qp, mtu).check("mlx5_0", connector(kind).local());
            let found = found.err().map(|error| error.to_string());
            let expected = expected.map(|help| {
                let needed = mtu + 14;
                format!(
                    "port `wan`: mtu {mtu} needs datagrams of {needed} bytes, but the path MTU of `mlx5_0` is 1024; help: {help}"
                )
            });
            assert_eq!(found, expected, "{qp}, mtu {mtu}");
        }
    }

    #[test]
    fn peer_with_smaller_messages_or_without_receives_is_a_warning() {
        let small = "so longer packets are dropped as `too_long`; help: set mtu = 490, or raise ";
        let none = "the peer posts no receives, so packets to the peer are dropped as `not_connected`";
        for (qp, kind, max_message, receive_depth, expected) in [
            ("ud", QpType::Ud, 512, 16, Some(format!("{small}the MTU of the interface or `buffer_size` at the peer"))),
            ("rc", QpType::Rc, 512, 16, Some(format!("{small}`buffer_size` at the peer"))),
            ("rc", QpType::Rc, 1014, 16, None),
            ("rc", QpType::Rc, 1014, 0, Some(none.to_owned())),
            ("uc", QpType::Uc, 1014, 0, None),
        ] {
            let connector = connector(kind);
            let own = connector.endpoint_for(QpNum(7), 16);
            let remote = QueuePairEndpoint { max_message, ..connector.endpoint_for(QpNum(8), receive_depth) };
            let agreed = connector.negotiate(&own, &remote).unwrap();
            let found = messages(qp, 1000).warning(&agreed);
            let is_expected = match (&found, &expected) {
                (Some(found), Some(expected)) => found.contains(expected.as_str()),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{qp}, {max_message}: {found:?}, not {expected:?}");
        }
    }
}
