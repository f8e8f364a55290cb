//! Checks that the addresses on which a run listens are free.

use std::net::TcpListener;

use super::super::{control, metrics};
use super::section::Section;
use crate::config::Plan;
use dataplane_soft::doctor::{Finding, Severity};

/// Checks the control socket, the address of the metrics server, and the addresses on which ports wait for their peers.
pub(super) fn of_plan(plan: &Plan) -> Vec<Section> {
    let failure = |what, fix| Finding::new(Severity::Fails, what, "the run fails at its start", fix);
    let mut sections = Vec::new();
    if let Some(path) = control::in_use(&plan.runtime.control) {
        let what = format!("another program listens on the control socket {}", path.display());
        let findings = vec![failure(
            what,
            "end the other program, or name another path; if the other program runs this config, change nothing"
                .to_owned(),
        )];
        sections.push(Section::new("control socket", "runtime.control", findings));
    }
    if let Some((what, fix)) = metrics::failure(&plan.runtime.metrics) {
        sections.push(Section::new("metrics server", "runtime.metrics", vec![failure(what, fix)]));
    }
    for (place, port) in plan.ports.iter().enumerate() {
        let listen = port.config.connection.as_ref().and_then(|connection| connection.rendezvous.listen);
        let Some((address, error)) = listen.and_then(|address| Some((address, TcpListener::bind(address).err()?)))
        else {
            continue;
        };
        let fix = format!(
            "run `ss -ltnp 'sport = {}'` to find the program that uses the port, or change `listen`",
            address.port()
        );
        let findings = vec![failure(format!("cannot listen on {address}: {error}"), fix)];
        let subject = format!("port `{}`, address {address}", port.config.name);
        sections.push(Section::new(subject, format!("port[{place}].connection.listen"), findings));
    }
    sections
}
