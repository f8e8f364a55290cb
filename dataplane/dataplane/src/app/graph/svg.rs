//! Draws a diagram as SVG, with colours for light and dark mode. The layout fits any sans-serif font.

use std::fmt::Write;

use super::diagram::{Diagram, Edge, Node, NodeKind};
use super::layout::{LayoutEdge, Placed, Problem, place};

/// The maximum width of a character in a title and in a detail, in pixels, for any sans-serif font.
const TITLE: f64 = 8.3;
const DETAIL: f64 = 7.0;

const STYLE: &str = "  <style>
    text { font-family: system-ui, 'DejaVu Sans', sans-serif; text-anchor: middle; fill: #1f2937 }
    .page { fill: #ffffff }
    .title { font-size: 14px }
    .detail, .label, .drops { font-size: 11px }
    .detail { fill: #6b7280 }
    .label { fill: #374151; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
    .drops { fill: #b91c1c }
    .stage { fill: #f3f4f6; stroke: #9ca3af }
    .port { fill: #dbeafe; stroke: #3b82f6 }
    .drop { fill: #fef2f2; stroke: #fca5a5; stroke-dasharray: 3 2 }
    .way { fill: none; stroke: #6b7280; stroke-width: 1.4 }
    .lost { fill: none; stroke: #f87171; stroke-width: 1.2; stroke-dasharray: 4 3 }
    .head { fill: #6b7280 }
    .lost-head { fill: #f87171 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e5e7eb }
      .page { fill: #0d1117 }
      .detail { fill: #9ca3af }
      .label { fill: #d1d5db; stroke: #0d1117 }
      .drops { fill: #fca5a5 }
      .stage { fill: #1f2937; stroke: #6b7280 }
      .port { fill: #172554; stroke: #3b82f6 }
      .drop { fill: #2b1214; stroke: #b91c1c }
      .way { stroke: #9ca3af }
      .head { fill: #9ca3af }
    }
  </style>
";

pub(super) fn draw(diagram: &Diagram) -> String {
    let sizes: Vec<(f64, f64)> = diagram.nodes.iter().map(size).collect();
    let label = |text: &str| if text.is_empty() { 0.0 } else { width(text, DETAIL) + 6.0 };
    // Most packets take the edge without a label, so that edge should be straight. The other edges get small weights.
    let weight = |edge: &Edge| match diagram.nodes[edge.to].kind {
        NodeKind::Stage if edge.label.is_empty() => 10.0,
        NodeKind::Drop => 0.01,
        _ => 0.1,
    };
    let layout_edge =
        |edge: &Edge| LayoutEdge { from: edge.from, to: edge.to, label: label(&edge.label), weight: weight(edge) };
    let edges: Vec<LayoutEdge> = diagram.edges.iter().map(layout_edge).collect();
    let placed = place(&Problem { sizes: &sizes, edges: &edges });
    let (wide, high) = (placed.width.ceil(), placed.height.ceil());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\" \
         role=\"img\">\n  <title>Pipeline</title>\n{STYLE}  <defs>\n"
    );
    for class in ["head", "lost-head"] {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    <marker id=\"{class}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             orient=\"auto\"><path class=\"{class}\" d=\"M0 0L8 4L0 8z\"/></marker>"
        );
    }
    let _ = writeln!(text, "  </defs>\n  <rect class=\"page\" width=\"{wide}\" height=\"{high}\" rx=\"8\"/>");
    for number in 0..diagram.edges.len() {
        draw_edge(diagram, &placed, &sizes, number, &mut text);
    }
    for (edge, bends) in diagram.edges.iter().zip(&placed.bends) {
        if let (false, Some((x, y))) = (edge.label.is_empty(), bends.first()) {
            let _ = writeln!(
                text,
                "  <text class=\"label\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                y + 4.0,
                escape(&edge.label)
            );
        }
    }
    for ((node, at), size) in diagram.nodes.iter().zip(&placed.nodes).zip(&sizes) {
        draw_node(node, *at, *size, &mut text);
    }
    text.push_str("</svg>\n");
    text
}

fn size(node: &Node) -> (f64, f64) {
    match node.kind {
        NodeKind::Drop => (width(&node.drops(), DETAIL) + 16.0, 20.0),
        _ if node.detail.is_empty() => (width(&node.title, TITLE).max(40.0) + 24.0, 30.0),
        _ => (width(&node.title, TITLE).max(width(&node.detail, DETAIL)).max(40.0) + 24.0, 42.0),
    }
}

fn width(text: &str, character: f64) -> f64 {
    text.chars().count() as f64 * character
}

/// Draws an edge as a curve through its bends.
fn draw_edge(diagram: &Diagram, placed: &Placed, sizes: &[(f64, f64)], number: usize, text: &mut String) {
    let edge = &diagram.edges[number];
    let ((x, y), (to_x, to_y)) = (placed.nodes[edge.from], placed.nodes[edge.to]);
    let from = (x, y + sizes[edge.from].1 / 2.0);
    let to = (to_x, to_y - sizes[edge.to].1 / 2.0 - 1.0);
    let class = if diagram.nodes[edge.to].kind == NodeKind::Drop { ("lost", "lost-head") } else { ("way", "head") };
    let _ =
        write!(text, "  <path class=\"{}\" marker-end=\"url(#{})\" d=\"M{:.1} {:.1}", class.0, class.1, from.0, from.1);
    let bends = match placed.bends[number].as_slice() {
        // An edge between adjacent layers has one bend. Without a label, a single curve looks better than a bend.
        [_] if edge.label.is_empty() => &[],
        bends => bends,
    };
    let points: Vec<(f64, f64)> = [from].iter().chain(bends).chain([&to]).copied().collect();
    for (at, pair) in points.windows(2).enumerate() {
        let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
        let half = (to_y - y) / 2.0;
        let (leave, arrive) = (slope(&points, at) * half, slope(&points, at + 1) * half);
        let middle = y + half;
        let _ = write!(text, "C{:.1} {middle:.1} {:.1} {middle:.1} {to_x:.1} {to_y:.1}", x + leave, to_x - arrive);
    }
    text.push_str("\"/>\n");
}

/// Returns the horizontal distance per vertical unit of a curve at a point. The result is 0 (vertical) at the ends of
/// the curve, and where the curve changes between left and right.
fn slope(points: &[(f64, f64)], at: usize) -> f64 {
    let (Some(before), Some(after)) = (at.checked_sub(1).and_then(|at| points.get(at)), points.get(at + 1)) else {
        return 0.0;
    };
    let here = points[at];
    let (left, right) = ((here.0 - before.0) / (here.1 - before.1), (after.0 - here.0) / (after.1 - here.1));
    // The smaller of the two slopes keeps the curve between its points.
    if left * right <= 0.0 { 0.0 } else { left.signum() * left.abs().min(right.abs()) }
}

fn draw_node(node: &Node, (x, y): (f64, f64), (wide, high): (f64, f64), text: &mut String) {
    let (class, round) = match node.kind {
        NodeKind::Stage => ("stage", 6.0),
        NodeKind::Input | NodeKind::Output => ("port", 0.0),
        NodeKind::Drop => ("drop", high / 2.0),
    };
    let (left, top) = (x - wide / 2.0, y - high / 2.0);
    let _ = writeln!(
        text,
        "  <rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" rx=\"{round}\"/>"
    );
    let mut line = |class: &str, down: f64, words: &str| {
        let _ = writeln!(text, "  <text class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>", y + down, escape(words));
    };
    match node.kind {
        NodeKind::Drop => line("drops", 4.0, &node.drops()),
        _ if node.detail.is_empty() => line("title", 5.0, &node.title),
        _ => {
            line("title", -2.0, &node.title);
            line("detail", 13.0, &node.detail);
        }
    }
}

/// Escapes text for XML. Control characters, which XML does not allow, become spaces.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace(|c: char| c.is_control(), " ")
}
