use super::*;
use crate::config::{Diagnostics, Source};
use dataplane_core::mem::{PageKind, RecvFields, Region, RegionSpec, SlotLayout};
use dataplane_core::topology::Topology;
use dataplane_soft::{LinkSpec, SoftSpec};
use dataplane_testing::wait_until;

/// Returns the plan of a config with one port. The port has a reliable connection.
fn plan(required: bool) -> Plan {
    let text = format!(
        "[[port]]\nname = 'up'\ndevice = 'soft'\nqp = 'rc'\nlink = {{ kind = 'loopback' }}\nrequired = {required}\n\
         connection = {{ to = '192.0.2.1:18515' }}\n[pipeline]\ninput = ['up']\n[[pipeline.stage]]\nuse = 'drop'\n"
    );
    let source = Source::new("x.toml", &text, &[]);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let plan = config::plan(&loaded, &dataplane_stages::registry(), &Topology::uniform(1), &mut diagnostics);
    plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))
}

/// Opens the only port of a plan on a device.
fn open_port(device: &SoftDevice, plan: &Plan, rendezvous: &Arc<Rendezvous>) -> Result<OpenPort<SoftDevice>> {
    let watch = Watch::start(device.clone(), &HostClock::new(), Stamping::None, &RunStop::default()).unwrap();
    let provider = ProviderParts {
        what: String::new(),
        detail: |_| None,
        counters: Box::new(|_: &SoftDevice| BTreeMap::new()),
        counter_names: |_| Vec::new(),
        computes_checksums: false,
        why: |_| None,
        finish: |_| Vec::new(),
        check_queues: |_, _| Ok(()),
        distribute: |_, _| Ok(()),
        hand_over: |_| None,
        _promiscuous: None,
    };
    let exchange = |_: &Connection, _| Ok((rendezvous.clone(), None));
    OpenPort::open(device.clone(), Arc::new(watch), provider, &plan.ports[0], exchange)
}

/// If the device port of a port with `required = false` is down, the port opens. When the device port becomes active,
/// the lanes of the port offer their queue pairs to the peer.
#[test]
fn port_that_is_not_required_opens_while_its_device_port_is_down() {
    let link = LinkSpec::Loopback(LoopbackLink::reflect());
    let device = SoftDevice::new(SoftSpec::new("s", link)).unwrap();
    device.set_link(false);
    let rendezvous = Arc::new(Rendezvous::new(1));
    let error = open_port(&device, &plan(true), &rendezvous).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the port is down (IBV_PORT_DOWN); help: "), "{error}");

    let port = open_port(&device, &plan(false), &rendezvous).unwrap();
    let layout = SlotLayout::new(128, 1920, 256).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
    let spec = LaneSpec {
        kind: QpType::Rc,
        queue: (0, 1),
        recv_depth: 16,
        send_depth: 16,
        stamps: Stamping::None,
        recv_fields: RecvFields::empty(),
        sleeps: false,
    };
    let mut lane = port.open_lane(&mut pool, spec).unwrap();
    let mut advance = || {
        lane.refill(&mut pool).unwrap();
        lane.housekeep(&mut pool).unwrap();
        assert!(!lane.is_connected());
    };
    advance();
    assert_eq!(rendezvous.describe(), "a queue pair is not ready to connect");
    device.set_link(true);
    // The event thread of the device handles the change.
    wait_until("the lane offers its queue pair", || {
        advance();
        rendezvous.describe() == "the peer did not connect"
    });
}
