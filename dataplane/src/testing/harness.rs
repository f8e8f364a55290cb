//! One stage on a bench.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::clock::{ClockSource, Stamp};
use crate::mem::{Batch, Edge, Fate as Label, Meta, PageKind, Pool, Region, RegionSpec, SlotLayout};
use crate::pipeline::{Ctx, Facts, PortInfo, Problem, Reloads, Resources, Setup, Stage};
use crate::testing::port;
use crate::units::Nanos;

/// What a stage decided for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on to the next stage.
    Next,
    /// It leaves by the output of this name.
    Output(String),
    /// It is dropped for the reason of this name.
    Dropped(String),
    /// The stage consumed it.
    Consumed,
    /// It waits in the stage.
    Held,
}

/// A packet after the stage.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the stage decided.
    pub fate: Fate,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What is known of it.
    pub meta: Meta,
    /// The output that a copy was asked for on.
    pub copy: Option<String>,
}

/// A stage on a bench: give it packets, look at what it does with them.
pub struct Harness {
    stage: Box<dyn Stage>,
    outputs: &'static [(&'static str, &'static str)],
    reasons: Vec<&'static str>,
    before: Vec<Box<dyn Stage>>,
    reloads: Reloads,
    pool: Pool,
    batch: Box<Batch>,
    now: u64,
    ingress: u8,
}

/// What the stage is set up with.
pub struct HarnessBuilder {
    ports: Vec<PortInfo>,
    folder: PathBuf,
    before: Vec<Box<dyn Stage>>,
    ingress: u8,
    wanted: Facts,
}

impl Harness {
    /// Ports `a` and `b` (02:00:00:00:00:0a and ..0b, MTU 1500), and nothing before the stage.
    pub fn builder() -> HarnessBuilder {
        HarnessBuilder {
            ports: vec![port("a"), PortInfo { mac: [2, 0, 0, 0, 0, 11], ..port("b") }],
            folder: PathBuf::new(),
            before: Vec::new(),
            ingress: 0,
            wanted: Facts::empty(),
        }
    }

    /// A prepared stage from its parameters, on the default bench.
    ///
    /// # Errors
    /// The parameters do not fit.
    pub fn from_toml<S: Stage + DeserializeOwned + 'static>(parameters: &str) -> Result<Self, String> {
        Self::builder().build::<S>(parameters)
    }

    /// Hands over packets at once, as one batch (at most 256), and returns them in the same order.
    ///
    /// # Panics
    /// There are more than a batch holds, or one is longer than 9,216 bytes.
    pub fn run<T: AsRef<[u8]>>(&mut self, packets: &[T]) -> Vec<Outcome> {
        let ctx = self.bring(packets);
        self.batch.stock(packets.len() * self.stage.makes(), &mut self.pool);
        self.stage.process(&ctx, &mut self.batch);
        self.outcomes()
    }

    /// Lets the stage look at slow things ([`Stage::tick`]), then make packets of nothing ([`Stage::emit`]). Returns those.
    pub fn tick(&mut self) -> Vec<Outcome> {
        let ctx = self.ctx();
        self.stage.tick(&ctx);
        self.batch.stock(self.stage.emits(), &mut self.pool);
        self.stage.emit(&ctx, &mut self.batch);
        self.outcomes()
    }

    /// What became of the packets in the batch, which are gone then.
    fn outcomes(&mut self) -> Vec<Outcome> {
        self.batch.unstock(&mut self.pool);
        let outcomes = (0..self.batch.len()).map(|index| self.outcome(index)).collect();
        self.batch.clear_labels();
        self.batch.free_into(&mut self.pool);
        outcomes
    }

    fn ctx(&self) -> Ctx {
        Ctx { start: Nanos(0), epoch: Nanos(0), now: Nanos(self.now), worker: 0 }
    }

    /// The same for one packet.
    pub fn run_one(&mut self, packet: &[u8]) -> Outcome {
        self.run(&[packet]).remove(0)
    }

    /// What the stage would say of a packet: see [`Stage::explain`].
    ///
    /// # Panics
    /// It is longer than 9,216 bytes.
    pub fn explain_one(&mut self, packet: &[u8]) -> Option<String> {
        self.bring(&[packet]);
        let said = self.batch.get_mut(0).and_then(|packet| self.stage.explain(&packet));
        self.batch.free_into(&mut self.pool);
        said
    }

    /// Puts packets into the batch and brings them before the stage.
    fn bring<T: AsRef<[u8]>>(&mut self, packets: &[T]) -> Ctx {
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

    /// Moves the clock that packets are stamped with, in nanoseconds.
    pub fn advance(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// Changes the port that packets are received on, as an index.
    pub fn set_ingress(&mut self, port: u8) {
        self.ingress = port;
    }

    /// Has the stage read anew what it takes from outside: see [`crate::pipeline::Reload`]. It takes it up at its next
    /// [`tick`](Self::tick).
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn reload(&mut self) -> Result<(), Vec<Problem>> {
        self.reloads.iter_mut().try_for_each(|(_, reload)| reload.reload().map(|_| ()))
    }

    /// The stage's own counters.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        self.stage.counters(&mut |name, value| counters.push((name.to_owned(), value)));
        counters
    }

    /// The stage.
    pub fn stage(&mut self) -> &mut dyn Stage {
        &mut *self.stage
    }

    fn outcome(&mut self, index: usize) -> Outcome {
        let name = |edge: Edge| self.outputs.get(edge.index()).map_or("undeclared", |(name, _)| name).to_owned();
        let fate = match self.batch.fate(index) {
            Label::Next => Fate::Next,
            Label::Edge(edge) => Fate::Output(name(edge)),
            Label::Dropped(reason) => Fate::Dropped(reason.name(&self.reasons)),
            Label::Consumed => Fate::Consumed,
            Label::Held => Fate::Held,
        };
        let copy = self.batch.copy_wanted(index).map(name);
        let packet = self.batch.get_mut(index).expect("the index is below the batch's length");
        Outcome { fate, bytes: packet.data().to_vec(), meta: *packet.meta(), copy }
    }
}

impl HarnessBuilder {
    /// The ports that the stage can name.
    #[must_use]
    pub fn ports(mut self, ports: &[PortInfo]) -> Self {
        self.ports = ports.to_vec();
        self
    }

    /// The folder that paths in the parameters start from.
    #[must_use]
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = folder.to_owned();
        self
    }

    /// The port that packets are received on, as an index.
    #[must_use]
    pub fn ingress(mut self, port: u8) -> Self {
        self.ingress = port;
        self
    }

    /// A stage that packets go through before, such as `parse`; what it decides is not looked at.
    #[must_use]
    pub fn after(mut self, stage: impl Stage + 'static) -> Self {
        self.before.push(Box::new(stage));
        self
    }

    /// What stages behind it need to know of packets.
    #[must_use]
    pub fn wanting(mut self, facts: Facts) -> Self {
        self.wanted |= facts;
        self
    }

    /// Makes and prepares the stage.
    ///
    /// # Errors
    /// The parameters do not fit.
    pub fn build<S: Stage + DeserializeOwned + 'static>(self, parameters: &str) -> Result<Harness, String> {
        let stage: S = toml::from_str(parameters).map_err(|error| error.to_string())?;
        self.build_from(stage).map_err(|problem| problem.to_string())
    }

    /// Prepares a stage that was made by hand.
    ///
    /// # Errors
    /// What [`Stage::prepare`] says.
    pub fn build_from<S: Stage + 'static>(self, stage: S) -> Result<Harness, Problem> {
        let Self { ports, folder, before, ingress, wanted } = self;
        let mut resources = Resources::new(ports, &folder);
        let mut stage: Box<dyn Stage> = Box::new(stage);
        let mut before = before;
        resources.wanted = before.iter().chain([&stage]).map(|stage| stage.needs()).fold(wanted, |all, it| all | it);
        for stage in before.iter_mut().chain([&mut stage]) {
            let problems = Setup::new(&mut resources, "under_test", 0, 1).prepare(&mut **stage);
            problems.into_iter().next().map_or(Ok(()), Err)?;
        }
        let layout = SlotLayout::new(128, 9216, 512).expect("a valid layout");
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let (region, _) = Region::allocate(spec).map_err(|error| Problem::at("", error.to_string()))?;
        let pool = Pool::new(Arc::new(region), layout).map_err(|error| Problem::at("", error.to_string()))?;
        let batch = Batch::new(&pool);
        let reasons = S::reasons().iter().map(|(name, _)| *name).collect();
        let reloads = resources.reloads;
        Ok(Harness { stage, outputs: S::outputs(), reasons, before, reloads, pool, batch, now: 0, ingress })
    }
}
