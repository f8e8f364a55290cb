//! Packets chosen as `tcpdump` chooses them.

mod compile;
mod program;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::prelude::*;
use program::Program;

/// Lets packets go on that a filter takes, in the language of `tcpdump` (pcap-filter(7)); the others leave by `other`.
///
/// The expression is compiled once, at the start, by the `tcpdump` that is installed (`tcpdump -ddd`), so that it means
/// what it means there. As there, what asks for IP, TCP and so on looks at frames without VLAN tags: those with one are
/// asked for by `vlan`, as in `"tcp port 80 or (vlan and tcp port 80)"`. Names of hosts are looked up at the start. Where
/// there is no `tcpdump`, `bytecode` has what it printed elsewhere.
///
/// The program that comes out is checked, and run on every packet: it reads the packet, ends after each of its
/// instructions at the latest, and needs no parsed headers.
///
/// ```toml
/// [[pipeline.stage]]
/// use        = "filter"
/// expression = "tcp port 80 and host 10.0.0.1"
/// outputs    = { other = "drop" }
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Which packets go on. Empty: all of them.
    expression: Option<String>,
    /// The same, compiled: what `tcpdump -ddd` prints, with spaces or commas where it has line breaks. It is instead of
    /// `expression`.
    bytecode: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    program: Option<Arc<Program>>,
}

const OTHER: Edge = Edge::new(0);

impl Stage for Filter {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(program) = &self.program else { return };
        for mut packet in batch.iter_mut() {
            if program.run(packet.data()) == 0 {
                packet.steer(OTHER);
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("other", "packets that the filter does not take")]
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (expression, bytecode) = (self.expression.as_deref(), self.bytecode.as_deref());
        self.program = Some(setup.shared(|_| match (expression, bytecode) {
            (Some(expression), None) => {
                let help = match expression.contains("protochain") {
                    true => "`protochain` makes a loop, and a filter here has none: `proto` looks at the first header",
                    false => "ask for less at once",
                };
                let text = compile::expression(expression)?;
                Program::parse(&text).map_err(|reason| Problem::at("expression", reason).help(help))
            }
            (None, Some(text)) => Program::parse(text).map_err(|reason| {
                Problem::at("bytecode", reason).help("write what `tcpdump -ddd -y EN10MB EXPRESSION` prints")
            }),
            (Some(_), Some(_)) => {
                Err(Problem::at("bytecode", "there is an `expression` as well").help("take one of them out"))
            }
            (None, None) => Err(
                Problem::at("", "it has no `expression`").help("write one, such as \"tcp port 80\"; \"\" takes all"),
            ),
        })?);
        Ok(())
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let took = self.program.as_ref()?.run(packet.data()) != 0;
        Some(if took { "the filter takes it" } else { "the filter does not take it" }.to_owned())
    }
}

#[cfg(test)]
mod tests;
