//! The properties that a stage declares about itself, and its optional capabilities.

use std::any::Any;

use crate::mem::{Batch, Packet, Reason, RecvFields};
use crate::pipeline::{Cause, Ctx, DefaultTarget, Facts, TableInfo};
use crate::units::Nanos;

/// The properties that all stages of a kind have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageInfo {
    /// Names and meanings of the outputs. This list does not contain the connection to the next stage, which is not an
    /// output. [`crate::mem::Edge`] is an index into this list.
    pub outputs: &'static [(&'static str, &'static str)],
    /// Names and meanings of the drop reasons that the stage defines. [`crate::mem::Reason::of_stage`] is an index into
    /// this list.
    pub reasons: &'static [(&'static str, &'static str)],
    /// The built-in drop reasons that the stage uses. Even before the first drop, the metrics have a counter for each
    /// reason in `drops` and in `reasons`.
    pub drops: &'static [Reason],
    /// The names of the values of [`Stage::counters`](super::Stage::counters) that can also decrease, such as the size
    /// of a table.
    pub gauges: &'static [&'static str],
    /// Whether the stage never passes a packet on to a next stage.
    pub terminal: bool,
    /// The tables that the stage registers with [`Setup::table`](super::Setup::table).
    pub tables: &'static [TableInfo],
    /// What happens to the state of a stage if its parameters change during a run.
    pub state: StageState,
}

/// What happens to the state of a stage if its parameters change during a run. The program then replaces the stage with
/// a new stage of the same name and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StageState {
    /// The state of the stage is lost, if the stage has state.
    #[default]
    Lost,
    /// The stage has no state.
    Stateless,
    /// The new stage takes over this state, such as "the hits of rules" ([`Stage::adopt`](super::Stage::adopt)).
    Kept(&'static str),
}

impl StageInfo {
    /// Creates the description of a kind of stage without outputs and without drop reasons.
    pub const fn new() -> Self {
        let (drops, gauges) = (&[], &[]);
        Self { outputs: &[], reasons: &[], drops, gauges, terminal: false, tables: &[], state: StageState::Lost }
    }

    /// Sets the outputs.
    #[must_use]
    pub const fn outputs(self, outputs: &'static [(&'static str, &'static str)]) -> Self {
        Self { outputs, ..self }
    }

    /// Sets the drop reasons.
    #[must_use]
    pub const fn reasons(self, reasons: &'static [(&'static str, &'static str)]) -> Self {
        Self { reasons, ..self }
    }

    /// Sets the built-in drop reasons that the stage uses.
    #[must_use]
    pub const fn drops(self, drops: &'static [Reason]) -> Self {
        Self { drops, ..self }
    }

    /// Sets the names of the values of [`Stage::counters`](super::Stage::counters) that can also decrease.
    #[must_use]
    pub const fn gauges(self, gauges: &'static [&'static str]) -> Self {
        Self { gauges, ..self }
    }

    /// Sets the tables.
    #[must_use]
    pub const fn tables(self, tables: &'static [TableInfo]) -> Self {
        Self { tables, ..self }
    }

    /// Declares that the stage has no state that could be lost if the parameters change.
    #[must_use]
    pub const fn stateless(self) -> Self {
        Self { state: StageState::Stateless, ..self }
    }

    /// Describes the state that [`Stage::adopt`](super::Stage::adopt) takes over, such as "the hits of rules".
    #[must_use]
    pub const fn keeps(self, state: &'static str) -> Self {
        Self { state: StageState::Kept(state), ..self }
    }

    /// Declares that the stage never passes a packet on to a next stage.
    #[must_use]
    pub const fn terminal(self) -> Self {
        Self { terminal: true, ..self }
    }
}

/// Calls [`Generator::generate`] of a stage.
pub(crate) type Generate = fn(&mut dyn Any, &Ctx, &mut Batch);
/// Calls [`DropObserver::observe_drop`] of a stage.
pub(crate) type ObserveDrop = fn(&mut dyn Any, &Ctx, &Packet<'_>, Cause<'_>);
/// Calls [`StateTransfer::save_state`] of a stage.
pub(crate) type SaveState = fn(&mut dyn Any) -> Option<Vec<u8>>;
/// Calls [`StateTransfer::load_state`] of a stage.
pub(crate) type LoadState = fn(&mut dyn Any, &[u8]) -> Result<(), String>;
/// Calls [`ChecksumOffload::offload_checksums`] of a stage.
pub(crate) type OffloadChecksums = fn(&mut dyn Any);

/// The facts that a stage needs and sets, its other effects on packets, and its optional capabilities. A fact is a
/// property that is known about a packet.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// The facts that must be known about every packet that the stage receives.
    pub needs: Facts,
    /// The facts that are known about every packet that goes on to the next stage.
    pub sets: Facts,
    /// The facts that are known about packets on the outputs.
    pub sets_on_outputs: Facts,
    /// The facts that are no longer known about a packet after the stage.
    pub invalidates: Facts,
    /// Whether the stage requests copies of packets.
    pub copies: bool,
    /// The largest number of packets that the stage adds per received packet.
    pub splits: usize,
    /// Maximum time that the stage may hold packets, or `None` if the stage holds none.
    pub holds: Option<Nanos>,
    /// The default destination of packets, if the stage does not decide otherwise.
    pub exit: DefaultTarget,
    /// The receive information that the stage reads.
    pub receives: RecvFields,
    /// Whether the stage neither reads nor changes checksums.
    pub ignores_checksums: bool,
    /// The capability to leave checksums to devices. Only a stage that computes checksums has this capability.
    pub(crate) checksum_offload: Option<OffloadChecksums>,
    /// The capability to generate packets, with the largest number of packets of one call.
    pub(crate) generator: Option<(usize, Generate)>,
    /// The capability to observe the drops of other stages.
    pub(crate) drop_observer: Option<ObserveDrop>,
    /// The capability to pass the state to another program.
    pub(crate) state_transfer: Option<(SaveState, LoadState)>,
}

impl Default for Contract {
    fn default() -> Self {
        Self::new()
    }
}

impl Contract {
    /// Creates the contract of a stage that needs and sets no facts, and only drops packets or passes packets on.
    pub const fn new() -> Self {
        let none = Facts::empty();
        Self {
            needs: none,
            sets: none,
            sets_on_outputs: none,
            invalidates: none,
            copies: false,
            splits: 0,
            holds: None,
            exit: DefaultTarget::Next,
            receives: RecvFields::empty(),
            ignores_checksums: false,
            checksum_offload: None,
            generator: None,
            state_transfer: None,
            drop_observer: None,
        }
    }

    /// Sets the facts that must be known about every received packet. The contract is read before and after
    /// [`Stage::prepare`]. Before that call, the contract must contain every fact that the stage may need. After the
    /// call, the contract may contain fewer facts.
    ///
    /// [`Stage::prepare`]: super::Stage::prepare
    #[must_use]
    pub const fn needs(self, needs: Facts) -> Self {
        Self { needs, ..self }
    }

    /// Sets the facts that are known about every packet after the stage, both for the next stage and on the outputs.
    #[must_use]
    pub const fn sets(self, sets: Facts) -> Self {
        Self { sets, sets_on_outputs: sets, ..self }
    }

    /// Sets the facts that are known about packets on the outputs, if these facts differ from the facts for the next
    /// stage. Call this method after [`Contract::sets`].
    #[must_use]
    pub const fn sets_on_outputs(self, sets_on_outputs: Facts) -> Self {
        Self { sets_on_outputs, ..self }
    }

    /// Sets the facts that are no longer known about a packet after the stage.
    #[must_use]
    pub const fn invalidates(self, invalidates: Facts) -> Self {
        Self { invalidates, ..self }
    }

    /// Declares that the stage requests copies of packets ([`Packet::copy_to`]).
    #[must_use]
    pub const fn copies(self) -> Self {
        Self { copies: true, ..self }
    }

    /// Sets the largest number of packets that the stage adds per received packet with [`Batch::split_from`] or
    /// [`Batch::generate`].
    #[must_use]
    pub const fn splits(self, splits: usize) -> Self {
        Self { splits, ..self }
    }

    /// Sets the maximum time that the stage may hold packets ([`Packet::hold`]). A packet that waits longer returns to
    /// the stage, marked as overdue. A stage holds at most [`crate::mem::BATCH`] packets per worker.
    #[must_use]
    pub const fn holds(self, holds: Option<Nanos>) -> Self {
        Self { holds, ..self }
    }

    /// Sets the default destination of packets. The stage may still send a packet to an output, or drop, consume or
    /// hold the packet.
    #[must_use]
    pub const fn exit(self, exit: DefaultTarget) -> Self {
        Self { exit, ..self }
    }

    /// Sets the parts of the receive information that the stage reads with [`Packet::recv_info`]. The device may refuse
    /// some of these parts.
    #[must_use]
    pub const fn receives(self, receives: RecvFields) -> Self {
        Self { receives, ..self }
    }

    /// Declares that the stage computes the IPv4, TCP and UDP checksums of every packet that leaves the stage. If the
    /// devices of all ports that send these packets compute checksums, the run calls
    /// [`ChecksumOffload::offload_checksums`]. `S` is the type of the stage.
    #[must_use]
    pub const fn computes_checksums<S: Any + ChecksumOffload>(self) -> Self {
        Self { checksum_offload: Some(offload_checksums::<S>), ..self }
    }

    /// Declares that the stage generates packets: at most `max` packets in one call of [`Generator::generate`]. `S` is
    /// the type of the stage.
    #[must_use]
    pub const fn generates<S: Any + Generator>(self, max: usize) -> Self {
        Self { generator: Some((max, generate::<S>)), ..self }
    }

    /// Declares that the stage can observe the packets that other stages drop. `S` is the type of the stage.
    #[must_use]
    pub const fn observes_drops<S: Any + DropObserver>(self) -> Self {
        Self { drop_observer: Some(observe_drop::<S>), ..self }
    }

    /// Declares that the stage can pass its state to another program. `S` is the type of the stage.
    #[must_use]
    pub const fn transfers_state<S: Any + StateTransfer>(self) -> Self {
        Self { state_transfer: Some((save_state::<S>, load_state::<S>)), ..self }
    }

    /// Declares that the stage neither reads nor changes checksums. The checksums of its packets may therefore be wrong
    /// until a device computes the checksums.
    #[must_use]
    pub const fn ignores_checksums(self) -> Self {
        Self { ignores_checksums: true, ..self }
    }
}

// The contract of a stage of type `S` can also belong to a stage of another type: the substitute of a stage that
// panicked, or a `StandIn`. These functions do nothing for a stage of another type.

fn offload_checksums<S: Any + ChecksumOffload>(stage: &mut dyn Any) {
    if let Some(stage) = stage.downcast_mut::<S>() {
        stage.offload_checksums();
    }
}

fn generate<S: Any + Generator>(stage: &mut dyn Any, ctx: &Ctx, batch: &mut Batch) {
    if let Some(stage) = stage.downcast_mut::<S>() {
        stage.generate(ctx, batch);
    }
}

fn observe_drop<S: Any + DropObserver>(stage: &mut dyn Any, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>) {
    if let Some(stage) = stage.downcast_mut::<S>() {
        stage.observe_drop(ctx, packet, cause);
    }
}

fn save_state<S: Any + StateTransfer>(stage: &mut dyn Any) -> Option<Vec<u8>> {
    stage.downcast_mut::<S>().and_then(StateTransfer::save_state)
}

fn load_state<S: Any + StateTransfer>(stage: &mut dyn Any, state: &[u8]) -> Result<(), String> {
    stage.downcast_mut::<S>().map_or(Ok(()), |stage| stage.load_state(state))
}

/// The capability of a stage to leave its checksums to the devices that send the packets. A stage that computes
/// checksums declares the capability with [`Contract::computes_checksums`].
pub trait ChecksumOffload {
    /// Leaves checksums to the devices. From now on, the stage computes checksums only for packets whose checksums no
    /// device computes: see [`checksum_covers_payload`](crate::verbs::checksum_covers_payload). Called before the first
    /// packet.
    fn offload_checksums(&mut self);
}

/// The capability of a stage to generate packets. [`Contract::generates`] declares the capability.
pub trait Generator {
    /// Generates packets with [`Batch::generate`]. The worker calls this method after every [`Stage::tick`], with an
    /// empty batch.
    ///
    /// As in [`Stage::process`], the stage decides for each generated packet whether the packet goes to the next stage,
    /// goes to an output or is dropped. Generated packets count as received on the first port, or on the port given to
    /// [`Batch::set_ingress`]. Like [`Stage::process`], this method runs on the worker.
    ///
    /// [`Stage::tick`]: super::Stage::tick
    /// [`Stage::process`]: super::Stage::process
    fn generate(&mut self, ctx: &Ctx, batch: &mut Batch);
}

/// The capability of a stage to pass its state to the same stage of another program, which continues the run
/// (`dataplane upgrade`). [`Contract::transfers_state`] declares the capability.
pub trait StateTransfer {
    /// Returns the state, or `None` if there is no state. The first bytes should be a version, because the other program
    /// may have another version of the stage.
    ///
    /// This method runs on the worker, while no port of the worker receives. The method may allocate memory, but should
    /// take less than a millisecond, because packets wait. The method must not wait or panic.
    fn save_state(&mut self) -> Option<Vec<u8>>;

    /// Takes over the state that the stage of another program has saved. Runs on the worker, before the first packet,
    /// under the conditions of [`StateTransfer::save_state`].
    ///
    /// # Errors
    /// Fails with the reason if the stage cannot use the state. The stage then starts without state, and the program logs
    /// the reason.
    fn load_state(&mut self, state: &[u8]) -> Result<(), String>;
}

/// The capability of a stage to observe the packets that other stages drop. In a config, other stages can then name
/// this stage with the key `drops`. [`Contract::observes_drops`] declares the capability.
pub trait DropObserver {
    /// Receives a packet that another stage dropped, and the cause, before the packet's buffer is freed.
    ///
    /// The packet was never in a batch of this stage, and this stage does not count the packet. The stage that dropped
    /// the packet counts the drop. This method runs on the worker.
    fn observe_drop(&mut self, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>);
}
