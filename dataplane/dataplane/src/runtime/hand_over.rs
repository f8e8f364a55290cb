//! The hand-over of a run to another program, without loss of packets.
//!
//! The run that ends detaches the queues of its ports. From then on, arriving packets wait in the kernel, and the workers
//! finish the packets in progress. The queues and the states of the stages go to the other program. Until the other
//! program confirms that its workers run, this run can receive again.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Plan;
use crate::runtime::change::lock;
use crate::runtime::devices;
use crate::runtime::lanes::SharedMemory;
use crate::runtime::ports::LivePort;
use crate::runtime::run::Run;
use crate::runtime::sample::SavedStates;
use dataplane_core::mem::BatchMemory;
use dataplane_core::upgrade::region_descriptor;
use dataplane_soft::upgrade::{HandOver, HandedQueue};

/// The maximum time until all workers have stopped receiving and have saved the states of their stages.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two checks of the workers.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The parts of a run that another program takes over.
pub(crate) struct HandedRun {
    /// The queues, each with the name of its port.
    pub(crate) queues: Vec<(String, HandedQueue)>,
    /// The states of the stages of each worker.
    pub(crate) states: Vec<SavedStates>,
}

impl Run {
    /// Stops receiving, and returns the queues and the states of the stages.
    ///
    /// # Errors
    /// Fails if a worker does not answer, if sends do not complete, or if the kernel refuses a descriptor. The run then
    /// receives again.
    pub(crate) fn detach(&self) -> Result<HandedRun, String> {
        let deadline = Instant::now() + DETACH_TIMEOUT;
        // A worker that did not answer in an earlier hand-over must first answer.
        while lock(&self.state.sampler).is_pausing() {
            await_check(deadline)?;
        }
        let (current, ports) = self.state.current_ports();
        let detached = self.try_detach(&current.plan, &ports, deadline);
        if detached.is_err() {
            self.resume(false);
        }
        detached
    }

    fn try_detach(&self, plan: &Plan, ports: &[LivePort], deadline: Instant) -> Result<HandedRun, String> {
        let wait = || await_check(deadline);
        let failed = |port: &LivePort, error| format!("port `{}`: {error}", port.name);
        // The ports that share the packet memory with the kernel, the numbers of these ports, and the other ports.
        let (mut sharing, mut shared, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (planned, port)) in plan.ports.iter().zip(ports).enumerate() {
            let device = port.device.hand_over();
            let device = device.ok_or_else(|| format!("port `{}` cannot be handed over", port.name))?;
            if device.shares_memory() {
                sharing.push((port, device, planned.input));
                shared.push(at);
            } else {
                own.push((port, device, planned.input));
            }
        }
        let queues = devices::queues(plan.cores.len());
        let detach = |devices: &[(&LivePort, &dyn HandOver, bool)]| {
            let detach = |(port, device, is_input): &(&LivePort, &dyn HandOver, bool)| {
                device.detach(queues, *is_input).map_err(|error| failed(port, error))
            };
            devices.iter().try_for_each(detach)
        };
        let collect = |devices: &[(&LivePort, &dyn HandOver, bool)]| {
            let mut queues = Vec::new();
            for (port, device, _) in devices {
                let detached = loop {
                    match device.detached().map_err(|error| failed(port, error))? {
                        Some(detached) => break detached,
                        None => wait()?,
                    }
                };
                queues.extend(detached.into_iter().map(|queue| (port.name.clone(), queue)));
            }
            Ok::<_, String>(queues)
        };
        detach(&own)?;
        let mut queues = collect(&own)?;
        // A worker answers between two bursts, so it has finished all packets that it received.
        lock(&self.state.sampler).ask_pause();
        let workers = loop {
            let workers = lock(&self.state.sampler).paused();
            match workers {
                Some(workers) => break workers,
                None => wait()?,
            }
        };
        if let Some(worker) = workers.iter().position(|worker| worker.has_failed) {
            return Err(format!("a stage of worker {worker} panicked while it saved its state"));
        }
        // The kernel may read the buffers of these packets later, so the other program must not use the buffers.
        if let Some(port) = workers.iter().find_map(|worker| ports.get(worker.sending?)) {
            return Err(format!("port `{}` still sends packets, for example because its link is down", port.name));
        }
        let states = workers.into_iter().map(|worker| worker.states).collect();
        detach(&sharing)?;
        lock(&self.state.sampler).ask_release(&shared);
        queues.extend(collect(&sharing)?);
        Ok(HandedRun { queues, states })
    }

    /// Receives again. `is_touched` is whether the other program may have received packets.
    pub(crate) fn resume(&self, is_touched: bool) {
        let mut is_memory_touched = false;
        let (_, ports) = self.state.current_ports();
        for port in &ports {
            let Some(device) = port.device.hand_over() else { continue };
            if let Err(error) = device.resume(is_touched) {
                tracing::error!(port = port.name, "port `{}` cannot receive again: {error}", port.name);
            }
            is_memory_touched |= is_touched && device.shares_memory();
        }
        lock(&self.state.sampler).ask_resume(is_memory_touched);
    }

    /// Returns the packet memory of each worker, if a port shares the packet memory with the kernel. The list is empty
    /// otherwise.
    ///
    /// # Errors
    /// Fails if the process has no free descriptors.
    pub(crate) fn shared_memories(&self) -> io::Result<Vec<SharedMemory>> {
        if !self.state.shares_memory() {
            return Ok(Vec::new());
        }
        let share = |memory: &BatchMemory| {
            let descriptor = region_descriptor(memory).ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
            let (layout, pages) = (SharedMemory::numbers(memory.layout()), memory.pages());
            Ok(SharedMemory { descriptor, pages, layout })
        };
        lock(&self.state.memories).iter().map(share).collect()
    }
}

/// Sleeps for [`POLL_INTERVAL`]. Fails after the deadline.
fn await_check(deadline: Instant) -> Result<(), String> {
    if Instant::now() >= deadline {
        return Err("a worker does not answer, so nothing was handed over".to_owned());
    }
    thread::sleep(POLL_INTERVAL);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::config::{Diagnostics, Source};
    use crate::prelude::*;
    use crate::runtime::{Options, Scope, assemble};
    use dataplane_control::ErrorCode;
    use dataplane_core::topology::Topology;
    use dataplane_testing::config::Config;
    use dataplane_testing::namespace::{in_namespace, ip};
    use dataplane_testing::wait_until;

    fn start(config: String, options: Options) -> Run {
        let source = Source::new("test.toml", config, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let mut registry = dataplane_stages::registry();
        registry.add::<Unsaved>("unsaved");
        registry.add::<Gate>("gate");
        registry.add::<Uncounted>("uncounted");
        let assembly = assemble(&source, &registry, Topology::discover().unwrap(), &mut diagnostics).unwrap();
        Run::start(assembly.unwrap(), options).unwrap()
    }

    fn run_of_a_generator(options: Options) -> Run {
        let config = Config::new().port("in", "kind = 'generator', rate = 1000").stage("drop", "");
        start(config.to_string(), options)
    }

    /// A stage that panics when it saves its state.
    #[derive(serde::Deserialize)]
    struct Unsaved {}

    impl Stage for Unsaved {
        fn contract(&self) -> Contract {
            Contract::default().transfers_state::<Self>()
        }

        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
    }

    impl StateTransfer for Unsaved {
        fn save_state(&mut self) -> Option<Vec<u8>> {
            panic!("a test")
        }

        fn load_state(&mut self, _: &[u8]) -> std::result::Result<(), String> {
            Ok(())
        }
    }

    /// A stage that panics when it reports its counters, if [`MAY_REPORT`] is `false`.
    #[derive(serde::Deserialize)]
    struct Uncounted {}

    static MAY_REPORT: AtomicBool = AtomicBool::new(true);

    impl Stage for Uncounted {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn counters(&self, _: &mut dyn CounterReport) {
            assert!(MAY_REPORT.load(Ordering::Acquire), "a test");
        }
    }

    /// A stage that stops its worker while the gate is closed.
    #[derive(serde::Deserialize)]
    struct Gate {}

    static IS_GATE_CLOSED: AtomicBool = AtomicBool::new(true);
    /// The number of times that the worker has reached the gate.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    impl Stage for Gate {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn tick(&mut self, _ctx: &Ctx) {
            REACHED.fetch_add(1, Ordering::AcqRel);
            while IS_GATE_CLOSED.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
    }

    /// Starts a run with a port on the host and these stages. `link` has the keys of the link.
    fn run_on_host(link: &str, stages: &[(&str, &str)]) -> Run {
        let config = Config::new().runtime("idle = 'sleep'\nsandbox = false").port("in", "kind = 'generator'");
        let config = stages.iter().fold(config, |config, (kind, keys)| config.stage(kind, keys)).to_string();
        let link = format!("device = 'host'\nlink = {{ {link} }}");
        start(config.replace("device = 'soft'\nlink = { kind = 'generator' }", &link), Options::default())
    }

    const UNSAVED: &str = "a stage of worker 0 panicked while it saved its state";

    fn veth() {
        ip("link add name va type veth peer name vb\nlink set va up\nlink set vb up");
    }

    #[test]
    fn worker_that_blocks_during_several_hand_overs_continues() {
        in_namespace(|| {
            veth();
            // Only the workers can hand over the queues of an `xdp` port, so the run asks the workers first.
            let run = run_on_host("kind = 'xdp', interface = 'va'", &[("gate", ""), ("drop", "")]);
            let reached = || REACHED.load(Ordering::Acquire);
            wait_until("the worker is at the gate", || reached() > 0);
            assert!(lock(&run.state.sampler).poll(Scope::All).is_none());
            // In each hand-over, the run asks the worker to pause and to continue.
            for _ in 0..4 {
                assert_eq!(run.detach().err().unwrap(), "a worker does not answer, so nothing was handed over");
            }
            IS_GATE_CLOSED.store(false, Ordering::Release);
            // The worker answers all messages, and then still calls the stage.
            wait_until("the worker continues", || reached() > 50);
            assert!(run.detach().is_ok());
            run.resume(false);
            run.stop();
            run.join().unwrap();
        });
    }

    #[test]
    fn worker_whose_stage_panics_is_not_handed_over() {
        in_namespace(|| {
            // A backtrace may take longer than the hand-over waits. This process runs only this test.
            std::panic::set_hook(Box::new(|_| {}));
            for (keys, later) in [("", Some(UNSAVED)), ("on_panic = 'bypass'", None)] {
                let run = run_on_host("kind = 'tap', name = 'dp0'", &[("unsaved", keys), ("drop", "")]);
                assert_eq!(run.detach().err().unwrap(), UNSAVED);
                let before = run.loops();
                wait_until("the worker continues", || {
                    assert!(!run.is_stopped());
                    run.loops()[0] > before[0]
                });
                // A bypassed stage saves no state, so the worker pauses.
                assert_eq!(run.detach().err().as_deref(), later);
                run.resume(false);
                run.stop();
                run.join().unwrap();
            }
        });
    }

    #[test]
    fn worker_stays_paused_after_a_panic_in_the_pause() {
        in_namespace(|| {
            IS_GATE_CLOSED.store(false, Ordering::Release);
            let stages = [("uncounted", "on_panic = 'bypass'"), ("gate", ""), ("drop", "")];
            let run = run_on_host("kind = 'tap', name = 'dp0'", &stages);
            std::panic::set_hook(Box::new(|_| {}));
            assert!(run.detach().is_ok());
            let ticks = REACHED.load(Ordering::Acquire);
            MAY_REPORT.store(false, Ordering::Release);
            wait_until("the worker answers", || lock(&run.state.sampler).poll(Scope::All).is_some());
            // A worker that runs does its housekeeping at least once in these iterations.
            let before = run.loops()[0].unwrap();
            wait_until("the worker continues after the panic", || run.loops()[0].unwrap() > before + 1_000);
            assert_eq!(REACHED.load(Ordering::Acquire), ticks, "no stage runs in the pause");
            run.resume(false);
            wait_until("the stages run", || REACHED.load(Ordering::Acquire) > ticks);
            run.stop();
            let errors = run.join().unwrap().errors;
            assert!(errors[0].contains("stage `uncounted` panicked"), "{errors:?}");
        });
    }

    #[test]
    fn port_that_cannot_be_handed_over_is_named() {
        let run = run_of_a_generator(Options { packets: Some(1 << 40), ..Options::default() });
        for _ in 0..2 {
            let refusal = run.changer().begin_upgrade(String::new()).err().unwrap();
            assert_eq!(refusal.code, ErrorCode::NeedsRestart);
            assert_eq!(
                refusal.message,
                "an upgrade of this run needs a restart: port `in` (soft generator) cannot be handed over, the run has a \
                 limit of packets (--packets)"
            );
        }
        assert!(run.detach().err().unwrap().contains("port `in` cannot be handed over"));
        run.stop();
        run.join().unwrap();
    }

    #[test]
    fn run_continues_although_the_kernel_releases_a_queue_late() {
        in_namespace(|| {
            veth();
            let run = run_on_host("kind = 'xdp', interface = 'va'", &[("drop", "")]);
            let mut handed = None;
            wait_until("the queue is handed over", || {
                handed = run.detach().ok();
                handed.is_some()
            });
            // The other program ends long after the flush deadline of a lane.
            let other = thread::spawn(move || {
                thread::sleep(Duration::from_secs(3));
                drop(handed);
            });
            run.resume(true);
            other.join().unwrap();
            let before = run.loops();
            wait_until("the worker runs", || run.loops() != before);
            wait_until("the port is handed over again", || {
                assert!(!run.is_stopped());
                run.detach().is_ok()
            });
            run.resume(false);
            run.stop();
            run.join().unwrap();
        });
    }

    #[test]
    fn upgrade_is_refused_while_a_removed_port_is_closing() {
        let run = run_of_a_generator(Options::default());
        let code = || run.changer().begin_upgrade(String::new()).err().unwrap().code;
        let end = run.state.add_closing_thread();
        assert_eq!(code(), ErrorCode::Busy);
        drop(end);
        wait_until("the port is closed", || code() == ErrorCode::NeedsRestart);
        run.stop();
        run.join().unwrap();
    }
}
