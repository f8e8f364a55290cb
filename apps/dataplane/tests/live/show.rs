//! Tests of the command `show`, and of the requests `show` and `get`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::thread;

use dataplane::control::{Client, Error, ErrorCode, Get, Page, Show};
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;
use serde_json::{Value, json};

use crate::common::{LINK, Running, RuntimeFolder, STEADY, json, number};

/// The number of routes in the file of [`router`].
const ROUTES: u32 = 100_000;

/// Starts a program with two route stages: the stage `fib` with [`ROUTES`] routes from a file, and the stage `small`.
/// The stages `acl`, `limit` and `neighbor` of the program also have tables.
fn router(folder: &RuntimeFolder) -> Running {
    router_with(folder, "")
}

/// Like [`router`], with further options of `run`, such as ` --set KEY=VALUE`.
fn router_with(folder: &RuntimeFolder, options: &str) -> Running {
    let mut routes = String::new();
    for number in 0..ROUTES {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(routes, "10.{a}.{b}.{c}/32 via 192.0.2.1 port wire").unwrap();
    }
    folder.0.write("routes.txt", routes);
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027', name = 'low' }, \
                 { action = 'permit', protocol = 'udp' }]";
    let config = Config::new()
        .port("wire", LINK)
        .stage("parse", "")
        .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
        .stage("limit", "name = 'police'\npackets_per_second = 1000\nburst = 50")
        .stage("route", "name = 'fib'\nfile = 'routes.txt'\noutputs = { no_route = 'small' }")
        .stage(
            "route",
            "name = 'small'\noutputs = { no_route = 'out' }\ntable = [\
             { prefix = '0.0.0.0/0', via = '192.0.2.1', port = 'wire', weight = 3 }, \
             { prefix = '0.0.0.0/0', port = 'wire' }, { prefix = '198.51.100.0/24', drop = true }]",
        )
        .stage(
            "neighbor",
            "table = [{ address = '192.0.2.1', mac = '02:00:00:00:00:01' }]\noutputs = { unresolved = 'out' }",
        )
        .stage("tx", "name = 'out'\nport = 'wire'");
    folder.0.write("x.toml", config.to_string());
    folder.run(&format!(" --set runtime.burst=16{options}"), None)
}

fn show(what: &str) -> Show {
    Show { what: what.to_owned(), ..Show::default() }
}

fn rows(page: &Page) -> Vec<Value> {
    page.rows.iter().map(|row| json(row.get())).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (ErrorCode, String) {
    match result.unwrap_err() {
        Error::Refused(_, refusal) => (refusal.code, refusal.to_string()),
        error => panic!("{error}"),
    }
}

#[test]
fn every_list_is_shown_as_text_and_as_json() {
    let folder = RuntimeFolder::new();
    let running = router(&folder);
    let shown = |line: &str| {
        let (status, out, err) = folder.dataplane(&format!("show {line} --process {}", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""), "{line}");
        out
    };
    for (list, headings, part) in [
        ("ports", "name device input link up rx pps tx pps rx bps tx bps rx tx", "pps"),
        ("links", "port device device port interface mac mtu", "soft"),
        ("stages", "name use packets burst cost", "fib"),
        ("workers", "worker core loops idle", "0"),
        ("memory", "owner buffers size pages", "iB"),
        ("acl", "index name action hits rule", "permit udp"),
        ("limits", "mode unit rate burst", "1000/s"),
        ("neighbors", "address port state mac", "static  02:00:00:00:00:01"),
        ("routes --stage small", "prefix table action paths", "port wire via 192.0.2.1 weight 3"),
    ] {
        let text = shown(list);
        let first: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        let expected: Vec<&str> = headings.split(' ').collect();
        assert_eq!(first[..expected.len()], expected, "{text}");
        assert!(text.contains(part), "{text}");
        let page = json(&shown(&format!("{list} --json")));
        let columns = page["rows"][0].as_object().unwrap();
        assert!(columns.len() >= expected.len(), "{page}");
        assert_eq!(page["next"], Value::Null);
    }
    // The text of the config, and the values that override it.
    let config = shown("config");
    let text = std::fs::read_to_string(folder.path("x.toml")).unwrap();
    assert!(config.ends_with(&text) && config.contains("# --set runtime.burst=16\n"), "{config}");
    // The singular is accepted, and `--limit` counts rows.
    assert_eq!(shown("route --limit 3").lines().count(), 4);
    assert_eq!(shown("routes --stage fib --limit 2500 --json").lines().count(), 3);
    let route = shown("route get 10.1.2.3");
    assert!(route.contains("10.1.2.3/32") && route.contains("via 192.0.2.1"), "{route}");
    assert_eq!(shown("route get 198.51.100.7 --stage small").matches("blackhole").count(), 1);
    assert_eq!(json(&shown("route get 10.255.0.1 --json"))["row"], Value::Null);
    for (line, status, part) in [
        ("show route get 10.255.0.1", 1, "has no row for 10.255.0.1"),
        ("show route get x", 1, "`x` is not an IP address; help: "),
        (
            "show sessions",
            1,
            "the lists of this program are acl, config, limits, links, memory, neighbors, ports, routes",
        ),
        ("show routes --stage edge", 1, "the stages with this table are fib, small"),
        ("show route of wire", 2, "write `show WHAT`"),
    ] {
        let (found, out, err) = folder.dataplane(&format!("{line} --process {}", running.pid()));
        assert_eq!((found, out.as_str()), (status, ""), "{line}: {err}");
        assert!(err.contains(part), "{line}: {err}");
    }
    running.end("-TERM");
}

#[test]
fn pages_have_every_route_once_while_another_client_reads_nothing() {
    let folder = RuntimeFolder::new();
    let running = router_with(&folder, STEADY);
    let before = running.ask().unwrap();
    // This client requests the largest pages, and reads no answer.
    let mut deaf = running.connect().unwrap();
    let requests: String = (0..20)
        .map(|id| {
            json!({"version": 1, "id": id, "request": "show", "what": "routes", "limit": 1000}).to_string() + "\n"
        })
        .collect();
    deaf.write_all(requests.as_bytes()).unwrap();
    let mut client = Client::connect(&running.socket).unwrap();
    thread::scope(|scope| {
        let listing = scope.spawn(|| {
            let show = Show { stage: Some("fib".to_owned()), limit: Some(1000), ..show("routes") };
            client.show(show).flat_map(|page| rows(&page.unwrap())).map(|row| row["prefix"].to_string()).collect()
        });
        // Other clients are served while the routes are listed.
        let mut other = Client::connect(&running.socket).unwrap();
        let mut answers = 0;
        while !listing.is_finished() {
            assert_eq!(other.hello().unwrap().pid, running.pid());
            answers += 1;
        }
        assert!(answers > 0);
        let prefixes: Vec<String> = listing.join().unwrap();
        let mut sorted = prefixes.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!((prefixes.len(), sorted.len()), (ROUTES as usize, ROUTES as usize));
    });
    // Without a stage, the pages have the routes of all stages.
    let pages: Vec<Page> = client.show(Show { limit: Some(1000), ..show("routes") }).map(Result::unwrap).collect();
    let last = pages.last().unwrap();
    assert_eq!((pages.len(), last.stage.as_deref(), last.rows.len()), (101, Some("small"), 2));
    wait_until("packets pass", || number(&running.ask().unwrap()["packets"]["rx"]) > number(&before["packets"]["rx"]));
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["errors"]), (&json!(0), &json!([])));
    assert_eq!(report["ports"][0]["rx_lost"], 0);
}

#[test]
fn rules_and_limits_show_live_counters() {
    let folder = RuntimeFolder::new();
    let running = router(&folder);
    let mut client = Client::connect(&running.socket).unwrap();
    let mut hits = |name: &str| {
        let page = client.show(show("acl")).next().unwrap().unwrap();
        assert_eq!(page.stage.as_deref(), Some("edge"));
        let rows = rows(&page);
        let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{rows:?}"));
        number(&row["hits"])
    };
    for rule in ["low", "permit udp"] {
        let before = hits(rule);
        wait_until("the rule matches packets", || hits(rule) > before);
    }
    assert_eq!(hits("default"), 0);
    let stats = running.ask().unwrap();
    let counters = &stats["stages"][1]["counters"];
    assert_eq!(counters["low"], stats["ledger"]["drops"]["edge.denied"], "{counters}");
    let marked = &stats["stages"][2]["counters"];
    assert_eq!(number(&marked["green"]) + number(&marked["red"]), number(&stats["stages"][2]["packets"]), "{marked}");
    let limit = rows(&client.show(show("limits")).next().unwrap().unwrap()).remove(0);
    assert!(number(&limit["red"]) >= number(&marked["red"]), "{limit}");
    assert_eq!((&limit["rate_per_s"], &limit["unit"]), (&json!(1000), &json!("packets")));
    running.end("-TERM");
}

#[test]
fn wrong_parameters_of_lists_are_refused_and_the_connection_stays_usable() {
    let folder = RuntimeFolder::new();
    let running = router(&folder);
    let mut client = Client::connect(&running.socket).unwrap();
    for (request, code, part) in [
        (show("flights"), ErrorCode::NotFound, "the lists of this program are acl, "),
        (Show { stage: Some("nowhere".to_owned()), ..show("routes") }, ErrorCode::NotFound, "`nowhere` has no table"),
        (Show { stage: Some("fib".to_owned()), ..show("ports") }, ErrorCode::BadField, "remove `stage`"),
        (Show { limit: Some(0), ..show("routes") }, ErrorCode::BadField, "from 1 to 1000"),
        (Show { limit: Some(1001), ..show("routes") }, ErrorCode::BadField, "from 1 to 1000"),
        (Show { cursor: Some("x".to_owned()), ..show("routes") }, ErrorCode::BadField, "value of `next`"),
        (Show { cursor: Some("7".to_owned()), ..show("routes") }, ErrorCode::BadField, "value of `next`"),
        (Show { cursor: Some("0:x".to_owned()), ..show("routes") }, ErrorCode::BadField, "value of `next`"),
        (Show { cursor: Some("x".to_owned()), ..show("links") }, ErrorCode::BadField, "value of `next`"),
    ] {
        let (found, text) = refused(client.show(request.clone()).next().unwrap());
        assert_eq!(found, code, "{request:?}: {text}");
        assert!(text.contains(part), "{request:?}: {text}");
    }
    let get = |what: &str, key: &str| Get { what: what.to_owned(), key: key.to_owned(), stage: None };
    assert_eq!(refused(client.get(get("acl", "low"))).0, ErrorCode::BadField);
    assert_eq!(refused(client.get(get("ports", "wire"))).0, ErrorCode::NotFound);
    assert_eq!(refused(client.get(get("routes", "10.0.0.0/8"))).0, ErrorCode::BadField);
    let found = client.get(get("routes", "10.0.0.9")).unwrap();
    assert_eq!((found.stage.as_str(), json(found.row.unwrap().get())["prefix"].as_str()), ("fib", Some("10.0.0.9/32")));
    // After the last row, a list has no more rows.
    let page = client.show(Show { cursor: Some("99".to_owned()), ..show("ports") }).next().unwrap().unwrap();
    assert_eq!((page.rows.len(), page.next), (0, None));
    running.end("-TERM");
}
