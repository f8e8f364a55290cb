//! Requests about changes of the run. A separate thread handles each request, because large tables take long to build.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::config::MAX_SIZE;
use crate::runtime::{ApplyOptions, Changer};
use dataplane_control::{Call, ErrorCode, Refusal};
use dataplane_core::error::THREAD_REMEDY;
use dataplane_core::pipeline::Registry;

/// The maximum number of plans that the program makes at a time. All other requests start immediately, because the
/// program carries out only one change at a time and refuses further changes.
const MAX_PLANS: usize = 2;
/// The maximum value of [`dataplane_control::Apply::confirm_s`]: one day.
const MAX_CONFIRM: u64 = 24 * 60 * 60;
/// The name that messages use for a config without a path.
const NEW_CONFIG: &str = "new config";

/// The result of a request.
type JobResult = Result<Box<RawValue>, Refusal>;

/// Starts the threads of requests.
pub(in crate::app) struct Jobs {
    registry: Arc<Registry>,
    /// Each thread that makes a plan has a clone, so the number of references is the number of threads plus 1.
    plans: Arc<()>,
}

/// The thread of a request. The thread continues if this value is dropped, so a client that disconnects does not
/// interrupt its change.
pub(in crate::app) struct Job(Receiver<JobResult>);

impl Job {
    /// Returns a job that has ended with a refusal.
    pub(in crate::app) fn refused(refusal: Refusal) -> Self {
        let (sender, result) = mpsc::channel();
        // The receiver exists, so sending cannot fail.
        _ = sender.send(Err(refusal));
        Self(result)
    }

    /// Returns the result, or `None` while the thread is running.
    pub(in crate::app) fn result(&mut self) -> Option<JobResult> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(failed("the change ended without a result"))),
        }
    }
}

impl Jobs {
    pub(in crate::app) fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: registry.clone(), plans: Arc::new(()) }
    }

    /// Starts the thread of a request.
    ///
    /// # Errors
    /// Fails if too many plans are in progress, or if the thread cannot be started.
    pub(in crate::app) fn start(&self, changer: &Changer, call: &Call) -> Result<Job, Refusal> {
        let is_plan = matches!(call, Call::Plan(_));
        if is_plan && Arc::strong_count(&self.plans) > MAX_PLANS {
            let message = format!("{MAX_PLANS} plans are in progress");
            return Err(Refusal::new(ErrorCode::Busy, message, "try again when a plan is complete"));
        }
        let plan = is_plan.then(|| self.plans.clone());
        let (registry, changer, call) = (self.registry.clone(), changer.clone(), call.clone());
        spawn(thread::Builder::new().name("change".to_owned()), move || {
            let result = handle(&changer, &registry, &call);
            drop(plan);
            result
        })
    }

    /// Starts a thread that reverts the unconfirmed change if its deadline has passed. The result is `null` if there is
    /// no such change any more. Returns `None` if the thread cannot be started. The caller can try again.
    pub(in crate::app) fn revert_overdue(&self, changer: &Changer) -> Option<Job> {
        let (registry, changer) = (self.registry.clone(), changer.clone());
        let work = move || changer.revert_overdue(&registry).transpose().and_then(|applied| json(&applied));
        spawn(thread::Builder::new().name("revert".to_owned()), work).ok()
    }
}

/// Starts a thread.
fn spawn(builder: thread::Builder, work: impl FnOnce() -> JobResult + Send + 'static) -> Result<Job, Refusal> {
    let (sender, result) = mpsc::channel();
    // Ignore the error: the client may have disconnected.
    let work = move || _ = sender.send(work());
    match builder.spawn(work) {
        Ok(_) => Ok(Job(result)),
        Err(error) => {
            let message = format!("cannot start a thread for the request: {error}");
            Err(Refusal::new(ErrorCode::Failed, message, THREAD_REMEDY))
        }
    }
}

fn failed(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Failed, message, "the log of the program has details")
}

fn json(value: &impl Serialize) -> JobResult {
    to_raw_value(value).map_err(|error| failed(error.to_string()))
}

fn handle(changer: &Changer, registry: &Registry, call: &Call) -> JobResult {
    let source = |path: &Option<String>, text: &str| {
        if text.len() as u64 > MAX_SIZE {
            let message = format!("the config has {} bytes, but a config has at most {MAX_SIZE} bytes", text.len());
            return Err(Refusal::new(ErrorCode::WrongConfig, message, "move large tables to separate files"));
        }
        Ok(changer.source(path.as_deref().unwrap_or(NEW_CONFIG), text))
    };
    match call {
        Call::Plan(config) => {
            let source = source(&config.path, &config.text)?;
            changer.plan(registry, &source).and_then(|plan| json(&plan))
        }
        Call::Apply(apply) => {
            if let Some(seconds) = apply.confirm_s.filter(|seconds| !(1..=MAX_CONFIRM).contains(seconds)) {
                let message = format!("request `apply`: the time {seconds} in `confirm_s` is out of range");
                let help = format!("set `confirm_s` to a number of seconds from 1 to {MAX_CONFIRM}");
                return Err(Refusal::new(ErrorCode::BadField, message, help));
            }
            let source = source(&apply.path, &apply.text)?;
            let options = ApplyOptions {
                base: apply.base.clone(),
                confirm: apply.confirm_s.map(Duration::from_secs),
                cause: "apply",
                ..ApplyOptions::default()
            };
            changer.apply(registry, &source, &options).and_then(|applied| json(&applied))
        }
        Call::Reload {} => {
            let options = ApplyOptions { cause: "reload", reads_all_files: true, ..ApplyOptions::default() };
            let source = changer.file_of_run()?;
            changer.apply(registry, &source, &options).and_then(|applied| json(&applied))
        }
        Call::Confirm {} => changer.confirm().and_then(|applied| json(&applied)),
        Call::Rollback {} => changer.rollback(registry).and_then(|applied| json(&applied)),
        Call::History {} => json(&changer.history()),
        Call::Hello {}
        | Call::Stats {}
        | Call::Show(_)
        | Call::Get(_)
        | Call::Log(_)
        | Call::Capture(_)
        | Call::Trace(_)
        | Call::Packets {}
        | Call::BlackBox(_)
        | Call::Upgrade {}
        | Call::TakeOver(_)
        | Call::HandOver {} => Err(failed("the request changes nothing")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::config::{Diagnostics, Source};
    use crate::prelude::*;
    use crate::runtime::{Options, Run, assemble};
    use dataplane_control::NewConfig;
    use dataplane_core::topology::Topology;
    use dataplane_testing::config::Config;
    use dataplane_testing::wait_until;

    static IS_OPEN: AtomicBool = AtomicBool::new(false);

    /// A stage whose preparation waits until `IS_OPEN` is set.
    #[derive(serde::Deserialize)]
    struct Slow {}

    impl Stage for Slow {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
            while !IS_OPEN.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(())
        }
    }

    #[test]
    fn request_whose_thread_cannot_be_started_is_refused_with_a_fix() {
        // No address space has room for this stack.
        let started = spawn(thread::Builder::new().stack_size(usize::MAX / 4), || json(&()));
        let refusal = started.unwrap_or_else(Job::refused).result().unwrap().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Failed);
        assert!(refusal.message.starts_with("cannot start a thread for the request: "), "{refusal}");
        assert!(refusal.help.contains("`ulimit -u`"), "{refusal}");
    }

    #[test]
    fn plans_above_the_limit_are_refused_and_other_requests_are_not() {
        let mut registry = dataplane_stages::registry();
        registry.add::<Slow>("slow");
        let registry = Arc::new(registry);
        let config = Config::new().port("in", "kind = 'generator', rate = 1000");
        let text = config.clone().stage("drop", "").to_string();
        let slow = config.stage("slow", "").stage("drop", "").to_string();
        let source = Source::new("test.toml", text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let assembly = assemble(&source, &registry, Topology::discover().unwrap(), &mut diagnostics).unwrap();
        let run = Run::start(assembly.unwrap(), Options::default()).unwrap();
        let jobs = Jobs::new(&registry);
        let plan = Call::Plan(NewConfig { text: slow, path: None });
        let start = |call| jobs.start(&run.changer(), call);
        let mut plans: Vec<Job> = (0..MAX_PLANS).map(|_| start(&plan).unwrap()).collect();
        assert_eq!(start(&plan).err().unwrap().code, ErrorCode::Busy);
        let mut history = start(&Call::History {}).unwrap();
        wait_until("the history", || history.result().is_some_and(|result| result.is_ok()));
        let mut confirm = start(&Call::Confirm {}).unwrap();
        wait_until("the answer", || confirm.result().is_some_and(|result| result.is_err()));
        IS_OPEN.store(true, Ordering::Relaxed);
        for plan in &mut plans {
            wait_until("the plan", || plan.result().is_some_and(|result| result.is_ok()));
        }
        wait_until("room for a plan", || start(&plan).is_ok());
        run.stop();
        run.join().unwrap();
    }
}
