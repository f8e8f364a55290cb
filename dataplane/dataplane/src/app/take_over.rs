//! The hand-over of a running program to the new program of an upgrade: the side of the new program. The new program is
//! `run` with the option `--take-over`. Its standard input is the connection to the running program, and its standard
//! output is a pipe to `dataplane upgrade`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::args;
use super::console::CommandError;
use super::control::Socket;
use super::logs;
use super::metrics::Listener;
use super::process::own_descriptor;
use crate::config::{Control, Runtime, Source};
use crate::runtime::{Gate, HandedWorker, Run, SavedStates, SharedMemory};
use dataplane_control::upgrade::{self, DONE, HAND_OVER_VERSION, HandedOver, READY, RUNNING, TakenConfig, WITHDRAWN};
use dataplane_control::{Call, Client, Error as ClientError};
use dataplane_core::error::{Error, Result};
use dataplane_soft::upgrade::HandedQueue;

/// The name of the running program in error messages.
const RUNNING_PROGRAM: &str = "running program";
/// The maximum time that the new program waits for a message of the running program.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time until all workers run.
const START_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two checks of the workers.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A new program that takes over a running program.
pub(super) struct TakeOver {
    /// The connection to the running program.
    client: Client,
    config: TakenConfig,
    /// The packet memory of each worker of the running program.
    memories: Vec<SharedMemory>,
    /// The descriptors that the running program has sent, by name.
    descriptors: BTreeMap<String, OwnedFd>,
}

/// The listening sockets that the new program has taken over.
pub(super) struct TakenSockets {
    pub(super) control: Option<Socket>,
    pub(super) metrics: Option<Listener>,
}

fn failed(error: ClientError) -> Error {
    match error {
        ClientError::Refused(_, refusal) => Error::Topology(format!("the running program refused: {refusal}")),
        error => Error::Topology(error.to_string()),
    }
}

fn lost(error: io::Error) -> Error {
    Error::Topology(match error.kind() {
        ErrorKind::UnexpectedEof => "the running program ended during the hand-over".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "the running program closed the connection".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("the running program did not answer within {} s", MESSAGE_TIMEOUT.as_secs())
        }
        _ => format!("the connection to the running program failed: {error}"),
    })
}

/// Returns the number of descriptors that follow.
fn descriptors(head: &HandedOver) -> Result<usize> {
    let mut queues = head.queues.iter();
    let count = queues.try_fold(head.descriptors.len(), |sum, queue| sum.checked_add(queue.descriptors));
    count.ok_or_else(|| Error::Topology("the running program announces too many descriptors".to_owned()))
}

/// Receives descriptors.
fn receive(stream: &UnixStream, count: usize) -> Result<Vec<OwnedFd>> {
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT)).map_err(lost)?;
    upgrade::send_byte(stream, READY).map_err(lost)?;
    upgrade::receive_descriptors(stream, count).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::MFILE) => Error::Topology(format!(
            "the new program cannot receive the {count} file descriptors of the running program: {error}; help: raise the \
             limit of open files for the new program (`ulimit -n`)"
        )),
        _ => lost(error),
    })
}

impl TakeOver {
    /// Requests the config from the running program.
    ///
    /// # Errors
    /// Fails if standard input is not a connection of an upgrade.
    pub(super) fn begin() -> std::result::Result<Self, CommandError> {
        let begin = || -> Result<Self> {
            let wrong = |error: io::Error| {
                Error::Topology(format!("--take-over: {error}; help: use `dataplane upgrade --to PROGRAM`"))
            };
            let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(wrong)?);
            stream.peer_addr().map_err(wrong)?;
            dup2_stdin(File::open("/dev/null").map_err(wrong)?).map_err(|error| wrong(error.into()))?;
            let mut client = Client::of_stream(stream, Path::new(RUNNING_PROGRAM));
            client.set_timeout(MESSAGE_TIMEOUT).map_err(failed)?;
            let call = Call::TakeOver(upgrade::TakeOver { hand_over_version: HAND_OVER_VERSION });
            let own = own_descriptor().map_err(|error| {
                Error::Topology(format!("the kernel gives no descriptor of this process (pidfd_open): {error}"))
            })?;
            let answer = client.call_with_descriptors(&call, &[own.as_fd()]).map_err(failed)?;
            let config: TakenConfig = answer.parse_exactly().map_err(failed)?;
            let received = receive(client.stream(), config.memories.len())?;
            let memory = |(row, descriptor): (&upgrade::MemoryRow, OwnedFd)| {
                let pages = serde_json::from_value(row.pages.as_str().into())
                    .map_err(|error| Error::Memory(error.to_string()))?;
                Ok(SharedMemory { descriptor, pages, layout: [row.stride, row.headroom, row.count] })
            };
            let memories = config.memories.iter().zip(received).map(memory).collect::<Result<_>>()?;
            Ok(Self { client, config, memories, descriptors: BTreeMap::new() })
        };
        begin().map_err(CommandError::from)
    }

    /// Returns the config of the running program.
    pub(super) fn source(&self, config: &args::Config) -> Source {
        let settings = self.config.settings.iter().filter_map(|setting| setting.split_once('='));
        let settings: Vec<_> = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Source::new(&config.path, &*self.config.text, &settings)
    }

    /// Returns the time since the start of the run.
    pub(super) fn running_time(&self) -> Duration {
        Duration::try_from_secs_f64(self.config.running_s).unwrap_or_default()
    }

    /// Takes the packet memory of each worker of the running program. A second call returns an empty list.
    pub(super) fn memories(&mut self) -> Vec<SharedMemory> {
        std::mem::take(&mut self.memories)
    }

    /// Takes over the queues of the ports. Returns the parts that each worker takes over.
    ///
    /// # Errors
    /// Fails if the running program refuses the hand-over or ends, or if the queues do not fit.
    pub(super) fn take(&mut self, gate: &Gate<'_>) -> Result<Vec<HandedWorker>> {
        let head: HandedOver = self.client.call(&Call::HandOver {}).map_err(failed)?.parse().map_err(failed)?;
        let stream = self.client.stream();
        let mut received = receive(stream, descriptors(&head)?)?.into_iter();
        self.descriptors = head.descriptors.into_iter().zip(received.by_ref()).collect();
        let mut queue = |row: upgrade::QueueRow| {
            let upgrade::QueueRow { port, queue, descriptors, position, posted } = row;
            let descriptors = received.by_ref().take(descriptors).collect();
            (port, HandedQueue { queue, descriptors, position, posted })
        };
        let queues = head.queues.into_iter().map(&mut queue).collect();
        let mut states: Vec<SavedStates> = Vec::new();
        for row in head.states {
            let mut state = Vec::new();
            let read = stream.take(row.bytes as u64).read_to_end(&mut state).map_err(lost)?;
            if read < row.bytes {
                return Err(lost(ErrorKind::UnexpectedEof.into()));
            }
            if row.worker > usize::from(u16::MAX) {
                return Err(Error::Topology(format!(
                    "the running program has a worker with the number {}",
                    row.worker
                )));
            }
            if states.len() <= row.worker {
                states.resize_with(row.worker + 1, SavedStates::new);
            }
            states[row.worker].push((row.stage, state));
        }
        let mut posted = gate.attach(queues)?;
        let workers = states.len().max(posted.len());
        states.resize_with(workers, SavedStates::new);
        posted.resize_with(workers, Vec::new);
        let worker = |(states, posted)| HandedWorker { states, posted };
        Ok(states.into_iter().zip(posted).map(worker).collect())
    }

    /// Reports to the running program that this program forwards packets. Then takes over the listening sockets and the
    /// standard streams.
    ///
    /// # Errors
    /// Fails if the running program has withdrawn the hand-over and continues.
    pub(super) fn finish(mut self, run: &Run, runtime: &Runtime) -> Result<TakenSockets> {
        let deadline = Instant::now() + START_TIMEOUT;
        while run.loops().contains(&Some(0)) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        // A worker without a count of loops has ended.
        if run.loops().iter().any(|loops| loops.is_none_or(|loops| loops == 0)) {
            return Err(Error::Topology(format!(
                "a worker ended, or did not run within {} s, so the running program continues",
                START_TIMEOUT.as_secs()
            )));
        }
        let stream = self.client.stream();
        match upgrade::send_byte(stream, RUNNING).and_then(|()| upgrade::receive_byte(stream)) {
            Ok(DONE) => {}
            Ok(WITHDRAWN) => {
                return Err(Error::Topology(
                    "the hand-over took too long, so the running program continues".to_owned(),
                ));
            }
            // The running program was killed, so nobody else receives the packets.
            Ok(_) | Err(_) => tracing::warn!("the running program ended during the hand-over"),
        }
        let failed = |key: &'static str| {
            move |error: io::Error| {
                tracing::error!(
                    "cannot take over the socket of runtime.{key}: {error}; help: restart the program to open the socket again"
                );
            }
        };
        let mut take = |name: &str| self.descriptors.remove(name);
        let control = match (&runtime.control, take("control"), take("control_lock")) {
            (Control::Path(path), Some(listener), Some(lock)) => {
                Socket::take_over(path, listener, lock).map_err(failed("control")).ok()
            }
            _ => None,
        };
        let lock = take("metrics_lock");
        let metrics = take("metrics").map(|listener| Listener::take_over(runtime, listener, lock));
        let metrics = metrics.transpose().map_err(failed("metrics")).ok().flatten().flatten();
        // `dataplane upgrade` waits for this line.
        let _ = writeln!(io::stdout(), "{}", std::process::id());
        if let Some(stdout) = take("stdout") {
            let _ = dup2_stdout(stdout);
        }
        if let Some(stderr) = take("stderr") {
            let _ = dup2_stderr(stderr);
            logs::select_style();
        }
        Ok(TakenSockets { control, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Diagnostics;
    use crate::runtime::{Options, Predecessor, assemble};
    use dataplane_core::topology::Topology;
    use dataplane_testing::config::Config;
    use dataplane_testing::namespace::in_namespace;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn number_of_descriptors_does_not_overflow() {
        let queue = |descriptors| {
            let port = "a".to_owned();
            upgrade::QueueRow { port, queue: 0, descriptors, posted: Vec::new(), position: Vec::new() }
        };
        let head = |queues| HandedOver { descriptors: vec!["stdout".to_owned()], queues, ..HandedOver::default() };
        assert_eq!(descriptors(&head(vec![queue(1), queue(2)])).unwrap(), 4);
        let error = descriptors(&head(vec![queue(1), queue(usize::MAX)])).unwrap_err().to_string();
        assert!(error.contains("too many descriptors"), "{error}");
    }

    #[test]
    fn program_with_too_few_descriptors_names_the_limit() {
        // The process of the test runs only this test.
        in_namespace(|| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let file = File::open("/dev/null").unwrap();
            upgrade::send_descriptors(&theirs, &[file.as_fd(); 64]).unwrap();
            let limit = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(32), ..limit }).unwrap();
            let error = receive(&ours, 64).unwrap_err().to_string();
            assert!(error.contains("cannot receive the 64 file descriptors of the running program"), "{error}");
            assert!(error.contains("`ulimit -n`"), "{error}");
        });
    }

    #[test]
    fn program_whose_worker_has_failed_does_not_take_over() {
        let config = Config::new().port("in", "kind = 'generator', rate = 1000").stage("drop", "");
        let source = Source::new("test.toml", config.to_string(), &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let registry = dataplane_stages::registry();
        let assembly = assemble(&source, &registry, Topology::discover().unwrap(), &mut diagnostics).unwrap().unwrap();
        let runtime = assembly.plan.runtime.clone();
        // The pool of the worker is not the pool of another program.
        let mut gate = |_: &Gate<'_>| Ok(vec![HandedWorker { posted: vec![(0, vec![1])], ..HandedWorker::default() }]);
        let predecessor = Predecessor { memories: Vec::new(), gate: &mut gate };
        let run = Run::start_after(assembly, Options::default(), || false, Some(predecessor)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let config = TakenConfig { text: String::new(), settings: Vec::new(), running_s: 0.0, memories: Vec::new() };
        let (memories, descriptors) = (Vec::new(), BTreeMap::new());
        let client = Client::of_stream(ours, Path::new(RUNNING_PROGRAM));
        let taking = TakeOver { client, config, memories, descriptors };
        let error = taking.finish(&run, &runtime).err().unwrap().to_string();
        assert!(error.contains("a worker ended"), "{error}");
        assert_eq!(upgrade::receive_byte(&theirs).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        run.stop();
        let error = run.join().err().unwrap().to_string();
        assert!(error.contains("the buffers of port 0 of the other program do not fit"), "{error}");
    }
}
