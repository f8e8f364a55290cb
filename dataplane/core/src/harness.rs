//! A test harness for a single stage.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::clock::{ClockSource, Stamp};
use crate::mem::{Batch, Edge, HoldState, Meta, PageKind, Pool, Region, RegionSpec, SlotLayout, Verdict};
use crate::pipeline::{
    ContinuingParts, Ctx, Facts, Objects, PortChange, PortInfo, Problem, Resources, Services, Setup, Stage, Tasks,
};
use crate::units::Nanos;

pub use crate::header::build::Frame;

/// The name of the tested stage.
const NAME: &str = "under_test";

/// The decision of a stage for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The packet goes to the next stage.
    Next,
    /// The packet leaves by the output of this name.
    Output(String),
    /// The packet is dropped for the reason of this name.
    Dropped(String),
    /// The stage consumed the packet.
    Consumed,
    /// The stage holds the packet.
    Held,
}

/// A packet after the stage.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The decision of the stage.
    pub fate: Fate,
    /// The bytes of the packet.
    pub bytes: Vec<u8>,
    /// The metadata of the packet.
    pub meta: Meta,
    /// The output to which the stage sends a copy of the packet. `None` if the stage requested no copy.
    pub copy: Option<String>,
}

/// A harness that runs packets through one stage and returns the results.
pub struct Harness {
    stage: Box<dyn Stage>,
    outputs: &'static [(&'static str, &'static str)],
    reasons: Vec<&'static str>,
    before: Vec<Box<dyn Stage>>,
    objects: Objects,
    services: Services,
    folder: PathBuf,
    wanted: Facts,
    pool: Pool,
    batch: Box<Batch>,
    now: u64,
    ingress: u8,
    hold_state: HoldState,
}

/// The setup of a [`Harness`].
pub struct HarnessBuilder {
    ports: Vec<PortInfo>,
    folder: PathBuf,
    before: Vec<Box<dyn Stage>>,
    ingress: u8,
    wanted: Facts,
}

impl Harness {
    /// Creates a builder with the ports `a` and `b` (02:00:00:00:00:0a and ..0b, MTU 1500) and no stage before the
    /// tested stage.
    pub fn builder() -> HarnessBuilder {
        HarnessBuilder {
            ports: vec![port("a"), PortInfo { mac: [2, 0, 0, 0, 0, 11], ..port("b") }],
            folder: PathBuf::new(),
            before: Vec::new(),
            ingress: 0,
            wanted: Facts::empty(),
        }
    }

    /// Creates and prepares a stage from its parameters, with the default setup.
    ///
    /// # Errors
    /// Returns the problem if the parameters are invalid.
    pub fn from_toml<S: Stage + DeserializeOwned + 'static>(parameters: &str) -> Result<Self, String> {
        Self::builder().build::<S>(parameters)
    }

    /// Passes packets to the stage as one batch of at most 256 packets. Returns the outcomes in the order of the
    /// packets.
    ///
    /// # Panics
    /// Panics if there are more packets than a batch holds, or if a packet is longer than 9,216 bytes.
    pub fn run<T: AsRef<[u8]>>(&mut self, packets: &[T]) -> Vec<Outcome> {
        let ctx = self.fill_batch(packets);
        self.batch.set_hold_state(self.hold_state);
        self.batch.take_spares(packets.len() * self.stage.contract().splits, &mut self.pool);
        self.stage.process(&ctx, &mut self.batch);
        self.outcomes()
    }

    /// Runs the housekeeping of the stage ([`Stage::tick`]), and then the packet generation
    /// ([`Generator::generate`](crate::pipeline::Generator::generate)).
    /// Returns the generated packets.
    pub fn tick(&mut self) -> Vec<Outcome> {
        let ctx = self.ctx();
        self.stage.tick(&ctx);
        if let Some((max, generate)) = self.stage.contract().generator {
            self.batch.take_spares(max, &mut self.pool);
            generate(&mut *self.stage, &ctx, &mut self.batch);
        }
        self.outcomes()
    }

    /// Returns the outcomes of the packets in the batch, and frees the packets.
    fn outcomes(&mut self) -> Vec<Outcome> {
        self.batch.return_spares(&mut self.pool);
        let outcomes = (0..self.batch.len()).map(|index| self.outcome(index)).collect();
        self.batch.clear_labels();
        self.batch.free_into(&mut self.pool);
        outcomes
    }

    fn ctx(&self) -> Ctx {
        Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(self.now), worker: 0 }
    }

    /// Passes one packet to the stage. See [`Harness::run`].
    pub fn run_one(&mut self, packet: &[u8]) -> Outcome {
        self.run(&[packet]).remove(0)
    }

    /// Returns the stage's explanation for a packet. See [`Stage::explain`].
    ///
    /// # Panics
    /// Panics if the packet is longer than 9,216 bytes.
    pub fn explain_one(&mut self, packet: &[u8]) -> Option<String> {
        self.fill_batch(&[packet]);
        let explanation = self.batch.get_mut(0).and_then(|packet| self.stage.explain(&packet));
        self.batch.free_into(&mut self.pool);
        explanation
    }

    /// Puts packets into the batch and runs the stages before the tested stage.
    fn fill_batch<T: AsRef<[u8]>>(&mut self, packets: &[T]) -> Ctx {
        for packet in packets {
            let stamp = Stamp::new(Nanos(self.now), ClockSource::Virtual);
            let fits = self.batch.push_bytes(packet.as_ref(), stamp, &mut self.pool);
            assert!(fits, "a batch holds 256 packets of at most 9,216 bytes");
        }
        self.batch.set_ingress(self.ingress);
        let ctx = self.ctx();
        for stage in &mut self.before {
            stage.process(&ctx, &mut self.batch);
            self.batch.clear_labels();
        }
        ctx
    }

    /// Advances the clock by `nanos` nanoseconds. The packets get their timestamps from this clock.
    pub fn advance(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// Sets the index of the ingress port.
    pub fn set_ingress(&mut self, port: u8) {
        self.ingress = port;
    }

    /// Sets the wait state of the packets in all later calls of [`Harness::run`]: new, already held by the tested
    /// stage, or overdue. This call is necessary because the harness frees held packets and does not return them to the
    /// stage.
    pub fn set_hold_state(&mut self, state: HoldState) {
        self.hold_state = state;
    }

    /// Replaces the stage, as a change of a running pipeline does. The new stage takes over the state of the replaced
    /// stage ([`Stage::adopt`]). Equal parameters are also allowed: the new stage then reads its files again.
    ///
    /// # Errors
    /// Returns all problems of the parameters. The harness then keeps the stage.
    pub fn change<S: Stage + DeserializeOwned + 'static>(&mut self, parameters: &str) -> Result<(), Vec<Problem>> {
        let stage: S = toml::from_str(parameters).map_err(|error| vec![Problem::at("", error.to_string())])?;
        let mut stage: Box<dyn Stage> = Box::new(stage);
        let (none, replaces, renews) = (BTreeSet::new(), BTreeSet::from([NAME.to_owned()]), BTreeSet::new());
        let continuing =
            ContinuingParts { keeps: &none, replaces: &replaces, renews: &renews, held: None, ports: None, workers: 1 };
        let mut resources = self.objects.successor(&self.folder, continuing);
        resources.wanted = self.wanted;
        let mut problems = Setup::new(&mut resources, NAME, 0, 1).prepare(&mut *stage);
        problems.extend(resources.services.checks.drain(..).filter_map(|(_, check)| check().err()));
        if !problems.is_empty() {
            return Err(problems);
        }
        resources.complete_records();
        (self.objects, self.services) = resources.into_parts();
        self.services.starts.drain(..).for_each(|start| start());
        stage.adopt(&mut *self.stage);
        self.stage = stage;
        Ok(())
    }

    /// Starts the background tasks of the stages ([`Setup::task`]). The tasks end when the returned value is dropped.
    /// Without this call, no task runs. Further calls have no effect on tasks that were already started.
    ///
    /// # Errors
    /// A task cannot be started.
    pub fn start_tasks(&mut self) -> crate::error::Result<Tasks> {
        Tasks::start(std::mem::take(&mut self.services.tasks), &self.services.stop)
    }

    /// Reports a change of a port to the stages ([`Setup::on_port_change`]).
    pub fn change_port(&self, port: u8, change: PortChange) {
        self.services.port_handlers.iter().for_each(|(_, handler)| handler(port, change));
    }

    /// Returns the counters of the stage itself.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        self.stage.counters(&mut |name: &str, value: u64| counters.push((name.to_owned(), value)));
        counters
    }

    /// Returns the stage.
    pub fn stage(&mut self) -> &mut dyn Stage {
        &mut *self.stage
    }

    fn outcome(&mut self, index: usize) -> Outcome {
        let name = |edge: Edge| self.outputs.get(edge.index()).map_or("undeclared", |(name, _)| name).to_owned();
        let fate = match self.batch.verdict(index) {
            Verdict::Next => Fate::Next,
            Verdict::Edge(edge) => Fate::Output(name(edge)),
            Verdict::Dropped(reason) => Fate::Dropped(reason.name(&self.reasons)),
            Verdict::Consumed => Fate::Consumed,
            Verdict::Held => Fate::Held,
        };
        let copy = self.batch.copy_wanted(index).map(name);
        let packet = self.batch.get_mut(index).expect("the index is below the batch's length");
        Outcome { fate, bytes: packet.data().to_vec(), meta: *packet.meta(), copy }
    }
}

impl HarnessBuilder {
    /// Sets the ports that the stage can refer to.
    #[must_use]
    pub fn ports(mut self, ports: &[PortInfo]) -> Self {
        self.ports = ports.to_vec();
        self
    }

    /// Sets the folder from which relative paths in the parameters start.
    #[must_use]
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = folder.to_owned();
        self
    }

    /// Sets the index of the ingress port.
    #[must_use]
    pub fn ingress(mut self, port: u8) -> Self {
        self.ingress = port;
        self
    }

    /// Puts the tested stage after `stage`, such as `parse`: packets pass through `stage` first. The decisions of
    /// `stage` are ignored.
    #[must_use]
    pub fn after(mut self, stage: impl Stage + 'static) -> Self {
        self.before.push(Box::new(stage));
        self
    }

    /// Sets the facts that the stages after the tested stage need, such as parsed headers or a flow hash.
    #[must_use]
    pub fn needed_facts(mut self, facts: Facts) -> Self {
        self.wanted |= facts;
        self
    }

    /// Creates and prepares the stage from its parameters.
    ///
    /// # Errors
    /// Returns the problem if the parameters are invalid.
    pub fn build<S: Stage + DeserializeOwned + 'static>(self, parameters: &str) -> Result<Harness, String> {
        let stage: S = toml::from_str(parameters).map_err(|error| error.to_string())?;
        self.build_from(stage).map_err(|problem| problem.to_string())
    }

    /// Prepares a stage that the caller created.
    ///
    /// # Errors
    /// Returns the first problem of the preparation ([`Stage::prepare`] and [`Setup::check_later`]).
    pub fn build_from<S: Stage + 'static>(self, stage: S) -> Result<Harness, Problem> {
        let Self { ports, folder, before, ingress, wanted } = self;
        let mut resources = Resources::new(ports, &folder);
        let mut stage: Box<dyn Stage> = Box::new(stage);
        let mut before = before;
        resources.wanted =
            before.iter().chain([&stage]).map(|stage| stage.contract().needs).fold(wanted, |all, it| all | it);
        for stage in before.iter_mut().chain([&mut stage]) {
            let problems = Setup::new(&mut resources, NAME, 0, 1).prepare(&mut **stage);
            problems.into_iter().next().map_or(Ok(()), Err)?;
        }
        resources.services.checks.drain(..).try_for_each(|(_, check)| check())?;
        let layout = SlotLayout::new(128, 9216, 512).expect("a valid layout");
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let (region, _) = Region::allocate(spec).map_err(|error| Problem::at("", error.to_string()))?;
        let pool = Pool::new(region, layout).map_err(|error| Problem::at("", error.to_string()))?;
        let batch = Batch::new(&pool);
        let reasons = S::info().reasons.iter().map(|(name, _)| *name).collect();
        let wanted = resources.wanted;
        resources.complete_records();
        let (objects, mut services) = resources.into_parts();
        services.starts.drain(..).for_each(|start| start());
        let (outputs, now) = (S::info().outputs, 0);
        Ok(Harness {
            stage,
            outputs,
            reasons,
            before,
            objects,
            services,
            folder,
            wanted,
            pool,
            batch,
            now,
            ingress,
            hold_state: HoldState::Fresh,
        })
    }
}

/// Returns a port with this name, MAC address 02:00:00:00:00:0a and MTU 1500, without a kernel interface and without
/// addresses.
pub fn port(name: &str) -> PortInfo {
    PortInfo { name: name.to_owned(), mac: [2, 0, 0, 0, 0, 10], mtu: 1500, interface: None, addresses: Vec::new() }
}

/// Returns an Ethernet frame from 02:00:00:00:00:01 to 02:00:00:00:00:02. Further headers can be appended to the frame.
pub fn frame<'a>() -> Frame<'a> {
    Frame::new().ethernet(crate::header::MacAddr([2, 0, 0, 0, 0, 1]), crate::header::MacAddr([2, 0, 0, 0, 0, 2]))
}
