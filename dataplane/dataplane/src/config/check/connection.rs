//! Checks of the connection of a port.

use crate::config::connection::Connection;
use crate::config::diagnostics::{Diagnostics, Mistake};
use crate::config::load::Loaded;
use crate::config::port::{Port, Qp};
use dataplane_core::connect::EndpointParameters;
use dataplane_core::units::Gid;

/// Checks the connection of a port, except its `peer`. Also checks that a port has a connection if and only if its
/// queue pairs need a connection.
pub(super) fn connection(loaded: &Loaded<'_>, index: usize, port: &Port, diagnostics: &mut Diagnostics) {
    let path = format!("port[{index}]");
    let kind = port.qp.name();
    let Some(connection) = &port.connection else {
        if port.qp != Qp::RawPacket && !loaded.damaged {
            let mistake = Mistake::error(
                loaded.locate(&format!("{path}.qp")),
                format!("{kind} queue pairs need a connection to a peer"),
            );
            diagnostics.push(mistake.help(
                "add `connection` with `listen`, `to` or `peer`, such as connection = { listen = \"address:port\" }",
            ));
        }
        return;
    };
    let Connection { rendezvous, parameters } = connection;
    let at = |key: &str| loaded.locate(&format!("{path}.connection{key}"));
    if port.qp == Qp::RawPacket {
        let mistake = Mistake::error(at(""), "raw_packet queue pairs have no connection");
        diagnostics.push(mistake.help("remove `connection`, or write qp = \"rc\", \"uc\" or \"ud\""));
        return;
    }
    let mut error = |key: &str, message: String, help: &str| {
        diagnostics.push(Mistake::error(at(&format!(".{key}")), message).help(help));
    };
    let given_keys: Vec<&str> =
        [("listen", rendezvous.listen.is_some()), ("to", rendezvous.to.is_some()), ("peer", rendezvous.peer.is_some())]
            .into_iter()
            .filter_map(|(key, given)| given.then_some(key))
            .collect();
    match given_keys[..] {
        [_] => {}
        [] if loaded.damaged => {}
        [] => {
            let message = "this connection has no `listen`, `to` or `peer`".to_owned();
            error("", message, "add `listen` or `to` with an address and port, or `peer` with a port of this config");
        }
        [first, second, ..] => {
            error(second, format!("`{first}` and `{second}` cannot be used together"), "remove one of the two");
        }
    }
    if rendezvous.from.is_some() && rendezvous.listen.is_none() {
        error("from", "`from` needs `listen`, which is missing".to_owned(), "add `listen`, or remove `from`");
    }
    for (key, period) in [("deadline", rendezvous.deadline), ("step_deadline", rendezvous.step_deadline)] {
        if period.0.is_zero() {
            error(
                key,
                format!("a {key} of 0 leaves no time for a peer to connect"),
                &format!("set {key} = \"5s\", for example"),
            );
        }
    }
    if parameters.gid_index.is_some() {
        for (key, given) in [("gid", parameters.gid.is_some()), ("gid_kind", parameters.gid_kind.is_some())] {
            if given {
                error("gid_index", format!("`gid_index` and `{key}` both choose the address"), "remove one of the two");
            }
        }
    }
    if parameters.gid.is_some_and(Gid::is_zero) {
        error(
            "gid",
            "the GID is 0, which is not a valid address".to_owned(),
            "run `dataplane devices` to list the GIDs of each port",
        );
    }
    if parameters.path_mtu.is_some_and(|mtu| !mtu.is_power_of_two()) {
        error("path_mtu", "this is not a valid path MTU".to_owned(), "set path_mtu to 256, 512, 1024, 2048 or 4096");
    }
    if parameters.static_rate == 1 {
        error(
            "static_rate",
            "the rate 1 is not defined in verbs.h".to_owned(),
            "set static_rate = 0 for no limit, or 2 for 2.5 Gbit/s",
        );
    }
    if parameters.path_migration.is_some() && parameters.alternate.is_none() {
        let help = "add `alternate`, or remove `path_migration`";
        error("path_migration", "`path_migration` needs `alternate`, which is missing".to_owned(), help);
    }
    for key in keys_without_effect(parameters, port.qp) {
        error(key, format!("{kind} queue pairs have no `{key}`"), "remove the key");
    }
    let mut warning = |key: &str, message: String, help: &str| {
        diagnostics.push(Mistake::warning(at(&format!(".{key}")), message).help(help));
    };
    if port.qp == Qp::Rc {
        if parameters.retry_count == 7 {
            let message = "some devices retry indefinitely with a retry_count of 7, so a dead peer is never detected";
            warning("retry_count", message.to_owned(), "set retry_count to at most 6");
        }
        if parameters.rnr_retry == 7 {
            let message = "an rnr_retry of 7 retries indefinitely, so a peer that stops receiving also stops this port";
            warning(
                "rnr_retry",
                message.to_owned(),
                "set rnr_retry to at most 6, unless an unlimited retry is intended",
            );
        }
        if parameters.timeout == 0 {
            let message = "a timeout of 0 waits indefinitely, so a lost packet is never resent";
            warning("timeout", message.to_owned(), "set timeout = 14 (67 ms), for example");
        }
    }
    if port.qp == Qp::Ud && parameters.qkey >= 1 << 31 {
        let message = format!("a qkey of {} needs CAP_NET_RAW", parameters.qkey);
        warning("qkey", message, "set qkey below 2147483648, or run `setcap cap_net_raw+ep PROGRAM`");
    }
}

/// Returns the keys that differ from their default and have no effect on queue pairs of this type.
fn keys_without_effect(parameters: &EndpointParameters, qp: Qp) -> Vec<&'static str> {
    let default = EndpointParameters::default();
    let of_rc = [
        ("max_rd_atomic", parameters.max_rd_atomic != default.max_rd_atomic),
        ("max_dest_rd_atomic", parameters.max_dest_rd_atomic != default.max_dest_rd_atomic),
        ("min_rnr_timer", parameters.min_rnr_timer != default.min_rnr_timer),
        ("timeout", parameters.timeout != default.timeout),
        ("retry_count", parameters.retry_count != default.retry_count),
        ("rnr_retry", parameters.rnr_retry != default.rnr_retry),
    ];
    let connected = [
        ("access", parameters.access != default.access),
        ("rq_psn", parameters.rq_psn != default.rq_psn),
        ("alternate", parameters.alternate.is_some()),
        ("path_migration", parameters.path_migration.is_some()),
    ];
    let of_ud = [("qkey", parameters.qkey != default.qkey)];
    let none: &[(&'static str, bool)] = &[];
    let (first, second) = match qp {
        Qp::RawPacket => (none, none),
        Qp::Rc => (none, &of_ud[..]),
        Qp::Uc => (&of_rc[..], &of_ud[..]),
        Qp::Ud => (&of_rc[..], &connected[..]),
    };
    first.iter().chain(second).filter(|(_, given)| *given).map(|(key, _)| *key).collect()
}
