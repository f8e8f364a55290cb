//! Requests about changes of the run. A separate thread handles each request, because large tables take long to build.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::runtime::{ApplyOptions, Changer};
use dataplane_control::{Call, ErrorCode, Refusal};
use dataplane_core::pipeline::Registry;

/// The maximum number of requests that the program handles at a time.
const MAX_JOBS: usize = 4;
/// The name that messages use for a config without a path.
const NEW_CONFIG: &str = "new config";

/// The result of a request.
type JobResult = Result<Box<RawValue>, Refusal>;

/// Starts the threads of requests.
pub(in crate::app) struct Jobs {
    registry: Arc<Registry>,
    /// Each running thread has a clone, so the number of references is the number of threads plus 1.
    running: Arc<()>,
}

/// The thread of a request. The thread continues if this value is dropped, so a client that disconnects does not
/// interrupt its change.
pub(in crate::app) struct Job(Receiver<JobResult>);

impl Job {
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
        Self { registry: registry.clone(), running: Arc::new(()) }
    }

    /// Starts the thread of a request. Returns `None` if too many threads are running, or if the thread cannot be
    /// started. The caller can try again.
    pub(in crate::app) fn start(&self, changer: &Changer, call: &Call) -> Option<Job> {
        if Arc::strong_count(&self.running) > MAX_JOBS {
            return None;
        }
        let (sender, result) = mpsc::channel();
        let (running, registry, changer, call) =
            (self.running.clone(), self.registry.clone(), changer.clone(), call.clone());
        let work = move || {
            // Ignore the error: the client may have disconnected.
            let _ = sender.send(handle(&changer, &registry, &call));
            drop(running);
        };
        thread::Builder::new().name("change".to_owned()).spawn(work).ok()?;
        Some(Job(result))
    }

    /// Starts a thread that reverts the unconfirmed change if its deadline has passed.
    pub(in crate::app) fn revert_overdue(&self, changer: &Changer) -> Option<Job> {
        let (sender, result) = mpsc::channel();
        let changer = changer.clone();
        let work = move || {
            if let Some(reverted) = changer.revert_overdue() {
                let _ = sender.send(reverted.and_then(|applied| json(&applied)));
            }
        };
        thread::Builder::new().name("revert".to_owned()).spawn(work).ok()?;
        Some(Job(result))
    }
}

fn failed(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Failed, message, "the log of the program has details")
}

fn json(value: &impl Serialize) -> JobResult {
    to_raw_value(value).map_err(|error| failed(error.to_string()))
}

fn handle(changer: &Changer, registry: &Registry, call: &Call) -> JobResult {
    let name = |path: &Option<String>| path.clone().unwrap_or_else(|| NEW_CONFIG.to_owned());
    match call {
        Call::Plan(config) => {
            let source = changer.source(&name(&config.path), &config.text);
            changer.plan(registry, &source).and_then(|plan| json(&plan))
        }
        Call::Apply(apply) => {
            let source = changer.source(&name(&apply.path), &apply.text);
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
        | Call::Packets {} => Err(failed("the request changes nothing")),
    }
}
