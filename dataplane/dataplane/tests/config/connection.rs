//! Tests of the `connection` table of a port: its values, and the messages about mistakes.

use dataplane::config::{Connection, Plan, RendezvousConfig};
use dataplane::connect::EndpointParameters;
use dataplane::units::Gid;

use super::{check, records};

/// Returns a config that has one port, on a verbs device, with the given `qp` and `connection`.
fn config(qp: &str, connection: &str) -> String {
    format!(
        "[[port]]\nname = \"wan\"\ndevice = \"rxe0\"\nqp = \"{qp}\"\nconnection = {{ {connection} }}\n\
         [pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"tx\"\n"
    )
}

fn planned(qp: &str, connection: &str) -> Plan {
    let (plan, diagnostics) = check(&config(qp, connection), &[]);
    plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))
}

/// Checks the message and help of each mistake in a connection. All mistakes must be on the line of the connection.
#[track_caller]
fn mistakes(qp: &str, connection: &str, expected: &[(&str, &str)]) {
    let found: Vec<_> = records(&config(qp, connection))
        .into_iter()
        .map(|(line, _, message, help)| {
            assert_eq!(line, 5, "{message}");
            (message, help)
        })
        .collect();
    let expected: Vec<_> = expected.iter().map(|&(message, help)| (message.to_owned(), help.to_owned())).collect();
    assert_eq!(found, expected, "{qp}: {connection}");
}

#[test]
fn omitted_keys_have_the_documented_defaults() {
    for qp in ["rc", "uc", "ud"] {
        let plan = planned(qp, "listen = \"192.0.2.1:18515\"");
        let connection = plan.ports[0].config.connection.clone().unwrap();
        let rendezvous = RendezvousConfig { listen: "192.0.2.1:18515".parse().ok(), ..RendezvousConfig::default() };
        assert_eq!(connection, Connection { rendezvous, parameters: EndpointParameters::default() });
    }
    let default = EndpointParameters::default();
    assert_eq!((default.pkey_index, default.sq_psn, default.rq_psn), (0, 0, None));
    assert_eq!((default.max_rd_atomic, default.max_dest_rd_atomic), (1, 1));
    assert_eq!((default.service_level, default.source_path_bits, default.hop_limit, default.grh), (0, 0, 255, None));
    assert!(default.retry_count <= 6 && default.rnr_retry <= 6 && default.timeout > 0, "a dead peer must be detected");
}

#[test]
fn every_key_is_read() {
    let text = "to = \"[2001:db8::1]:4000\", deadline = \"1m\", step_deadline = \"700ms\", allow_self = true, \
                gid = \"192.0.2.7\", gid_kind = \"roce_v1\", pkey_index = 9, \
                access = [\"remote_read\", \"remote_atomic\", \"remote_write\"], path_mtu = 2048, grh = true, \
                hop_limit = 3, traffic_class = 104, flow_label = 1048575, service_level = 5, source_path_bits = 1, \
                static_rate = 17, sq_psn = 16777215, rq_psn = 4, max_rd_atomic = 16, max_dest_rd_atomic = 8, \
                min_rnr_timer = 12, timeout = 18, retry_count = 5, rnr_retry = 4, path_migration = \"armed\", \
                alternate = { lid = 9, gid = \"fe80::9\" }";
    let connection = planned("rc", text).ports[0].config.connection.clone().unwrap();
    assert_eq!(connection.rendezvous.to, "[2001:db8::1]:4000".parse().ok());
    assert_eq!(connection.parameters.gid, "::ffff:192.0.2.7".parse::<Gid>().ok());
    let json = serde_json::to_value(&connection).unwrap();
    for (key, value) in [
        ("deadline", "1m".into()),
        ("step_deadline", "700ms".into()),
        ("allow_self", true.into()),
        ("gid_kind", "roce_v1".into()),
        ("pkey_index", 9.into()),
        ("path_mtu", 2048.into()),
        ("grh", true.into()),
        ("hop_limit", 3.into()),
        ("traffic_class", 104.into()),
        ("flow_label", 1_048_575.into()),
        ("service_level", 5.into()),
        ("source_path_bits", 1.into()),
        ("static_rate", 17.into()),
        ("sq_psn", 16_777_215.into()),
        ("rq_psn", 4.into()),
        ("max_rd_atomic", 16.into()),
        ("max_dest_rd_atomic", 8.into()),
        ("min_rnr_timer", 12.into()),
        ("timeout", 18.into()),
        ("retry_count", 5.into()),
        ("rnr_retry", 4.into()),
        ("path_migration", "armed".into()),
        (
            "alternate",
            serde_json::json!({
                "lid": 9, "gid": "fe80::9", "device_port": 1, "source_gid_index": 0, "pkey_index": 0, "timeout": 14,
                "service_level": 0, "source_path_bits": 0, "static_rate": 0
            }),
        ),
    ] {
        let value: serde_json::Value = value;
        assert_eq!(json[key], value, "{key}");
    }
    let connection = planned("ud", "listen = \"[::]:1\", from = \"::1\", qkey = 7, gid_index = 3");
    let connection = connection.ports[0].config.connection.as_ref().unwrap();
    assert_eq!((connection.parameters.qkey, connection.parameters.gid_index), (7, Some(3)));
    assert_eq!(connection.rendezvous.from, "::1".parse().ok());
}

#[test]
fn invalid_connection_is_reported() {
    for (qp, text, message, help) in [
        (
            "rc",
            "sq_psn = 1",
            "this connection has no `listen`, `to` or `peer`",
            "add `listen` or `to` with an address and port, or `peer` with a port of this config",
        ),
        (
            "rc",
            "to = \"[::1]:1\", peer = \"wan\", allow_self = true",
            "`to` and `peer` cannot be used together",
            "remove one of the two",
        ),
        (
            "rc",
            "to = \"[::1]:1\", from = \"::1\"",
            "`from` needs `listen`, which is missing",
            "add `listen`, or remove `from`",
        ),
        (
            "rc",
            "to = \"localhost:18515\"",
            "`localhost:18515` is not an IP address with a port from 1 to 65535",
            "write an IP address and a port: \"192.0.2.1:18515\" or \"[2001:db8::1]:18515\"",
        ),
        (
            "rc",
            "listen = \"[::]:0\"",
            "`[::]:0` is not an IP address with a port from 1 to 65535",
            "write an IP address and a port: \"192.0.2.1:18515\" or \"[2001:db8::1]:18515\"",
        ),
        ("rc", "peer = \"wan\"", "`wan` is its own peer", "name another port, or add allow_self = true"),
        ("rc", "peer = \"wen\"", "there is no port `wen`", "did you mean `wan`?"),
        (
            "rc",
            "to = \"[::1]:1\", path_migration = \"rearm\"",
            "`path_migration` needs `alternate`, which is missing",
            "add `alternate`, or remove `path_migration`",
        ),
        ("ud", "to = \"[::1]:1\", alternate = { lid = 1 }", "ud queue pairs have no `alternate`", "remove the key"),
        ("rc", "to = \"[::1]:1\", alternate = { lid = 0 }", "expected a whole number from 1 to 65535, found 0", ""),
        (
            "uc",
            "to = \"[::1]:1\", step_deadline = \"0s\"",
            "a step_deadline of 0 leaves no time for a peer to connect",
            "set step_deadline = \"5s\", for example",
        ),
        (
            "ud",
            "to = \"[::1]:1\", gid_index = 1, gid_kind = \"roce_v2\"",
            "`gid_index` and `gid_kind` both choose the address",
            "remove one of the two",
        ),
        (
            "ud",
            "to = \"[::1]:1\", gid = \"::\"",
            "the GID is 0, which is not a valid address",
            "run `dataplane devices` to list the GIDs of each port",
        ),
        (
            "rc",
            "to = \"[::1]:1\", path_mtu = 1500",
            "this is not a valid path MTU",
            "set path_mtu to 256, 512, 1024, 2048 or 4096",
        ),
        (
            "rc",
            "to = \"[::1]:1\", static_rate = 1",
            "the rate 1 is not defined in verbs.h",
            "set static_rate = 0 for no limit, or 2 for 2.5 Gbit/s",
        ),
        ("rc", "to = \"[::1]:1\", qkey = 5", "rc queue pairs have no `qkey`", "remove the key"),
        ("uc", "to = \"[::1]:1\", timeout = 5", "uc queue pairs have no `timeout`", "remove the key"),
        ("ud", "to = \"[::1]:1\", access = [\"remote_read\"]", "ud queue pairs have no `access`", "remove the key"),
        (
            "raw_packet",
            "to = \"[::1]:1\"",
            "raw_packet queue pairs have no connection",
            "remove `connection`, or write qp = \"rc\", \"uc\" or \"ud\"",
        ),
        ("rc", "to = \"[::1]:1\", sq_psn = 16777216", "expected a whole number from 0 to 16777215, found 16777216", ""),
        ("rc", "to = \"[::1]:1\", hop_limit = 0", "expected a whole number from 1 to 255, found 0", ""),
        (
            "rc",
            "to = \"[::1]:1\", flow_label = 1048576",
            "expected a whole number from 0 to 1048575, found 1048576",
            "",
        ),
        ("rc", "to = \"[::1]:1\", retry_count = 8", "expected a whole number from 0 to 7, found 8", ""),
        ("rc", "to = \"[::1]:1\", retry_cout = 3", "unknown key `retry_cout`", "did you mean `retry_count`?"),
    ] {
        mistakes(qp, text, &[(message, help)]);
    }
}

/// The user may intend a setting with which the port waits indefinitely for a dead peer, or a setting that needs a
/// capability. So such a setting causes only a warning.
#[test]
fn unlimited_retries_and_privileged_qkey_cause_a_warning() {
    for (qp, text, message, help) in [
        (
            "rc",
            "retry_count = 7",
            "some devices retry indefinitely with a retry_count of 7, so a dead peer is never detected",
            "set retry_count to at most 6",
        ),
        (
            "rc",
            "rnr_retry = 7",
            "an rnr_retry of 7 retries indefinitely, so a peer that stops receiving also stops this port",
            "set rnr_retry to at most 6, unless an unlimited retry is intended",
        ),
        (
            "rc",
            "timeout = 0",
            "a timeout of 0 waits indefinitely, so a lost packet is never resent",
            "set timeout = 14 (67 ms), for example",
        ),
        (
            "ud",
            "qkey = 2147483648",
            "a qkey of 2147483648 needs CAP_NET_RAW",
            "set qkey below 2147483648, or run `setcap cap_net_raw+ep PROGRAM`",
        ),
    ] {
        let text = format!("to = \"[::1]:1\", {text}");
        mistakes(qp, &text, &[(message, help)]);
        let (plan, diagnostics) = check(&config(qp, &text), &[]);
        assert!(plan.is_some());
        assert_eq!(serde_json::to_value(diagnostics.records()).unwrap()[0]["level"], "warning");
    }
}

/// Two ports of one config form a connection if each names the other as its peer.
#[test]
fn peers_of_one_config_must_name_each_other() {
    let port = |name: &str, qp: &str, peer: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"soft\"\nqp = \"{qp}\"\nlink = {{ kind = \"loopback\" }}\n\
             connection = {{ peer = \"{peer}\" }}\n"
        )
    };
    let rest = "[pipeline]\ninput = [\"a\"]\n[[pipeline.stage]]\nuse = \"tx\"\n";
    assert_eq!(records(&(port("a", "rc", "b") + &port("b", "rc", "a") + rest)), []);
    let text = port("a", "rc", "b") + &port("b", "uc", "a") + rest;
    let help = "use the same `qp` for both ports".to_owned();
    assert_eq!(records(&text)[0], (6, 23, "`b` has uc queue pairs, but `a` has rc".into(), help));
    let text = port("a", "rc", "b") + &port("b", "rc", "c") + &port("c", "rc", "b") + rest;
    let help = "add to `b`: connection = { peer = \"a\" }".to_owned();
    assert_eq!(records(&text), [(6, 23, "port `a` has the peer `b`, but `b` does not have the peer `a`".into(), help)]);
    let frames = port("a", "rc", "b").replace("loopback", "generator") + &port("b", "rc", "a") + rest;
    assert_eq!(records(&frames)[0].2, "a generator link supports only raw packets, not rc queue pairs");
    let refused = format!("{}refuse = [\"rc\"]\n{}{rest}", port("a", "rc", "b"), port("b", "rc", "a"));
    assert_eq!(records(&refused)[0].2, "`a` needs the capability rc for its queue pairs");
}

/// A listener on a wildcard address uses the TCP port of all addresses. The listener on `[::]` also accepts IPv4. The
/// same link-local address can exist on several interfaces.
#[test]
fn two_ports_cannot_listen_on_one_address() {
    for (first, second, collides) in [
        ("192.0.2.1:18515", "192.0.2.1:18515", true),
        ("192.0.2.1:18515", "0.0.0.0:18515", true),
        ("0.0.0.0:18515", "192.0.2.1:18515", true),
        ("[::]:18515", "192.0.2.1:18515", true),
        ("[::]:18515", "0.0.0.0:18515", true),
        ("[::]:18515", "[2001:db8::1]:18515", true),
        ("0.0.0.0:18515", "[::ffff:192.0.2.1]:18515", true),
        ("[fe80::1%2]:18515", "[fe80::1%2]:18515", true),
        ("[fe80::1%2]:18515", "[::]:18515", true),
        ("[fe80::1%2]:18515", "[fe80::1%3]:18515", false),
        // The kernel ignores the interface of a global address.
        ("[2001:db8::1%2]:18515", "[2001:db8::1%3]:18515", true),
        ("192.0.2.1:18515", "192.0.2.1:18516", false),
        ("192.0.2.1:18515", "192.0.2.2:18515", false),
        ("0.0.0.0:18515", "[2001:db8::1]:18515", false),
    ] {
        let port = |name: &str, address: &str| {
            let connection = format!("connection = {{ listen = \"{address}\" }}");
            format!("[[port]]\nname = \"{name}\"\ndevice = \"rxe0\"\nqp = \"rc\"\n{connection}\n")
        };
        let text = port("wan", first)
            + &port("lan", second)
            + "[pipeline]\ninput = [\"wan\", \"lan\"]\n[[pipeline.stage]]\nuse = \"tx\"\n";
        let found = records(&text);
        let expected = (
            10,
            format!("`lan` cannot listen on {second}, because `wan` listens there"),
            "listen on another TCP port, such as 18516, and write the same TCP port in `to` of the peer".to_owned(),
        );
        let found: Vec<_> = found.into_iter().map(|(line, _, message, help)| (line, message, help)).collect();
        assert_eq!(found, if collides { vec![expected] } else { Vec::new() }, "{first} {second}");
    }
}

/// Durations are limited, because the sum of a very long duration and the current time can overflow.
#[test]
fn duration_of_more_than_a_year_is_refused_at_its_line() {
    let message = "`18446744073709551615s` is longer than the maximum of 365days".to_owned();
    let help = "write at most \"365d\"".to_owned();
    for key in ["deadline", "step_deadline"] {
        let connection = format!("peer = \"wan\", {key} = \"18446744073709551615s\"");
        mistakes("rc", &connection, &[(&message, &help)]);
    }
    let drain = "[runtime]\ndrain_timeout = \"18446744073709551615s\"\n".to_owned();
    let found = records(&(drain + &config("rc", "to = \"192.0.2.1:18515\", deadline = \"365d\"")));
    let [(2, _, found_message, found_help)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found_message, found_help), (&message, &help));
}
