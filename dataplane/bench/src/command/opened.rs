//! The options of all methods that send packets, and the open ports.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use dataplane::clock::{ClockState, HostClock};
use dataplane::runtime::PortLanes;
use dataplane::units::{BitRate, Period};
use dataplane::{Error, Result};

use super::calibration;
use crate::report::{Environment, RateReport, rate_report};
use crate::setup::{self, Sources, StreamSet};
use crate::stream::Stream;
use crate::tester::{Outcome, Tester, TesterOptions, stopped};

/// The default length of the intervals in which packets are counted.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// The longest wait for the clocks of the ports.
const CLOCK_WAIT: Duration = Duration::from_secs(5);

/// The ports, the streams and the limits of a trial.
#[derive(Debug, Args)]
pub(super) struct TrafficArgs {
    /// A config with [[port]], [runtime] and [[stream]]
    #[arg(value_name = "CONFIG", conflicts_with = "ports")]
    pub(super) config: Option<PathBuf>,
    /// The interfaces or RDMA devices, if there is no config
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(super) ports: Vec<String>,
    /// The kind of link of --ports: packet or xdp
    #[arg(long, value_name = "KIND", default_value = "packet", value_parser = ["packet", "xdp"])]
    pub(super) link: String,
    /// The core of the tester, with --ports
    #[arg(long, value_name = "CORE", conflicts_with = "config")]
    pub(super) core: Option<u32>,
    /// Add a stream: the keys of a [[stream]], such as 'size = 60, dst_port = 53'
    #[arg(long = "stream", value_name = "KEYS")]
    pub(super) streams: Vec<String>,
    /// Override a value of the config, such as runtime.burst=32
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub(super) settings: Vec<(String, String)>,
    /// The speed of the line, such as 10Gbps. Default: the speed that the kernel reports for a device
    #[arg(long, value_name = "SPEED")]
    pub(super) line: Option<BitRate>,
    /// Packets with a higher latency are late, and count as loss
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(super) late: Period,
    /// Report a time without arrivals if it is longer than TIME
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub(super) gap: Period,
    /// End the trial when no packet has arrived for this time after the last transmission
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(super) settle: Period,
    /// The maximum time by which the tester may send a packet after the packet was due. Packets that would be later
    /// are not sent, and count as missed
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub(super) catch_up: Period,
    /// The length of the intervals for counts by time. Default: 100ms, or 1s for `soak`
    #[arg(long, value_name = "TIME")]
    interval: Option<Period>,
    /// Do not send learning frames from the receiving ports before each trial. Without these frames, a bridge floods
    /// the packets of a stream if no other packet comes from the destination of the stream
    #[arg(long)]
    pub(super) no_learn: bool,
    /// The JSON result of `bench calibrate`. Results near the limits of the tester are then marked
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<PathBuf>,
    /// Write the result to FILE as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl TrafficArgs {
    /// Returns the length of the intervals in which packets are counted, or `default` without the option `--interval`.
    pub(super) fn interval(&self, default: Duration) -> Duration {
        self.interval.map_or(default, |Period(interval)| interval)
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; help: write KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// The tester with its ports open, and the properties of its ports.
pub(super) struct Opened {
    pub(super) tester: Tester,
    /// The name and the device of each port.
    pub(super) names: Vec<(String, String)>,
    /// The speed of the line of each port in bits per second, or `None` if the speed is unknown.
    pub(super) lines: Vec<Option<u64>>,
    /// The host, the ports, the program and the calibration.
    pub(super) environment: Environment,
    pub(super) stop: Arc<AtomicBool>,
    /// The configs of the streams, from which the streams can be built again with other frame sizes.
    pub(super) set: StreamSet,
}

impl Opened {
    /// Opens the ports. `fastest` returns the highest rates of the streams.
    pub(super) fn new(
        args: &TrafficArgs,
        fastest: impl FnOnce(&[Stream], &[Option<u64>]) -> Result<Vec<Option<f64>>>,
    ) -> Result<Self> {
        Self::with_sizes(args, None, fastest)
    }

    /// Opens the ports. With `sizes`, the tests use these frame sizes instead of the frame sizes of the streams.
    pub(super) fn with_sizes(
        args: &TrafficArgs,
        sizes: Option<Vec<String>>,
        fastest: impl FnOnce(&[Stream], &[Option<u64>]) -> Result<Vec<Option<f64>>>,
    ) -> Result<Self> {
        let calibration = args.calibration.as_deref().map(calibration::read).transpose()?;
        let sources = Sources {
            config: args.config.clone(),
            ports: args.ports.clone(),
            link: args.link.clone(),
            core: args.core,
            streams: args.streams.clone(),
            settings: args.settings.clone(),
        };
        let (assembly, set) = setup::load(&sources)?;
        let mut streams = set.streams(None)?;
        let lines = setup::line_speeds(&assembly, args.line.map(|BitRate(bits)| bits));
        setup::weigh_by_rates(&mut streams, &lines);
        let fastest = fastest(&streams, &lines)?;
        let stop = stop_flag()?;
        let clock = HostClock::new();
        let lanes = PortLanes::open(assembly, &clock, || stop.load(Ordering::Relaxed))?;
        await_clocks(&lanes, &stop);
        let names = lanes.ports().iter().enumerate();
        let names = names.map(|(index, port)| (port.name.clone(), lanes.describe(index))).collect();
        let mut environment = Environment::of(&lanes);
        environment.config_digest = set.digest().to_owned();
        if let (Some(path), Some(own)) = (&args.calibration, &calibration) {
            let sizes = sizes.unwrap_or_else(|| calibration::sizes(&streams));
            calibration::check(path, own, &environment, &sizes)?;
            environment.calibration = Some(own.calibration);
        }
        let options = TesterOptions {
            late: args.late.0,
            gap: args.gap.0,
            settle: args.settle.0,
            catch_up: args.catch_up.0,
            interval: args.interval(INTERVAL),
            learn: !args.no_learn,
        };
        let tester = Tester::new(lanes, clock, streams, &fastest, options, stop.clone());
        Ok(Self { tester, names, lines, environment, stop, set })
    }

    pub(super) fn report(&self, method: &str, rates: &[Option<f64>], outcome: &Outcome) -> RateReport {
        rate_report(method, self.tester.streams(), rates, &self.names, outcome, &self.environment)
    }
}

/// Waits until the frequencies of the clocks of all ports are known. Without a known frequency, the first trial would
/// have no latencies.
fn await_clocks(lanes: &PortLanes, stop: &AtomicBool) {
    let is_coarse = |port| lanes.clocks(port).iter().any(|clock| clock.state == ClockState::Coarse);
    let end = Instant::now() + CLOCK_WAIT;
    while (0..lanes.ports().len()).any(is_coarse) && Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a flag that SIGINT and SIGTERM set. The second signal ends the process.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::Topology(format!("cannot install signal handlers: {error}")))?;
    }
    Ok(stop)
}

/// Returns an error if the link of a port was down in the trial.
pub(super) fn check_links(report: &RateReport) -> Result<()> {
    let ports = report.ports_with_link_down();
    match ports.is_empty() {
        true => Ok(()),
        false => Err(Error::Topology(format!(
            "the link of the port {} was down during the trial, so the device may not have caused the losses; help: \
             check the link and measure again",
            ports.iter().map(|port| format!("`{port}`")).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Returns an error if a result cannot be trusted. The caller prints the results first.
pub(super) fn verdict(reports: &[&RateReport]) -> Result<()> {
    for report in reports {
        if report.unaccounted != 0 {
            let unaccounted = report.unaccounted;
            return Err(Error::Wire(format!("the counters do not balance: {unaccounted} packets are unaccounted")));
        }
        if report.stopped {
            return Err(stopped());
        }
        check_links(report)?;
    }
    Ok(())
}
