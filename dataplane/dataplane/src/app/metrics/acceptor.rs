//! The listening socket of the metrics server.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::app::control::{SharedListener, Socket, has_listener, path_problem};
use crate::config::{Metrics, Runtime};
use dataplane_core::file;

/// The key of the config that sets the address.
pub(super) const KEY: &str = "runtime.metrics";

/// Checks whether the program can create the Unix socket of the metrics server. Returns the problem and its fix.
pub(in crate::app) fn problem(metrics: &Metrics) -> Option<(String, String)> {
    match metrics {
        Metrics::Unix(path) => path_problem(path),
        Metrics::None | Metrics::Tcp(_) => None,
    }
}

/// Checks whether this host allows the server to listen on its address. Returns the problem and its fix.
pub(in crate::app) fn failure(metrics: &Metrics) -> Option<(String, String)> {
    match metrics {
        Metrics::Unix(path) if has_listener(path) => Some((
            format!("another program listens on the socket {} of the metrics server", path.display()),
            "end the other program, or name another path".to_owned(),
        )),
        Metrics::Tcp(address) => {
            let error = TcpListener::bind(address).err()?;
            Some((format!("cannot listen on {address}: {error}"), fix(*address, &error)))
        }
        Metrics::Unix(_) | Metrics::None => None,
    }
}

/// Returns the fix for an address on which the server cannot listen.
fn fix(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        ErrorKind::AddrInUse => format!(
            "run `ss -ltnp 'sport = {port}'` to find the program that uses the port, or set another port in `{KEY}`"
        ),
        ErrorKind::AddrNotAvailable => {
            format!("run `ip address` to list the addresses of this host, and set one of them in `{KEY}`")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "set a port of 1024 or above in `{KEY}`, or start the program with the capability CAP_NET_BIND_SERVICE"
            )
        }
        _ => format!("set another address in `{KEY}`"),
    }
}

/// The listening socket of the metrics server.
pub(super) enum Acceptor {
    Tcp(TcpListener),
    Unix(Socket),
}

impl Acceptor {
    /// Starts to listen. Returns `None` if the config has no metrics server.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen on its address.
    pub(super) fn open(runtime: &Runtime) -> Result<Option<Self>, String> {
        let acceptor = match &runtime.metrics {
            Metrics::None => return Ok(None),
            Metrics::Tcp(address) => {
                let failed = |error: io::Error| {
                    format!("{KEY}: cannot listen on {address}: {error}; help: {}", fix(*address, &error))
                };
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Acceptor::Tcp(listener)
            }
            Metrics::Unix(path) => {
                let group = runtime.control_group.as_deref().map(file::group_number).transpose();
                let group = group.map_err(|why| format!("runtime.control_group: {why}"))?;
                Acceptor::Unix(Socket::at(path, group, KEY)?)
            }
        };
        Ok(Some(acceptor))
    }

    /// Returns the listening socket and its lock file, which another program needs to take over the server. Returns
    /// `None` if the process has no free descriptors.
    pub(super) fn share(&self) -> Option<SharedListener> {
        let shared = match self {
            Self::Tcp(listener) => listener
                .as_fd()
                .try_clone_to_owned()
                .map(|listener| Some(SharedListener { listener, lock: None, is_handed: Arc::default() })),
            Self::Unix(socket) => socket.share(),
        };
        shared.unwrap_or_else(|error| {
            tracing::error!("a later upgrade cannot hand over the metrics server: {error}");
            None
        })
    }

    /// Takes over the socket of another program. Returns `None` if the config has no metrics server.
    ///
    /// # Errors
    /// Fails if the socket does not fit the config.
    pub(super) fn take_over(runtime: &Runtime, listener: OwnedFd, lock: Option<OwnedFd>) -> io::Result<Option<Self>> {
        Ok(match (&runtime.metrics, lock) {
            (Metrics::None, _) => None,
            (Metrics::Tcp(_), _) => {
                let listener = TcpListener::from(listener);
                listener.set_nonblocking(true)?;
                Some(Self::Tcp(listener))
            }
            (Metrics::Unix(path), Some(lock)) => Some(Self::Unix(Socket::take_over(path, listener, lock)?)),
            (Metrics::Unix(_), None) => return Err(ErrorKind::InvalidInput.into()),
        })
    }
}
