//! Tries every set of trees, receiver by receiver and tree by tree, except those that already cost as much as the best one. It needs no regularity, but takes
//! too long for a network of data centre size.

use super::{MAX_STEPS, Tree, Ways};

/// It takes too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

struct Search<'a> {
    ways: &'a Ways<'a>,
    trees: usize,
    /// For each node that a tree passes: the tree, and the arc by which it arrives.
    taken: Vec<Option<(usize, usize)>>,
    /// The arcs of each tree, in the order in which they were taken.
    arcs: Vec<Vec<usize>>,
    /// The latest arrival of each tree so far.
    latest: Vec<u64>,
    others: u64,
    best: Option<(Vec<Tree>, u64)>,
    steps: u64,
}

/// Finds the best set of this many trees, and its cost. Returns `None` when there are fewer.
pub fn find(ways: &Ways<'_>, trees: usize) -> Result<Option<(Vec<Tree>, u64)>, TooMuch> {
    let mut search = Search {
        ways,
        trees,
        taken: vec![None; ways.topology.nodes.len()],
        arcs: vec![Vec::new(); trees],
        latest: vec![0; trees],
        others: 0,
        best: None,
        steps: 0,
    };
    search.lead(0)?;
    Ok(search.best)
}

impl Search<'_> {
    /// Finds the remaining paths: job `job` is the path of tree `job % trees` to receiver `job / trees`.
    fn lead(&mut self, job: usize) -> Result<(), TooMuch> {
        let cost = self.latest.iter().sum::<u64>() + self.others;
        if self.best.as_ref().is_some_and(|(_, best)| *best <= cost) {
            return Ok(());
        }
        if job == self.trees * self.ways.request.receivers.len() {
            self.best = Some((self.arcs.iter().map(|arcs| Tree { arcs: arcs.clone() }).collect(), cost));
            return Ok(());
        }
        self.go_on(job, self.ways.request.sender, 0)
    }

    /// Continues from a node of the tree, which a packet reaches `late` after it was sent, towards the receiver of the job.
    fn go_on(&mut self, job: usize, node: usize, late: u64) -> Result<(), TooMuch> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(TooMuch);
        }
        let (tree, receiver) = (job % self.trees, self.ways.request.receivers[job / self.trees]);
        let ways = self.ways;
        for (arc, to) in ways.onward(node, 1 << (job / self.trees)) {
            let late = late + ways.cost[arc].latest;
            if to == receiver {
                let before = self.latest[tree];
                self.latest[tree] = before.max(late);
                self.others += ways.cost[arc].others;
                self.arcs[tree].push(arc);
                self.lead(job + 1)?;
                self.arcs[tree].pop();
                self.others -= ways.cost[arc].others;
                self.latest[tree] = before;
                continue;
            }
            match self.taken[to] {
                Some((of, by)) if of == tree && by == arc => self.go_on(job, to, late)?,
                // The node belongs to another tree, or to this one by another arc.
                Some(_) => {}
                None => {
                    self.taken[to] = Some((tree, arc));
                    self.others += ways.cost[arc].others;
                    self.arcs[tree].push(arc);
                    self.go_on(job, to, late)?;
                    self.arcs[tree].pop();
                    self.others -= ways.cost[arc].others;
                    self.taken[to] = None;
                }
            }
        }
        Ok(())
    }
}
