//! The nodes that hold a cluster's data, for all that is known from here. A view lists those that its members agreed on, which may be long ago where they are too few to agree on
//! another one.

use martlet_cluster::output::{BAD, WARN, styled};
use martlet_cluster::watch::observer::Sight;
use martlet_node::counters::Counter;
use martlet_protocol::membership::{Member, Roles, View};
use serde_json::{Value, json};

/// The replicas of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Those that are seen to run, as the processes that the view lists.
    pub live: Vec<u16>,
    /// The others, and what is known of each.
    pub missing: Vec<(u16, &'static str)>,
}

impl Holders {
    /// `runs`: whether a node's process runs, or else what it does instead.
    pub fn of<'a>(view: &View, runs: impl Fn(u16) -> Result<(), &'static str>, sight: impl Fn(u16) -> Option<&'a Sight>) -> Holders {
        let mut holders = Holders { live: Vec::new(), missing: Vec::new() };
        let mut members: Vec<&Member> = view.with_roles(Roles::REPLICA).collect();
        members.sort_by_key(|member| member.id.node);
        for member in members {
            let node = member.id.node.0;
            let reading = sight(node).and_then(|sight| sight.reading.as_ref());
            match (runs(node), reading) {
                (Ok(()), Some(reading)) if reading.get(Counter::Incarnation) != member.id.incarnation.0 => {
                    holders.missing.push((node, "starting over"));
                }
                (Ok(()), Some(reading)) if reading.get(Counter::Whole) == 0 => holders.missing.push((node, "receiving the data")),
                (Ok(()), Some(_)) => holders.live.push(node),
                (Ok(()), None) => holders.missing.push((node, "not readable")),
                (Err(instead), _) => holders.missing.push((node, instead)),
            }
        }
        holders
    }

    /// For people: how many hold the data, and who does not show that it does. `nobody`: where the view has no replica any more.
    pub fn text(&self, nobody: impl FnOnce() -> String) -> String {
        let all = self.live.len() + self.missing.len();
        if all == 0 {
            return styled(BAD, nobody());
        }
        let (style, count) = match self.live.len() {
            0 => (BAD, "no node that is seen".to_owned()),
            1 => (WARN, "1 node only".to_owned()),
            n if self.missing.is_empty() => return format!("{n} nodes"),
            n => (WARN, format!("{n} nodes")),
        };
        let missing: Vec<String> = self.missing.iter().map(|(node, word)| format!("node {node} {word}")).collect();
        let missing = if missing.is_empty() { String::new() } else { format!(" of {all} in the view: {}", missing.join(", ")) };
        styled(style, format_args!("{count}{missing}"))
    }

    /// For programs: those that do not show that they hold it.
    pub fn missing(&self) -> Value {
        self.missing.iter().map(|(node, word)| json!({"node": node, "state": word})).collect()
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_protocol::basics::{ProcessId, ViewNumber};

    use super::*;
    use crate::watch::failovers::tests::reading;

    fn view(count: u16) -> View {
        let member = |node| Member::new(ProcessId { node: NodeId(node), incarnation: Incarnation(7) }, Roles::REPLICA);
        let members = (0..count).map(member).collect();
        View { number: ViewNumber(4), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() }
    }

    fn holders(words: [&'static str; 3], lives: [Option<u64>; 3]) -> Holders {
        let sights: Vec<Sight> = (0..3)
            .map(|node| Sight {
                node,
                reading: lives[usize::from(node)].map(|life| reading(&[(Counter::Incarnation, life), (Counter::Whole, 1)], &[])),
                view: None,
            })
            .collect();
        let runs = |node: u16| if words[usize::from(node)] == "running" { Ok(()) } else { Err(words[usize::from(node)]) };
        Holders::of(&view(3), runs, |node| sights.get(usize::from(node)))
    }

    fn plain(text: String) -> String {
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_view_that_lists_a_node_is_no_sign_that_it_lives() {
        let text = |holders: &Holders| plain(holders.text(|| "nobody".into()));
        let whole = holders(["running"; 3], [Some(7); 3]);
        assert_eq!((text(&whole), whole.missing()), ("3 nodes".into(), json!([])));
        let apart = holders(["running", "not reached", "gone"], [Some(7), None, Some(7)]);
        assert_eq!(text(&apart), "1 node only of 3 in the view: node 1 not reached, node 2 gone");
        assert_eq!(apart.missing(), json!([{"node": 1, "state": "not reached"}, {"node": 2, "state": "gone"}]));
        let learns = Sight { node: 0, reading: Some(reading(&[(Counter::Incarnation, 7)], &[])), view: None };
        let learns = Holders::of(&view(1), |_| Ok(()), |_| Some(&learns));
        assert_eq!(text(&learns), "no node that is seen of 1 in the view: node 0 receiving the data");
        let another = holders(["running"; 3], [Some(7), Some(8), None]);
        assert_eq!(text(&another), "1 node only of 3 in the view: node 1 starting over, node 2 not readable");
        assert_eq!(text(&holders(["gone"; 3], [None; 3])), "no node that is seen of 3 in the view: node 0 gone, node 1 gone, node 2 gone");
        assert_eq!(text(&holders(["running", "running", "gone"], [Some(7), Some(7), None])), "2 nodes of 3 in the view: node 2 gone");
    }
}
