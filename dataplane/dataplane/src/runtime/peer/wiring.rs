//! Connects the queue pair of one lane to its peer. A lane is one worker's queue pair and completion queues on one
//! port.

use std::fmt;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::addresses::PortAddresses;
use super::messages::{PortMessages, receives_nothing};
use super::paths::PathCache;
use super::rendezvous::Rendezvous;
use dataplane_core::connect::{ConnectError, Connector, NegotiatedParameters, QueuePairEndpoint};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{AhOf, LaneQueuePair, Wiring};
use dataplane_core::units::Gid;
use dataplane_core::verbs::{Destination, Device, QpType};

/// The length of the global route header in front of a datagram, in bytes.
const GRH: u16 = 40;

/// Returns the number of bytes that the device writes in front of each received packet.
pub(super) fn prefix(kind: QpType) -> u16 {
    if kind == QpType::Ud { GRH } else { 0 }
}

/// How far the connection of the lane has progressed.
enum ConnectStep<D: Device> {
    /// The queue pair is in RESET, or its change to INIT failed.
    Down,
    /// The queue pair is in INIT. Receives are posted next.
    Initialised,
    /// The endpoint was offered.
    Offered,
    /// A thread resolves the path to the peer. This may take a second.
    Resolving(QueuePairEndpoint, JoinHandle<Result<AhOf<D>, VerbError>>),
    /// The queue pair is in RTS.
    Ready,
    /// The lane cannot connect to this peer. The lane starts again and waits for another exchange.
    Refused,
}

/// The wiring of one lane on a port with a peer.
pub(crate) struct PeerWiring<D: Device> {
    paths: Arc<PathCache<D::Pd>>,
    connector: Connector,
    queue: u16,
    /// The room of a receive buffer, in bytes, for the message and the global route header in front of the message.
    room: u32,
    /// Whether the lane posts receives.
    receives: bool,
    messages: PortMessages,
    rendezvous: Arc<Rendezvous>,
    addresses: Arc<PortAddresses>,
    /// The value of [`PortAddresses::changes`] when `connector` was read.
    seen: u32,
    step: ConnectStep<D>,
    agreed: Option<NegotiatedParameters>,
    /// The address handle, kept as long as send requests may use it.
    handle: Option<AhOf<D>>,
}

impl<D: Device> PeerWiring<D> {
    /// Returns `None` while the addresses are unknown.
    pub(super) fn new(
        paths: Arc<PathCache<D::Pd>>,
        (queue, room, receives): (u16, u32, bool),
        messages: PortMessages,
        rendezvous: Arc<Rendezvous>,
        addresses: Arc<PortAddresses>,
    ) -> Option<Self> {
        let (connector, seen) = addresses.connector()?;
        Some(Self {
            paths,
            connector: connector.queue(queue),
            queue,
            room,
            receives,
            messages,
            rendezvous,
            addresses,
            seen,
            step: ConnectStep::Down,
            agreed: None,
            handle: None,
        })
    }

    /// Returns the lane's own endpoint.
    fn described(&self, qp: &LaneQueuePair<'_, D>) -> QueuePairEndpoint {
        // A queue pair has a receive queue even if the lane posts no receives.
        let receive_depth = if self.receives { qp.caps().recv_depth } else { 0 };
        self.connector.endpoint_for(qp.number(), receive_depth)
    }

    /// Returns the endpoint to offer to the peer.
    fn offered(&self, qp: &LaneQueuePair<'_, D>) -> QueuePairEndpoint {
        let endpoint = self.described(qp);
        // A message longer than the receive buffers would cause an error on both sides. The device writes the prefix
        // and the message into one buffer.
        let room = self.room.saturating_sub(u32::from(self.prefix()));
        QueuePairEndpoint { max_message: endpoint.max_message.min(room), ..endpoint }
    }

    /// Starts a thread that resolves the path to the peer. The kernel needs the path when the queue pair moves to RTR.
    /// If the kernel has to resolve an unreachable address at that time, the worker waits for a second. After the
    /// thread has resolved the path, the kernel finds the path in its neighbour table without a wait.
    fn start_resolve(&mut self, qp: &LaneQueuePair<'_, D>, (remote, round): (QueuePairEndpoint, u32)) {
        let path = match self.connector.negotiate(&self.described(qp), &remote) {
            Ok(agreed) => agreed.path,
            Err(refused) => return self.refuse(&refused.to_string()),
        };
        let paths = self.paths.clone();
        match thread::Builder::new().name("resolve".to_owned()).spawn(move || paths.find(round, &path)) {
            Ok(found) => self.step = ConnectStep::Resolving(remote, found),
            Err(error) => self.refuse(&format!("cannot start the thread for address resolution: {error}")),
        }
    }

    /// Moves the queue pair from INIT to RTS.
    fn establish(
        &self,
        qp: &mut LaneQueuePair<'_, D>,
        remote: &QueuePairEndpoint,
    ) -> Result<NegotiatedParameters, ConnectError> {
        let agreed = self.connector.negotiate(&self.described(qp), remote)?;
        self.connector.establish(&agreed, |attributes, mask| qp.modify(attributes, mask))?;
        Ok(agreed)
    }

    /// Moves the queue pair to RTS after the path is resolved. The parameters of the peer may cause a device error, so
    /// such an error ends only this attempt and not the run.
    fn handshake(
        &mut self,
        qp: &mut LaneQueuePair<'_, D>,
        remote: &QueuePairEndpoint,
        handle: Option<AhOf<D>>,
    ) -> Result<(), VerbError> {
        let agreed = match self.establish(qp, remote) {
            Ok(agreed) => agreed,
            Err(refused) => {
                self.refuse(&refused.to_string());
                return Ok(());
            }
        };
        if let Some(handle) = handle.filter(|_| self.addresses.kind() == QpType::Ud) {
            qp.bind_peer(Destination { ah: &handle, qp: remote.qpn, qkey: remote.qkey })?;
            self.handle = Some(handle);
        }
        // The lanes of a port have the same limits. A lane connects again after each failure, so log only new warnings.
        let warning = self.messages.warning(&agreed).filter(|_| self.queue == 0);
        let known = self.agreed.replace(agreed).and_then(|agreed| self.messages.warning(&agreed));
        if let Some(warning) = warning.filter(|warning| known.as_ref() != Some(warning)) {
            tracing::warn!("{warning}");
        }
        self.step = ConnectStep::Ready;
        self.rendezvous.ready(self.queue);
        Ok(())
    }

    fn refuse(&mut self, why: &str) {
        self.rendezvous.refuse(&format!("cannot connect to the peer: {why}"));
        self.step = ConnectStep::Refused;
    }
}

/// The discard port of UDP (RFC 863). The program sends no packet to this port.
const DISCARD: u16 = 9;

/// Returns the message about a failed `ibv_create_ah` for the peer with this GID.
fn no_path(device: &str, peer: Gid, error: VerbError) -> String {
    // For a destination on this host, the kernel selects the destination as source address. `connect` on a UDP socket
    // sends no packet. A successful `bind` would not prove that the address is local, because `ip_nonlocal_bind` also
    // allows addresses of other hosts.
    let is_own = |address: Ipv4Addr| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let own = socket.and_then(|socket| socket.connect((address, DISCARD)).and_then(|()| socket.local_addr()));
        own.is_ok_and(|own| own.ip() == address)
    };
    let help = match (error.remedy(), peer.ipv4()) {
        (Some(_), Some(address)) if is_own(address) => {
            ", because this address belongs to this host, and Linux does not answer ARP requests from its own addresses; \
             help: set `gid` of both ports to the link-local address of the interface, or move one of the two interfaces \
             into another network namespace, or run `sysctl net.ipv4.conf.IFACE.accept_local=1` for both interfaces"
                .to_owned()
        }
        (remedy, _) => remedy.map_or_else(String::new, |remedy| format!("; help: {remedy}")),
    };
    format!("{device}: {error}: no path to {peer}{help}")
}

impl<D: Device> fmt::Debug for PeerWiring<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerWiring")
            .field("connector", &self.connector)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl<D: Device> Wiring<D> for PeerWiring<D> {
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<(), VerbError> {
        // Set the step to `Down` first, so that the step is correct if this function fails.
        if !matches!(std::mem::replace(&mut self.step, ConnectStep::Down), ConnectStep::Down) {
            self.connector.start_next_generation();
        }
        if let Some((connector, changes)) = self.addresses.connector().filter(|(_, changes)| *changes != self.seen) {
            self.connector.set_local(*connector.local());
            self.seen = changes;
        }
        let (attributes, mask) = self.connector.init();
        qp.modify(&attributes, mask)?;
        self.step = ConnectStep::Initialised;
        Ok(())
    }

    fn connect(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<bool, VerbError> {
        match std::mem::replace(&mut self.step, ConnectStep::Down) {
            ConnectStep::Down => return Ok(false),
            ConnectStep::Initialised => {
                self.rendezvous.offer(self.queue, self.offered(qp));
                self.step = ConnectStep::Offered;
            }
            ConnectStep::Offered => {
                self.step = ConnectStep::Offered;
                if let Some(answer) = self.rendezvous.answer(self.queue) {
                    self.start_resolve(qp, answer);
                }
            }
            ConnectStep::Resolving(remote, found) if !found.is_finished() => {
                self.step = ConnectStep::Resolving(remote, found)
            }
            ConnectStep::Resolving(remote, found) => {
                // If the thread panicked, treat the path as unresolved.
                match found.join().unwrap_or(Err(VerbError::new("ibv_create_ah", libc::EIO))) {
                    Ok(handle) => self.handshake(qp, &remote, Some(handle))?,
                    // Devices such as qedr, mana, erdma and hns (HIP08) have no address handles. The kernel then
                    // resolves the path when the queue pair moves to RTR.
                    Err(VerbError { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. })
                        if self.addresses.kind() != QpType::Ud =>
                    {
                        self.handshake(qp, &remote, None)?;
                    }
                    Err(error) => self.refuse(&no_path(self.connector.device(), remote.gid, error)),
                }
            }
            step @ (ConnectStep::Ready | ConnectStep::Refused) => self.step = step,
        }
        Ok(self.rendezvous.is_live(self.queue))
    }

    fn is_stale(&self) -> bool {
        matches!(self.step, ConnectStep::Refused)
            || self.rendezvous.is_stale(self.queue)
            || self.addresses.changes() != self.seen
    }

    fn prefix(&self) -> u16 {
        prefix(self.addresses.kind())
    }

    fn longest(&self) -> u16 {
        let agreed = self.agreed.as_ref().filter(|agreed| !receives_nothing(agreed));
        agreed.map_or(0, |agreed| u16::try_from(agreed.max_message).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::clock::Clocks;
    use dataplane_core::connect::EndpointParameters;
    use dataplane_core::lane::{self, LaneSpec, Stamping};
    use dataplane_core::mem::{PageKind, Pool, RecvFields, Region, RegionSpec, SlotLayout};
    use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
    use dataplane_testing::namespace::{in_namespace, ip};

    /// Opens a lane on a port with a path MTU of 4096, and returns the longest message that the lane offers to receive
    /// into buffers with room for `room` bytes.
    fn offered_message(kind: QpType, room: u16) -> u32 {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        let device = SoftDevice::new(SoftSpec { mtu: 9000, ..SoftSpec::new("s", link) }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let layout = SlotLayout::new(128, room.into(), 256).unwrap();
        assert_eq!(layout.room(), u32::from(room));
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
        let addresses = Arc::new(PortAddresses::new(kind, EndpointParameters::default()));
        addresses.query(&device).unwrap();
        let rendezvous = Arc::new(Rendezvous::new(1));
        let (paths, lane) = (Arc::new(PathCache::new(&pd)), (0, layout.room(), true));
        let messages = PortMessages::of(&toml::from_str("name = 's'\ndevice = 'soft'").unwrap());
        let wiring = PeerWiring::new(paths, lane, messages, rendezvous.clone(), addresses).unwrap();
        assert_eq!(wiring.connector.local().path_mtu, 5, "the code of 4096");
        let spec = LaneSpec {
            kind,
            queue: (0, 1),
            recv_depth: 16,
            send_depth: 16,
            stamps: Stamping::None,
            recv_fields: RecvFields::empty(),
            sleeps: false,
        };
        let (pending_events, clocks) = (Arc::default(), Clocks::default());
        let _lane = lane::open(&device, &pd, &mut pool, spec, Box::new(wiring), pending_events, &clocks).unwrap();
        rendezvous.gather_offers(&|| false).unwrap()[0].max_message
    }

    #[test]
    fn missing_path_to_the_peer_names_the_fix() {
        let error = VerbError::new("ibv_create_ah", libc::ETIMEDOUT);
        let message = no_path("mlx5_0", "fe80::2".parse().unwrap(), error);
        assert!(message.contains("no path to fe80::2; help: select a GID"), "{message}");
        let message = no_path("mlx5_0", "192.0.2.1".parse().unwrap(), error);
        assert!(message.contains("no path to ::ffff:192.0.2.1; help: select a GID"), "{message}");
        let message = no_path("mlx5_0", "127.0.0.1".parse().unwrap(), error);
        assert!(message.contains("belongs to this host") && message.contains("accept_local=1"), "{message}");
    }

    #[test]
    fn address_of_another_host_is_not_local_with_nonlocal_binds() {
        in_namespace(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
            ip("link add va type veth peer name vb\naddr add 192.0.2.1/24 dev va\nlink set va up");
            let is_own = |address: &str| {
                let error = VerbError::new("ibv_create_ah", libc::ETIMEDOUT);
                no_path("mlx5_0", address.parse().unwrap(), error).contains("belongs to this host")
            };
            assert_eq!(["192.0.2.1", "192.0.2.2", "198.51.100.1"].map(is_own), [true, false, false]);
        });
    }

    /// The device writes the global route header of a datagram into the receive buffer.
    #[test]
    fn longest_offered_datagram_fits_into_a_buffer_after_the_route_header() {
        assert_eq!(offered_message(QpType::Ud, 1920), 1880);
        assert_eq!(offered_message(QpType::Ud, 8192), 4096);
        assert_eq!(offered_message(QpType::Rc, 1920), 1920);
    }
}
