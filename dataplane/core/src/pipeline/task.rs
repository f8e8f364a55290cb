//! Background tasks: work of stages that does not run on the workers.

use std::any::{Any, TypeId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, Result};

/// Work on a separate thread during the run, such as following a file or the routes of the kernel. Register a task with
/// [`Setup::task`].
///
/// A task never runs on a worker, so a task may allocate, lock, wait and do input and output. A task hands data to the
/// stages with [`Live`].
///
/// [`Setup::task`]: super::Setup::task
/// [`Live`]: super::Live
pub trait Task: Send + 'static {
    /// Does the work that must be complete before the stage of the task processes its first packet. For a change of the
    /// running pipeline, the workers still use the earlier pipeline during this call.
    ///
    /// # Errors
    /// After an error, the run does not start, or the change fails.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Runs until `stop` is set, or until the work is complete.
    ///
    /// # Errors
    /// Fails if the work cannot be done. The run logs the error and continues. The report contains the error, and the
    /// exit status of the run is 1. After a panic, the run also logs and reports the panic, but then stops.
    fn run(&mut self, stop: &StopSignal) -> Result<()>;
}

/// The signal that ends a [`Task`]. Clones share the signal.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<(Mutex<bool>, Condvar)>);

impl StopSignal {
    /// Waits for the signal, for at most `timeout`. Returns whether the signal is set.
    pub fn wait(&self, timeout: Duration) -> bool {
        let (set, changed) = &*self.0;
        let set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let (set, _) = changed.wait_timeout_while(set, timeout, |set| !*set).unwrap_or_else(PoisonError::into_inner);
        *set
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the signal.
    pub fn set(&self) {
        let (set, changed) = &*self.0;
        *set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}

/// The request to stop a run. Clones share the request. Unlike a [`StopSignal`], workers may check the request, because
/// the check takes no lock.
#[derive(Clone, Debug, Default)]
pub struct RunStop(Arc<AtomicBool>);

impl RunStop {
    /// Requests the stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the stop was requested.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a valid name of a thread: the text, with each control character replaced by `?`. The standard library panics
/// if the name of a thread contains a NUL.
pub fn thread_name(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// The owner of a task, or of a function that is called when a port changes. If a change removes the owner, the task
/// ends and the function is not called any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The stage with this name.
    Stage(String),
    /// The object of this type that the instances of the stage with this name share
    /// ([`Setup::shared_by_workers`](super::Setup::shared_by_workers)). For an empty name, the object that all stages
    /// share ([`Setup::shared_by_stages`](super::Setup::shared_by_stages)).
    Object(String, TypeId),
}

/// A task that is not started yet.
pub struct TaskSpec {
    /// The name of the thread. Messages also use this name for the task.
    pub name: String,
    /// The task.
    pub task: Box<dyn Task>,
    /// The owner of the task.
    pub owner: Owner,
}

/// Background tasks that have started. All of these tasks end when this value is dropped.
#[derive(Default)]
pub struct Tasks {
    stop: StopSignal,
    threads: Mutex<Vec<JoinHandle<()>>>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Tasks {
    /// Calls [`Task::start`] of each task, and then starts one thread for each task. A task that panics requests the
    /// stop of the run through `run`.
    ///
    /// # Errors
    /// Returns the error of [`Task::start`], or an error if a thread cannot be started. In both cases, no task keeps
    /// running.
    pub fn start(mut specs: Vec<TaskSpec>, run: &RunStop) -> Result<Self> {
        specs.iter_mut().try_for_each(|spec| spec.task.start())?;
        let tasks = Self::default();
        for TaskSpec { name, mut task, .. } in specs {
            let (stop, run, failures) = (tasks.stop.clone(), run.clone(), tasks.failures.clone());
            let thread = thread::Builder::new().name(thread_name(&name));
            let failed = format!("cannot start the thread `{name}`");
            let body = move || {
                let ended = catch_unwind(AssertUnwindSafe(|| task.run(&stop)));
                let (reason, panicked) = match ended {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => (error.to_string(), false),
                    Err(panic) => (format!("panicked: {}", panic_message(&*panic)), true),
                };
                let failure = format!("background task `{name}` ended: {reason}");
                tracing::error!("{failure}");
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                if panicked {
                    run.set();
                }
            };
            let thread = thread.spawn(body).map_err(|error| Error::Topology(format!("{failed}: {error}")))?;
            tasks.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(tasks)
    }

    /// Returns a message for each task that has failed.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all tasks and waits for their threads.
    pub fn stop(&self) {
        self.stop.set();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The thread catches the panics of its task.
            let _ = thread.join();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A task that runs a closure.
    struct Run<F>(F);

    impl<F: FnMut(&StopSignal) -> Result<()> + Send + 'static> Task for Run<F> {
        fn run(&mut self, stop: &StopSignal) -> Result<()> {
            (self.0)(stop)
        }
    }

    fn spec(name: &str, run: impl FnMut(&StopSignal) -> Result<()> + Send + 'static) -> TaskSpec {
        TaskSpec { name: name.to_owned(), task: Box::new(Run(run)), owner: Owner::Stage(name.to_owned()) }
    }

    #[test]
    fn task_runs_until_the_tasks_are_dropped() {
        let (sender, receiver) = mpsc::channel();
        let run = move |stop: &StopSignal| {
            sender.send("running").unwrap();
            assert!(stop.wait(Duration::MAX) && stop.is_set());
            sender.send("stopped").unwrap();
            Ok(())
        };
        let tasks = Tasks::start(vec![spec("waits", run)], &RunStop::default()).unwrap();
        assert_eq!(receiver.recv(), Ok("running"));
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(tasks);
        assert_eq!(receiver.try_recv(), Ok("stopped"));
    }

    #[test]
    fn control_characters_in_a_name_do_not_prevent_the_start() {
        let tasks = Tasks::start(vec![spec("a\0b\nc", |_| Ok(()))], &RunStop::default()).unwrap();
        assert_eq!(tasks.threads.lock().unwrap()[0].thread().name(), Some("a?b?c"));
    }

    #[test]
    fn panic_of_a_task_stops_the_run_but_an_error_does_not() {
        let error = |_: &StopSignal| Err(Error::Kernel("no answer".to_owned()));
        for (task, stops) in [(spec("errs", error), false), (spec("panics", |_| panic!("no index")), true)] {
            let run = RunStop::default();
            Tasks::start(vec![task], &run).unwrap().stop();
            assert_eq!(run.is_set(), stops);
        }
    }

    #[test]
    fn errors_and_panics_are_failures_but_an_early_end_is_not() {
        let error = |_: &StopSignal| Err(Error::Kernel("no answer".to_owned()));
        let panic = |_: &StopSignal| panic!("index {}", 7);
        let specs = vec![spec("ends", |_| Ok(())), spec("errs", error), spec("panics", panic)];
        let tasks = Tasks::start(specs, &RunStop::default()).unwrap();
        tasks.stop();
        let mut failures = tasks.failures();
        failures.sort();
        let expected =
            ["background task `errs` ended: kernel: no answer", "background task `panics` ended: panicked: index 7"];
        assert_eq!(failures, expected);
    }

    #[test]
    fn no_task_runs_if_another_task_does_not_start() {
        struct Refuses;
        impl Task for Refuses {
            fn start(&mut self) -> Result<()> {
                Err(Error::Kernel("no socket".to_owned()))
            }
            fn run(&mut self, _stop: &StopSignal) -> Result<()> {
                unreachable!("the task did not start")
            }
        }
        let owner = Owner::Stage("refuses".to_owned());
        let refuses = TaskSpec { name: "refuses".to_owned(), task: Box::new(Refuses), owner };
        let specs = vec![spec("never", |_| unreachable!("another task did not start")), refuses];
        assert_eq!(Tasks::start(specs, &RunStop::default()).err().unwrap().to_string(), "kernel: no socket");
    }
}
