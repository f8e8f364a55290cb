//! The example configs of the project.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::config::Source;
use dataplane::runtime::{Options, Run};
use dataplane_testing::report_skip;

use crate::common::{assembled, assert_good};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The first line of every config. The line names the schema with which editors check the config.
const SCHEMA_LINE: &str = "#:schema ../docs/config.schema.json\n";

#[test]
fn every_config_names_the_schema_and_runs() {
    let mut run = 0;
    for entry in fs::read_dir(root().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let about = text.strip_prefix(SCHEMA_LINE);
        let about = about.unwrap_or_else(|| panic!("{} does not start with {SCHEMA_LINE}", path.display()));
        assert!(about.starts_with("# "), "{} has no comment that describes it", path.display());
        let overrides = [("runtime.hugepages", "\"none\"")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let source = Source::read(&path, &overrides).unwrap();
        let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let devices: Vec<&str> = assembly.plan.ports.iter().map(|port| port.config.device.as_str()).collect();
        if let Some(device) = devices.iter().find(|device| !["soft", "host"].contains(device)) {
            report_skip(format!(
                "{} needs the device `{device}` of the VM of tools/vm, so this test only checks the config",
                path.file_name().unwrap().display()
            ));
            continue;
        }
        let mut links = assembly.plan.ports.iter().filter_map(|port| port.config.link.as_ref());
        if let Some(interface) = links.find_map(|link| link.interface()) {
            report_skip(format!(
                "{} needs the interface `{interface}` of tools/check-live, so this test only checks the config",
                path.file_name().unwrap().display()
            ));
            continue;
        }
        let options = Options { packets: Some(10_000), duration: Some(Duration::from_millis(200)) };
        let report = Run::start(assembly, options).unwrap().join().unwrap();
        assert_good(&report);
        assert!(report.packets.rx > 0, "{}: {report}", path.display());
        run += 1;
    }
    assert!(run > 0);
}

#[test]
fn configs_named_in_the_docs_exist() {
    let folders = ["docs", "docs/verbs"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let pages = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut named = BTreeSet::new();
    for page in pages.chain([root().join("README.md")]).filter(|page| page.extension().is_some_and(|it| it == "md")) {
        let Ok(text) = fs::read_to_string(&page) else { continue };
        for rest in text.split("configs/").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || "-_.".contains(*c)).collect();
            if name.ends_with(".toml") {
                named.insert(name);
            }
        }
    }
    assert!(!named.is_empty());
    for name in named {
        assert!(root().join("configs").join(&name).is_file(), "the docs mention configs/{name}, which does not exist");
    }
}
