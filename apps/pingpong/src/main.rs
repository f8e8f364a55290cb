//! Sends messages back and forth between two queue pairs. The peer is this program or a pingpong program of rdma-core.

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
use dataplane::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
use dataplane::verbs::Device;

use crate::args::{Args, Plan, SOFT};
use crate::end::Endpoint;
use crate::exchange::{ExchangeConnection, Fault, Listener, STEP_TIMEOUT};
use crate::report::Report;
use crate::traffic::Role;

/// The result of a step of one side. An error is reported and ends this side.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(mistakes) => {
            mistakes.lines().for_each(log);
            return ExitCode::from(2);
        }
    };
    let until = Instant::now() + plan.deadline;
    let results =
        if args.device == SOFT { run_both_sides(&plan, until) } else { vec![run_one_side(&args, &plan, until)] };
    let mut reports = Vec::new();
    for result in results {
        match result {
            Ok(report) => reports.push(report),
            Err(error) => error.to_string().lines().for_each(log),
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
    // A closed output pipe is not an error.
    if printed.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) || !good {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn log(text: &str) {
    eprintln!("pingpong: {text}");
}

/// Opens an RDMA device of the host.
#[cfg(feature = "ibverbs")]
fn open(name: &str) -> Result<impl Device> {
    use dataplane::verbs::Provider;

    Ok(dataplane::ibverbs::VerbsProvider.open(name)?)
}

#[cfg(not(feature = "ibverbs"))]
fn open(name: &str) -> Result<SoftDevice> {
    Err(format!("{name}: this program was built without the feature `ibverbs`; help: use --device {SOFT}").into())
}

/// Runs one side, client or server, on an RDMA device of the host.
fn run_one_side(args: &Args, plan: &Plan, until: Instant) -> Result<Report> {
    let device = open(&args.device)?;
    match &args.host {
        Some(host) => {
            let servers: Vec<SocketAddr> = match (host.as_str(), args.port).to_socket_addrs() {
                Ok(servers) => servers.collect(),
                Err(error) => return Err(format!("{host}: {error}").into()),
            };
            run_client(&device, plan, &servers, until)
        }
        None => {
            // Listen on IPv6 and IPv4. If IPv6 is not available, listen on IPv4 only.
            let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port)), (Ipv4Addr::UNSPECIFIED, args.port).into()];
            let listening = Listener::bind(any[0]).or_else(|_| Listener::bind(any[1]));
            let port = args.port;
            let listener =
                listening.map_err(|error| format!("TCP port {port}: {error}; help: set a free port with --port"))?;
            run_server(&device, plan, &listener, until)
        }
    }
}

/// Runs the server and the client on two connected software devices.
fn run_both_sides(plan: &Plan, until: Instant) -> Vec<Result<Report>> {
    let (a, b) = LoopbackLink::pair();
    let device = |name, last, link| {
        SoftDevice::new(SoftSpec { mac: [2, 0, 0, 0, 0, last], ..SoftSpec::new(name, LinkSpec::Loopback(link)) })
    };
    let setup = || -> Result<_> {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listener.address()?;
        Ok((device("soft0", 1, a)?, device("soft1", 2, b)?, listener, address))
    };
    let (server, client, listener, address) = match setup() {
        Ok(setup) => setup,
        Err(error) => return vec![Err(error)],
    };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| run_server(&server, plan, &listener, until));
        let called = run_client(&client, plan, &[address], until);
        let served = serving.join().unwrap_or_else(|_| Err("the server thread panicked".into()));
        vec![served, called]
    })
}

fn run_server<D: Device>(device: &D, plan: &Plan, listener: &Listener, until: Instant) -> Result<Report> {
    let mut last = None;
    let (end, connection, remote) = loop {
        // Each peer gets new queue pairs. On some devices, such as irdma, a queue pair cannot be reset and used again.
        let mut end = Endpoint::new(device, plan)?;
        let (connection, from) = listener.accept(until).map_err(|fault| match fault {
            Fault::NoPeer(_) => Fault::NoPeer(last.take()),
            other => other,
        })?;
        match exchange_as_server(&mut end, connection, until.min(Instant::now() + STEP_TIMEOUT)) {
            Ok((connection, remote)) => break (end, connection, remote),
            Err(why) => {
                let why = format!("the address exchange with {from} failed: {why}");
                log(&why);
                last = Some(why);
            }
        }
    };
    Ok(run(end, plan, Role::Server, connection, remote, until))
}

/// Performs the address exchange as the server.
fn exchange_as_server<D: Device>(
    end: &mut Endpoint<D>,
    mut connection: ExchangeConnection,
    until: Instant,
) -> Result<(ExchangeConnection, address::Address)> {
    let own = end.addresses();
    let remotes = connection.receive_addresses(own.len(), until)?;
    end.connect(&remotes)?;
    connection.send_addresses(&own, until)?;
    connection.receive_done(until)?;
    Ok((connection, remotes[0]))
}

fn run_client<D: Device>(device: &D, plan: &Plan, servers: &[SocketAddr], until: Instant) -> Result<Report> {
    let mut end = Endpoint::new(device, plan)?;
    let own = end.addresses();
    let mut connection =
        ExchangeConnection::connect(servers, until, |why| log(&format!("waiting for the server: {why}")))?;
    let step = until.min(Instant::now() + STEP_TIMEOUT);
    connection.send_addresses(&own, step)?;
    let remotes = connection.receive_addresses(own.len(), step)?;
    end.connect(&remotes)?;
    connection.send_done(step)?;
    Ok(run(end, plan, Role::Client, connection, remotes[0], until))
}

fn run<D: Device>(
    mut end: Endpoint<D>,
    plan: &Plan,
    role: Role,
    connection: ExchangeConnection,
    remote: address::Address,
    until: Instant,
) -> Report {
    let outcome = traffic::run(&mut end, plan, role, until);
    // The local queue pairs must acknowledge messages until the peer has finished.
    if outcome.failure.is_none() {
        connection.finish(until);
    }
    Report::new(plan, role, end.device(), end.addresses()[0], remote, outcome)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dataplane::soft::PortSpec;

    use super::*;
    use crate::address::Address;

    /// Connects to the server, and ends the exchange with a wrong message. Returns the address that the server sent.
    fn fail_exchange(server: SocketAddr, until: Instant) -> Address {
        let mut connection = ExchangeConnection::connect(&[server], until, |_| {}).unwrap();
        let own = Address { lid: 0, qpn: 7, psn: 1, gid: "fe80::1".parse().unwrap() };
        connection.send_addresses(&[own], until).unwrap();
        let [address] = connection.receive_addresses(1, until).unwrap()[..] else { panic!("one address") };
        connection.send_addresses(&[own], until).unwrap();
        address
    }

    /// Returns the plan for these options.
    fn plan(options: &str) -> Plan {
        let words = ["pingpong", "--device", SOFT].into_iter().chain(options.split_whitespace());
        Args::parse_from(words).plan().unwrap()
    }

    /// Returns two connected devices, and a server with its address.
    fn ends([port_a, port_b]: [PortSpec; 2]) -> ([SoftDevice; 2], Listener, SocketAddr) {
        let (a, b) = LoopbackLink::pair();
        let devices = [("soft0", 1, a, port_a), ("soft1", 2, b, port_b)].map(|(name, last, link, port)| {
            let spec = SoftSpec { mac: [2, 0, 0, 0, 0, last], port, ..SoftSpec::new(name, LinkSpec::Loopback(link)) };
            SoftDevice::new(spec).unwrap()
        });
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.address().unwrap();
        (devices, listener, address)
    }

    #[test]
    fn server_has_new_queue_pairs_for_each_client() {
        let plan = plan("--iterations 10 --check");
        let until = Instant::now() + Duration::from_secs(60);
        let ([server, client], listener, address) = ends(<[PortSpec; 2]>::default());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| run_server(&server, &plan, &listener, until));
            let first = fail_exchange(address, until);
            let second = fail_exchange(address, until);
            assert_ne!(first.qpn, second.qpn, "the server used a queue pair again");
            let report = run_client(&client, &plan, &[address], until).unwrap();
            assert_eq!(report.failure, None);
            assert_eq!(serving.join().unwrap().unwrap().failure, None);
        });
    }

    /// Runs a server and a client on InfiniBand ports. Returns whether the server and the client have sent a GID.
    fn infiniband_gids(server: &str, client: &str, grh_required: bool) -> [bool; 2] {
        let (server_plan, client_plan) = (plan(server), plan(client));
        let until = Instant::now() + Duration::from_secs(60);
        let ports = [0x40, 0x80].map(|lid| PortSpec { lid, grh_required, ..PortSpec::default() });
        let ([server, client], listener, address) = ends(ports);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| run_server(&server, &server_plan, &listener, until).unwrap());
            let called = run_client(&client, &client_plan, &[address], until).unwrap();
            let served = serving.join().unwrap();
            assert_eq!([served.failure, called.failure], [None, None]);
            [called.remote, served.remote].map(|address| !address.ends_with("GID ::"))
        })
    }

    /// The programs of rdma-core fail if only the peer has a GID.
    #[test]
    fn infiniband_address_has_a_gid_only_on_request() {
        for kind in ["rc", "uc", "ud", "srq"] {
            let lid = format!("--type {kind} --iterations 20 --check");
            let with_gid = format!("{lid} --gid-index 0");
            for (server, client) in [(&lid, &lid), (&with_gid, &lid), (&lid, &with_gid), (&with_gid, &with_gid)] {
                let gids = infiniband_gids(server, client, false);
                assert_eq!(gids, [server == &with_gid, client == &with_gid], "{kind}");
            }
        }
    }

    /// On ports of virtual functions, the fabric routes packets by GID.
    #[test]
    fn port_that_requires_a_grh_sends_its_gid() {
        for kind in ["rc", "uc", "ud", "srq"] {
            let options = format!("--type {kind} --iterations 20 --check");
            assert_eq!(infiniband_gids(&options, &options, true), [true, true], "{kind}");
        }
    }

    #[test]
    fn peer_without_a_needed_gid_or_lid_is_refused_with_a_remedy() {
        let refusal = |grh_required, (lid, gid): (u16, &str)| {
            let port = PortSpec { lid: 0x40, grh_required, ..PortSpec::default() };
            let ([device, _], ..) = ends([port.clone(), port]);
            let peer = Address { lid, qpn: 7, psn: 1, gid: gid.parse().unwrap() };
            Endpoint::new(&device, &plan("")).unwrap().connect(&[peer]).unwrap_err().to_string()
        };
        for (grh_required, peer) in [(true, (0x80, "::")), (false, (0, "::"))] {
            let found = refusal(grh_required, peer);
            assert_eq!(found, "the peer sent no GID; help: start the peer with its GID index, such as -g 0");
        }
        let found = refusal(false, (0, "fe80::1"));
        assert_eq!(found, "the peer sent no LID; help: select the GID of this side, such as -g 0");
    }
}
