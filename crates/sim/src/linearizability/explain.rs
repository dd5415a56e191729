//! From "no" to "because": the shortest part of a history that cannot be linearized.

use std::fmt;

use super::search::{self, Found};
use super::{Model, Operation, OperationOf, Outcome};

/// How many operations of the longest order an explanation shows.
const SHOWN: usize = 10;

/// Why the operations on one key cannot be put into any order. Its `Display` explains it to a person.
#[derive(Clone)]
pub struct Violation<M: Model> {
    /// The key.
    pub key: M::Key,
    /// The shortest prefix in time that cannot be linearized, sorted by call. Operations that were open at its end count as having no reply.
    pub prefix: Vec<OperationOf<M>>,
    /// The reply that ends it, as an index into `prefix`: without that reply, the rest has an order.
    pub culprit: usize,
    /// The longest order found in the prefix, as indices into it.
    pub longest: Vec<usize>,
    /// What the key held after that order.
    pub state: M::State,
}

impl<M: Model> Violation<M> {
    /// The operations with a reply that the longest order leaves out.
    pub fn left_out(&self) -> impl Iterator<Item = &OperationOf<M>> {
        let replied = |at: &usize| matches!(self.prefix[*at].outcome, Outcome::Returned { .. });
        (0..self.prefix.len()).filter(|at| !self.longest.contains(at)).filter(replied).map(|at| &self.prefix[at])
    }
}

/// Cuts the operations on one key, which have no order, down to the shortest prefix that has none.
pub(super) fn shortest<M: Model>(model: &M, key: M::Key, operations: &[&OperationOf<M>], steps: u64) -> Violation<M> {
    let mut returns: Vec<u64> = operations.iter().filter_map(|op| returned_at(op)).collect();
    returns.sort_unstable();
    returns.dedup();
    // Prefixes of linearizable histories are linearizable, so along the returns the answer to "has an order" changes only once.
    let bad = returns.partition_point(|&end| {
        let prefix = prefix(operations, end);
        search::run(model, &key, &prefix.iter().collect::<Vec<_>>(), steps).0 != Found::None
    });
    let end = returns.get(bad).copied().unwrap_or(u64::MAX);
    let prefix = prefix(operations, end);
    let (_, longest) = search::run(model, &key, &prefix.iter().collect::<Vec<_>>(), steps);
    let culprit = prefix.iter().position(|op| returned_at(op) == Some(end)).unwrap_or(prefix.len().saturating_sub(1));
    Violation { key, culprit, longest: longest.order, state: longest.state, prefix }
}

fn returned_at<I, O>(operation: &Operation<I, O>) -> Option<u64> {
    match operation.outcome {
        Outcome::Returned { at_ns, .. } => Some(at_ns),
        Outcome::Unknown => None,
    }
}

/// What was known at `end`.
fn prefix<I: Clone, O: Clone>(operations: &[&Operation<I, O>], end: u64) -> Vec<Operation<I, O>> {
    let mut prefix: Vec<Operation<I, O>> = operations
        .iter()
        .filter(|op| op.called_ns <= end)
        .map(|&op| match op.outcome {
            Outcome::Returned { at_ns, .. } if at_ns > end => Operation { outcome: Outcome::Unknown, ..op.clone() },
            _ => op.clone(),
        })
        .collect();
    prefix.sort_by_key(|op| op.called_ns);
    prefix
}

impl<M: Model> fmt::Debug for Violation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M: Model> fmt::Display for Violation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.prefix.first().map_or(0, |op| op.called_ns);
        let show = |op: &OperationOf<M>| {
            let us = |ns: u64| ns.saturating_sub(start) as f64 / 1e3;
            match &op.outcome {
                Outcome::Returned { at_ns, output } => {
                    format!("[{:.1} .. {:.1}] client {}: {:?} -> {:?}", us(op.called_ns), us(*at_ns), op.client, op.input, output)
                }
                Outcome::Unknown => format!("[{:.1} .. ?] client {}: {:?}, no reply by then", us(op.called_ns), op.client, op.input),
            }
        };
        let count = self.prefix.len();
        writeln!(f, "no order explains the replies for key {:?}; times are microseconds from the key's first call", self.key)?;
        if let Some(culprit) = self.prefix.get(self.culprit) {
            writeln!(f, "the first {count} operations have an order only without the reply to")?;
            writeln!(f, "  {}", show(culprit))?;
        }
        let skipped = self.longest.len().saturating_sub(SHOWN);
        writeln!(f, "the longest order holds {} of them{}", self.longest.len(), if skipped > 0 { ", the last of them" } else { "" })?;
        for &at in &self.longest[skipped..] {
            writeln!(f, "  {}", show(&self.prefix[at]))?;
        }
        writeln!(f, "after which the key holds {:?}, and these cannot follow", self.state)?;
        for op in self.left_out().take(SHOWN) {
            writeln!(f, "  {}", show(op))?;
        }
        Ok(())
    }
}
