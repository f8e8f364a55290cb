//! The test method `verbs` of `dataplane bench`.

use std::sync::atomic::AtomicBool;
use std::thread;

use dataplane::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
use dataplane::{Error, Result};
use dataplane_core::stderr;

use super::opened::stop_flag;
use super::output::{print, print_json};
use crate::report;
use crate::verbs::{
    CLOSED, Exchange, Listener, Output, Plan, SOFT, Session, SideReport, VerbsArgs, VerbsReport, VerbsRow, ending,
    heading, row_text,
};

/// The largest payload of a frame of the software devices. Path MTUs up to 4096 bytes fit.
const SOFT_MTU: u32 = 4200;

/// Prints the text of a report while the report grows.
#[derive(Default)]
struct Printer {
    is_silent: bool,
    has_heading: bool,
    /// The first error of standard output.
    error: Option<Error>,
}

impl Printer {
    fn print(&mut self, text: &str) {
        if !self.is_silent && self.error.is_none() {
            self.error = print(text).err();
        }
    }
}

impl Output for Printer {
    fn connected(&mut self, report: &SideReport) {
        self.has_heading = true;
        self.print(&heading(report));
    }

    fn row(&mut self, report: &SideReport, row: &VerbsRow) {
        self.print(&row_text(report, row));
    }
}

pub(super) fn verbs(args: &VerbsArgs) -> Result<()> {
    let plan = args.plan()?;
    let stop = stop_flag()?;
    let mut printer = Printer { is_silent: args.json, ..Printer::default() };
    let (side, server, error) = if args.device == SOFT {
        both_sides(&plan, &stop, &mut printer)?
    } else {
        one_side(args, &plan, &stop, &mut printer)?
    };
    if args.json {
        let report = VerbsReport {
            method: "verbs".to_owned(),
            environment: report::environment(None),
            side,
            server: server.map(Box::new),
        };
        print_json(&report)?;
    } else if printer.has_heading {
        printer.print(&ending(&side));
    }
    match error.or(printer.error) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The report of this side, the report of the server if this process runs both sides, and the error that ended the run.
type Outcome = (SideReport, Option<SideReport>, Option<Error>);

/// Opens an RDMA device.
#[cfg(feature = "ibverbs")]
fn open(name: &str) -> Result<impl dataplane::verbs::Device> {
    use dataplane::verbs::Provider;

    dataplane::ibverbs::VerbsProvider.open(name)
}

#[cfg(not(feature = "ibverbs"))]
fn open(name: &str) -> Result<SoftDevice> {
    Err(Error::Peer(format!("{name}: this program was built without the feature `ibverbs`; help: use --device {SOFT}")))
}

/// Runs the client or the server on an RDMA device.
fn one_side(args: &VerbsArgs, plan: &Plan, stop: &AtomicBool, printer: &mut Printer) -> Result<Outcome> {
    let device = open(&args.device)?;
    let exchange = match &args.host {
        Some(host) => Exchange::connect(host, args.port, plan.timeout, stop)?,
        None => {
            let listener = Listener::bind(args.port)?;
            stderr::write(&format!("waiting for a client on TCP port {}\n", args.port));
            listener.accept(plan.timeout, stop)?
        }
    };
    let (side, error) = Session::new(&device, plan, exchange, printer).run();
    Ok((side, None, error))
}

/// Runs the server and the client on two connected software devices.
fn both_sides(plan: &Plan, stop: &AtomicBool, printer: &mut Printer) -> Result<Outcome> {
    let (near, far) = LoopbackLink::pair();
    let device = |name, last, link| {
        let spec = SoftSpec::new(name, LinkSpec::Loopback(link));
        SoftDevice::new(SoftSpec { mac: [2, 0, 0, 0, 0, last], mtu: SOFT_MTU, ..spec })
    };
    let (server, client) = (device("soft0", 1, near)?, device("soft1", 2, far)?);
    let (listener, address) = Listener::local()?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let exchange = listener.accept(plan.timeout, stop)?;
            let mut silent = Printer { is_silent: true, ..Printer::default() };
            Ok(Session::new(&server, plan, exchange, &mut silent).run())
        });
        let connected = Exchange::connect(&address.ip().to_string(), address.port(), plan.timeout, stop);
        let called = connected.map(|exchange| Session::new(&client, plan, exchange, printer).run());
        let served: Result<_> =
            serving.join().unwrap_or_else(|_| Err(Error::Topology("the thread of the server panicked".to_owned())));
        let ((side, error), (server, server_error)) = (called?, served?);
        Ok((side, Some(server), cause(error, server_error)))
    })
}

/// Returns the error of the side that failed first. The other side then reports that its peer closed the connection.
fn cause(client: Option<Error>, server: Option<Error>) -> Option<Error> {
    let is_consequence = |error: &Error| error.to_string().contains(CLOSED);
    match (client, server) {
        (Some(client), Some(server)) if is_consequence(&client) => Some(server),
        (client, server) => client.or(server),
    }
}
