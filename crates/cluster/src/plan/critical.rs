//! The probability of a *critical compound failure*: two failures of links, the second before the trees have been repaired, of which one cuts the first tree
//! and the other cuts the second (FiDe appendix C). Silence then looks like a death.

/// How likely links are to fail within a year.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probabilities {
    /// A link below the core fails at least once.
    pub trunk: f64,
    /// A link of a core switch fails at least once.
    pub core: f64,
    /// A failure hits another link at the same time.
    pub group: f64,
}

/// The links of one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Below the core.
    pub trunk: u64,
    /// Of core switches.
    pub core: u64,
}

impl Links {
    /// How many links a tree over `processes` hosts has in a fat tree of this height (half its diameter, 1 to 3), where each host is as far from the others as
    /// it can be: no host shares a link with another.
    ///
    /// A host's path to the top has one trunk link at height 1, two at height 2, and two with one core link at height 3. The closed form in appendix C has
    /// `max(H - 1, 0)` trunk links, which is 0 at height 1. The paper's own example and numbers need `min(H, 2)`, as here.
    ///
    /// # Panics
    /// When the height is another one.
    #[must_use]
    pub fn of_fat_tree(height: u64, processes: u64) -> Links {
        assert!((1..=3).contains(&height), "a fat tree of height {height}");
        Links { trunk: processes * height.min(2), core: processes * height.saturating_sub(2) }
    }
}

impl Probabilities {
    /// The values that the paper takes from the study by Gill et al. (SIGCOMM'11, figures 5 and 10).
    pub const MEASURED: Probabilities = Probabilities { trunk: 0.054, core: 0.095, group: 0.41 };

    /// The paper's bound on the probability of a critical compound failure within a year, equation (4): the sum, over the links of one tree, of the probability
    /// that the link fails and takes another link with it. It holds for whichever tree is counted, so the result is the least over the trees.
    ///
    /// As a sum of probabilities it may exceed 1, and then it says nothing.
    #[must_use]
    pub fn bound(&self, trees: &[Links]) -> f64 {
        let sum = |links: &Links| self.group * (self.trunk * links.trunk as f64 + self.core * links.core as f64);
        trees.iter().map(sum).reduce(f64::min).unwrap_or(0.0)
    }

    /// The same where links fail independently of each other, and where each failure that takes another link with it takes one of the other tree. That is the
    /// worst case: `1 - product of (1 - group * p)`. Never above [`Probabilities::bound`].
    #[must_use]
    pub fn worst_case(&self, trees: &[Links]) -> f64 {
        let spared = |links: &Links| {
            (1.0 - self.group * self.trunk).powf(links.trunk as f64) * (1.0 - self.group * self.core).powf(links.core as f64)
        };
        trees.iter().map(|links| 1.0 - spared(links)).reduce(f64::min).unwrap_or(0.0)
    }
}

/// The mean number of years between two such failures, for a probability within one year; `None` if there is never one.
#[must_use]
pub fn years(probability: f64) -> Option<f64> {
    (probability > 0.0).then(|| 1.0 / probability)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula as appendix C prints it.
    fn as_printed(p: &Probabilities, height: u64, n: u64) -> f64 {
        p.group * n as f64 * (height.saturating_sub(2) as f64 * p.core + height.saturating_sub(1) as f64 * p.trunk)
    }

    fn two_trees(height: u64, n: u64) -> [Links; 2] {
        [Links::of_fat_tree(height, n); 2]
    }

    #[test]
    fn trap_60_the_papers_numbers_follow_from_the_corrected_form_and_not_from_the_printed_one() {
        let p = Probabilities::MEASURED;
        for (height, probability, every) in [(1, 0.044, 22.6), (2, 0.089, 11.3), (3, 0.17, 6.0)] {
            let ours = p.bound(&two_trees(height, 2));
            assert!((ours - probability).abs() < 0.005, "height {height}: {ours} against {probability}");
            assert!((years(ours).expect("possible") - every).abs() < 0.05, "height {height}: {:?} years against {every}", years(ours));
        }
        let printed: Vec<f64> = (1..=3).map(|height| as_printed(&p, height, 2)).collect();
        assert_eq!(printed[0], 0.0, "the printed form says that the smallest network never fails");
        assert!((printed[1] - 0.044).abs() < 0.001 && (printed[1] - p.bound(&two_trees(1, 2))).abs() < 1e-12, "{printed:?}");
        assert!((printed[2] - 0.17).abs() < 0.005, "at height 3 both are the same: {printed:?}");
    }

    /// Sums over every outcome for every link of one tree: it holds, it fails alone, or it fails together with a link of the other tree.
    fn enumerated(p: &Probabilities, links: Links) -> f64 {
        let each: Vec<f64> = (0..links.trunk).map(|_| p.trunk).chain((0..links.core).map(|_| p.core)).collect();
        let outcomes = 3u64.pow(each.len() as u32);
        let (mut critical, mut all) = (0.0, 0.0);
        for outcome in 0..outcomes {
            let (mut code, mut likely, mut is_critical) = (outcome, 1.0, false);
            for fails in &each {
                likely *= match code % 3 {
                    0 => 1.0 - fails,
                    1 => fails * (1.0 - p.group),
                    _ => {
                        is_critical = true;
                        fails * p.group
                    }
                };
                code /= 3;
            }
            all += likely;
            critical += if is_critical { likely } else { 0.0 };
        }
        assert!((all - 1.0).abs() < 1e-9, "the outcomes are all there are");
        critical
    }

    #[test]
    fn the_bound_holds_against_every_outcome() {
        for p in [
            Probabilities::MEASURED,
            Probabilities { trunk: 0.5, core: 0.9, group: 1.0 },
            Probabilities { trunk: 0.0, core: 0.3, group: 0.2 },
        ] {
            for height in 1..=3 {
                for n in 2..=3 {
                    let links = Links::of_fat_tree(height, n);
                    let exact = enumerated(&p, links);
                    assert!((exact - p.worst_case(&[links; 2])).abs() < 1e-9, "height {height}, {n} processes: {exact}");
                    assert!(exact <= p.bound(&[links; 2]) + 1e-12, "height {height}, {n} processes: {exact}");
                }
            }
        }
    }

    #[test]
    fn the_tree_with_fewer_links_counts() {
        let p = Probabilities::MEASURED;
        let (small, large) = (Links { trunk: 2, core: 0 }, Links { trunk: 6, core: 4 });
        assert_eq!(p.bound(&[small, large]), p.bound(&[small, small]));
        assert_eq!(p.bound(&[large, small]), p.bound(&[small, small]));
        assert_eq!((years(0.0), years(0.25)), (None, Some(4.0)));
    }
}
