//! Whose a gap is: the leader's, or the machine's.

use super::record::Span;

/// A gap of the leader's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When, and for how long.
    pub span: Span,
    /// How much of it is nobody's but the leader's, in nanoseconds.
    pub own_ns: u64,
}

/// Takes from each gap what the machine has done: when the thread was ready and was not let, and when the reference thread was late, which nothing of
/// ours keeps from running. Both lists are in the order of time.
pub fn attribute(gaps: &[Span], late: &[Span]) -> Vec<Gap> {
    let mut first = 0;
    gaps.iter()
        .map(|gap| {
            while late.get(first).is_some_and(|l| l.end() <= gap.at) {
                first += 1;
            }
            let overlaps = late[first..].iter().take_while(|l| l.at < gap.end()).map(|l| l.end().min(gap.end()) - l.at.max(gap.at));
            let machine = overlaps.sum::<u64>().max(gap.waited_ns);
            Gap { span: *gap, own_ns: gap.ns.saturating_sub(machine) }
        })
        .collect()
}

/// How much of each proposal's time is not the machine's, in nanoseconds: what is left when the machine's share of each gap in it is taken away.
/// Proposals are in the order in which they were due.
pub fn own_times(proposals: &[Span], gaps: &[Gap]) -> Vec<u64> {
    let mut first = 0;
    proposals
        .iter()
        .map(|proposal| {
            while gaps.get(first).is_some_and(|gap| gap.span.end() <= proposal.at) {
                first += 1;
            }
            let inside = gaps[first..].iter().take_while(|gap| gap.span.at < proposal.end());
            let machine = inside.map(|gap| {
                let shared = gap.span.end().min(proposal.end()) - gap.span.at.max(proposal.at);
                (gap.span.ns - gap.own_ns).min(shared)
            });
            proposal.ns.saturating_sub(machine.sum())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(at: u64, ns: u64, waited_ns: u64) -> Span {
        Span { at, ns, waited_ns }
    }

    #[test]
    fn what_the_reference_or_the_kernel_saw_is_the_machines() {
        let late = [span(90, 5, 0), span(120, 40, 0), span(300, 10, 0)];
        let gaps = [span(100, 50, 0), span(150, 100, 20), span(290, 50, 7), span(400, 30, 0)];
        let own: Vec<u64> = attribute(&gaps, &late).iter().map(|gap| gap.own_ns).collect();
        assert_eq!(own, [20, 80, 40, 30], "30 of 50; the 20 waited exceed the 10 late; 10 late exceed the 7 waited; nothing");
    }

    #[test]
    fn a_proposals_own_time_is_without_the_machines_part_of_the_gaps_in_it() {
        let gaps = attribute(&[span(100, 50, 40), span(200, 50, 0)], &[]);
        let proposals = [span(0, 10, 0), span(90, 70, 0), span(145, 10, 0), span(190, 80, 0)];
        assert_eq!(own_times(&proposals, &gaps), [10, 30, 5, 80]);
    }
}
