//! The test method `soak` of `dataplane bench`.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use dataplane::units::Period;
use dataplane::{Error, Result};

use super::find::stream_setups;
use super::journal::{Journal, Written};
use super::opened::{Opened, TrafficArgs, verdict};
use super::output::{output, write_page};
use super::progress::Progress;
use crate::rate::Rate;
use crate::report::{Losses, SoakInterval, SoakLine, SoakReport, SoakStart, soak_progress};
use crate::sender::LONGEST_TRIAL;
use crate::series::Intervals;
use crate::setup;
use crate::stored::Stored;
use crate::stream::Stream;
use crate::tester::{IntervalCounts, Observer, TrialPlan};

/// The maximum number of intervals that wait for the thread that writes the file.
const WAITING: usize = 1024;

#[derive(Debug, Args)]
pub(super) struct SoakArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The rate of each port that sends. Default: the rates of the streams
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The time in which packets are sent, at most 39 hours
    #[arg(long = "for", value_name = "TIME", default_value = "1h")]
    duration: Period,
    /// Write the result to FILE: lines of JSON, with one line for each interval (--interval)
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

/// Sends the counts of each interval to the thread that writes the file.
struct Reporter {
    lines: SyncSender<SoakInterval>,
    length_s: f64,
    /// The number of intervals that are not in the file, because the thread was too slow.
    dropped: u64,
}

impl Observer for Reporter {
    fn interval(&mut self, counts: &IntervalCounts) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(SoakInterval::of(counts, self.length_s)) {
            self.dropped += 1;
        }
    }
}

pub(super) fn soak(args: &SoakArgs) -> Result<()> {
    let traffic = &args.traffic;
    let longest = Duration::from_nanos(LONGEST_TRIAL);
    if args.duration.0 > longest {
        let (given, longest) = (args.duration, Period(Duration::from_secs(longest.as_secs() / 3600 * 3600)));
        return Err(Error::Config(format!("--for {given} is too long; help: use at most {longest}")));
    }
    let wanted = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, args.rate, lines);
    // Create the file first, so that a wrong path is an error before the ports are opened.
    let mut journal = Journal::create(&args.output)?;
    let mut opened = Opened::new(traffic, wanted)?;
    let streams = opened.tester.streams().to_vec();
    setup::check_times(&streams, args.duration.0)?;
    let rates = wanted(&streams, &opened.lines)?;
    let nanos = u64::try_from(args.duration.0.as_nanos()).unwrap_or(u64::MAX);
    let interval = traffic.interval(Duration::from_secs(1));
    opened.tester.set_interval(interval);
    let intervals = Intervals::new(interval, nanos, streams.len());
    let length_s = intervals.length as f64 / 1e9;
    let start = SoakStart {
        method: "soak".to_owned(),
        environment: opened.environment.clone(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        requested_s: args.duration.0.as_secs_f64(),
        interval_s: length_s,
        requested_pps: rates.iter().copied().sum::<Option<f64>>(),
        streams: stream_setups(&streams, &setup::shares(&streams, &opened.lines)?),
    };
    journal.write(&SoakLine::Start(Box::new(start.clone())));
    let (lines, received) = sync_channel::<SoakInterval>(WAITING);
    let expected = args.duration.0.as_secs_f64();
    let writer = thread::spawn(move || {
        super::threads::use_all_cores();
        let mut progress = Progress::new(expected);
        progress.start("soak".to_owned());
        let mut intervals = Vec::new();
        for interval in received {
            journal.write(&SoakLine::Interval(interval.clone()));
            progress.end(length_s);
            progress.show(&soak_progress(&interval, length_s));
            intervals.push(interval);
        }
        progress.clear();
        (journal, intervals)
    });
    let mut reporter = Reporter { lines, length_s, dropped: 0 };
    let plan = TrialPlan { rates: &rates, duration: args.duration.0, change: None };
    let outcome = opened.tester.trial_with(&plan, &mut reporter);
    let dropped = reporter.dropped;
    drop(reporter);
    let (mut journal, intervals) =
        writer.join().map_err(|_| Error::Wire("the thread that writes failed".to_owned()))?;
    let report = opened.report("soak", &rates, &outcome?);
    journal.write(&SoakLine::End(Box::new(report.clone())));
    let written = journal.finish();
    output(&report, traffic.json)?;
    if !traffic.json {
        super::output::print(&Losses(&intervals).to_string())?;
    }
    let whole = SoakReport { start, intervals, end: Some(Box::new(report.clone())) };
    write_page(traffic.html.as_deref(), || Stored::Soak(Box::new(whole)))?;
    opened.tester.close()?;
    if let Written::Partly { lines, error } = written {
        let path = args.output.display();
        return Err(Error::Wire(format!("{path}: {lines} lines of the result were not written: {error}")));
    }
    if dropped > 0 {
        return Err(Error::Wire(format!("{dropped} intervals were not written, because writing was too slow")));
    }
    verdict(&[&report])
}
