//! A picture in the languages of Graphviz and Mermaid.

use std::fmt::Write;

use super::{Kind, Node, Picture, drops};

/// For `dot` (<https://graphviz.org/doc/info/lang.html>).
pub(super) fn dot(picture: &Picture) -> String {
    let mut text = String::from(
        "digraph pipeline {\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  \
         edge [fontname=\"sans-serif\", fontsize=11];\n",
    );
    let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    for (number, node) in picture.nodes.iter().enumerate() {
        let label = lines(node).iter().map(|line| escape(line)).collect::<Vec<_>>().join("\\n");
        let style = match node.kind {
            Kind::Stage => "",
            Kind::Input | Kind::Output => ", style=\"filled\", fillcolor=\"#dbeafe\"",
            Kind::Drop => ", shape=plaintext, fontcolor=\"#b91c1c\", fontsize=11",
        };
        // A string takes any amount of writing.
        let _ = writeln!(text, "  n{number} [label=\"{label}\"{style}];");
    }
    for edge in &picture.edges {
        let dashed = if picture.nodes[edge.to].kind == Kind::Drop { ", style=dashed, color=\"#b91c1c\"" } else { "" };
        let _ = writeln!(text, "  n{} -> n{} [label=\"{}\"{dashed}];", edge.from, edge.to, escape(&edge.label));
    }
    text.push_str("}\n");
    text
}

/// For Mermaid (<https://mermaid.js.org/syntax/flowchart.html>).
pub(super) fn mermaid(picture: &Picture) -> String {
    let mut text = String::from("flowchart TD\n");
    // Within quotes all but the quote itself, and what begins an entity, stands for itself.
    let escape = |text: &str| text.replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;");
    for (number, node) in picture.nodes.iter().enumerate() {
        let label = lines(node).iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>");
        let (open, close) = match node.kind {
            Kind::Stage => ("(", ")"),
            Kind::Input | Kind::Output => ("[", "]"),
            Kind::Drop => ("([", "])"),
        };
        let _ = writeln!(text, "  n{number}{open}\"{label}\"{close}");
    }
    for edge in &picture.edges {
        let arrow = if picture.nodes[edge.to].kind == Kind::Drop { "-.->" } else { "-->" };
        let label = if edge.label.is_empty() { String::new() } else { format!("|\"{}\"|", escape(&edge.label)) };
        let _ = writeln!(text, "  n{} {arrow}{label} n{}", edge.from, edge.to);
    }
    text
}

fn lines(node: &Node) -> Vec<String> {
    match (node.kind, node.detail.as_str()) {
        (Kind::Drop, _) => vec![drops(node)],
        (_, "") => vec![node.title.clone()],
        (_, detail) => vec![node.title.clone(), detail.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::Edge;
    use super::*;

    fn odd() -> Picture {
        let node = |kind, title: &str| Node { kind, title: title.to_owned(), detail: "soft".to_owned() };
        Picture {
            nodes: vec![node(Kind::Input, "a \"b\" \\ #1 <i>"), node(Kind::Stage, "x"), node(Kind::Drop, "y")],
            edges: vec![
                Edge { from: 0, to: 1, label: "p|q".to_owned() },
                Edge { from: 1, to: 2, label: String::new() },
            ],
        }
    }

    #[test]
    fn names_cannot_break_out_of_their_quotes() {
        assert!(dot(&odd()).contains(r##"n0 [label="a \"b\" \\ #1 <i>\nsoft", style="##));
        let text = mermaid(&odd());
        assert!(text.contains(r##"n0["a #quot;b#quot; \ #35;1 #lt;i><br>soft"]"##), "{text}");
        assert!(text.contains("n0 -->|\"p|q\"| n1") && text.contains("n1 -.-> n2"), "{text}");
    }
}
