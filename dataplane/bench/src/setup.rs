//! Reads the streams and the ports from a config or from the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::config::{Diagnostics, MAX_SIZE, Source};
use dataplane::header::MacAddr;
use dataplane::runtime::{Assembly, assemble, digest_of};
use dataplane::topology::Topology;
use dataplane::units::Period;
use dataplane::{Error, Result};
use serde::Deserialize;
use toml::Spanned;

use crate::rate::{LINE_OVERHEAD, Rate};
use crate::signature::MAX_STREAMS;
use crate::stored::read_text;
use crate::stream::{Sizes, Stream, StreamConfig, StreamPort};

/// The ports and streams of the command line.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A config with `[[port]]`, `[runtime]` and `[[stream]]`.
    pub config: Option<PathBuf>,
    /// The interfaces or RDMA devices of the ports, if there is no config.
    pub ports: Vec<String>,
    /// The kind of link of `ports`.
    pub link: String,
    /// The core of the tester.
    pub core: Option<u32>,
    /// Streams, each as the content of a TOML inline table.
    pub streams: Vec<String>,
    /// Values that override the config.
    pub settings: Vec<(String, String)>,
}

/// The part of a config that describes streams.
#[derive(Debug, Default, Deserialize)]
struct StreamsFile {
    #[serde(default)]
    stream: Vec<Spanned<StreamConfig>>,
    pipeline: Option<Spanned<toml::Table>>,
}

/// A stream and its place in the config or on the command line.
type Placed = (String, StreamConfig);

/// Returns the checked config of the ports, and the checked configs of the streams.
///
/// # Errors
/// Returns [`Error::Config`] with all mistakes in the ports, or with the first mistake in the streams.
pub fn load(sources: &Sources) -> Result<(Assembly, StreamSet)> {
    let (path, whole, text, mut streams) = match &sources.config {
        Some(path) => read(path)?,
        None => (PathBuf::from("--ports"), ports_text(sources)?, ports_text(sources)?, Vec::new()),
    };
    let settings: Vec<String> = sources.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let parts = sources.streams.iter().chain(&settings).map(String::as_str);
    let digest = digest_of(&whole, parts);
    for text in &sources.streams {
        streams.push((format!("--stream {text}"), inline_stream(text)?));
    }
    if streams.is_empty() {
        streams.push(("the default stream".to_owned(), StreamConfig::default()));
    }
    let source = Source::new(path, with_pipeline(&text), &sources.settings);
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = assemble(&source, &dataplane::stages::registry(), Topology::discover()?, &mut diagnostics)?;
    let Some(assembly) = assembly.filter(|_| !diagnostics.has_errors()) else {
        return Err(Error::Config(diagnostics.render(false).trim_end().trim_start_matches("error: ").to_owned()));
    };
    let ports: Vec<StreamPort> = assembly
        .ports
        .iter()
        .zip(&assembly.plan.ports)
        .map(|(info, plan)| StreamPort {
            name: info.name.clone(),
            mac: MacAddr(info.mac),
            mtu: plan.config.max_packet(),
        })
        .collect();
    let set = StreamSet { placed: streams, ports, digest };
    set.streams(None)?;
    Ok((assembly, set))
}

/// The configs of all streams. The streams can be built with different frame sizes.
#[derive(Clone, Debug)]
pub struct StreamSet {
    placed: Vec<Placed>,
    ports: Vec<StreamPort>,
    digest: String,
}

impl StreamSet {
    /// Returns the digest of the config or of the ports, of the streams, and of the values that override the config.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the streams. With `size`, all frames have this length, in bytes without the frame check sequence.
    /// Without `size`, the frames of each stream have the lengths in the config of the stream.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with the first mistake.
    pub fn streams(&self, size: Option<u16>) -> Result<Vec<Stream>> {
        let Some(size) = size else { return checked(&self.placed, &self.ports) };
        let mut placed = self.placed.clone();
        for (_, config) in &mut placed {
            config.size = Some(Sizes(vec![(size, 1)]));
        }
        checked(&placed, &self.ports)
    }
}

/// Checks the streams.
fn checked(streams: &[Placed], ports: &[StreamPort]) -> Result<Vec<Stream>> {
    if streams.len() > MAX_STREAMS {
        return Err(Error::Config(format!(
            "there are {} streams; help: use at most {MAX_STREAMS} streams, and fields with several values instead",
            streams.len()
        )));
    }
    let mut names = Vec::new();
    let mut checked = Vec::new();
    for (number, (place, config)) in streams.iter().enumerate() {
        for mut stream in Stream::all(config, number, ports).map_err(|why| Error::Config(format!("{place}: {why}")))? {
            stream.place.clone_from(place);
            if names.contains(&stream.name) {
                let name = &stream.name;
                return Err(Error::Config(format!(
                    "{place}: two streams have the name `{name}`; help: rename one of them"
                )));
            }
            names.push(stream.name.clone());
            checked.push(stream);
        }
    }
    Ok(checked)
}

/// Reads a config. Returns its path, its text, its text without the streams, and the streams.
fn read(path: &Path) -> Result<(PathBuf, String, String, Vec<Placed>)> {
    let text = read_text(path, MAX_SIZE)?;
    let shown = path.display();
    let file: StreamsFile =
        toml::from_str(&text).map_err(|error| Error::Config(format!("{shown}: {}", error.to_string().trim_end())))?;
    let line = |at: usize| text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
    if let Some(pipeline) = &file.pipeline {
        return Err(Error::Config(format!(
            "{shown}:{}: a config for `bench` has no [pipeline], because the tester itself sends and receives the \
             packets; help: remove this section",
            line(pipeline.span().start)
        )));
    }
    let rest = without_streams(&text);
    let remains = |text: &str| {
        let mut table: toml::Table = text.parse().ok()?;
        table.remove("stream");
        Some(table)
    };
    if rest.parse::<toml::Table>().ok() != remains(&text) {
        return Err(Error::Config(format!(
            "{shown}: a stream is not a section [[stream]]; help: write each stream as a section with the header [[stream]]"
        )));
    }
    let streams =
        file.stream.into_iter().map(|stream| (format!("{shown}:{}", line(stream.span().start)), stream.into_inner()));
    let streams = streams.collect();
    Ok((path.to_owned(), text, rest, streams))
}

/// Replaces the sections `[[stream]]` by empty lines, so that the other lines keep their numbers.
fn without_streams(text: &str) -> String {
    let mut inside = false;
    let mut rest = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let header = line.trim().strip_prefix('[').map(|header| header.trim_start_matches('[').trim_start());
        if let Some(header) = header {
            let is_stream = header.strip_prefix("stream").is_some_and(|rest| rest.trim_start().starts_with([']', '.']));
            // Inside a stream, a line such as `[1, 2],` is part of a value.
            let is_header = line.split('#').next().is_some_and(|line| line.trim_end().ends_with(']'));
            inside = if is_header { is_stream } else { inside };
        }
        match inside {
            true => rest.push('\n'),
            false => rest.push_str(line),
        }
    }
    rest
}

fn inline_stream(text: &str) -> Result<StreamConfig> {
    #[derive(Deserialize)]
    struct Inline {
        stream: StreamConfig,
    }
    let inline: Result<Inline, _> = toml::from_str(&format!("stream = {{ {text} }}"));
    inline.map(|inline| inline.stream).map_err(|error| {
        Error::Config(format!(
            "--stream {text}: {}; help: write the keys of a [[stream]], such as --stream 'size = 60, dst_port = 53'",
            error.message()
        ))
    })
}

/// Returns a config with one port for each interface or RDMA device.
fn ports_text(sources: &Sources) -> Result<String> {
    let Sources { ports, link, core, .. } = sources;
    if ports.is_empty() {
        return Err(Error::Config("no ports; help: add --ports A,B, or the path of a config with [[port]]".to_owned()));
    }
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = String::from("[runtime]\n");
    if let Some(core) = core {
        text += &format!("workers = [{core}]\n");
    }
    for name in ports {
        let is_rdma = !name.contains('/') && Path::new("/sys/class/infiniband").join(name).exists();
        text += &format!("[[port]]\nname = {}\n", quoted(name));
        text += &match is_rdma {
            true => format!("device = {}\n", quoted(name)),
            false => {
                format!("device = \"host\"\nlink = {{ kind = {}, interface = {} }}\n", quoted(link), quoted(name))
            }
        };
    }
    Ok(text)
}

/// Adds a pipeline that uses all ports, because the check of a config needs a pipeline. The pipeline does not run.
fn with_pipeline(text: &str) -> String {
    let table: toml::Table = text.parse().unwrap_or_default();
    let ports = table.get("port").and_then(|ports| ports.as_array()).map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = ports.iter().filter_map(|port| port.get("name")).map(ToString::to_string).collect();
    format!("{text}\n[pipeline]\ninput = [{}]\n[[pipeline.stage]]\nname = \"end\"\nuse = \"drop\"\n", names.join(", "))
}

/// Returns the speed of the line of each port in bits per second. `given` is the speed from the command line.
pub fn line_speeds(assembly: &Assembly, given: Option<u64>) -> Vec<Option<u64>> {
    let reported = |interface: &str| -> Option<u64> {
        let text = std::fs::read_to_string(Path::new("/sys/class/net").join(interface).join("speed")).ok()?;
        // The kernel reports -1 for an unknown speed.
        text.trim().parse::<u64>().ok().filter(|speed| *speed > 0).map(|speed| speed * 1_000_000)
    };
    let is_virtual = |interface: &str| !Path::new("/sys/class/net").join(interface).join("device").exists();
    let speed = |plan: &dataplane::config::PortPlan| {
        let interface = plan.config.kernel_interface()?;
        // A virtual interface reports a speed that does not limit the interface.
        if is_virtual(interface) { None } else { reported(interface) }
    };
    assembly.plan.ports.iter().map(|port| given.or_else(|| speed(port))).collect()
}

/// Sets the weight of each stream to its rate if all streams have a rate. The streams of a port then share `--rate max`
/// by the ratio of their rates.
pub fn weigh_by_rates(streams: &mut [Stream], lines: &[Option<u64>]) {
    let own = |stream: &Stream| {
        let line = lines.get(stream.from).copied().flatten();
        stream.rate?.packets(stream.mean_size, line).ok().flatten().filter(|rate| *rate > 0.0)
    };
    let Some(rates) = streams.iter().map(own).collect::<Option<Vec<f64>>>() else { return };
    for (stream, rate) in streams.iter_mut().zip(rates) {
        stream.weight = rate;
    }
}

/// Checks that the streams of each port together do not exceed the line at any time.
fn check_lines(streams: &[Stream], rates: &[Option<f64>], lines: &[Option<u64>]) -> Result<()> {
    for stream in streams {
        let Some(line) = lines.get(stream.from).copied().flatten() else { continue };
        // The sum only increases when a stream starts, so it is enough to check the start of each stream.
        let at = stream.active.0;
        let active =
            |(other, _): &(&Stream, _)| other.from == stream.from && other.active.0 <= at && at < other.active.1;
        let sums = streams.iter().zip(rates).filter(active);
        let bits: f64 = sums.map(|(it, rate)| rate.unwrap_or(0.0) * (it.mean_size + LINE_OVERHEAD) * 8.0).sum();
        if bits > line as f64 * 1.000_001 {
            return Err(Error::Config(format!(
                "{}: the streams of the port together have {:.1} % of the line of {} Mbps; help: reduce the rates to at \
                 most 100 %",
                stream.place,
                bits / line as f64 * 100.0,
                line / 1_000_000
            )));
        }
    }
    Ok(())
}

/// Checks that each stream starts before the end of the trial.
///
/// # Errors
/// Returns [`Error::Config`] for the first stream that starts later.
pub fn check_times(streams: &[Stream], duration: Duration) -> Result<()> {
    match streams.iter().find(|stream| u128::from(stream.active.0) >= duration.as_nanos()) {
        None => Ok(()),
        Some(Stream { place, .. }) => Err(Error::Config(format!(
            "{place}: `start` is not before the end of the trial ({}); help: use an earlier `start`, or a longer --for",
            Period(duration)
        ))),
    }
}

/// Returns the share of each stream in the load of all ports. All sending ports send the same number of packets.
///
/// # Errors
/// Returns [`Error::Config`] if only some streams have a rate other than "max", or if a stream has a start or stop
/// time.
pub fn shares(streams: &[Stream], lines: &[Option<u64>]) -> Result<Vec<f64>> {
    if let Some(Stream { place, .. }) = streams.iter().find(|stream| stream.active != (0, u64::MAX)) {
        return Err(Error::Config(format!(
            "{place}: this method has trials of several durations, so streams cannot have `start` or `stop`; help: remove \
             these keys, or use `bench rate` or `bench soak`"
        )));
    }
    let rates = rates(streams, Some(Rate::Packets(1.0)), lines)?;
    let whole: f64 = rates.iter().flatten().sum();
    Ok(rates.iter().map(|rate| rate.unwrap_or(0.0) / whole).collect())
}

/// Returns the rate of each stream in packets per second, or `None` for the highest possible rate. `total` is the total
/// rate of the streams of each sending port. Without `total`, each stream has its own rate.
///
/// # Errors
/// Returns [`Error::Config`] if a rate is missing, or exceeds the line.
pub fn rates(streams: &[Stream], total: Option<Rate>, lines: &[Option<u64>]) -> Result<Vec<Option<f64>>> {
    let line = |stream: &Stream| lines.get(stream.from).copied().flatten();
    let own = |stream: &Stream| match stream.rate {
        None => Ok(None),
        Some(rate) => rate
            .packets(stream.mean_size, line(stream))
            .map(Some)
            .map_err(|why| Error::Config(format!("{}: {why}", stream.place))),
    };
    let Some(total) = total else {
        let rate = |stream: &Stream| {
            own(stream)?.ok_or_else(|| {
                let Stream { name, place, .. } = stream;
                Error::Config(format!(
                    "{place}: the stream `{name}` has no rate; help: add --rate RATE, or `rate` to the stream"
                ))
            })
        };
        let rates = streams.iter().map(rate).collect::<Result<Vec<_>>>()?;
        check_lines(streams, &rates, lines)?;
        return Ok(rates);
    };
    if let Some(Stream { place, .. }) = streams.iter().find(|stream| stream.first.is_some()) {
        return Err(Error::Config(format!(
            "{place}: the stream replays both sides of a conversation with the times of the capture, so its rate is fixed; \
             help: use `bench rate` or `bench soak` without --rate, and set `speed` of the stream"
        )));
    }
    if total == Rate::Max {
        return Ok(vec![None; streams.len()]);
    }
    // The share of each stream: its own rate, or its weight.
    let owns: Vec<Option<Option<f64>>> = streams.iter().map(own).collect::<Result<_>>()?;
    let shares: Vec<f64> = match owns.iter().filter(|own| own.is_some()).count() {
        0 => streams.iter().map(|stream| stream.weight).collect(),
        count if count == streams.len() && owns.iter().all(|own| matches!(own, Some(Some(_)))) => {
            owns.iter().map(|own| own.flatten().unwrap_or(0.0)).collect()
        }
        _ => {
            return Err(Error::Config(
                "only some streams have a `rate` other than \"max\"; help: with --rate, give all streams a rate or none"
                    .to_owned(),
            ));
        }
    };
    let mut rates = vec![None; streams.len()];
    for (port, line) in lines.iter().enumerate() {
        let of_port = || streams.iter().zip(&shares).filter(|(stream, _)| stream.from == port);
        let share: f64 = of_port().map(|(_, share)| share).sum();
        if share <= 0.0 {
            continue;
        }
        let mean = of_port().map(|(stream, share)| stream.mean_size * share).sum::<f64>() / share;
        let packets = total.packets(mean, *line).map_err(Error::Config)?;
        for (rate, (stream, own)) in rates.iter_mut().zip(streams.iter().zip(&shares)) {
            if stream.from == port {
                *rate = packets.map(|packets| packets * own / share);
            }
        }
    }
    Ok(rates)
}
