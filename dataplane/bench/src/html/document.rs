//! An HTML document under construction.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::chart::Chart;
use super::escape::escape;
use crate::report::{Environment, Pps};
use crate::stored::Stored;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1f2937; --page: #ffffff; --soft: #6b7280; --grid: #e5e7eb; --note: #b45309;
  --range: #fee2e2; --c0: #2563eb; --c1: #dc2626; --c2: #059669; --c3: #9333ea; --c4: #d97706; --c5: #0891b2 }
@media (prefers-color-scheme: dark) { :root { --text: #e5e7eb; --page: #0d1117; --soft: #9ca3af; --grid: #262c36;
  --note: #fbbf24; --range: #451a1a; --c0: #60a5fa; --c1: #f87171; --c2: #34d399; --c3: #c084fc; --c4: #fbbf24;
  --c5: #22d3ee } }
body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: var(--text); background: var(--page);
  max-width: 860px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em; margin-bottom: 0.2em } h2 { font-size: 1.2em; margin: 1.8em 0 0.4em }
.scroll { overflow-x: auto }
table { margin: 0.6em 0; border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92em }
th, td { text-align: right; padding: 0.2em 0.7em; border-bottom: 1px solid var(--grid); white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 } th { color: var(--soft); font-weight: 600 }
.mark { color: var(--note); margin: 0.2em 0 } .soft { color: var(--soft) }
svg { width: 100%; height: auto; display: block } svg text { font-size: 11px; fill: var(--soft) }
svg .note { fill: var(--note) }
.grid { stroke: var(--grid); fill: none } .axis { stroke: var(--soft); fill: none } .range { fill: var(--range) }
.line { stroke: var(--note); stroke-dasharray: 4 3; fill: none } .curve { fill: none; stroke-width: 1.6 }
.band { fill: none; stroke-width: 6; opacity: 0.35 }
.legend { margin: 0.2em 0 0 84px; font-size: 0.88em } .legend span { margin-right: 1.2em; white-space: nowrap }
.legend i { display: inline-block; width: 0.6em; height: 0.6em; border-radius: 50%; margin-right: 0.4em }
svg .dot { stroke: none } svg .ring { fill: var(--page) }
";

/// A page under construction.
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn new(name: &str, result: &Stored) -> Self {
        let mut style = STYLE.to_owned();
        for colour in 0..6 {
            let _ = writeln!(
                style,
                ".c{colour} {{ fill: var(--c{colour}); stroke: var(--c{colour}) }} i.dot.c{colour} {{ background: \
                 var(--c{colour}) }} i.ring.c{colour} {{ border: 1.5px solid var(--c{colour}) }} .s{colour} {{ stroke: \
                 var(--c{colour}) }}"
            );
        }
        let (name, method) = (escape(name), escape(result.method()));
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>bench {method}: {name}</title>\n<style>{style}\
             </style>\n</head>\n<body>\n<h1>bench {method}</h1>\n<p class=\"soft\">{name}</p>\n"
        );
        for defect in result.defects() {
            let _ = writeln!(text, "<p class=\"mark\">The result {}.</p>", escape(&defect));
        }
        let mut page = Self { text };
        let doubts = result.doubts().into_iter().map(|doubt| format!("Tester: {doubt}."));
        page.notes("mark", "limits and disturbances of the tester", &doubts.collect::<Vec<_>>());
        page
    }

    /// Adds a paragraph for each note. If there are more than `SHOWN` notes, puts the paragraphs into a collapsed list
    /// with the title `what`.
    pub(super) fn notes(&mut self, class: &str, what: &str, notes: &[String]) {
        /// The maximum number of notes without a collapsed list.
        const SHOWN: usize = 3;
        let is_list = notes.len() > SHOWN;
        if is_list {
            let _ = writeln!(self.text, "<details><summary class=\"{class}\">{} {what}</summary>", notes.len());
        }
        for note in notes {
            let _ = writeln!(self.text, "<p class=\"{class}\">{}</p>", escape(note));
        }
        if is_list {
            self.text.push_str("</details>\n");
        }
    }

    pub(super) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.text, "<h2>{}</h2>", escape(text));
    }

    pub(super) fn text(&mut self, text: &str) {
        let _ = writeln!(self.text, "<p>{}</p>", escape(text));
    }

    /// Adds a chart with a heading, unless the chart has no points.
    pub(super) fn chart(&mut self, title: &str, chart: &Chart) {
        if !chart.is_empty() {
            self.heading(title);
            self.text.push_str(&chart.draw(title));
        }
    }

    pub(super) fn table(&mut self, header: &[&str], rows: &[Vec<String>]) {
        let row = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
            let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        self.text.push_str("<div class=\"scroll\"><table>\n");
        self.text.push_str(&row(&mut header.iter().copied(), "th"));
        for cells in rows {
            self.text.push_str(&row(&mut cells.iter().map(String::as_str), "td"));
        }
        self.text.push_str("</table></div>\n");
    }

    /// Adds a table of the settings of the streams. Each item of `streams` is the name of a stream and its settings, as
    /// keys and values.
    pub(super) fn streams(&mut self, streams: &[(&str, &BTreeMap<String, String>)]) {
        let mut keys: Vec<&String> = streams.iter().flat_map(|(_, keys)| keys.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        let header: Vec<&str> = [""].into_iter().chain(streams.iter().map(|(name, _)| *name)).collect();
        let cell = |key: &String, values: &BTreeMap<String, String>| values.get(key).cloned().unwrap_or_default();
        let row = |key: &String| {
            [key.clone()].into_iter().chain(streams.iter().map(|(_, values)| cell(key, values))).collect()
        };
        self.heading("Streams");
        self.table(&header, &keys.into_iter().map(row).collect::<Vec<_>>());
    }

    pub(super) fn finish(mut self, environment: &Environment) -> String {
        let Environment {
            version,
            profile,
            build,
            kernel,
            machine,
            processor,
            cores,
            core,
            pages,
            config_digest,
            ports,
            calibration,
        } = environment;
        self.heading("Environment");
        let mut rows = vec![
            vec!["dataplane".to_owned(), [version, profile, build].map(String::as_str).join(" ")],
            vec!["kernel".to_owned(), kernel.clone()],
            vec!["processor".to_owned(), processor.clone()],
            vec!["cores".to_owned(), cores.to_string()],
        ];
        let mut add = |name: String, value: String| {
            if !value.is_empty() {
                rows.push(vec![name, value]);
            }
        };
        add("machine".to_owned(), machine.clone());
        add("core of the tester".to_owned(), core.map_or_else(String::new, |core| core.to_string()));
        add("packet memory".to_owned(), pages.as_ref().map_or_else(String::new, ToString::to_string));
        add("digest of the config".to_owned(), config_digest.clone());
        for port in ports {
            add(format!("port {}", port.name), port.to_string());
        }
        let own = calibration.map_or("none".to_owned(), |own| format!("{} at most", Pps(own.max_pps)));
        add("calibration".to_owned(), own);
        self.table(&["", ""], &rows);
        self.text.push_str("</body>\n</html>\n");
        self.text
    }
}
