//! A tree as indented text.

use super::topology::Topology;
use super::trees::Tree;

/// The lines of a tree, beginning with its sender. `label` gives the text that follows a node's name.
pub fn lines(topology: &Topology, sender: usize, tree: &Tree, label: impl Fn(usize) -> String) -> Vec<String> {
    let mut out = vec![format!("{}{}", topology.name(sender), label(sender))];
    below(topology, sender, tree, &label, "", &mut out);
    out
}

fn below(topology: &Topology, node: usize, tree: &Tree, label: &impl Fn(usize) -> String, indent: &str, out: &mut Vec<String>) {
    let children: Vec<usize> = tree.arcs.iter().map(|&arc| &topology.arcs[arc]).filter(|arc| arc.from == node).map(|arc| arc.to).collect();
    for (number, &child) in children.iter().enumerate() {
        let (branch, rest) = if number + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        out.push(format!("{indent}{branch}{}{}", topology.name(child), label(child)));
        below(topology, child, tree, label, &format!("{indent}{rest}"), out);
    }
}
