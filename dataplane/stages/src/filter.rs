//! `filter`: selects packets by a `tcpdump` expression.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod program;

use std::sync::Arc;

use pcap::{Capture, Linktype};
use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::prelude::*;
use program::Program;

/// Selects packets by a `tcpdump` expression (pcap-filter(7)). Matching packets go to the next stage, and all other
/// packets leave by `other`.
///
/// libpcap compiles the expression once, at startup, so an expression has the same meaning as in `tcpdump`. In
/// particular, primitives such as `ip` and `tcp` match only frames without VLAN tags. Use `vlan` for tagged frames, as
/// in `"tcp port 80 or (vlan and tcp port 80)"`. libpcap also resolves host names only at startup. To use a filter from
/// another compiler, set `bytecode` instead of `expression`.
///
/// The stage checks the compiled filter at startup, and then runs the filter on every packet. The filter cannot change
/// the packet, and executes each instruction at most once. The stage needs no parsed headers.
///
/// ```toml
/// [[pipeline.stage]]
/// name       = "web"
/// use        = "filter"
/// expression = "tcp port 80 and host 10.0.0.1"
/// outputs    = { other = "drop" }
///
/// [[pipeline.stage]]
/// name     = "ip"
/// use      = "filter"
/// bytecode = "4, 40 0 0 12, 21 0 1 2048, 6 0 0 65535, 6 0 0 0"
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The filter expression. An empty expression matches all packets. Either `expression` or `bytecode` is required.
    expression: Option<String>,
    /// The compiled filter, instead of `expression`: the output of `tcpdump -ddd -y EN10MB EXPRESSION`, in which
    /// spaces or commas can replace the line breaks.
    bytecode: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    program: Option<Arc<Program>>,
}

const OTHER: Edge = Edge::new(0);

/// The maximum number of words with a digit in an expression: ports, addresses and other values. The compile time of
/// libpcap without its optimiser grows with the square of the number of values. `port 0 or port 1 ...` takes about 2 s
/// for 400 values, and minutes for 2,000 values.
const MOST_VALUES: usize = 400;
/// The maximum number of instructions of a program before optimisation. The time of the optimiser grows faster than the
/// square of the number of instructions: about 1 s for 8,192 instructions compiled from `host` primitives, and 4 s for
/// 12,000 instructions.
const MOST_UNOPTIMISED: usize = 8192;
/// The maximum number of characters of an expression in a message.
const LONGEST_QUOTE: usize = 80;

/// The words of the primitive `ip broadcast`, which matches IPv4 broadcast addresses.
const IP_BROADCAST: [&str; 2] = ["ip", "broadcast"];

/// A compiled filter for Ethernet frames.
#[derive(Debug)]
pub struct FrameFilter(Program);

impl FrameFilter {
    /// Parses the output of `tcpdump -ddd -y EN10MB EXPRESSION`. Spaces or commas can replace the line breaks.
    ///
    /// # Errors
    /// Returns the reason why the text is not a valid filter.
    pub fn parse(bytecode: &str) -> Result<Self, String> {
        Program::parse(bytecode).map(Self)
    }

    /// Returns `true` if the filter selects the frame.
    #[inline]
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.0.run(frame) != 0
    }
}

/// Compiles a `tcpdump` expression (pcap-filter(7)) for Ethernet frames. Returns the filter as text, in the format of
/// `tcpdump -ddd` with spaces instead of line breaks. libpcap may resolve host names over the network.
///
/// # Errors
/// Returns the mistake in the expression.
pub fn bytecode(expression: &str) -> Result<String, Problem> {
    let problem = |message: String| Problem::at("expression", message);
    let too_long =
        |message: String| problem(message).help("split the filter over several `filter` stages, or use an `acl` stage");
    let words = expression.split(|c: char| c.is_whitespace() || "()[]|&!=<>+-*/,".contains(c));
    // libpcap refuses `ip broadcast` if the netmask is `PCAP_NETMASK_UNKNOWN`. The crate `pcap` passes the netmask 0
    // instead, so refuse `ip broadcast` here.
    let is_ip_broadcast =
        |part: &str| part.split_whitespace().collect::<Vec<_>>().windows(2).any(|at| at == IP_BROADCAST);
    if expression.split(|c: char| "()[]|&!=<>+*/,".contains(c)).any(is_ip_broadcast) {
        return Err(problem("`ip broadcast` needs a netmask, which a filter does not have".to_owned())
            .help("use `ether broadcast`, or list the addresses, such as \"dst host 255.255.255.255 or dst host 192.0.2.255\""));
    }
    let values = words.filter(|word| word.contains(|c: char| c.is_ascii_digit())).count();
    if values > MOST_VALUES {
        return Err(too_long(format!("the expression has {values} values, more than the maximum of {MOST_VALUES}")));
    }
    let attempt = Capture::dead(Linktype::ETHERNET).and_then(|capture| {
        let instructions = capture.compile(expression, false)?.get_instructions().len();
        let optimised = (instructions <= MOST_UNOPTIMISED).then(|| capture.compile(expression, true)).transpose()?;
        Ok((instructions, optimised))
    });
    let (instructions, optimised) = attempt.map_err(|error| {
        let reason = match error {
            pcap::Error::PcapError(reason) => reason,
            pcap::Error::InvalidInputString => "the expression contains a zero byte".to_owned(),
            other => other.to_string(),
        };
        let mut quote: String = expression.chars().take(LONGEST_QUOTE).collect();
        if quote.len() < expression.len() {
            quote.push_str("...");
        }
        problem(format!("`{}`: {reason}", quote.escape_debug()))
            .help("see pcap-filter(7) for the syntax, such as \"tcp port 80\"")
    })?;
    let compiled = optimised.ok_or_else(|| {
        too_long(format!(
            "the expression needs {instructions} instructions before optimisation, more than the maximum of \
             {MOST_UNOPTIMISED}"
        ))
    })?;
    let instructions = compiled.get_instructions();
    // Only `Display` gives access to the numbers of an instruction. `Display` prints a line in the format of `tcpdump
    // -ddd`.
    let lines: Vec<String> = instructions.iter().map(ToString::to_string).collect();
    let text = format!("{} {}", lines.len(), lines.join(" "));
    let parsed = Program::parse(&text).map_err(|reason| {
        problem(reason).help(if expression.contains("protochain") {
            "use `proto` to match the first header, because `protochain` needs a loop, which is not supported"
        } else if expression.contains("inbound") || expression.contains("outbound") {
            "remove `inbound` and `outbound`, because a packet has no direction in this stage"
        } else {
            "write a simpler expression"
        })
    });
    parsed.map(|_| text)
}

/// Compiles an expression.
fn compile(expression: &str) -> Result<Program, Problem> {
    let parsed = Program::parse(&bytecode(expression)?);
    parsed.map_err(|reason| Problem::at("expression", reason))
}

impl Stage for Filter {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(program) = &self.program else { return };
        for mut packet in batch.iter_mut() {
            if program.run(packet.data()) == 0 {
                packet.steer(OTHER);
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (expression, bytecode) = (self.expression.as_deref(), self.bytecode.as_deref());
        self.program = Some(setup.shared_by_workers(|_| {
            match (expression, bytecode) {
                (Some(expression), None) => compile(expression),
                (None, Some(text)) => Program::parse(text).map_err(|reason| {
                    Problem::at("bytecode", reason).help("write the output of `tcpdump -ddd -y EN10MB EXPRESSION`")
                }),
                (Some(_), Some(_)) => Err(Problem::at("bytecode", "`expression` and `bytecode` are both set")
                    .help("remove one of the two keys")),
                (None, None) => Err(Problem::at("", "`expression` is missing")
                    .help("add expression = \"tcp port 80\", for example; \"\" matches all packets")),
            }
        })?);
        Ok(())
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let took = self.program.as_ref()?.run(packet.data()) != 0;
        Some(if took { "the filter matches" } else { "the filter does not match" }.to_owned())
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().outputs(&[("other", "packets that do not match the filter")])
    }
}

#[cfg(test)]
mod tests;
