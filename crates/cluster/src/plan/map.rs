//! Trees on a map of their network, as SVG: hosts at the bottom, and switches above them by their distance from the nearest host.

use std::fmt::Write as _;

use crate::svg::{COLOURS, close, line, open, text};

use super::schedule::{Plan, Planned};
use super::topology::Topology;

const WIDTH: f64 = 960.0;
const ROW: f64 = 90.0;
const HEAD: f64 = 70.0;
const EDGE: f64 = 60.0;

/// Draws a plan: one map for each request, one below the other.
pub fn svg(topology: &Topology, plan: &Plan) -> String {
    let rows = rows(topology);
    let height = HEAD + ROW * rows.len() as f64;
    let mut out = open(WIDTH, height * plan.planned.len().max(1) as f64);
    if plan.planned.is_empty() {
        text(&mut out, EDGE, height / 2.0, "", "no [[request]], so no tree");
    }
    for (number, planned) in plan.planned.iter().enumerate() {
        draw(topology, &rows, planned, number, height * number as f64, &mut out);
    }
    close(out)
}

/// The nodes of each row, the highest first.
fn rows(topology: &Topology) -> Vec<Vec<usize>> {
    let mut row = vec![None; topology.nodes.len()];
    let mut layer: Vec<usize> = (0..topology.nodes.len()).filter(|&node| topology.nodes[node].is_host()).collect();
    let mut rows = Vec::new();
    while !layer.is_empty() {
        layer.iter().for_each(|&node| row[node] = Some(rows.len()));
        let next = (0..topology.nodes.len()).filter(|&node| {
            row[node].is_none() && topology.leaving[node].iter().any(|&arc| row[topology.arcs[arc].to] == Some(rows.len()))
        });
        let next = next.collect();
        rows.push(std::mem::replace(&mut layer, next));
    }
    let alone: Vec<usize> = (0..topology.nodes.len()).filter(|&node| row[node].is_none()).collect();
    if !alone.is_empty() {
        rows.push(alone);
    }
    rows.reverse();
    rows
}

fn draw(topology: &Topology, rows: &[Vec<usize>], planned: &Planned, number: usize, top: f64, out: &mut String) {
    let mut place = vec![(0.0, 0.0); topology.nodes.len()];
    for (row, nodes) in rows.iter().enumerate() {
        for (at, &node) in nodes.iter().enumerate() {
            let x = EDGE + (WIDTH - 2.0 * EDGE) * (at as f64 + 0.5) / nodes.len() as f64;
            place[node] = (x, top + HEAD + ROW * row as f64);
        }
    }
    let title = format!("request {}: {} to {} hosts", number + 1, topology.name(planned.request.sender), planned.request.receivers.len());
    text(out, EDGE, top + 25.0, "font-size=\"16\"", &title);
    for arc in topology.arcs.iter().filter(|arc| arc.from < arc.to) {
        line(out, place[arc.from], place[arc.to], "stroke=\"#ddd\"");
    }
    for (at, (tree, colour)) in planned.trees.iter().zip(COLOURS.into_iter().cycle()).enumerate() {
        for arc in tree.arcs.iter().map(|&arc| &topology.arcs[arc]) {
            line(out, place[arc.from], place[arc.to], &format!("stroke=\"{colour}\" stroke-width=\"3\""));
        }
        text(out, EDGE + 80.0 * at as f64, top + 45.0, &format!("fill=\"{colour}\""), &format!("tree {}", at + 1));
    }
    for (node, (x, y)) in topology.nodes.iter().zip(&place) {
        let fill = if node.is_host() { "white" } else { "#eee" };
        let width = 16.0 + 8.0 * node.name.len() as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"24\" rx=\"4\" fill=\"{fill}\" stroke=\"#555\"/>",
            x - width / 2.0,
            y - 12.0
        );
        text(out, *x, y + 5.0, "text-anchor=\"middle\"", &node.name);
    }
}
