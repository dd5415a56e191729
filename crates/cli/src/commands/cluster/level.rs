//! `martlet cluster level`

use std::time::Duration;

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, Table};
use martlet_cluster::watch::observer::{self, Observer};
use martlet_protocol::membership::{Member, View};
use serde_json::json;

use super::asking;
use super::session::Session;
use crate::commands::Which;

/// Show the cluster's feature level, or raise it.
///
/// The level says which forms nodes may write. It stays the same while nodes are upgraded one by one, so that each can go back to the old build. Once raised it
/// never falls, and a build that cannot work at it is refused: raise it when every node runs the new build and is to keep it. Without --raise, the command
/// shows the level and the levels that each node's build can work at.
///
/// The page on operating a cluster has the steps under "Upgrade". Only for clusters whose nodes serve the Redis protocol.
///
/// Example: martlet cluster level --raise
#[derive(Debug, Args)]
pub struct Arguments {
    /// Raise the level to the highest that all nodes can work at.
    #[arg(long)]
    raise: bool,
    /// How long to wait until the level has risen, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

/// How long the request waits for an effect before it is repeated: a datagram on its way to the leader of membership may be lost.
const REPEAT: Duration = Duration::from_millis(500);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let session = Session::open_beside(&arguments.which, arguments.patience, format)?;
    let Session { directory, cluster, interrupt, patience, .. } = &session;
    let mut observer = Observer::open(cluster)?;
    let (leader, sights) = session.leader(&mut observer)?;
    let view = observer::newest_view(&sights).ok_or_else(|| Fail::absent("no node shows a view"))?;
    if !arguments.raise {
        show(view, format);
        return Ok(());
    }
    let configured: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).collect();
    let level = target(view, &configured).map_err(Fail::failed)?;
    let before = view.level;
    if level > before {
        let doing = format!("cannot ask node {leader}, which leads");
        let wanted = level.to_string();
        let mut left = *patience;
        loop {
            asking::ask(directory, cluster, leader, &[b"RAISELEVEL", wanted.as_bytes()], &doing, *patience)?;
            let slice = left.min(REPEAT);
            let risen = |sights: &[observer::Sight]| observer::newest_view(sights).is_some_and(|view| view.level >= level);
            match observer.wait_for(slice, interrupt, risen)? {
                Ok(_) => break,
                Err(sights) if left <= slice => {
                    return Err(observer::not_ready(
                        &format!("the feature level did not rise to {level} within {} s", arguments.patience),
                        &sights,
                    ));
                }
                Err(_) => left -= slice,
            }
        }
    }
    format.print(
        if level > before {
            format!("the feature level has been raised from {before} to {level}")
        } else {
            format!("the feature level is already {level}")
        },
        || json!({"event": "level", "level": level, "before": before}),
    );
    Ok(())
}

fn show(view: &View, format: Format) {
    let mut table = Table::new(["node", "feature levels that it can work at"]);
    for Member { id, levels, .. } in &view.members {
        table.row([id.node.0.to_string(), levels.to_string()]);
        format.object(|| json!({"event": "node", "node": id.node.0, "least": levels.least, "most": levels.most}));
    }
    format.print(format_args!("the feature level is {}\n", view.level), || json!({"event": "level", "level": view.level}));
    format.say(table);
}

/// The highest level that all nodes can work at, if all are there to say so.
fn target(view: &View, configured: &[u16]) -> Result<u8, String> {
    let absent: Vec<u16> = configured.iter().copied().filter(|node| !view.members.iter().any(|m| m.id.node.0 == *node)).collect();
    if !absent.is_empty() {
        return Err(format!(
            "nodes {absent:?} are not members at the moment. Start them first, or remove them (`martlet cluster remove`): once the level has risen, a build that cannot work \
             at it is refused"
        ));
    }
    Ok(view.members.iter().map(|m| m.levels.most).min().unwrap_or(view.level).max(view.level))
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, Levels, NodeId};
    use martlet_protocol::basics::{ProcessId, ViewNumber};
    use martlet_protocol::membership::Roles;

    use super::*;

    #[test]
    fn the_level_is_raised_to_what_every_node_can_work_at_once_all_are_there() {
        let member = |node, most| {
            let id = ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
            Member { levels: Levels { least: 1, most }, ..Member::new(id, Roles::REPLICA) }
        };
        let members = vec![member(0, 3), member(1, 2)];
        let view = View { number: ViewNumber(1), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        assert_eq!(target(&view, &[0, 1]), Ok(2));
        assert!(target(&view, &[0, 1, 2]).expect_err("one is away").contains("nodes [2] are not members"));
        assert_eq!(target(&View { level: 2, ..view }, &[0, 1]), Ok(2), "it has risen");
    }
}
