//! Tests of the watchdog, which reports workers that make no progress.

use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;

use crate::common::{Folder, assembled_with, assert_good};

/// A stage that blocks its worker while `BLOCKED` is set. With `sleeps`, the stage waits in the kernel. Without
/// `sleeps`, the stage runs a loop.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocking {
    sleeps: bool,
}

/// Set by the test to make the stage block its worker.
static BLOCKED: AtomicBool = AtomicBool::new(false);
/// Set by the stage while it blocks its worker.
static BLOCKS: AtomicBool = AtomicBool::new(false);

impl Stage for Blocking {
    fn process(&mut self, _: &Ctx, _: &mut Batch) {
        while BLOCKED.load(Ordering::Relaxed) {
            BLOCKS.store(true, Ordering::Release);
            if self.sleeps {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
        }
        BLOCKS.store(false, Ordering::Relaxed);
    }
}

#[test]
fn stalled_worker_is_reported_with_its_stage_and_its_state() {
    for sleeps in [true, false] {
        let mut registry = Registry::new();
        dataplane::stages::register(&mut registry);
        registry.add::<Blocking>("blocking");
        let text = Config::new()
            .runtime("watchdog = '200ms'")
            .port("p", "kind = 'generator'")
            .stage("count", "")
            .stage("blocking", &format!("name = 'blocks'\nsleeps = {sleeps}"))
            .stage("tx", "port = 'p'")
            .to_string();
        let assembly = assembled_with(&Source::new("x.toml", text, &[]), &registry).unwrap();
        let run = Run::start(assembly, Options::default()).unwrap();
        wait_until("packets pass", || run.progress().rx > 0);
        BLOCKED.store(true, Ordering::Relaxed);
        wait_until("the stage blocks", || BLOCKS.load(Ordering::Acquire));
        // The first call of `stalls` records the progress so far, and the time limit starts at this call. The stage
        // already blocks at this time, so the reported stall is in the stage.
        let mut stalls = Vec::new();
        wait_until("the stall is reported", || {
            stalls.extend(run.stalls());
            !stalls.is_empty()
        });
        let [stall] = &stalls[..] else { panic!("{stalls:?}") };
        assert_eq!((stall.worker, stall.stage.as_deref(), &stall.port), (Some(0), Some("blocks"), &None));
        let text = &stall.message;
        assert!(text.starts_with("worker 0 makes no progress for "), "{text}");
        assert!(text.contains(" s: in stage `blocks`; thread "), "{text}");
        BLOCKED.store(false, Ordering::Relaxed);
        wait_until("the end of the stall is reported", || {
            stalls.extend(run.stalls());
            stalls.iter().any(|stall| stall.message.starts_with("worker 0 makes progress again after "))
        });
        run.stop();
        assert_good(&run.join().unwrap());
    }
}

#[test]
fn worker_whose_input_has_ended_is_not_stalled() {
    let folder = Folder::new();
    // All packets belong to one flow, so one of the workers gets no packet and ends at once.
    folder.capture("in.pcap", (0..4).map(|_| [1; 60]));
    let text = Config::new()
        .workers(2)
        .runtime("watchdog = '200ms'")
        .port("p", "kind = 'pcap', input = 'in.pcap', loop = true, pace = 'fast'")
        .stage("tx", "port = 'p'")
        .to_string();
    let assembly = folder.assemble(&text).unwrap();
    let run = Run::start(assembly, Options::default()).unwrap();
    wait_until("one worker has ended", || run.loops().contains(&None));
    let ended = run.loops().iter().position(Option::is_none).unwrap();
    // Wait longer than `watchdog`. A slow machine only makes this wait longer.
    for _ in 0..50 {
        let stalls = run.stalls();
        assert!(stalls.iter().all(|stall| stall.worker != Some(ended)), "{stalls:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(run.loops().iter().any(Option::is_some));
    run.stop();
    assert_good(&run.join().unwrap());
}
