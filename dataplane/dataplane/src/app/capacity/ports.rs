//! Replaces the ports of a config by ports in memory, and reads the speed of the real ports.

use std::path::{Path, PathBuf};

use super::super::console::CommandError;
use crate::config::{Offload, Plan, PortPlan, Qp};
use dataplane_soft::doctor::Roots;

/// The number of flows of generated frames. Fewer flows than in most networks, but more than a stage could cache.
const FLOWS: u32 = 1024;
/// The size of generated frames in bytes, without the frame check sequence.
const SIZE: u16 = 64;

/// The frames that the ports receive in a measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    pub(super) size: Option<u16>,
    /// A capture that each port replays.
    pub(super) traffic: Option<PathBuf>,
}

/// Returns the overrides that put the ports of a config in memory. A port with a generator or a capture keeps its
/// frames, but receives them as fast as possible and without end.
pub(super) fn in_memory(plan: &Plan, frames: &Frames) -> Result<Vec<(String, String)>, CommandError> {
    let mut settings = Vec::new();
    for (number, port) in plan.ports.iter().enumerate() {
        let config = &port.config;
        if config.qp != Qp::RawPacket {
            let (name, qp) = (&config.name, config.qp.name());
            let help = "help: measure a config whose ports have qp = \"raw_packet\"";
            return Err(CommandError::Usage(format!("port `{name}` has qp = \"{qp}\", which needs a peer; {help}")));
        }
        if let Some(key) = config.rate_limit.as_ref().map(|_| "rate_limit").or(config.faults.as_ref().map(|_| "faults"))
        {
            let help = format!("help: remove the key, because the key changes the measured rate of `{}`", config.name);
            return Err(CommandError::Usage(format!("port `{}` has the key `{key}`; {help}", config.name)));
        }
        if config.flow.is_some() && frames.traffic.is_none() {
            return Err(CommandError::Usage(format!(
                "port `{}` has the key `flow`, and the generated frames may not match its rules; help: use a capture: \
                 --traffic FILE",
                config.name
            )));
        }
        if config.offloads().contains(&Offload::DelayDrop) {
            return Err(CommandError::Usage(format!(
                "port `{}` has the offload `delay_drop`, which needs several workers, but the measurement runs one \
                 worker; help: remove \"delay_drop\" from `offload`",
                config.name
            )));
        }
        let link = toml::Value::try_from(link(port, frames)?);
        let link = link.map_err(|error| CommandError::Failed(format!("port `{}`: {error}", config.name)))?;
        settings.push((format!("port.{number}.device"), "\"soft\"".to_owned()));
        // A device in memory has only port 1.
        settings.push((format!("port.{number}.device_port"), "1".to_owned()));
        settings.push((format!("port.{number}.link"), link.to_string()));
        // Stages with `source = "kernel"` use the interface of the port. Without the key `interface`, this is the
        // interface of the link. The new link has no interface, so set the key.
        if let (None, Some(interface)) = (&config.interface, config.kernel_interface()) {
            settings.push((format!("port.{number}.interface"), toml::Value::from(interface).to_string()));
        }
    }
    Ok(settings)
}

/// Returns the table `link` of a port in memory.
fn link(port: &PortPlan, frames: &Frames) -> Result<toml::Table, CommandError> {
    if let Some(traffic) = frames.traffic.as_ref().filter(|_| port.input) {
        return Ok(replay(traffic));
    }
    let failed = |error: toml::ser::Error| CommandError::Failed(format!("port `{}`: {error}", port.config.name));
    let known = port.config.link.as_ref().map(toml::Table::try_from).transpose().map_err(failed)?.unwrap_or_default();
    let mut link = match (known.get("kind").and_then(toml::Value::as_str), known.get("input")) {
        // Without `output`, sent packets are only counted.
        (Some("pcap"), Some(toml::Value::String(input))) => return Ok(replay(Path::new(input))),
        (Some("generator"), _) => known,
        _ => toml::Table::from_iter([
            ("kind".to_owned(), "generator".into()),
            ("flows".to_owned(), i64::from(FLOWS).into()),
        ]),
    };
    ["rate", "count"].iter().for_each(|key| _ = link.remove(*key));
    if let Some(size) = frames.size {
        link.remove("sizes");
        link.insert("size".to_owned(), i64::from(size).into());
    } else if !link.contains_key("size") && !link.contains_key("sizes") {
        link.insert("size".to_owned(), i64::from(SIZE).into());
    }
    Ok(link)
}

/// Returns a link that replays a capture without end. A relative path in a plan starts from the working directory, but
/// a relative path in an override starts from the folder of the config. The link therefore has an absolute path.
fn replay(capture: &Path) -> toml::Table {
    let input = absolute(capture).display().to_string();
    toml::Table::from_iter([
        ("kind".to_owned(), "pcap".into()),
        ("input".to_owned(), input.into()),
        ("loop".to_owned(), true.into()),
    ])
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the sum of the speeds of the ports that receive packets, in bits per second. Returns `None` if the speed of
/// a port is unknown.
pub(super) fn line_rate(roots: &Roots, plan: &Plan) -> Option<u64> {
    let inputs = plan.ports.iter().filter(|port| port.input);
    inputs.map(|port| speed(roots, port)).sum()
}

fn speed(roots: &Roots, port: &PortPlan) -> Option<u64> {
    let config = &port.config;
    if config.is_rdma() {
        // The file contains, for example, `100 Gb/sec (4X EDR)`.
        let rate = roots.sys(&format!("class/infiniband/{}/ports/{}/rate", config.device, config.device_port))?;
        let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
        return Some((gigabits * 1e9) as u64);
    }
    // The file contains megabits per second, or -1 if the link is down.
    let megabits =
        roots.sys(&format!("class/net/{}/speed", config.link.as_ref()?.interface()?))?.parse::<u64>().ok()?;
    megabits.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use dataplane_testing::Folder;

    fn plan(ports: &str) -> Plan {
        let text = format!("{ports}\n[pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n");
        let source = Source::new("a.toml", text, &[]);
        super::super::measure::offline(&source, &[], &dataplane_stages::registry()).unwrap()
    }

    fn settings(ports: &str, frames: &Frames) -> Result<String, String> {
        let settings = in_memory(&plan(ports), frames).map_err(|error| format!("{error:?}"))?;
        Ok(settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect())
    }

    #[test]
    fn port_on_an_interface_becomes_a_generator_and_keeps_its_kernel_interface() {
        let port = "[[port]]\nname = 'a'\ndevice = 'host'\nlink = { kind = 'xdp', interface = 'eth1' }";
        let link = "{ flows = 1024, kind = \"generator\", size = 128 }";
        let device = "port.0.device=\"soft\"\nport.0.device_port=1\n";
        let expected = format!("{device}port.0.link={link}\nport.0.interface=\"eth1\"\n");
        assert_eq!(settings(port, &Frames { size: Some(128), traffic: None }).unwrap(), expected);
        let port = "[[port]]\nname = 'a'\ndevice = 'mlx5_0'\ndevice_port = 2";
        let expected = format!("{device}port.0.link={}\n", link.replace("128", "64"));
        assert_eq!(settings(port, &Frames::default()).unwrap(), expected);
    }

    #[test]
    fn generator_and_capture_keep_their_frames_and_repeat_without_end() {
        let port = "[[port]]\nname = 'a'\ndevice = 'soft'\n\
                    link = { kind = 'generator', size = 100, rate = '1kpps', count = 5, flows = 7 }";
        let kept = settings(port, &Frames::default()).unwrap();
        assert!(kept.contains("flows = 7") && kept.contains("size = 100"), "{kept}");
        assert!(!kept.contains("rate") && !kept.contains("count"), "{kept}");
        let port = "[[port]]\nname = 'a'\ndevice = 'soft'\n\
                    link = { kind = 'pcap', input = '/x/in.pcap', output = '/x/out.pcap', pace = 'file' }";
        let kept = settings(port, &Frames::default()).unwrap();
        assert!(kept.contains("input = \"/x/in.pcap\"") && kept.contains("loop = true"), "{kept}");
        assert!(!kept.contains("output") && !kept.contains("file"), "{kept}");
        let traffic = Frames { size: None, traffic: Some("/x/other.pcap".into()) };
        assert!(settings(port, &traffic).unwrap().contains("input = \"/x/other.pcap\""));
    }

    #[test]
    fn port_that_cannot_be_measured_is_refused_with_its_key() {
        let limited = "[[port]]\nname = 'a'\ndevice = 'mlx5_0'\nrate_limit = { rate = '1Gbps' }";
        let error = settings(limited, &Frames::default()).unwrap_err();
        assert!(error.contains("port `a` has the key `rate_limit`"), "{error}");
        let port = "[runtime]\nworkers = 2\n[[port]]\nname = 'a'\ndevice = 'mlx5_0'\n";
        let error = settings(&format!("{port}offload = ['delay_drop']"), &Frames::default()).unwrap_err();
        assert!(error.contains("port `a` has the offload `delay_drop`"), "{error}");
        let rules = format!("{port}flow = [{{ priority = 1, match = {{ ipv4 = {{}} }} }}]");
        let error = settings(&rules, &Frames::default()).unwrap_err();
        assert!(error.contains("port `a` has the key `flow`"), "{error}");
        assert!(settings(&rules, &Frames { size: None, traffic: Some("/x/in.pcap".into()) }).is_ok());
        let connected = "[[port]]\nname = 'a'\ndevice = 'soft'\nqp = 'rc'\nlink = { kind = 'loopback' }\n\
                         connection = { peer = 'a', allow_self = true }";
        let error = settings(connected, &Frames::default()).unwrap_err();
        assert!(error.contains("has qp = \\\"rc\\\""), "{error}");
    }

    #[test]
    fn speeds_of_the_ports_are_added() {
        let folder = Folder::new();
        let roots = Roots { sys: folder.path().to_owned(), proc: folder.path().to_owned() };
        folder.write("class/net/eth1/speed", "25000\n");
        folder.write("class/net/eth2/speed", "-1\n");
        folder.write("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        let port = |link: &str| plan(&format!("[[port]]\nname = 'a'\n{link}"));
        let host = |name| port(&format!("device = 'host'\nlink = {{ kind = 'packet', interface = '{name}' }}"));
        assert_eq!(line_rate(&roots, &host("eth1")), Some(25_000_000_000));
        assert_eq!(line_rate(&roots, &host("eth2")), None);
        assert_eq!(line_rate(&roots, &port("device = 'mlx5_0'")), Some(100_000_000_000));
        assert_eq!(line_rate(&roots, &port("device = 'soft'\nlink = { kind = 'generator' }")), None);
    }
}
