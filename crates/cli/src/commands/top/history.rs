//! What each node did in the last looks, as a line of bars.

use std::collections::{BTreeMap, VecDeque};

use crate::watch::lookout::Look;

/// So many looks are kept.
pub const KEPT: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Requests a second of each node, look by look.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<u16, VecDeque<Option<f64>>>);

impl History {
    /// Takes in one look. Nodes that are no longer part of the cluster are forgotten.
    pub fn note(&mut self, look: &Look) {
        self.0.retain(|number, _| look.nodes.iter().any(|node| node.number == *number));
        for node in &look.nodes {
            let rates = self.0.entry(node.number).or_default();
            rates.push_back(node.rates.map(|rates| rates.requests));
            let surplus = rates.len().saturating_sub(KEPT);
            rates.drain(..surplus);
        }
    }

    /// The largest rate of any node in the last `width` looks: what a full bar means.
    pub fn top(&self, width: usize) -> f64 {
        self.0.values().flat_map(|rates| rates.iter().rev().take(width)).flatten().fold(0.0, |top: f64, rate| top.max(*rate))
    }

    /// The last looks of a node, a character each, the newest to the right. All nodes are drawn to one scale. A point: no request; a blank: nothing is known.
    pub fn bars(&self, node: u16, width: usize) -> String {
        let top = self.top(width);
        let bar = |rate: &Option<f64>| match rate {
            None => ' ',
            Some(rate) if *rate <= 0.0 => '·',
            Some(rate) => BARS[((rate / top * 8.0).ceil() as usize).clamp(1, 8) - 1],
        };
        let rates = self.0.get(&node).map(|rates| rates.iter().skip(rates.len().saturating_sub(width)).map(bar).collect::<String>());
        format!("{:>width$}", rates.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::{look, node};
    use super::*;

    #[test]
    fn all_nodes_are_drawn_to_one_scale_and_the_unknown_is_blank() {
        let mut history = History::default();
        for (first, second) in [(Some(800.0), Some(0.0)), (None, Some(1.0)), (Some(400.0), Some(50.0))] {
            history.note(&look(vec![node(0, first), node(1, second)]));
        }
        assert_eq!(history.bars(0, 5), "  █ ▄");
        assert_eq!(history.bars(1, 5), "  ·▁▁");
        assert_eq!(history.bars(0, 1), "█", "the scale is that of what is shown");
        assert_eq!(history.bars(7, 2), "  ", "a node that nobody has seen");
        assert_eq!(history.bars(0, 0), "");
        (0..KEPT).for_each(|_| history.note(&look(vec![node(0, None)])));
        assert_eq!((history.top(KEPT), history.bars(0, KEPT)), (0.0, " ".repeat(KEPT)));
        assert_eq!(history.0.len(), 1, "a node that was removed is forgotten");
    }
}
