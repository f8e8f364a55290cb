//! Places the nodes of a diagram in layers, from top to bottom, with few crossings of edges and no overlaps of texts.
//!
//! The method is from Sugiyama, Tagawa and Toda (1981). The layer of a node is the length of the longest path to the
//! node. Within a layer, the order of the nodes follows the mean position of their neighbours. The last step computes
//! the coordinates. Between two layers of nodes is a layer of bends, where edges may change direction. The first bend
//! of an edge is as wide as the label of the edge, so labels occupy space like nodes.

/// The nodes and edges to place.
pub(super) struct Problem<'a> {
    /// The width and height of each node.
    pub(super) sizes: &'a [(f64, f64)],
    pub(super) edges: &'a [LayoutEdge],
}

/// An edge to draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutEdge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The width of the label, or 0 for an edge without a label.
    pub(super) label: f64,
    /// How important it is that the edge is vertical. An edge with a larger weight is more likely to be vertical.
    pub(super) weight: f64,
}

/// The result, in units of the diagram from its top left corner.
pub(super) struct Placed {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The centres of the nodes.
    pub(super) nodes: Vec<(f64, f64)>,
    /// The bends of each edge, without the ends of the edge. The label of an edge is drawn at the first bend.
    pub(super) bends: Vec<Vec<(f64, f64)>>,
}

/// The space around the diagram, next to nodes, next to bends, and between layers.
const MARGIN: f64 = 16.0;
const NODE_GAP: f64 = 24.0;
const BEND_GAP: f64 = 14.0;
const LAYER_GAP: f64 = 16.0;
/// The height of a layer of bends that contains a label.
const LABEL: f64 = 16.0;
/// The number of passes that order the layers, and the number of passes that straighten the edges. A long edge needs
/// many passes to become straight.
const SWEEPS: usize = 16;
const PULLS: usize = 300;

/// An item of a layer: a node, or a bend of an edge.
struct Item {
    node: bool,
    width: f64,
    height: f64,
    /// The neighbours in the layers above and below, with the weights of the edges.
    above: Vec<(usize, f64)>,
    below: Vec<(usize, f64)>,
}

struct Layers {
    items: Vec<Item>,
    /// The items of each layer, from left to right. The layers of nodes have even indices.
    layers: Vec<Vec<usize>>,
    /// The bends of each edge.
    bends: Vec<Vec<usize>>,
}

pub(super) fn place(problem: &Problem<'_>) -> Placed {
    let mut layers = Layers::new(problem);
    layers.order();
    let x = layers.columns();
    let y = layers.rows();
    let right = layers.items.iter().zip(&x).map(|(item, x)| x + item.width / 2.0).fold(0.0, f64::max);
    let at = |item: usize| (x[item], y.1[item]);
    Placed {
        width: right + MARGIN,
        height: y.0 + MARGIN,
        nodes: (0..problem.sizes.len()).map(at).collect(),
        bends: layers.bends.iter().map(|bends| bends.iter().map(|&bend| at(bend)).collect()).collect(),
    }
}

impl Layers {
    fn new(problem: &Problem<'_>) -> Self {
        let ranks = ranks(problem);
        let depth = ranks.iter().max().map_or(0, |most| 2 * most + 1);
        let node =
            |&(width, height): &(f64, f64)| Item { node: true, width, height, above: Vec::new(), below: Vec::new() };
        let mut layers = Self {
            items: problem.sizes.iter().map(node).collect(),
            layers: vec![Vec::new(); depth],
            bends: Vec::new(),
        };
        for (node, rank) in ranks.iter().enumerate() {
            layers.layers[2 * rank].push(node);
        }
        for &LayoutEdge { from, to, label, weight } in problem.edges {
            let mut bends = Vec::new();
            let mut last = from;
            for layer in 2 * ranks[from] + 1..2 * ranks[to] {
                let (width, height) = if bends.is_empty() && label > 0.0 { (label, LABEL) } else { (0.0, 0.0) };
                layers.items.push(Item { node: false, width, height, above: Vec::new(), below: Vec::new() });
                let bend = layers.items.len() - 1;
                layers.layers[layer].push(bend);
                layers.join(last, bend, weight);
                bends.push(bend);
                last = bend;
            }
            layers.join(last, to, weight);
            layers.bends.push(bends);
        }
        layers
    }

    fn join(&mut self, above: usize, below: usize, weight: f64) {
        // A slanted segment between two bends looks worst, so segments between bends get a higher weight.
        let weight = if self.items[above].node || self.items[below].node { weight } else { 8.0 * weight };
        self.items[above].below.push((below, weight));
        self.items[below].above.push((above, weight));
    }

    /// Orders each layer by the positions of the neighbours, alternately downwards and upwards. Keeps the order with
    /// the fewest crossings.
    fn order(&mut self) {
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            let mut places = vec![0.0; self.items.len()];
            let count = self.layers.len();
            for step in 0..count {
                let layer = if down { step } else { count - 1 - step };
                let items = &self.items;
                let mean = |&item: &usize, place: usize| {
                    let neighbours = if down { &items[item].above } else { &items[item].below };
                    let sum: f64 = neighbours.iter().map(|&(other, _)| places[other]).sum();
                    if neighbours.is_empty() { place as f64 } else { sum / neighbours.len() as f64 }
                };
                let mut keyed: Vec<(f64, usize)> =
                    self.layers[layer].iter().enumerate().map(|(place, item)| (mean(item, place), *item)).collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                for (place, (_, item)) in keyed.iter().enumerate() {
                    places[*item] = place as f64;
                }
                self.layers[layer] = keyed.into_iter().map(|(_, item)| item).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
    }

    fn crossings(&self) -> usize {
        let mut places = vec![0; self.items.len()];
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(place, &item)| places[item] = place);
        }
        let of = |layer: &Vec<usize>| {
            let edges: Vec<(usize, usize)> = layer
                .iter()
                .flat_map(|&item| self.items[item].below.iter().map(move |&(to, _)| (item, to)))
                .map(|(from, to)| (places[from], places[to]))
                .collect();
            let crossed = |a: &(usize, usize), b: &(usize, usize)| a.0 < b.0 && a.1 > b.1 || a.0 > b.0 && a.1 < b.1;
            let after = |at: usize| edges[at + 1..].iter().filter(|other| crossed(&edges[at], other)).count();
            (0..edges.len()).map(after).sum::<usize>()
        };
        self.layers.iter().map(of).sum()
    }

    /// Returns the x coordinate of each item. The items of a layer keep their order, do not overlap, and are close to
    /// their neighbours in other layers.
    fn columns(&self) -> Vec<f64> {
        let mut x = vec![0.0; self.items.len()];
        for layer in &self.layers {
            let wanted: Vec<(f64, f64)> = layer.iter().map(|_| (0.0, 1.0)).collect();
            self.settle(layer, &wanted, &mut x);
        }
        for sweep in 0..PULLS {
            let count = self.layers.len();
            for step in 0..count {
                let layer = &self.layers[if sweep % 2 == 0 { step } else { count - 1 - step }];
                let wanted: Vec<(f64, f64)> = layer.iter().map(|&item| self.wanted(item, &x)).collect();
                self.settle(layer, &wanted, &mut x);
            }
        }
        let left = self.items.iter().zip(&x).map(|(item, x)| x - item.width / 2.0).fold(f64::MAX, f64::min);
        x.iter().map(|x| x - left + MARGIN).collect()
    }

    /// Returns the preferred position of an item, and its weight.
    fn wanted(&self, item: usize, x: &[f64]) -> (f64, f64) {
        let neighbours = self.items[item].above.iter().chain(&self.items[item].below);
        let add = |(sum, all): (f64, f64), &(other, weight): &(usize, f64)| (sum + weight * x[other], all + weight);
        let (sum, weight) = neighbours.fold((0.0, 0.0), add);
        if weight > 0.0 { (sum / weight, weight) } else { (0.0, 0.1) }
    }

    /// Moves the items of a layer as close to their preferred positions as their order and widths allow. This is a
    /// weighted isotonic regression, which moves adjacent items together as one pool if they would overlap.
    fn settle(&self, layer: &[usize], wanted: &[(f64, f64)], x: &mut [f64]) {
        // The minimum distance of each item from the first item.
        let mut offsets = Vec::with_capacity(layer.len());
        let mut offset = 0.0;
        for (place, &item) in layer.iter().enumerate() {
            if place > 0 {
                offset += self.apart(layer[place - 1], item);
            }
            offsets.push(offset);
        }
        let mut pools: Vec<(f64, f64, usize)> = Vec::new();
        for ((place, weight), offset) in wanted.iter().zip(&offsets) {
            let mut pool = (place - offset, *weight, 1);
            while let Some(last) = pools.pop_if(|last| last.0 > pool.0) {
                let weight = last.1 + pool.1;
                pool = ((last.0 * last.1 + pool.0 * pool.1) / weight, weight, last.2 + pool.2);
            }
            pools.push(pool);
        }
        let settled = pools.iter().flat_map(|&(place, _, count)| std::iter::repeat_n(place, count));
        for ((&item, offset), place) in layer.iter().zip(&offsets).zip(settled) {
            x[item] = place + offset;
        }
    }

    fn apart(&self, left: usize, right: usize) -> f64 {
        let (left, right) = (&self.items[left], &self.items[right]);
        let gap = if left.node && right.node { NODE_GAP } else { BEND_GAP };
        (left.width + right.width) / 2.0 + gap
    }

    /// Returns the height of the diagram without its bottom margin, and the y coordinate of each item.
    fn rows(&self) -> (f64, Vec<f64>) {
        let mut y = vec![0.0; self.items.len()];
        let mut top = MARGIN;
        for layer in &self.layers {
            let height = layer.iter().map(|&item| self.items[item].height).fold(0.0, f64::max);
            layer.iter().for_each(|&item| y[item] = top + height / 2.0);
            top += height + LAYER_GAP;
        }
        (top - LAYER_GAP, y)
    }
}

/// Returns the layer of each node: the length of the longest path to the node.
fn ranks(problem: &Problem<'_>) -> Vec<usize> {
    let count = problem.sizes.len();
    let mut ranks = vec![0; count];
    // Each round fixes at least one more layer, and a graph without loops has at most as many layers as nodes.
    for _ in 0..count {
        let mut changed = false;
        for &LayoutEdge { from, to, .. } in problem.edges {
            let rank = ranks[from] + 1;
            changed |= rank > ranks[to];
            ranks[to] = ranks[to].max(rank);
        }
        if !changed {
            break;
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Graph = (Vec<(f64, f64)>, Vec<LayoutEdge>);

    fn graphs() -> impl Strategy<Value = Graph> {
        (2..14usize).prop_flat_map(|count| {
            let sizes = proptest::collection::vec((30.0..160.0f64, 20.0..50.0f64), count);
            let edge = (0..count - 1, 1..count, prop_oneof![Just(0.0), 20.0..80.0f64]);
            let edges = proptest::collection::vec(edge, 0..24);
            let forward = move |(from, by, label): (usize, usize, f64)| LayoutEdge {
                from,
                to: (from + by).min(count - 1),
                label,
                weight: 1.0 + label,
            };
            (sizes, edges).prop_map(move |(sizes, edges)| (sizes, edges.into_iter().map(forward).collect()))
        })
    }

    proptest! {
        /// No nodes or labels overlap, all are inside the diagram, and every edge leads down.
        #[test]
        fn nodes_and_labels_do_not_overlap((sizes, edges) in graphs()) {
            let placed = place(&Problem { sizes: &sizes, edges: &edges });
            let mut boxes: Vec<(f64, f64, f64, f64)> =
                placed.nodes.iter().zip(&sizes).map(|(at, size)| (at.0, at.1, size.0, size.1)).collect();
            for (bends, edge) in placed.bends.iter().zip(&edges).filter(|(_, edge)| edge.label > 0.0) {
                boxes.push((bends[0].0, bends[0].1, edge.label, LABEL));
            }
            for (at, a) in boxes.iter().enumerate() {
                prop_assert!(a.0 - a.2 / 2.0 > 0.0 && a.0 + a.2 / 2.0 < placed.width);
                prop_assert!(a.1 - a.3 / 2.0 > 0.0 && a.1 + a.3 / 2.0 < placed.height);
                for b in &boxes[at + 1..] {
                    let apart = (a.0 - b.0).abs() >= (a.2 + b.2) / 2.0;
                    let below = (a.1 - b.1).abs() >= (a.3 + b.3) / 2.0;
                    prop_assert!(apart || below, "{a:?} and {b:?}");
                }
            }
            for (bends, edge) in placed.bends.iter().zip(&edges) {
                let ends = (placed.nodes[edge.from], placed.nodes[edge.to]);
                let heights: Vec<f64> = [ends.0].iter().chain(bends).chain([&ends.1]).map(|at| at.1).collect();
                prop_assert!(heights.is_sorted(), "{heights:?}");
            }
        }
    }

    #[test]
    fn chain_of_nodes_is_a_straight_line() {
        let sizes = [(60.0, 30.0), (120.0, 30.0), (40.0, 30.0)];
        let edges = [(0, 1, 0.0), (1, 2, 50.0)].map(|(from, to, label)| LayoutEdge { from, to, label, weight: 1.0 });
        let placed = place(&Problem { sizes: &sizes, edges: &edges });
        assert!(placed.nodes.windows(2).all(|pair| (pair[0].0 - pair[1].0).abs() < 0.01), "{:?}", placed.nodes);
    }
}
