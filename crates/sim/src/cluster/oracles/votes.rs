//! Votes outlive their voters. A process has one vote in each term, and before any other process is told of it, the vote is in the memory of a majority (DARE
//! section 3.2.3).

use martlet_fabric::primitive::Ordering;

use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;
use crate::cluster::report::Property;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// Looks for a process's last vote in the memory of all others, dead or alive.
    pub(in crate::cluster) fn judge_vote(&mut self, voter: usize) {
        let Some(node) = &mut self.nodes[voter] else { return };
        let (me, vote) = (node.me(), node.engine().vote());
        let Some(vote) = vote.filter(|vote| node.judged != Some(*vote)) else { return };
        let earlier = node.judged.replace(vote);
        if let Some(earlier) = earlier.filter(|earlier| earlier.later == vote.later && earlier.word != vote.word) {
            let what = format!("{me} has told of its vote {:x} and of its vote {:x}, both in one term", earlier.word, vote.word);
            self.oracles.violated(self.world.now(), Property::DurableVotes, what);
        }
        // A vote of a later term may have replaced it, but another vote of the same term must not.
        let stands = |word: u64| word == vote.word || word >= vote.later;
        // If a connection has been lost and forgotten meanwhile, there is nothing left to check.
        let stands = |words: Option<&martlet_fabric::Memory>| words.is_none_or(|words| stands(words[vote.at].load(Ordering::Acquire)));
        let others = (0..self.nodes.len()).filter(|other| *other != voter);
        let found = others.filter(|other| self.world.look_at_lanes(*other, voter, vote.lane, stands).contains(&true)).count();
        if found + 1 < vote.quorum {
            let what = format!(
                "{me} has told of its vote {:x}, which stands in {found} memories beside its own; {} are a majority",
                vote.word, vote.quorum
            );
            self.oracles.violated(self.world.now(), Property::DurableVotes, what);
        }
    }
}
