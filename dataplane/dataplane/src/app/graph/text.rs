//! Writes a diagram in the languages of Graphviz and Mermaid.

use std::fmt::Write;

use super::diagram::{Diagram, Node, NodeKind};

/// Writes a diagram for `dot` (<https://graphviz.org/doc/info/lang.html>).
pub(super) fn dot(diagram: &Diagram) -> String {
    let mut text = String::from(
        "digraph pipeline {\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  \
         edge [fontname=\"sans-serif\", fontsize=11];\n",
    );
    let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    for (number, node) in diagram.nodes.iter().enumerate() {
        let label = lines(node).iter().map(|line| escape(line)).collect::<Vec<_>>().join("\\n");
        let style = match node.kind {
            NodeKind::Stage => "",
            NodeKind::Input | NodeKind::Output => ", style=\"filled\", fillcolor=\"#dbeafe\"",
            NodeKind::Drop => ", shape=plaintext, fontcolor=\"#b91c1c\", fontsize=11",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  n{number} [label=\"{label}\"{style}];");
    }
    for edge in &diagram.edges {
        let dashed =
            if diagram.nodes[edge.to].kind == NodeKind::Drop { ", style=dashed, color=\"#b91c1c\"" } else { "" };
        let _ = writeln!(text, "  n{} -> n{} [label=\"{}\"{dashed}];", edge.from, edge.to, escape(&edge.label));
    }
    text.push_str("}\n");
    text
}

/// Writes a diagram for Mermaid (<https://mermaid.js.org/syntax/flowchart.html>).
pub(super) fn mermaid(diagram: &Diagram) -> String {
    let mut text = String::from("flowchart TD\n");
    // Inside quotes, Mermaid needs escapes only for the quote, for `#` (the start of an entity) and for `<` (the start
    // of a tag).
    let escape = |text: &str| text.replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;");
    for (number, node) in diagram.nodes.iter().enumerate() {
        let label = lines(node).iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>");
        let (open, close) = match node.kind {
            NodeKind::Stage => ("(", ")"),
            NodeKind::Input | NodeKind::Output => ("[", "]"),
            NodeKind::Drop => ("([", "])"),
        };
        let _ = writeln!(text, "  n{number}{open}\"{label}\"{close}");
    }
    for edge in &diagram.edges {
        let arrow = if diagram.nodes[edge.to].kind == NodeKind::Drop { "-.->" } else { "-->" };
        let label = if edge.label.is_empty() { String::new() } else { format!("|\"{}\"|", escape(&edge.label)) };
        let _ = writeln!(text, "  n{} {arrow}{label} n{}", edge.from, edge.to);
    }
    text
}

fn lines(node: &Node) -> Vec<String> {
    match (node.kind, node.detail.as_str()) {
        (NodeKind::Drop, _) => vec![node.drops()],
        (_, "") => vec![node.title.clone()],
        (_, detail) => vec![node.title.clone(), detail.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::diagram::Edge;
    use super::*;

    fn odd() -> Diagram {
        let node = |kind, title: &str| Node { kind, title: title.to_owned(), detail: "soft".to_owned() };
        Diagram {
            nodes: vec![
                node(NodeKind::Input, "a \"b\" \\ #1 <i>"),
                node(NodeKind::Stage, "x"),
                node(NodeKind::Drop, "y"),
            ],
            edges: vec![
                Edge { from: 0, to: 1, label: "p|q".to_owned() },
                Edge { from: 1, to: 2, label: String::new() },
            ],
        }
    }

    #[test]
    fn special_characters_in_names_are_escaped() {
        assert!(dot(&odd()).contains(r##"n0 [label="a \"b\" \\ #1 <i>\nsoft", style="##));
        let text = mermaid(&odd());
        assert!(text.contains(r##"n0["a #quot;b#quot; \ #35;1 #lt;i><br>soft"]"##), "{text}");
        assert!(text.contains("n0 -->|\"p|q\"| n1") && text.contains("n1 -.-> n2"), "{text}");
    }
}
