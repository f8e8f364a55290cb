//! Unusual properties of devices.

/// A property or defect of some real devices that the software device has only on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftQuirk {
    /// The device accepts memory with [`Access::ON_DEMAND`](dataplane_core::verbs::Access::ON_DEMAND), as mlx5 does.
    OnDemandPaging,
    /// If a request for a completion queue asks for the fields `SLID`, `SL` and `DLID_PATH_BITS`, the device creates
    /// the queue without these fields, as irdma does.
    NoPathFields,
    /// The device resizes no completion queue, as hns does.
    NoCqResize,
    /// A post to a UD queue pair fails with `EINVAL` if UD does not support the operation, as on hns. Other devices
    /// accept the post and complete the request with an error.
    RefusesUdOperations,
    /// RC, UC and UD queue pairs that were reset refuse the change to INIT with `EINVAL`, as on irdma.
    ResetIsFinal,
    /// A post of an unsignalled send to a UD queue pair fails with `EINVAL`, as on efa.
    RefusesUnsignalled,
    /// The device grants at most 32 bytes of inline data to a queue pair, without an error, as hns does.
    GrantsLessInline,
    /// Flow rules cannot match the source MAC address, IPv6 headers or tunnels, and support no tags, drops or counters,
    /// as on mlx4.
    PlainFlowRules,
    /// The frames of raw-packet queue pairs come through a switch. The switch learns the port of each source address.
    /// The switch drops a frame with a multicast source address, and a frame whose destination is on the port of its
    /// sender. The device drops frames with a wrong Ethernet length field, as a ConnectX NIC does.
    BehindSwitch,
    /// The device creates raw-packet queue pairs, but refuses every flow rule with `EOPNOTSUPP`, as bnxt_re does.
    RefusesFlowRules,
    /// The link layer of the port is [`LinkLayer::Unspecified`](dataplane_core::verbs::LinkLayer::Unspecified), as on efa.
    /// The device has no raw packets. The completion of a datagram has no flag `GRH`, the 40 bytes before the datagram are
    /// undefined, and `slid` is not a local identifier.
    UnspecifiedLinkLayer,
}
