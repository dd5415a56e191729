//! Every set of trees, receiver after receiver and tree after tree, without those that already cost as much as the best one. It needs no regularity, and for a
//! network of data centre size too long.

use super::{MAX_STEPS, Tree, Ways};

/// It takes too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

struct Search<'a> {
    ways: &'a Ways<'a>,
    trees: usize,
    /// For each node that a tree passes: which tree, and by which arc it comes.
    taken: Vec<Option<(usize, usize)>>,
    /// The arcs of each tree, in the order in which they were taken.
    arcs: Vec<Vec<usize>>,
    /// The latest arrival of each tree so far.
    latest: Vec<u64>,
    others: u64,
    best: Option<(Vec<Tree>, u64)>,
    steps: u64,
}

/// Finds the best set of so many trees, and its cost. `None` when there are not as many.
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
    /// Finds the ways that are left: number `job` is that of tree `job % trees` to receiver `job / trees`.
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

    /// Goes on from a node of the tree, `late` behind the sender, towards the receiver of the job.
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
                // Of another tree, or of this one by another way.
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
