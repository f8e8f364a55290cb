//! Messages to and fro between two queue pairs, by this program or by the pingpong programs of rdma-core on the other side.

mod address;
mod args;
mod check;
mod end;
mod exchange;
mod report;
mod traffic;

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use dataplane::provider::Device;
use dataplane::provider::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

use crate::args::{Args, Plan, SOFT};
use crate::end::End;
use crate::exchange::{Fault, Listener, STEP, Wire};
use crate::report::Report;
use crate::traffic::Role;

/// Whatever fails is told, and ends this side.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(mistakes) => {
            mistakes.lines().for_each(tell);
            return ExitCode::from(2);
        }
    };
    let until = Instant::now() + plan.deadline;
    let ends = if args.device == SOFT { both(&plan, until) } else { vec![one(&args, &plan, until)] };
    let mut reports = Vec::new();
    for end in ends {
        match end {
            Ok(report) => reports.push(report),
            Err(error) => error.to_string().lines().for_each(tell),
        }
    }
    let wanted = if args.device == SOFT { 2 } else { 1 };
    let good = reports.len() == wanted && reports.iter().all(|report| report.failure.is_none());
    let mut stdout = io::stdout();
    let printed = if args.json {
        serde_json::to_string_pretty(&reports).map_err(io::Error::from).and_then(|text| writeln!(stdout, "{text}"))
    } else {
        reports.iter().try_for_each(|report| write!(stdout, "{report}"))
    };
    // Who reads no further wants no more.
    if printed.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) || !good {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn tell(text: &str) {
    eprintln!("pingpong: {text}");
}

/// Opens a device of the host.
#[cfg(feature = "verbs")]
fn open(name: &str) -> Result<impl Device> {
    use dataplane::provider::Provider;

    Ok(dataplane::provider::verbs::VerbsProvider.open(name)?)
}

#[cfg(not(feature = "verbs"))]
fn open(name: &str) -> Result<SoftDevice> {
    Err(format!("{name}: built without the feature `verbs` there is only --device {SOFT}").into())
}

/// One side, on a device of the host.
fn one(args: &Args, plan: &Plan, until: Instant) -> Result<Report> {
    let device = open(&args.device)?;
    match &args.host {
        Some(host) => {
            let servers: Vec<SocketAddr> = match (host.as_str(), args.port).to_socket_addrs() {
                Ok(servers) => servers.collect(),
                Err(error) => return Err(format!("{host}: {error}").into()),
            };
            call(&device, plan, &servers, until)
        }
        None => {
            // Both kinds of addresses, where there is IPv6.
            let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port)), (Ipv4Addr::UNSPECIFIED, args.port).into()];
            let listening = Listener::bind(any[0]).or_else(|_| Listener::bind(any[1]));
            let port = args.port;
            let listener = listening.map_err(|error| format!("TCP port {port}: {error}: name a free one by --port"))?;
            serve(&device, plan, &listener, until)
        }
    }
}

/// Both sides, on two devices in software that a cable joins.
fn both(plan: &Plan, until: Instant) -> Vec<Result<Report>> {
    let (a, b) = LoopbackLink::pair();
    let device = |name, last, link| {
        SoftDevice::new(SoftSpec { mac: [2, 0, 0, 0, 0, last], ..SoftSpec::new(name, LinkSpec::Loopback(link)) })
    };
    let made = || -> Result<_> {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listener.address()?;
        Ok((device("soft0", 1, a)?, device("soft1", 2, b)?, listener, address))
    };
    let (server, client, listener, address) = match made() {
        Ok(made) => made,
        Err(error) => return vec![Err(error)],
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&server, plan, &listener, until));
        let called = call(&client, plan, &[address], until);
        let served = serving.join().unwrap_or_else(|_| Err("the server's thread has panicked".into()));
        vec![served, called]
    })
}

fn serve<D: Device>(device: &D, plan: &Plan, listener: &Listener, until: Instant) -> Result<Report> {
    let mut end = End::new(device, plan)?;
    let mut last = None;
    let (wire, remote) = loop {
        let (wire, from) = listener.accept(until).map_err(|fault| match fault {
            Fault::Nobody(_) => Fault::Nobody(last.take()),
            other => other,
        })?;
        match welcome(&mut end, wire, until.min(Instant::now() + STEP)) {
            Ok(peer) => break peer,
            Err(why) => {
                let why = format!("{from} is not the peer: {why}");
                tell(&why);
                last = Some(why);
                end.disconnect()?;
            }
        }
    };
    Ok(run(end, plan, Role::Server, wire, remote, until))
}

/// The server's part of the exchange.
fn welcome<D: Device>(end: &mut End<D>, mut wire: Wire, until: Instant) -> Result<(Wire, address::Address)> {
    let own = end.addresses();
    let remotes = wire.hear(own.len(), until)?;
    end.connect(&remotes)?;
    wire.tell(&own, until)?;
    wire.hear_done(until)?;
    Ok((wire, remotes[0]))
}

fn call<D: Device>(device: &D, plan: &Plan, servers: &[SocketAddr], until: Instant) -> Result<Report> {
    let mut end = End::new(device, plan)?;
    let own = end.addresses();
    let mut wire = Wire::connect(servers, until, |why| tell(&format!("waiting for the server: {why}")))?;
    let step = until.min(Instant::now() + STEP);
    wire.tell(&own, step)?;
    let remotes = wire.hear(own.len(), step)?;
    end.connect(&remotes)?;
    wire.tell_done(step)?;
    Ok(run(end, plan, Role::Client, wire, remotes[0], until))
}

fn run<D: Device>(
    mut end: End<D>,
    plan: &Plan,
    role: Role,
    wire: Wire,
    remote: address::Address,
    until: Instant,
) -> Report {
    let outcome = traffic::run(&mut end, plan, role, until);
    // Its queue pairs answer until the peer has its end, too.
    if outcome.failure.is_none() {
        wire.part(until);
    }
    Report::new(plan, role, end.device(), end.addresses()[0], remote, outcome)
}
