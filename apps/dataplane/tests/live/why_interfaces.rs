//! Tests of the command `why` with kernel interfaces.

use std::process::{Command, Stdio};

use dataplane_testing::config::Config;
use dataplane_testing::namespace::{in_namespace, ip, try_ip};
use dataplane_testing::{report_skip, skip, wait_until};
use serde_json::Value;

use crate::common::{RuntimeFolder, number};
use crate::why::{ATTEMPTS, REPLAY, SLOW, frame, pcap, why};

/// Returns a config with these further ports, which are given as TOML text.
fn with_ports(config: &Config, ports: &str) -> String {
    config.to_string().replacen("[pipeline]", &format!("{ports}[pipeline]"), 1)
}

#[test]
fn full_socket_ring_and_down_link_are_named_first() {
    in_namespace(|| {
        let may_have_priority = Command::new("chrt").args(["--fifo", "1", "true"]).status();
        if !may_have_priority.is_ok_and(|status| status.success()) {
            return skip("this process may not use real-time priorities");
        }
        ip("link add out0 type veth peer name in0\nlink set out0 up\nlink set in0 up");
        let folder = RuntimeFolder::new();
        folder.0.write("in.pcap", pcap(&[frame().build()], 250));
        // A burst of 250 frames arrives at the port `ring` before the worker reads from this port. The receive ring of
        // the port has room for 64 frames.
        let ports = "[[port]]\nname = 'out'\ndevice = 'host'\nlink = { kind = 'packet', interface = 'out0' }\n\
                     [[port]]\nname = 'ring'\ndevice = 'host'\nlink = { kind = 'packet', interface = 'in0', ring = 64 }\n";
        let config =
            Config::new().runtime("burst = 256\nidle = 'sleep'").port("bursts", REPLAY).input(&["bursts", "ring"]);
        let config = config.stage("ingress", "ports = ['ring']\noutputs = { listed = 'end' }");
        let config = config.stage("tx", "port = 'out'").stage("drop", "name = 'end'");
        folder.0.write("x.toml", with_ports(&config, ports));
        // Other programs that use the core of the worker are another cause of the loss. With this priority, the worker does
        // not wait for its core.
        let run = folder.command("run @/x.toml --json");
        let mut command = Command::new("chrt");
        command.args(["--fifo", "1"]).arg(run.get_program()).args(run.get_args());
        command.env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", folder.0.path()).stdin(Stdio::null());
        let running = folder.start(command.stdout(Stdio::piped()).stderr(Stdio::null()), None);
        let lost = |report: &Value| {
            report["ports"].as_array().unwrap().iter().map(|port| number(&port["rx_lost"])).sum::<u64>()
        };
        wait_until("frames are lost", || lost(&running.ask().unwrap()) > 0);
        let mut last = String::new();
        let is_right = (0..ATTEMPTS).any(|_| {
            let found = why(&folder, &running, "--time 500ms");
            last = format!("{found:#}");
            let first = &found["causes"][0];
            // The drops of the stage `end` are fewer than the lost frames.
            first["name"] == "ring.rx_missed"
                && first["kind"] == "bursts"
                && first["fix"].as_str().unwrap().contains("`ring` in the link of the port `ring`")
        });
        assert!(is_right, "{last}");
        ip("link set out0 down");
        wait_until("sends fail", || running.ask().unwrap()["ledger"]["drops"]["out.tx_error"].is_u64());
        let found = why(&folder, &running, "--time 500ms");
        let first = &found["causes"][0];
        assert_eq!((&first["name"], &first["kind"]), (&"out.tx_error".into(), &"link_down".into()), "{found:#}");
        assert!(first["fix"].as_str().unwrap().contains("ip link set dev"), "{found:#}");
        let down = found["causes"].as_array().unwrap().iter().find(|cause| cause["name"] == "ring.link_down");
        assert_eq!(down.unwrap()["packets"], Value::Null, "{found:#}");
        running.end("-TERM");
    });
}

#[test]
fn frames_that_the_kernel_drops_are_named_first() {
    in_namespace(|| {
        // The kernel counts each frame that a program sends on an IFB interface as a received frame that the kernel has
        // dropped.
        if !try_ip("link add ifb0 type ifb\nlink set ifb0 up") {
            return report_skip("the kernel has no IFB interfaces");
        }
        let folder = RuntimeFolder::new();
        let port = "[[port]]\nname = 'wan'\ndevice = 'host'\nlink = { kind = 'packet', interface = 'ifb0' }\n";
        let config = Config::new().port("wire", SLOW).input(&["wire", "wan"]);
        let config = config.stage("ingress", "ports = ['wan']\noutputs = { listed = 'end' }");
        let config = config.stage("tx", "port = 'wan'").stage("drop", "name = 'end'");
        folder.0.write("x.toml", with_ports(&config, port));
        let running = folder.run("", None);
        let mut last = String::new();
        let is_right = (0..ATTEMPTS).any(|_| {
            let found = why(&folder, &running, "--time 500ms");
            last = format!("{found:#}");
            let first = &found["causes"][0];
            let evidence = first["evidence"][0].as_str().unwrap_or_default();
            (&first["name"], &first["kind"]) == (&"wan.interface_rx_dropped".into(), &"kernel".into())
                && number(&first["packets"]) > 0
                && evidence.starts_with("rx_dropped of interface ifb0 increased by ")
                && first["fix"].as_str().is_some_and(|fix| !fix.is_empty())
        });
        assert!(is_right, "{last}");
        running.end("-TERM");
    });
}
