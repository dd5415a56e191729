//! The feature level of a view is one that all its members support, and it never falls.

use std::collections::HashMap;

use martlet_fabric::Levels;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::View;

/// The levels that each process really supports, whatever the others believe.
#[derive(Debug, Default)]
pub struct FeatureLevels {
    of: HashMap<ProcessId, Levels>,
}

impl FeatureLevels {
    /// A process starts.
    pub fn note(&mut self, process: ProcessId, levels: Levels) {
        self.of.insert(process, levels);
    }

    /// Whether a view is allowed; `before` is its predecessor, if that is known.
    pub fn judge(&self, before: Option<&View>, view: &View) -> Result<(), String> {
        for member in &view.members {
            if let Some(levels) = self.of.get(&member.id).filter(|levels| !levels.has(view.level)) {
                return Err(format!(
                    "view {} is of feature level {}, and lists {}, which can work at {levels}",
                    view.number, view.level, member.id
                ));
            }
        }
        match before {
            Some(before) if before.level > view.level => {
                Err(format!("the feature level falls from {} to {} with view {}", before.level, view.level, view.number))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::ViewNumber;
    use martlet_protocol::membership::{Member, Roles};

    use super::*;

    #[test]
    fn a_level_that_a_member_lacks_and_one_that_falls_are_found() {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let mut oracle = FeatureLevels::default();
        oracle.note(id(0), Levels { least: 1, most: 2 });
        oracle.note(id(1), Levels::only(1));
        let view = |level, nodes: &[u16]| View {
            number: ViewNumber(2),
            lease_ns: 1,
            fence_ns: 1,
            compatible: false,
            level,
            // The levels that the view claims for its members are not their real ones.
            members: nodes
                .iter()
                .map(|node| Member { levels: Levels { least: 1, most: 9 }, ..Member::new(id(*node), Roles::REPLICA) })
                .collect(),
            departed: Vec::new(),
        };
        assert_eq!(oracle.judge(None, &view(1, &[0, 1])), Ok(()));
        assert_eq!(oracle.judge(Some(&view(1, &[0])), &view(2, &[0])), Ok(()));
        assert!(oracle.judge(None, &view(2, &[0, 1])).is_err());
        assert!(oracle.judge(Some(&view(2, &[0])), &view(1, &[0])).is_err());
    }
}
