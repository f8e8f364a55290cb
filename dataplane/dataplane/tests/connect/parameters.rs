//! Tests of endpoint parameters: the attributes that the parameters set in each state change of a queue pair, and the
//! errors about unsupported parameters.

use std::time::Duration;

use dataplane::clock::Timebase;
use dataplane::connect::{
    AlternatePath, Connector, EndpointError, EndpointParameters, NegotiatedParameters, PathMigration,
    QueuePairEndpoint, mtu_bytes, mtu_code,
};
use dataplane::error::VerbError;
use dataplane::soft::{SoftChannel, SoftCq, SoftDevice, SoftPd};
use dataplane::units::Ticks;
use dataplane::verbs::{
    Access, AsyncEvent, AttributeMask, Capabilities, Capability, CqGranted, CqSpec, Device, GidEntry, GidKind,
    LinkLayer, PortAttributes, PortState, QpState, QpType, check_transition,
};

use super::{cabled, endpoint, gid};

/// A device whose capabilities, port attributes, GIDs and partition keys a test can choose. A software device answers
/// all other calls.
#[derive(Clone)]
struct Fake {
    soft: SoftDevice,
    capabilities: Capabilities,
    port: PortAttributes,
    gids: Vec<GidEntry>,
    pkeys: Vec<u16>,
}

/// Returns an adapter on Ethernet.
fn adapter() -> Fake {
    let [soft, _] = cabled();
    let mut capabilities = soft.capabilities().clone();
    capabilities.has.extend([Capability::Rc, Capability::Uc, Capability::Datagram]);
    (capabilities.max_rd_atomic, capabilities.max_init_rd_atomic) = (16, 8);
    let port = PortAttributes {
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        max_mtu: 4096,
        active_mtu: 1024,
        max_message: 1 << 30,
        gids: 4,
        pkeys: 2,
        lid: 0,
        lmc: 0,
        grh_required: false,
        lanes: 4,
        lane_speed: 25_000_000_000,
    };
    let entry = |index, text, kind| GidEntry { index, gid: gid(text), kind, interface: 2 };
    let gids = vec![
        entry(0, "fe80::1", GidKind::RoceV1),
        entry(1, "fe80::1", GidKind::RoceV2),
        entry(3, "192.0.2.1", GidKind::RoceV2),
    ];
    Fake { soft, capabilities, port, gids, pkeys: vec![0xffff, 0] }
}

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: the software device allocates the protection domains.
unsafe impl Device for Fake {
    type Pd = SoftPd;
    type Cq = SoftCq;
    type Channel = SoftChannel;

    fn name(&self) -> &str {
        "mlx5_0"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn checks_every_key(&self) -> bool {
        self.soft.checks_every_key()
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbError> {
        self.soft.port(port).map(|_| self.port)
    }

    fn gids(&self, _: u8) -> Result<Vec<GidEntry>, VerbError> {
        Ok(self.gids.clone())
    }

    fn pkey(&self, _: u8, index: u16) -> Result<u16, VerbError> {
        Ok(self.pkeys[usize::from(index)])
    }

    fn timebase(&self) -> Timebase {
        self.soft.timebase()
    }

    fn raw_clock(&self) -> Result<Ticks, VerbError> {
        self.soft.raw_clock()
    }

    fn alloc_pd(&self) -> Result<SoftPd, VerbError> {
        self.soft.alloc_pd()
    }

    fn create_channel(&self) -> Result<SoftChannel, VerbError> {
        self.soft.create_channel()
    }

    fn create_cq(&self, spec: &CqSpec, channel: Option<&SoftChannel>) -> Result<(SoftCq, CqGranted), VerbError> {
        self.soft.create_cq(spec, channel)
    }

    fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        self.soft.wait_async_event(timeout)
    }
}

fn gid_choice(gid: Option<&str>, gid_kind: Option<GidKind>) -> EndpointParameters {
    EndpointParameters { gid: gid.map(super::gid), gid_kind, ..EndpointParameters::default() }
}

#[test]
fn mtu_codes_match_verbs_h() {
    let sizes: Vec<u32> = (1..=5).map(mtu_bytes).collect();
    assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
    assert!((1..=5).all(|code| mtu_code(mtu_bytes(code)) == Some(code)));
    assert_eq!([0, 128, 1500, 8192].map(mtu_code), [None; 4]);
}

#[test]
fn gid_is_chosen_by_value_or_kind_or_index() {
    for (parameters, index, address, kind) in [
        (gid_choice(None, None), 3, "::ffff:192.0.2.1", GidKind::RoceV2),
        (gid_choice(None, Some(GidKind::RoceV2)), 3, "::ffff:192.0.2.1", GidKind::RoceV2),
        (gid_choice(None, Some(GidKind::RoceV1)), 0, "fe80::1", GidKind::RoceV1),
        (gid_choice(Some("192.0.2.1"), None), 3, "::ffff:192.0.2.1", GidKind::RoceV2),
        (gid_choice(Some("fe80::1"), Some(GidKind::RoceV2)), 1, "fe80::1", GidKind::RoceV2),
        (gid_choice(Some("fe80::1"), None), 1, "fe80::1", GidKind::RoceV2),
        (gid_choice(Some("fe80::1"), Some(GidKind::RoceV1)), 0, "fe80::1", GidKind::RoceV1),
        (
            EndpointParameters { gid_index: Some(3), ..EndpointParameters::default() },
            3,
            "::ffff:192.0.2.1",
            GidKind::RoceV2,
        ),
    ] {
        let local = parameters.resolve(&adapter(), QpType::Rc).unwrap();
        assert_eq!((local.gid_index, local.gid, local.gid_kind), (index, gid(address), kind));
    }
    // If the index of an address in the GID table changes, `resolve` finds the new index.
    let mut device = adapter();
    let parameters = gid_choice(Some("192.0.2.1"), None);
    let mut connector = Connector::new(&device, QpType::Rc, parameters.clone()).unwrap();
    device.gids[2].index = 2;
    connector.set_local(parameters.resolve(&device, QpType::Rc).unwrap());
    assert_eq!(connector.local().gid_index, 2);
    device.gids.truncate(2);
    let error = parameters.resolve(&device, QpType::Rc).unwrap_err().to_string();
    assert!(error.contains("`gid` = ::ffff:192.0.2.1"), "{error}");
}

/// The link-local GID of a port may not be an address of the interface, and no peer can then resolve the GID.
#[test]
fn default_gid_is_an_address_that_peers_can_resolve() {
    let table = |addresses: &[&str]| {
        // Linux has one entry of RoCE v1 and one entry of RoCE v2 for each address.
        let kinds = [GidKind::RoceV1, GidKind::RoceV2];
        let entries = addresses.iter().flat_map(|&text| {
            let (text, interface) = if text == "vlan" { ("fe80::7", 3) } else { (text, 2) };
            kinds.map(|kind| (gid(text), kind, interface))
        });
        let entry = |(index, (gid, kind, interface))| GidEntry { index: index as u32, gid, kind, interface };
        Fake { gids: entries.enumerate().map(entry).collect(), ..adapter() }
    };
    for (addresses, index, same_host) in [
        (&["fe80::1"] as &[&str], 1, 1),
        (&["fe80::1", "192.0.2.1"], 3, 1),
        (&["fe80::1", "fe80::5"], 3, 3),
        (&["fe80::1", "fe80::5", "169.254.0.1"], 5, 3),
        (&["fe80::1", "169.254.0.1", "fe80::5"], 3, 5),
        (&["fe80::1", "2001:db8::1"], 3, 1),
        (&["fe80::1", "169.254.0.1", "2001:db8::1", "192.0.2.1", "192.0.2.2"], 7, 1),
        // The address of a VLAN.
        (&["fe80::1", "vlan"], 1, 1),
    ] {
        let device = table(addresses);
        let local = EndpointParameters::default().resolve(&device, QpType::Rc).unwrap();
        assert_eq!((local.gid_index, local.gid_kind), (index, GidKind::RoceV2), "{addresses:?}");
        // A peer computes the MAC address from the link-local GID of RoCE v1.
        let v1 = gid_choice(None, Some(GidKind::RoceV1)).resolve(&device, QpType::Rc).unwrap();
        assert_eq!((v1.gid_index, v1.gid_kind), (0, GidKind::RoceV1), "{addresses:?}");
        // Only link-local IPv6 addresses reach another port of the same host.
        for (kind, index) in [(None, same_host), (Some(GidKind::RoceV2), same_host), (Some(GidKind::RoceV1), 0)] {
            let parameters = EndpointParameters { same_host: true, ..gid_choice(None, kind) };
            let local = parameters.resolve(&device, QpType::Rc).unwrap();
            assert_eq!(local.gid_index, index, "{addresses:?} {kind:?}");
        }
    }
}

/// An unsupported parameter is reported with the key, the value, the supported values and the fix.
#[test]
fn unsupported_parameter_is_reported_with_a_fix() {
    type Change = fn(&mut EndpointParameters, &mut Fake);
    let cases: [(Change, &[&str]); 28] = [
        (|it, _| it.port = 2, &["`device_port` = 2 on `mlx5_0`: the device has only port 1; help: use port 1"]),
        (|it, _| it.port = 0, &["`device_port` = 0 on `mlx5_0`: the device has only port 1; help: use port 1"]),
        (
            |_, device| device.port.state = PortState::Down,
            &[
                "`device_port` = 1 on `mlx5_0`: the port is down (IBV_PORT_DOWN); help: bring the network interface of the port up, or check the cable",
            ],
        ),
        (
            |_, device| device.port.state = PortState::Init,
            &[
                "`device_port` = 1 on `mlx5_0`: the port is not active yet (IBV_PORT_INIT); help: bring the network interface of the port up, or check the cable",
            ],
        ),
        (
            |it, _| it.gid = Some(gid("192.0.2.9")),
            &[
                "`gid` = ::ffff:192.0.2.9 on `mlx5_0`: the port has no such address; the addresses of the port: 0 fe80::1 roce_v1, 1 fe80::1 roce_v2, 3 ::ffff:192.0.2.1 roce_v2; help: use an address of the port, or assign the address to the interface",
            ],
        ),
        (
            |it, _| (it.gid, it.gid_kind) = (Some(gid("192.0.2.1")), Some(GidKind::RoceV1)),
            &[
                "`gid` = ::ffff:192.0.2.1 roce_v1 on `mlx5_0`: the port has no such address; the addresses of the port: 0 fe80::1 roce_v1, 1 fe80::1 roce_v2, 3 ::ffff:192.0.2.1 roce_v2; help: use an address of the port, or assign the address to the interface",
            ],
        ),
        (
            |it, device| {
                it.gid_kind = Some(GidKind::InfiniBand);
                device.gids.truncate(1);
            },
            &[
                "`gid_kind` = infiniband on `mlx5_0`: the port has no address of this kind; the addresses of the port: 0 fe80::1 roce_v1; help: use the kind of an address of the port, or assign an address of this kind to the interface",
            ],
        ),
        (
            |it, _| it.gid_index = Some(2),
            &[
                "`gid_index` = 2 on `mlx5_0`: the port has no address at this index; the addresses of the port: 0 fe80::1 roce_v1, 1 fe80::1 roce_v2, 3 ::ffff:192.0.2.1 roce_v2; help: use the index of an address of the port",
            ],
        ),
        (
            |_, device| device.gids.clear(),
            &["`gid` = any on `mlx5_0`: the port has no address; help: assign an address to the interface of the port"],
        ),
        (
            |_, device| {
                device.gids.remove(1);
                device.gids[1].index = 256;
            },
            &[
                "`gid` = ::ffff:192.0.2.1 on `mlx5_0`: the index in the GID table is 256, but a path can only use the first 256 entries; help: remove addresses from the interface",
            ],
        ),
        (
            |it, _| it.grh = Some(false),
            &["`grh` = false on `mlx5_0`: packets on Ethernet always have a global route header; help: remove `grh`"],
        ),
        (
            |it, _| it.pkey_index = 2,
            &["`pkey_index` = 2 on `mlx5_0`: the partition key table of the port has 2 entries; help: use at most 1"],
        ),
        (
            |_, device| device.port.pkeys = 0,
            &[
                "`device_port` = 1 on `mlx5_0`: the port has no partition keys, so no queue pair can use the port; help: use another port or device",
            ],
        ),
        (
            |it, _| it.pkey_index = 1,
            &[
                "`pkey_index` = 1 on `mlx5_0`: the port has no partition key at this index; help: use an index with a key, such as 0",
            ],
        ),
        (
            |it, _| it.path_mtu = Some(2048),
            &[
                "`path_mtu` = 2048 on `mlx5_0`: the active path MTU of the port is 1024; help: use at most 1024, or increase the MTU of the interface",
            ],
        ),
        (
            |it, _| it.path_mtu = Some(1500),
            &["`path_mtu` = 1500 on `mlx5_0`: 1500 is not a path MTU; help: use 256, 512, 1024, 2048 or 4096"],
        ),
        (
            |_, device| device.port.active_mtu = 200,
            &[
                "`device_port` = 1 on `mlx5_0`: the active path MTU of the port is only 200 bytes; help: set the MTU of the interface to at least 352",
            ],
        ),
        (|it, _| it.hop_limit = 0, &["`hop_limit` = 0 on `mlx5_0`: the valid range is 1 to 255; help: use 255"]),
        (
            |it, _| it.flow_label = 1 << 20,
            &["`flow_label` = 1048576 on `mlx5_0`: the maximum is 1048575; help: use a value from 0 to 1048575"],
        ),
        (
            |it, _| it.service_level = 8,
            &["`service_level` = 8 on `mlx5_0`: the maximum is 7; help: use a value from 0 to 7"],
        ),
        (|it, _| it.source_path_bits = 1, &["`source_path_bits` = 1 on `mlx5_0`: the maximum is 0; help: use 0"]),
        (
            |it, _| it.static_rate = 1,
            &[
                "`static_rate` = 1 on `mlx5_0`: verbs.h has no rate with this code; help: use 0 for no limit, or 2 for 2.5 Gbit/s",
            ],
        ),
        (
            |it, _| (it.sq_psn, it.rq_psn) = (1 << 24, Some(1 << 25)),
            &[
                "`sq_psn` = 16777216 on `mlx5_0`: the maximum is 16777215; help: use a value from 0 to 16777215",
                "`rq_psn` = 33554432 on `mlx5_0`: the maximum is 16777215; help: use a value from 0 to 16777215",
            ],
        ),
        (
            |it, _| (it.max_rd_atomic, it.max_dest_rd_atomic) = (9, 17),
            &[
                "`max_rd_atomic` = 9 on `mlx5_0`: the maximum is 8; help: use a value from 0 to 8",
                "`max_dest_rd_atomic` = 17 on `mlx5_0`: the maximum is 16; help: use a value from 0 to 16",
            ],
        ),
        (
            |it, _| (it.min_rnr_timer, it.timeout, it.retry_count, it.rnr_retry) = (32, 32, 8, 8),
            &[
                "`min_rnr_timer` = 32 on `mlx5_0`: the maximum is 31; help: use a value from 0 to 31",
                "`timeout` = 32 on `mlx5_0`: the maximum is 31; help: use a value from 0 to 31",
                "`retry_count` = 8 on `mlx5_0`: the maximum is 7; help: use a value from 0 to 7",
                "`rnr_retry` = 8 on `mlx5_0`: the maximum is 7; help: use a value from 0 to 7",
            ],
        ),
        (
            |it, device| {
                it.access = Access::REMOTE_ATOMIC;
                device.capabilities.has.retain(|has| *has != Capability::Atomic);
            },
            &[
                "`access` = remote_atomic on `mlx5_0`: the device does not support atomics; help: remove \"remote_atomic\" from `access`",
            ],
        ),
        (
            |it, _| it.alternate = Some(ALTERNATE_PATH),
            &["`alternate` = a path on `mlx5_0`: RoCE has no alternate paths; help: remove `alternate`"],
        ),
        (
            |_, device| device.capabilities.has.retain(|has| *has != Capability::Rc),
            &["mlx5_0: the device does not support queue pairs of type IBV_QPT_RC"],
        ),
    ];
    for (change, expected) in cases {
        let (mut parameters, mut device) = (EndpointParameters::default(), adapter());
        change(&mut parameters, &mut device);
        let error = parameters.resolve(&device, QpType::Rc).unwrap_err().to_string();
        assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    }
    let error = EndpointParameters::default().resolve(&adapter(), QpType::RawPacket).unwrap_err().to_string();
    assert_eq!(error, "mlx5_0: a queue pair of type IBV_QPT_RAW_PACKET cannot be connected");
    let device = adapter();
    device.soft.remove();
    let error = EndpointParameters::default().resolve(&device, QpType::Rc).unwrap_err().to_string();
    assert!(error.starts_with("mlx5_0: ibv_query_port failed: "), "{error}");
}

/// On InfiniBand, the service level has four bits, and on Ethernet three bits. The LMC of an InfiniBand port is its
/// number of path bits.
#[test]
fn infiniband_has_other_ranges_than_ethernet() {
    let mut device = adapter();
    (device.port.link_layer, device.port.lid, device.port.lmc) = (LinkLayer::InfiniBand, 4, 2);
    device.gids = vec![GidEntry { index: 0, gid: gid("fe80::2"), kind: GidKind::InfiniBand, interface: 0 }];
    let parameters = EndpointParameters {
        service_level: 15,
        source_path_bits: 3,
        grh: Some(false),
        ..EndpointParameters::default()
    };
    let connector = Connector::new(&device, QpType::Rc, parameters.clone()).unwrap();
    assert_eq!(connector.local().gid_kind, GidKind::InfiniBand);
    let beyond = EndpointParameters { source_path_bits: 4, ..parameters.clone() };
    assert!(beyond.resolve(&device, QpType::Rc).unwrap_err().to_string().contains("the maximum is 3"));
    // Without a GRH, the path uses the LID.
    let own = infiniband(20);
    let peer = infiniband(21);
    let agreed = connector.negotiate(&own, &peer).unwrap();
    assert_eq!((agreed.path.global, agreed.path.dlid, agreed.path.source_path_bits), (false, 9, 3));
    let lost = QueuePairEndpoint { lid: 0, ..peer };
    assert_eq!(connector.negotiate(&own, &lost), Err(EndpointError::NoRoute));
    // By default the path is global if both sides have a GID.
    let usual = Connector::new(&device, QpType::Rc, EndpointParameters { grh: None, ..parameters }).unwrap();
    assert!(usual.negotiate(&own, &peer).unwrap().path.global);
    let bare = QueuePairEndpoint { gid: Default::default(), ..peer };
    assert!(!usual.negotiate(&own, &bare).unwrap().path.global);
    let own = QueuePairEndpoint { gid: Default::default(), ..own };
    assert!(!usual.negotiate(&own, &peer).unwrap().path.global);
}

/// On ports of virtual functions, the fabric routes packets by GID.
#[test]
fn infiniband_port_can_require_a_grh() {
    let mut device = migrating_adapter();
    let usual = EndpointParameters::default();
    let needs_gid = |device: &Fake, parameters| Connector::new(device, QpType::Rc, parameters).map(|it| it.needs_gid());
    assert!(!needs_gid(&device, usual.clone()).unwrap() && needs_gid(&adapter(), usual.clone()).unwrap());
    for parameters in [gid_choice(Some("fe80::2"), None), EndpointParameters { gid_index: Some(0), ..usual.clone() }] {
        assert!(needs_gid(&device, parameters).unwrap());
    }
    device.port.grh_required = true;
    assert!(needs_gid(&device, usual.clone()).unwrap());
    let connector = Connector::new(&device, QpType::Rc, usual.clone()).unwrap();
    let (own, peer) = (infiniband(20), infiniband(21));
    let bare = |end| QueuePairEndpoint { gid: Default::default(), ..end };
    assert!(connector.negotiate(&bare(own), &peer).unwrap().path.global);
    assert_eq!(connector.negotiate(&own, &bare(peer)), Err(EndpointError::NoAddress));
    let without = EndpointParameters { grh: Some(false), ..usual };
    assert_eq!(
        without.resolve(&device, QpType::Rc).unwrap_err().to_string(),
        "`grh` = false on `mlx5_0`: the port requires a global route header (`IBV_QPF_GRH_REQUIRED`); help: remove `grh`"
    );
}

const ALTERNATE_PATH: AlternatePath = AlternatePath {
    port: 1,
    gid: None,
    source_gid_index: 0,
    lid: 77,
    pkey_index: 0,
    timeout: 15,
    service_level: 9,
    source_path_bits: 2,
    static_rate: 3,
};

/// Returns an adapter on InfiniBand with automatic path migration.
fn migrating_adapter() -> Fake {
    let mut device = adapter();
    (device.port.link_layer, device.port.lid, device.port.lmc) = (LinkLayer::InfiniBand, 4, 2);
    device.gids = vec![GidEntry { index: 0, gid: gid("fe80::2"), kind: GidKind::InfiniBand, interface: 0 }];
    device.capabilities.path_migration = true;
    device
}

/// The alternate path is set in the change to RTR and the migration state in the change to RTS. Datagram queue pairs
/// have neither an alternate path nor a migration state.
#[test]
fn alternate_path_is_set_in_the_state_changes() {
    let parameters = EndpointParameters {
        alternate: Some(AlternatePath { gid: Some(gid("fe80::77")), ..ALTERNATE_PATH }),
        path_migration: Some(PathMigration::Rearm),
        flow_label: 5,
        ..EndpointParameters::default()
    };
    let changes = |kind: QpType, parameters: EndpointParameters| {
        let connector = Connector::new(&migrating_adapter(), kind, parameters).unwrap();
        let (own, peer) = (infiniband(20), infiniband(21));
        let described = |end| QueuePairEndpoint { transport: kind, ..end };
        let agreed = connector.negotiate(&described(own), &described(peer)).unwrap();
        (connector.rtr(&agreed), connector.rts(&agreed))
    };
    for kind in [QpType::Rc, QpType::Uc] {
        let ((rtr, rtr_mask), (rts, rts_mask)) = changes(kind, parameters.clone());
        assert!(rtr_mask.contains(AttributeMask::ALT_PATH) && rts_mask.contains(AttributeMask::PATH_MIG_STATE));
        assert_eq!(check_transition(kind, QpState::Init, QpState::Rtr, rtr_mask), Ok(()));
        assert_eq!(check_transition(kind, QpState::Rtr, QpState::Rts, rts_mask), Ok(()));
        let path = rtr.alternate_path;
        assert_eq!((path.dlid, path.gid, path.global, path.port), (77, gid("fe80::77"), true, 1));
        assert_eq!((path.service_level, path.source_path_bits, path.static_rate, path.flow_label), (9, 2, 3, 5));
        assert_eq!((rtr.alternate_pkey_index, rtr.alternate_timeout, rts.path_migration), (0, 15, 1));
        let ((_, rtr), (_, rts)) = changes(kind, EndpointParameters::default());
        assert!(!(rtr | rts).intersects(AttributeMask::ALT_PATH | AttributeMask::PATH_MIG_STATE));
    }
    let ((_, rtr), (_, rts)) = changes(QpType::Ud, parameters);
    assert!(!(rtr | rts).intersects(AttributeMask::ALT_PATH | AttributeMask::PATH_MIG_STATE));
}

/// An unsupported parameter of the alternate path is reported with its key, its value and the fix.
#[test]
fn unsupported_alternate_path_is_reported_with_a_fix() {
    type Change = fn(&mut AlternatePath, &mut Fake);
    let cases: [(Change, &str); 10] = [
        (
            |_, device| device.capabilities.path_migration = false,
            "`alternate` = a path on `mlx5_0`: the device does not support automatic path migration; help: remove `alternate`",
        ),
        (|it, _| it.port = 2, "`alternate.device_port` = 2 on `mlx5_0`: the device has only port 1; help: use port 1"),
        (
            |it, _| it.lid = 0,
            "`alternate.lid` = 0 on `mlx5_0`: the valid range is 1 to 65535; help: use the LID that `ibv_devinfo` shows on the peer",
        ),
        (
            |_, device| device.port.grh_required = true,
            "`alternate.gid` = none on `mlx5_0`: the port requires a global route header (`IBV_QPF_GRH_REQUIRED`); help: use the GID of the peer's port on this path",
        ),
        (
            |it, _| (it.gid, it.source_gid_index) = (Some(gid("fe80::77")), 4),
            "`alternate.source_gid_index` = 4 on `mlx5_0`: the GID table of the port has 4 entries; help: use the index of an entry with an address",
        ),
        (
            |it, _| it.pkey_index = 1,
            "`alternate.pkey_index` = 1 on `mlx5_0`: the port has no partition key at this index; help: use an index with a key, such as 0",
        ),
        (
            |it, _| it.timeout = 32,
            "`alternate.timeout` = 32 on `mlx5_0`: the maximum is 31; help: use a value from 0 to 31",
        ),
        (
            |it, _| it.service_level = 16,
            "`alternate.service_level` = 16 on `mlx5_0`: the maximum is 15; help: use a value from 0 to 15",
        ),
        (
            |it, _| it.source_path_bits = 4,
            "`alternate.source_path_bits` = 4 on `mlx5_0`: the maximum is 3; help: use a value from 0 to 3",
        ),
        (
            |it, _| it.static_rate = 25,
            "`alternate.static_rate` = 25 on `mlx5_0`: the maximum is 24; help: use a value from 0 to 24",
        ),
    ];
    for (change, said) in cases {
        let (mut path, mut device) = (ALTERNATE_PATH, migrating_adapter());
        change(&mut path, &mut device);
        let parameters = EndpointParameters { alternate: Some(path), ..EndpointParameters::default() };
        assert_eq!(parameters.resolve(&device, QpType::Rc).unwrap_err().to_string(), said);
    }
    let parameters = EndpointParameters { path_migration: Some(PathMigration::Armed), ..EndpointParameters::default() };
    let error = parameters.resolve(&migrating_adapter(), QpType::Rc).unwrap_err().to_string();
    assert!(error.contains("there is no `alternate` path"), "{error}");
}

fn infiniband(number: u32) -> QueuePairEndpoint {
    let layer = LinkLayer::InfiniBand;
    QueuePairEndpoint { link_layer: layer, gid_kind: GidKind::InfiniBand, lid: 9, ..endpoint(number) }
}

fn agreed(kind: QpType, parameters: EndpointParameters) -> (Connector, NegotiatedParameters) {
    let connector = Connector::new(&adapter(), kind, parameters).unwrap();
    let described = |number| QueuePairEndpoint { transport: kind, ..endpoint(number) };
    let peer = QueuePairEndpoint { psn: 0x12_3456, gid: gid("fe80::2"), ..described(0x99) };
    let agreed = connector.negotiate(&described(0x98), &peer).unwrap();
    (connector, agreed)
}

/// Each state change has exactly the attributes that the kernel's table requires for the type of queue pair.
#[test]
fn state_changes_have_the_required_attributes() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (connector, agreed) = agreed(kind, EndpointParameters::default());
        for (from, to, (attributes, mask)) in [
            (QpState::Reset, QpState::Init, connector.init()),
            (QpState::Init, QpState::Rtr, connector.rtr(&agreed)),
            (QpState::Rtr, QpState::Rts, connector.rts(&agreed)),
        ] {
            assert_eq!(attributes.state, to);
            assert!(mask.contains(AttributeMask::STATE));
            assert_eq!(check_transition(kind, from, to, mask), Ok(()), "{kind}: {from} to {to}");
        }
    }
}

/// Except for `timeout`, the default parameters equal the constants in the handshake of the crate `ibverbs` from
/// crates.io.
#[test]
fn default_parameters_equal_the_constants_of_the_ibverbs_crate() {
    let (connector, agreed) = agreed(QpType::Rc, EndpointParameters::default());
    let (init, _) = connector.init();
    assert_eq!((init.port, init.pkey_index, init.access), (1, 0, Access::empty()));
    let (rtr, _) = connector.rtr(&agreed);
    assert_eq!((rtr.path.global, rtr.path.hop_limit, rtr.path.source_gid_index), (true, 0xff, 3));
    assert_eq!((rtr.path.service_level, rtr.path.source_path_bits, rtr.max_dest_rd_atomic), (0, 0, 1));
    assert_eq!((rtr.dest_qp.0, rtr.path.gid, rtr.path_mtu, rtr.min_rnr_timer), (0x99, gid("fe80::2"), 3, 16));
    let (rts, _) = connector.rts(&agreed);
    assert_eq!((rts.sq_psn, rts.max_rd_atomic, rts.retry_count, rts.rnr_retry), (0, 1, 6, 6));
    assert_eq!(rtr.rq_psn, 0x12_3456, "the first packet number of the peer comes from the endpoint of the peer");
    let ud = Connector::new(&adapter(), QpType::Ud, EndpointParameters::default()).unwrap();
    assert_eq!(ud.init().0.qkey, 0x1111_1111);
}

/// Each parameter must set its attribute in the change to INIT, RTR or RTS.
#[test]
fn every_parameter_is_set_in_its_state_change() {
    let parameters = EndpointParameters {
        port: 1,
        same_host: false,
        gid: None,
        gid_kind: None,
        gid_index: Some(3),
        pkey_index: 0,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        qkey: 5,
        path_mtu: Some(512),
        grh: Some(true),
        hop_limit: 3,
        traffic_class: 104,
        flow_label: 0xf_ffff,
        service_level: 5,
        source_path_bits: 0,
        static_rate: 17,
        sq_psn: 0xab_cdef,
        rq_psn: Some(0x12_3456),
        max_rd_atomic: 8,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 18,
        retry_count: 5,
        rnr_retry: 4,
        alternate: None,
        path_migration: None,
        allow_self: false,
    };
    let (connector, agreed) = agreed(QpType::Rc, parameters.clone());
    let (init, _) = connector.init();
    assert_eq!((init.port, init.pkey_index, init.access), (1, 0, Access::REMOTE_READ | Access::REMOTE_WRITE));
    let (rtr, _) = connector.rtr(&agreed);
    assert_eq!((rtr.path_mtu, rtr.rq_psn, rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (2, 0x12_3456, 4, 12));
    let path = rtr.path;
    assert_eq!((path.source_gid_index, path.hop_limit, path.traffic_class, path.flow_label), (3, 3, 104, 0xf_ffff));
    assert_eq!((path.service_level, path.static_rate, path.port, path.global), (5, 17, 1, true));
    let (rts, _) = connector.rts(&agreed);
    assert_eq!((rts.sq_psn, rts.timeout, rts.retry_count, rts.rnr_retry), (0xab_cdef, 18, 5, 4));
    assert_eq!(rts.max_rd_atomic, 1, "the peer offers only one outstanding read");
    let other = QueuePairEndpoint { psn: 1, ..endpoint(0x99) };
    let expected = EndpointError::UnexpectedPsn { own: 0x12_3456, peer: 1 };
    assert_eq!(connector.negotiate(&endpoint(0x98), &other), Err(expected));
    // After a reset, the peer has another first packet number. `rq_psn` also determines the first packet number that is
    // expected for each later generation.
    let peer = EndpointParameters { sq_psn: 0x12_3456, ..EndpointParameters::default() };
    for generation in [1, 7] {
        let again = QueuePairEndpoint { psn: peer.psn(generation), generation, ..endpoint(0x99) };
        assert!(connector.negotiate(&endpoint(0x98), &again).is_ok(), "{generation}");
        let old = QueuePairEndpoint { psn: 0x12_3456, ..again };
        let expected = EndpointError::UnexpectedPsn { own: peer.psn(generation), peer: 0x12_3456 };
        assert_eq!(connector.negotiate(&endpoint(0x98), &old), Err(expected));
    }
    let ud = Connector::new(&adapter(), QpType::Ud, EndpointParameters { pkey_index: 0, ..parameters }).unwrap();
    assert_eq!(ud.init().0.qkey, 5);
}

/// The path MTU of a connection is the smaller of the path MTUs of the two sides. A datagram has at most one packet.
#[test]
fn smaller_path_mtu_of_the_two_sides_applies() {
    for (kind, own, peer, code, message) in [
        (QpType::Rc, Some(1024), 2, 2, 1 << 23),
        (QpType::Rc, Some(256), 5, 1, 1 << 23),
        (QpType::Uc, None, 5, 3, 1 << 23),
        (QpType::Ud, None, 2, 2, 512),
        (QpType::Ud, Some(256), 4, 1, 256),
    ] {
        let parameters = EndpointParameters { path_mtu: own, ..EndpointParameters::default() };
        let connector = Connector::new(&adapter(), kind, parameters).unwrap();
        let described = |number| QueuePairEndpoint { transport: kind, path_mtu: peer, ..endpoint(number) };
        let agreed = connector.negotiate(&described(5), &described(6)).unwrap();
        assert_eq!((agreed.path_mtu, agreed.max_message), (code, message), "{kind}");
    }
}

/// A reset starts a new generation of the queue pair, with a new first packet number. The first packet numbers of the
/// generations are far apart, so that a late packet of an earlier generation is not accepted.
#[test]
fn first_packet_numbers_of_the_generations_are_far_apart() {
    let parameters = EndpointParameters { sq_psn: 0xff_fff0, ..EndpointParameters::default() };
    let numbers: Vec<u32> = (0..64).map(|generation| parameters.psn(generation)).collect();
    assert_eq!(numbers[0], 0xff_fff0);
    for (at, one) in numbers.iter().enumerate() {
        assert!(*one < 1 << 24);
        for other in &numbers[..at] {
            let ahead = one.wrapping_sub(*other) & 0xff_ffff;
            assert!(ahead.min((1 << 24) - ahead) > 1 << 16, "{one} and {other}");
        }
    }
}
