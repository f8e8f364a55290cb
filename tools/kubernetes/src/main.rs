//! Checks Kubernetes manifests. Standard input has a JSON array of manifests. The program prints each mistake, and exits
//! with status 1 if there is a mistake.
//!
//! The schemas of the kinds that Kubernetes itself defines, such as `Deployment`, come from the crate `k8s-openapi`,
//! which is generated from the OpenAPI description of Kubernetes. Unknown fields are mistakes, as for
//! `kubectl apply --validate=strict`. The kinds of other projects have schemas in this file, which contain only the
//! fields that the manifests use.

use std::io::Read;
use std::process::ExitCode;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let mut text = String::new();
    let manifests: Vec<Value> = match std::io::stdin().read_to_string(&mut text).map(|_| serde_json::from_str(&text)) {
        Ok(Ok(manifests)) => manifests,
        _ => {
            eprintln!("standard input is not a JSON array");
            return ExitCode::from(2);
        }
    };
    let mut mistakes = 0;
    for manifest in &manifests {
        let word = |key: &str| manifest[key].as_str().unwrap_or_default();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let (version, kind) = (word("apiVersion"), word("kind"));
        for mistake in check(version, kind, manifest) {
            println!("{kind} {name}: {mistake}");
            mistakes += 1;
        }
    }
    if mistakes == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(version: &str, kind: &str, manifest: &Value) -> Vec<String> {
    let schema = match (version, kind) {
        ("v1", "ConfigMap") => schema_of::<ConfigMap>(),
        ("v1", "Service") => schema_of::<Service>(),
        ("v1", "ServiceAccount") => schema_of::<ServiceAccount>(),
        ("apps/v1", "Deployment") => schema_of::<Deployment>(),
        ("policy/v1", "PodDisruptionBudget") => schema_of::<PodDisruptionBudget>(),
        ("monitoring.coreos.com/v1", "ServiceMonitor") => service_monitor(),
        ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition") => network_attachment(),
        ("kustomize.config.k8s.io/v1beta1", "Kustomization") => kustomization(),
        _ => return vec![format!("there is no schema for {version} {kind}")],
    };
    match jsonschema::validator_for(&schema) {
        Ok(validator) => {
            let line = |error: jsonschema::ValidationError<'_>| format!("{}: {error}", error.instance_path());
            validator.iter_errors(manifest).map(line).collect()
        }
        Err(error) => vec![format!("the schema is wrong: {error}")],
    }
}

/// Returns the schema of a kind that Kubernetes itself defines. The schema forbids unknown fields.
fn schema_of<T: JsonSchema>() -> Value {
    let generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    forbid_unknown(&mut schema);
    schema
}

fn forbid_unknown(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("properties").is_some_and(Value::is_object) && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            fields.values_mut().for_each(forbid_unknown);
        }
        Value::Array(values) => values.iter_mut().for_each(forbid_unknown),
        _ => {}
    }
}

/// Returns the schema of an object with these fields.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn strings() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" } })
}

fn metadata() -> Value {
    object(
        json!({ "name": { "type": "string" }, "namespace": { "type": "string" }, "labels": strings(), "annotations": strings() }),
        &["name"],
    )
}

fn manifest(spec: Value) -> Value {
    object(
        json!({ "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "metadata": metadata(), "spec": spec }),
        &["apiVersion", "kind", "metadata", "spec"],
    )
}

/// Returns the schema of a `ServiceMonitor` of the Prometheus operator, `monitoring.coreos.com/v1`.
fn service_monitor() -> Value {
    let duration = json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h)$" });
    let endpoint = object(
        json!({
            "port": { "type": "string" }, "path": { "type": "string", "pattern": "^/" }, "interval": duration,
            "scrapeTimeout": duration, "scheme": { "enum": ["http", "https"] },
        }),
        &["port"],
    );
    let selector = object(json!({ "matchLabels": strings() }), &["matchLabels"]);
    manifest(object(
        json!({ "selector": selector, "endpoints": { "type": "array", "minItems": 1, "items": endpoint }, "jobLabel": { "type": "string" } }),
        &["selector", "endpoints"],
    ))
}

/// Returns the schema of a `NetworkAttachmentDefinition` of the Network Plumbing Working Group, `k8s.cni.cncf.io/v1`.
fn network_attachment() -> Value {
    manifest(object(json!({ "config": { "type": "string" } }), &["config"]))
}

/// Returns the schema of a `Kustomization` of Kustomize, `kustomize.config.k8s.io/v1beta1`.
fn kustomization() -> Value {
    let names = json!({ "type": "array", "items": { "type": "string" } });
    let pairs = json!({ "type": "array", "items": object(json!({
        "includeSelectors": { "type": "boolean" }, "pairs": strings() }), &["pairs"]) });
    let patch = object(json!({ "path": { "type": "string" } }), &["path"]);
    object(
        json!({
            "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "namespace": { "type": "string" }, "resources": names,
            "labels": pairs, "patches": { "type": "array", "items": patch },
        }),
        &["apiVersion", "kind", "resources"],
    )
}
