//! The metrics server: an HTTP server on its own thread that serves the statistics of the run to Prometheus, and
//! answers health checks. All values come from the snapshots that `dataplane stats` uses too.

mod acceptor;
mod facts;
mod families;
mod http;
mod request;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::control::{Feed, SharedListener};
use crate::config::Runtime;
use acceptor::{Acceptor, KEY};
use dataplane_core::error::THREAD_REMEDY;

pub(super) use acceptor::{failure, problem};
pub(super) use facts::Facts;
#[cfg(any(test, fuzzing))]
pub(crate) use request::fuzz;

/// A metrics server that listens, but does not answer yet.
pub(super) struct Listener {
    acceptor: Acceptor,
    feed: Arc<Feed>,
}

impl Listener {
    /// Starts to listen. Returns `None` if the config has no metrics server.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen on its address.
    pub(super) fn open(runtime: &Runtime) -> Result<Option<Self>, String> {
        let Some(acceptor) = Acceptor::open(runtime)? else { return Ok(None) };
        let feed = Feed::new().map_err(|error| format!("{KEY}: {error}"))?;
        Ok(Some(Self { acceptor, feed: feed.into() }))
    }

    /// Takes over the socket of another program.
    ///
    /// # Errors
    /// Fails if the socket does not fit the config.
    pub(super) fn take_over(runtime: &Runtime, listener: OwnedFd, lock: Option<OwnedFd>) -> io::Result<Option<Self>> {
        let Some(acceptor) = Acceptor::take_over(runtime, listener, lock)? else { return Ok(None) };
        Ok(Some(Self { acceptor, feed: Feed::new()?.into() }))
    }

    /// Returns the listening socket and its lock file, which another program needs to take over the server.
    pub(super) fn share(&self) -> Option<SharedListener> {
        self.acceptor.share()
    }

    /// Returns the feed from which the server takes its snapshots.
    pub(super) fn feed(&self) -> Arc<Feed> {
        self.feed.clone()
    }

    /// Starts the thread that serves clients.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(super) fn serve(self, facts: Facts) -> Result<MetricsServer, String> {
        let Self { acceptor, feed } = self;
        let stop = Arc::new(AtomicBool::new(false));
        let http = http::Http::new(acceptor, feed.clone(), facts, stop.clone());
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(|| http.run());
        let thread = thread.map_err(|error| format!("{KEY}: cannot start a thread: {error}; help: {THREAD_REMEDY}"))?;
        Ok(MetricsServer { feed, stop, thread: Some(thread) })
    }
}

/// A running metrics server. Dropping this value ends its thread and removes its Unix socket.
pub(super) struct MetricsServer {
    feed: Arc<Feed>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.feed.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}
