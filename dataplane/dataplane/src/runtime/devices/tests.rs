use std::cell::Cell;
use std::sync::mpsc;

use super::*;
use crate::config::{Diagnostics, Source};
use dataplane_core::mem::{PageKind, RecvFields, Region, RegionSpec, SlotLayout};
use dataplane_core::topology::Topology;
use dataplane_core::units::Gid;
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

fn watch(device: &SoftDevice) -> Watch {
    Watch::start(device.clone(), &HostClock::new(), Stamping::None, &RunStop::default()).unwrap()
}

/// Opens the only port of a plan on a device.
fn open_port(
    (device, watch): (&SoftDevice, Watch),
    plan: &Plan,
    rendezvous: &Arc<Rendezvous>,
) -> Result<OpenPort<SoftDevice>> {
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
    OpenPort::open(device.clone(), Arc::new(watch), provider, (&plan.ports[0], None), exchange)
}

/// A port with a reliable connection and its only lane.
struct OpenLane {
    device: SoftDevice,
    rendezvous: Arc<Rendezvous>,
    pool: Pool,
    lane: Option<Box<dyn Lane>>,
    port: OpenPort<SoftDevice>,
}

impl OpenLane {
    /// Opens a port with `required = false` on a device. Opens no lane.
    fn open_port(device: SoftDevice) -> Self {
        let watch = watch(&device);
        Self::open_port_with(device, watch)
    }

    fn open_port_with(device: SoftDevice, watch: Watch) -> Self {
        let rendezvous = Arc::new(Rendezvous::new(1));
        let port = open_port((&device, watch), &plan(false), &rendezvous).unwrap();
        let layout = SlotLayout::new(128, 1920, 256).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
        Self { device, rendezvous, pool, lane: None, port }
    }

    fn open_lane(&mut self) {
        let spec = LaneSpec {
            kind: QpType::Rc,
            queue: (0, 1),
            recv_depth: 16,
            send_depth: 16,
            stamps: Stamping::None,
            recv_fields: RecvFields::empty(),
            sleeps: false,
        };
        self.lane = Some(self.port.open_lane(&mut self.pool, spec).unwrap());
    }

    fn advance(&mut self) {
        let lane = self.lane.as_mut().unwrap();
        lane.refill(&mut self.pool).unwrap();
        lane.housekeep(&mut self.pool).unwrap();
        assert!(!lane.is_connected());
    }

    /// Advances the lane until the lane offers its queue pair with the address `gid`.
    fn await_offer(&mut self, gid: Gid) {
        wait_until("the lane offers its queue pair", || {
            self.advance();
            // The wait is cancelled at once if the lane has offered nothing.
            let is_first_check = Cell::new(true);
            let offers = self.rendezvous.gather_offers(&|| !is_first_check.replace(false));
            offers.is_some_and(|offers| offers[0].gid == gid)
        });
    }

    /// Waits until the event thread of the device has handled an event and all earlier events.
    fn await_event(&self, line: &str) {
        let mut lines = Vec::new();
        wait_until(line, || {
            lines.extend(self.port.events());
            lines.iter().any(|it| it.contains(line))
        });
    }
}

fn device() -> SoftDevice {
    SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap()
}

/// If the device port of a port with `required = false` is down, the port opens. When the device port becomes active,
/// the lanes of the port offer their queue pairs to the peer.
#[test]
fn port_that_is_not_required_opens_while_its_device_port_is_down() {
    let device = device();
    device.set_link(false);
    let rendezvous = Arc::new(Rendezvous::new(1));
    let refused = open_port((&device, watch(&device)), &plan(true), &rendezvous);
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the port is down (IBV_PORT_DOWN); help: "), "{error}");

    let mut it = OpenLane::open_port(device);
    it.open_lane();
    it.advance();
    assert_eq!(it.rendezvous.describe(), "a queue pair is not ready to connect");
    it.device.set_link(true);
    it.await_offer(it.device.gid());
}

#[test]
fn port_whose_link_flaps_while_its_lane_opens_offers_its_queue_pair() {
    let mut it = OpenLane::open_port(device());
    it.device.set_link(false);
    it.open_lane();
    it.advance();
    it.device.set_link(true);
    it.await_offer(it.device.gid());
}

/// The lane cannot query the new address while the port is down.
#[test]
fn address_that_changes_before_the_link_goes_down_is_offered() {
    let mut it = OpenLane::open_port(device());
    it.open_lane();
    it.await_offer(it.device.gid());
    let changed: Gid = "192.0.2.7".parse().unwrap();
    it.device.set_gids(&[changed]);
    // The event thread queries the port before the link goes down.
    it.await_event("IBV_EVENT_GID_CHANGE");
    it.device.set_link(false);
    it.await_event("IBV_EVENT_PORT_ERR");
    it.advance();
    it.device.set_link(true);
    it.await_event("IBV_EVENT_PORT_ACTIVE");
    it.await_offer(changed);
}

/// If the lane queried the device itself, the lane could miss a change that the event thread handles at that moment.
#[test]
fn lane_offers_the_address_that_the_event_thread_has_queried() {
    let device = device();
    let watch = watch(&device);
    let (release, is_released) = mpsc::channel();
    // This handler delays the later handlers of the same event.
    watch.on_port(1, move |_| is_released.recv_timeout(Duration::from_secs(30)).unwrap());
    let mut it = OpenLane::open_port_with(device, watch);
    let (first, changed) = (it.device.gid(), "192.0.2.7".parse().unwrap());
    it.device.set_gids(&[changed]);
    it.open_lane();
    it.await_offer(first);
    release.send(()).unwrap();
    it.await_offer(changed);
}
