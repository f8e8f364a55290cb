//! Tests the recipes of `docs/cookbook.md`: every config loads, and configs that need no kernel interface run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::config::{Diagnostics, Source};
use dataplane::pipeline::Registry;
use dataplane::runtime::{Options, Run, assemble};
use dataplane::topology::Topology;
use dataplane_testing::{Folder, capture, report_skip};

const RECIPES: usize = 12;

/// Returns the root folder of the repository, which contains `docs/cookbook.md`.
fn repository() -> PathBuf {
    let has_page = |folder: &&Path| folder.join("docs/cookbook.md").is_file();
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(has_page).unwrap().to_owned()
}

/// Returns the `toml` blocks of a page.
fn toml_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("\n```toml\n").skip(1);
    blocks.map(|rest| rest.split_once("\n```").expect("the block has an end").0.to_owned()).collect()
}

#[test]
fn every_recipe_loads_and_recipes_without_interfaces_run() {
    let repository = repository();
    let folder = Folder::new();
    // Create the files that the recipes name.
    fs::copy(capture("mixed.pcap"), folder.file("traffic.pcap")).unwrap();
    fs::copy(repository.join("configs/firewall.rules"), folder.file("firewall.rules")).unwrap();

    let recipes = toml_blocks(&fs::read_to_string(repository.join("docs/cookbook.md")).unwrap());
    assert_eq!(recipes.len(), RECIPES);
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    let topology = Topology::discover().unwrap();
    let mut settings = vec![("runtime.hugepages".to_owned(), "\"none\"".to_owned())];
    // A recipe with two workers needs two cores.
    if std::thread::available_parallelism().unwrap().get() < 2 {
        settings.push(("runtime.workers".to_owned(), "1".to_owned()));
    }
    let mut run = 0;
    for (index, text) in recipes.iter().enumerate() {
        let name = format!("recipe {}", index + 1);
        let source = Source::new(folder.file("recipe.toml"), text.as_str(), &settings);
        let mut diagnostics = Diagnostics::new(&source);
        let assembly = assemble(&source, &registry, topology.clone(), &mut diagnostics)
            .unwrap()
            .unwrap_or_else(|| panic!("{name}:\n{}", diagnostics.render(false)));
        let mut links = assembly.plan.ports.iter().filter_map(|port| port.config.link.as_ref());
        if links.any(|link| link.interface().is_some()) {
            report_skip(format!("{name} needs an interface, so this test only checks the config"));
            continue;
        }
        let options = Options { packets: Some(10_000), duration: Some(Duration::from_secs(1)) };
        let report = Run::start(assembly, options).unwrap().join().unwrap();
        assert!(report.is_good() && report.ledger.unaccounted == 0, "{name}: {report}");
        assert!(report.packets.rx > 0 && report.packets.tx > 0, "{name}: {report}");
        run += 1;
    }
    assert!(run >= 4, "{run} recipes ran");
}
