//! Tests of all built-in stages.

use dataplane_core::pipeline::Registry;

/// Returns the TOML code blocks of a Markdown text.
fn examples(text: &str) -> Vec<&str> {
    let blocks = text.split("```toml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn every_stage_has_a_summary_and_an_example_that_it_accepts() {
    let mut registry = Registry::new();
    super::register(&mut registry);
    for kind in registry.kinds() {
        let name = &kind.name;
        assert!(kind.summary.ends_with('.'), "{name}: {}", kind.summary);
        let schema = kind.schema.as_ref().expect("built-in stages are described");
        let text = schema.get("description").and_then(|text| text.as_str()).unwrap_or_default();
        let mut accepted = 0;
        for example in examples(text) {
            let table: toml::Table = example.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            let stages = table["pipeline"]["stage"].as_array().expect("[[pipeline.stage]]");
            for stage in stages.iter().filter(|stage| stage["use"].as_str() == Some(name)) {
                let mut parameters = stage.as_table().expect("a stage is a table").clone();
                parameters.retain(|key, _| !["name", "use", "outputs", "next", "drops"].contains(&key));
                let text = parameters.to_string();
                let parsed = toml::de::Deserializer::parse(&text).expect("the parameters are a table");
                if let Err(error) = kind.make(parsed) {
                    panic!("{name}: {error}");
                }
                accepted += 1;
            }
        }
        assert!(accepted > 0, "{name}: its documentation has no example");
    }
}
