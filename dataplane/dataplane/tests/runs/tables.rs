//! Tests of tables that stages load from files.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::Ipv4Addr;

use dataplane::testing::frame;
use dataplane_testing::config::Config;

use crate::common::{Folder, assert_good, frames_of, stage};

/// Returns a config that routes the frames of a capture to two ports, with the routes in a file.
fn config(routes: &str) -> Config {
    Config::new()
        .port("in", "kind = 'pcap', input = 'in.pcap'")
        .port("a", "kind = 'pcap', output = 'a.pcap'")
        .port("b", "kind = 'pcap', output = 'b.pcap'")
        .stage("parse", "")
        .stage("route", &format!("file = '{routes}'"))
        .stage("tx", "")
}

/// Returns the next pseudo-random number (Knuth's MMIX generator). The sequence is the same in every run.
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 32) as u32
}

#[test]
fn million_routes_are_loaded_and_found() {
    const ROUTES: usize = 1_000_000;
    const FRAMES: u32 = 20_000;
    let mut state = 1;
    // Use prefix lengths as in a full routing table: most prefixes have length 24, and few are short or longer than 24.
    let mut routes: HashMap<(u32, u32), usize> = HashMap::with_capacity(ROUTES);
    while routes.len() < ROUTES {
        let len = match next(&mut state) % 16 {
            0 => 8 + next(&mut state) % 8,
            1..4 => 16 + next(&mut state) % 8,
            4 => 25 + next(&mut state) % 8,
            _ => 24,
        };
        let prefix = (0x0100_0000 + next(&mut state) % 0xdf00_0000) & u32::MAX << (32 - len);
        routes.insert((prefix, len), (next(&mut state) % 2) as usize);
    }
    let mut text = String::from("# A million routes.\n");
    for ((prefix, len), port) in &routes {
        writeln!(text, "{}/{len} port {}", Ipv4Addr::from(*prefix), ["a", "b"][*port]).unwrap();
    }
    let folder = Folder::new();
    folder.write("routes.txt", text);
    let (mut frames, mut expected, mut unrouted) = (Vec::new(), [Vec::new(), Vec::new()], 0);
    for number in 0..FRAMES {
        let to = 0x0100_0000 + next(&mut state) % 0xdf00_0000;
        let bytes = frame().ipv4([192, 0, 2, 1].into(), to.into()).udp(1, 2).payload(&number.to_be_bytes()).build();
        let found = (8..=32).rev().find_map(|len| routes.get(&(to & u32::MAX << (32 - len), len)));
        match found {
            Some(port) => expected[*port].push(bytes.clone()),
            None => unrouted += 1,
        }
        frames.push(bytes);
    }
    folder.capture("in.pcap", &frames);
    let report = folder.run(&config("routes.txt").to_string());
    assert_good(&report);
    assert_eq!(stage(&report, "route").drops.get("no_route").copied().unwrap_or(0), unrouted, "{report}");
    for (expected, name) in expected.iter().zip(["a.pcap", "b.pcap"]) {
        assert!(expected.len() > 1000 && frames_of(&folder.file(name)) == *expected, "{name}");
    }
}

#[test]
fn equal_cost_paths_are_chosen_per_flow() {
    let by_file = config("routes.txt").runtime("burst = 7").to_string();
    let by_table = by_file.replace(
        "file = \"routes.txt\"",
        "table = [{ prefix = \"10.0.0.0/8\", port = \"a\" }, { prefix = \"10.0.0.0/8\", port = \"b\" }]",
    );
    for config in [by_file, by_table] {
        let folder = Folder::new();
        folder.write("routes.txt", "10.0.0.0/8 port a\n10.0.0.0/8 port b\n");
        let flow = |port: u16| frame().ipv4([192, 0, 2, 1].into(), [10, 1, 2, 3].into()).udp(port, 53).build();
        let frames: Vec<Vec<u8>> = (0..400).map(|number| flow(number % 200)).collect();
        folder.capture("in.pcap", &frames);
        assert_good(&folder.run(&config));
        for name in ["a.pcap", "b.pcap"] {
            let sent = frames_of(&folder.file(name));
            assert!((120..=280).contains(&sent.len()), "{name}: {} of 400", sent.len());
            // The second half of the input repeats the flows of the first half, so each port must send the same frames
            // in both halves.
            let (first, second) = sent.split_at(sent.len() / 2);
            assert!(first == second, "{name}");
        }
    }
}

#[test]
fn every_invalid_line_is_reported_with_its_number() {
    let folder = Folder::new();
    folder.capture::<&[u8]>("in.pcap", []);
    folder.write(
        "routes.txt",
        "10.0.0.0/8 port a\n# a comment\n10.0.0.0/33 port a\n\n10.1.0.0/16 port c\n10.2.0.0/16 via 10.0.0 port a\n\
         10.3.0.0/16\n10.0.0.0/8 port a\n10.4.0.0/16 port a weight 0\n2001:db8::/32 via 10.0.0.1 port a\n",
    );
    let mistakes = folder.assemble(&config("routes.txt").to_string()).err().unwrap();
    assert!(mistakes.contains("stage `route`: routes.txt has 7 invalid lines"), "{mistakes}");
    for line in [
        "routes.txt:3: `10.0.0.0/33 port a`: `10.0.0.0/33` is not a prefix",
        "routes.txt:5: `10.1.0.0/16 port c`: there is no port `c`",
        "routes.txt:6: `10.2.0.0/16 via 10.0.0 port a`: `10.0.0` is not an IP address",
        "routes.txt:7: `10.3.0.0/16`: no port is given",
        "routes.txt:8: `10.0.0.0/8 on a` is listed twice",
        "routes.txt:9: `10.4.0.0/16 port a weight 0`: a weight of 0 is out of range",
        "routes.txt:10: `2001:db8::/32 via 10.0.0.1 port a`: an IPv6 prefix cannot have the IPv4 gateway 10.0.0.1",
    ] {
        assert!(mistakes.contains(line), "{line:?} is not in: {mistakes}");
    }
    for good in [1, 2, 4] {
        assert!(!mistakes.contains(&format!("routes.txt:{good}:")), "{mistakes}");
    }
    let missing = config("missing.txt").to_string();
    let mistakes = folder.assemble(&missing).err().unwrap();
    assert!(mistakes.contains("missing.txt") && mistakes.contains("test.toml:"), "{mistakes}");
}

/// A check reports every invalid entry of every table, not only the first entry.
#[test]
fn all_invalid_entries_are_reported_together() {
    let text = r#"
        [[port]]
        name = "p"
        device = "soft"
        link = { kind = "loopback" }
        [pipeline]
        input = ["p"]
        [[pipeline.stage]]
        use = "parse"
        [[pipeline.stage]]
        use = "acl"
        default = "deny"
        rules = [
          { action = "permit", protocol = "icmp", dst_port = 1 },
          { action = "permit", vlan = 5000 },
        ]
        [[pipeline.stage]]
        use = "route"
        table = [
          { prefix = "10.0.0.0/8", port = "pp" },
          { prefix = "10.0.0.0/9", port = "p", weight = 0 },
          { prefix = "10.0.0.0/10" },
        ]
        [[pipeline.stage]]
        use = "neighbor"
        table = [
          { address = "10.0.0.1", mac = "01:00:00:00:00:01" },
          { address = "10.0.0.2", mac = "02:00:00:00:00:01", port = "x" },
          { address = "10.0.0.3", mac = "02:00:00:00:00:01" },
          { address = "10.0.0.3", mac = "02:00:00:00:00:01" },
        ]
        [[pipeline.stage]]
        use = "tx"
        port = "nowhere"
    "#;
    let mistakes = Folder::new().assemble(text).err().unwrap();
    let lines: Vec<usize> = mistakes
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--> ")?.rsplit(':').nth(1)?.parse().ok())
        .collect();
    assert_eq!(lines, [14, 15, 20, 21, 22, 27, 28, 30, 34], "{mistakes}");
}
