//! A picture as SVG. It has its own light and dark colours, and needs no font of its own.

use std::fmt::Write;

use super::layout::{Placed, Problem, Way, place};
use super::{Edge, Kind, Node, Picture, drops};

/// How wide a character is at most, in the sizes of text used here, whatever sans-serif font the viewer has.
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

pub(super) fn draw(picture: &Picture) -> String {
    let sizes: Vec<(f64, f64)> = picture.nodes.iter().map(size).collect();
    let label = |text: &str| if text.is_empty() { 0.0 } else { width(text, DETAIL) + 6.0 };
    // The way of most packets is the straight one: side ways must not bend it, however many pull at it.
    let weight = |edge: &Edge| match picture.nodes[edge.to].kind {
        Kind::Stage if edge.label.is_empty() => 10.0,
        Kind::Drop => 0.01,
        _ => 0.1,
    };
    let way = |edge: &Edge| Way { from: edge.from, to: edge.to, label: label(&edge.label), weight: weight(edge) };
    let edges: Vec<Way> = picture.edges.iter().map(way).collect();
    let placed = place(&Problem { sizes: &sizes, edges: &edges });
    let (wide, high) = (placed.width.ceil(), placed.height.ceil());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\" \
         role=\"img\">\n  <title>Pipeline</title>\n{STYLE}  <defs>\n"
    );
    for class in ["head", "lost-head"] {
        // A string takes any amount of writing.
        let _ = writeln!(
            text,
            "    <marker id=\"{class}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             orient=\"auto\"><path class=\"{class}\" d=\"M0 0L8 4L0 8z\"/></marker>"
        );
    }
    let _ = writeln!(text, "  </defs>\n  <rect class=\"page\" width=\"{wide}\" height=\"{high}\" rx=\"8\"/>");
    for number in 0..picture.edges.len() {
        draw_way(picture, &placed, &sizes, number, &mut text);
    }
    for (edge, bends) in picture.edges.iter().zip(&placed.bends) {
        if let (false, Some((x, y))) = (edge.label.is_empty(), bends.first()) {
            let _ = writeln!(
                text,
                "  <text class=\"label\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                y + 4.0,
                escape(&edge.label)
            );
        }
    }
    for ((node, at), size) in picture.nodes.iter().zip(&placed.nodes).zip(&sizes) {
        draw_node(node, *at, *size, &mut text);
    }
    text.push_str("</svg>\n");
    text
}

fn size(node: &Node) -> (f64, f64) {
    match node.kind {
        Kind::Drop => (width(&drops(node), DETAIL) + 16.0, 20.0),
        _ if node.detail.is_empty() => (width(&node.title, TITLE).max(40.0) + 24.0, 30.0),
        _ => (width(&node.title, TITLE).max(width(&node.detail, DETAIL)).max(40.0) + 24.0, 42.0),
    }
}

fn width(text: &str, character: f64) -> f64 {
    text.chars().count() as f64 * character
}

/// A curve through the bends of a way.
fn draw_way(picture: &Picture, placed: &Placed, sizes: &[(f64, f64)], number: usize, text: &mut String) {
    let edge = &picture.edges[number];
    let ((x, y), (to_x, to_y)) = (placed.nodes[edge.from], placed.nodes[edge.to]);
    let from = (x, y + sizes[edge.from].1 / 2.0);
    let to = (to_x, to_y - sizes[edge.to].1 / 2.0 - 1.0);
    let class = if picture.nodes[edge.to].kind == Kind::Drop { ("lost", "lost-head") } else { ("way", "head") };
    let _ =
        write!(text, "  <path class=\"{}\" marker-end=\"url(#{})\" d=\"M{:.1} {:.1}", class.0, class.1, from.0, from.1);
    let bends = match placed.bends[number].as_slice() {
        // From one layer to the next a single curve looks better.
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

/// How far a curve moves to the side per step down at a point: it is upright at its ends and where it turns back.
fn slope(points: &[(f64, f64)], at: usize) -> f64 {
    let (Some(before), Some(after)) = (at.checked_sub(1).and_then(|at| points.get(at)), points.get(at + 1)) else {
        return 0.0;
    };
    let here = points[at];
    let (left, right) = ((here.0 - before.0) / (here.1 - before.1), (after.0 - here.0) / (after.1 - here.1));
    // The lesser of both slopes keeps the curve between its points.
    if left * right <= 0.0 { 0.0 } else { left.signum() * left.abs().min(right.abs()) }
}

fn draw_node(node: &Node, (x, y): (f64, f64), (wide, high): (f64, f64), text: &mut String) {
    let (class, round) = match node.kind {
        Kind::Stage => ("stage", 6.0),
        Kind::Input | Kind::Output => ("port", 0.0),
        Kind::Drop => ("drop", high / 2.0),
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
        Kind::Drop => line("drops", 4.0, &drops(node)),
        _ if node.detail.is_empty() => line("title", 5.0, &node.title),
        _ => {
            line("title", -2.0, &node.title);
            line("detail", 13.0, &node.detail);
        }
    }
}

/// Text as XML takes it. Characters that XML has no place for become spaces.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace(|c: char| c.is_control(), " ")
}
