//! Unreliable datagrams.

use super::context::FabricContext;
use super::packet::{Body, Datagram, Packet, is_multicast};
use super::qp::Qp;
use crate::completion::Outcome;
use dataplane_core::units::Gid;
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{LinkLayer, Path, PollFields, SendFlags, WcFlags, WcOpcode, WcStatus};

/// The length of the global route header (GRH). In a receive buffer, every datagram starts after this number of bytes,
/// even if the datagram has no GRH.
pub(super) const GRH: usize = 40;
/// The number of bytes that InfiniBand adds to a payload after the global route header: base transport header 12,
/// datagram extended transport header 8, ICRC 4.
const OVERHEAD: usize = 12 + 8 + 4;
/// The length of the UDP header, which RoCEv2 also adds.
const UDP_HEADER: usize = 8;
/// The bytes before a datagram on a port with an unspecified link layer.
const UNDEFINED: [u8; GRH] = [0xa5; GRH];
/// The `slid` of a datagram on a port with an unspecified link layer. efa returns the number of an address handle.
const ADDRESS_HANDLE: u32 = 0xa4;

impl Qp {
    /// Sends a datagram that [`Qp::send_one`] has checked.
    pub(super) fn send_datagram(&mut self, at: usize, ctx: &mut FabricContext<'_>) -> Result<(), WcStatus> {
        let send = &self.requester.queue[at];
        let (Some(to), length, work) = (send.to, send.length, send.work) else { return Err(WcStatus::LocQpOpErr) };
        let (solicited, psn) = (send.flags.contains(SendFlags::SOLICITED), send.first);
        let payload = self.payload(at, 0, length as usize, ctx)?;
        self.requester.queue[at].sent = 1;
        let device = &self.shared.device;
        let from_gid = match (to.path.global, device.gid_at(to.path.source_gid_index)) {
            (false, _) => Gid::default(),
            (true, Some(gid)) => gid,
            (true, None) => return Ok(()),
        };
        if device.is_up() {
            self.shared.counts.tx_packets.add(1);
            self.shared.counts.tx_bytes.add(length);
        }
        // If the top bit of the request's Q_Key is set, the packet carries the Q_Key of the sending queue pair instead.
        let qkey = if to.qkey >> 31 == 1 { self.attributes.qkey } else { to.qkey };
        let datagram = Datagram { qkey, imm: work.imm(), solicited, path: to.path, payload };
        let body = Body::Datagram(datagram);
        let to_gid = if to.path.global { to.path.gid } else { Gid::default() };
        let (from, route) = (self.shared.number, self.route(&to.path));
        self.put(Packet { to: to.qp, to_gid, from, from_gid, route, psn, body }, ctx);
        Ok(())
    }

    /// Receives a datagram, or drops it.
    pub(super) fn on_datagram(&mut self, packet: &Packet, datagram: &Datagram, ctx: &mut FabricContext<'_>) {
        if datagram.qkey != self.attributes.qkey {
            return self.shared.counts.qkey_violations.add(1);
        }
        let Some(receive) = self.take_receive(ctx) else { return self.shared.counts.rx_out_of_buffer.add(1) };
        let length = datagram.payload.len();
        let link_layer = self.shared.device.link_layer;
        let failed = ctx.net.faults.get_mut(&self.shared.device.id()).and_then(|faults| faults.receive_fails());
        self.shared.counts.faults.add(u64::from(failed.is_some()));
        let too_long = receive.capacity() < (GRH + length) as u64;
        let written = match failed {
            Some(status) => Err(status),
            None if too_long => Err(WcStatus::LocLenErr),
            None => {
                let is_infiniband = link_layer == LinkLayer::InfiniBand;
                let header = match link_layer {
                    LinkLayer::Unspecified => UNDEFINED,
                    _ => routing_header(datagram, packet.from_gid, packet.to_gid, is_infiniband),
                };
                let header = match packet.route.global {
                    true => self.keys.scatter_part(&receive.sges, 0, &header),
                    false => Ok(()),
                };
                header.and_then(|()| self.keys.scatter_part(&receive.sges, GRH as u64, &datagram.payload))
            }
        };
        self.shared.counts.rx_too_long.add(u64::from(too_long));
        if let Err(status) = written {
            let status = if self.is_rxe() && failed.is_none() { WcStatus::LocQpOpErr } else { status };
            self.complete_receive(&receive, Outcome::failure(status), true, ctx);
            return self.fail(ctx);
        }
        self.shared.counts.rx_packets.add(1);
        self.shared.counts.rx_bytes.add(length as u64);
        let imm = if datagram.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let (port, route) = (&self.shared.device.port, packet.route);
        let is_unspecified = link_layer == LinkLayer::Unspecified;
        let grh = if route.global && !is_unspecified { WcFlags::GRH } else { WcFlags::empty() };
        let mut fields = PollFields::BYTE_LEN | PollFields::IMM | PollFields::SRC_QP | PollFields::SL;
        fields.set(PollFields::SLID, link_layer != LinkLayer::Ethernet);
        fields.set(PollFields::DLID_PATH_BITS, port.is_infiniband() && !is_multicast(packet.to_gid));
        let values = CompletionValues {
            opcode: WcOpcode::Recv.raw(),
            flags: grh | imm,
            byte_len: (GRH + length) as u32,
            imm: datagram.imm.unwrap_or(0),
            src_qp: packet.from,
            slid: if is_unspecified { ADDRESS_HANDLE } else { route.slid.into() },
            pkey_index: Some(self.attributes.pkey_index),
            sl: datagram.path.service_level,
            dlid_path_bits: port.path_bits_of(route.dlid),
            ..CompletionValues::default()
        };
        self.complete_receive(&receive, Outcome::success(fields, values), datagram.solicited, ctx);
    }

    /// Returns whether this queue pair may join the multicast group.
    pub(super) fn may_join(&self, group: Gid) -> bool {
        self.kind() == dataplane_core::verbs::QpType::Ud && is_multicast(group)
    }
}

/// Returns the 40 bytes that precede a received datagram. For RoCEv2, these bytes contain the IP header. An IPv4 header
/// is preceded by 20 zero bytes. On InfiniBand, these bytes contain the global route header, which has the layout of an
/// IPv6 header.
fn routing_header(datagram: &Datagram, from: Gid, to: Gid, is_infiniband: bool) -> [u8; GRH] {
    const UDP: u8 = 17;
    /// The next header of a global route header: a base transport header follows.
    const IBA_TRANSPORT: u8 = 0x1b;
    let Path { hop_limit, traffic_class, flow_label, .. } = datagram.path;
    let padded = datagram.payload.len().next_multiple_of(4);
    let (next_header, udp) = if is_infiniband { (IBA_TRANSPORT, 0) } else { (UDP, UDP_HEADER) };
    let inside = padded + udp + OVERHEAD + if datagram.imm.is_some() { 4 } else { 0 };
    let mut header = [0; GRH];
    let v4 = |gid: Gid| gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if v4(from) && v4(to) && !is_infiniband {
        let ip = &mut header[20..];
        ip[..2].copy_from_slice(&[0x45, traffic_class]);
        ip[2..4].copy_from_slice(&((inside + 20) as u16).to_be_bytes());
        // The "don't fragment" flag.
        ip[6] = 0x40;
        ip[8..10].copy_from_slice(&[hop_limit, UDP]);
        ip[12..16].copy_from_slice(&from.0[12..]);
        ip[16..20].copy_from_slice(&to.0[12..]);
        // The IPv4 header checksum (RFC 1071).
        let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        return header;
    }
    let word = 6 << 28 | u32::from(traffic_class) << 20 | flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&word.to_be_bytes());
    header[4..6].copy_from_slice(&(inside as u16).to_be_bytes());
    header[6..8].copy_from_slice(&[next_header, hop_limit]);
    header[8..24].copy_from_slice(&from.0);
    header[24..].copy_from_slice(&to.0);
    header
}
