//! `martlet cluster resize`

use std::time::Duration;

use clap::Args;
use martlet_cluster::clients::redis::Value;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::watch::observer::Observer;
use martlet_node::config::EngineKind;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use serde_json::json;

use super::asking;
use super::session::Session;
use crate::commands::Which;

/// Set how many places the group of replicas has, or show how many it has.
///
/// A majority of the places commits, whether they are filled or not. A place stays when its node dies, and a node that joins fills it. More places are made
/// when a node joins and none is free. When there are to be fewer, the nodes without a place leave, but never the leader. With 0 there are as many places as
/// members, as in a new cluster: a group that has lost members then goes on with a smaller majority. Only for clusters with --engine dare whose nodes serve the
/// Redis protocol.
///
/// Example: martlet cluster resize 5
#[derive(Debug, Args)]
pub struct Arguments {
    /// How many places the group is to have; 0: as many as it has members. Without it, the command shows how many there are.
    #[arg(value_parser = number::<u8>(..=MAX_MEMBERS as u64))]
    places: Option<u8>,
    /// How long to wait until the group has that size, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

/// How long the request waits for an effect before it is repeated: a leader that is lost may have told nobody of it.
const REPEAT: Duration = Duration::from_millis(100);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let session = Session::open_beside(&arguments.which, arguments.patience, format)?;
    let Session { cluster, interrupt, patience, .. } = &session;
    let engine = cluster.config().engine;
    if !engine.traits().has_places {
        return Err(Fail::usage(format_args!(
            "the cluster's engine is {engine}, whose group has as many places as members; allowed is {}",
            EngineKind::names_with(|traits| traits.has_places)
        )));
    }
    let mut observer = Observer::open(cluster)?;
    let nodes = cluster.config().nodes.len();
    let mut left = *patience;
    loop {
        // The leader may change between the question and the request.
        let why = match ask(&session, &mut observer, arguments.places) {
            Ok(state) if arguments.places.is_none_or(|wanted| is_so(state, wanted, nodes)) => {
                let (places, wanted) = state.unzip();
                format.print(text(state), || json!({"event": "places", "places": places, "wanted": wanted}));
                return Ok(());
            }
            Ok(state) => {
                let patience = arguments.patience;
                Fail::failed(format_args!("{} after {patience} s: a change of size needs a majority of the places", text(state)))
            }
            Err(why) => why,
        };
        if left.is_zero() {
            return Err(why);
        }
        let slice = left.min(REPEAT);
        left -= slice;
        interrupt.sleep(slice)?;
    }
}

/// Asks the leader for so many places, if it does not know yet. Returns how many there are and are to be, as it knew before.
fn ask(session: &Session, observer: &mut Observer, wanted: Option<u8>) -> Outcome<Option<(i64, i64)>> {
    let Session { directory, cluster, patience, .. } = session;
    let (leader, _) = session.leader(observer)?;
    let doing = format!("cannot ask node {leader}, which leads");
    let state = places(&asking::answer(directory, cluster, leader, &[b"RESIZE"], &doing, *patience)?);
    if let Some(wanted) = wanted.filter(|wanted| state.map_or(0, |(_, noted)| noted) != i64::from(*wanted)) {
        asking::ask(directory, cluster, leader, &[b"RESIZE", wanted.to_string().as_bytes()], &doing, *patience)?;
    }
    Ok(state)
}

/// Places now, and how many there are to be; `None`: as many as members.
fn places(reply: &Value) -> Option<(i64, i64)> {
    match reply {
        Value::Array(Some(numbers)) => match numbers[..] {
            [Value::Integer(places), Value::Integer(wanted)] => Some((places, wanted)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether there are as many places as wanted, or as many as there are nodes for, and the rest will follow them.
fn is_so(state: Option<(i64, i64)>, wanted: u8, nodes: usize) -> bool {
    match state {
        None => wanted == 0,
        Some((places, noted)) => {
            let noted_so = wanted > 0 && noted == i64::from(wanted);
            noted_so && (places == noted || (places < noted && places >= nodes as i64))
        }
    }
}

fn text(state: Option<(i64, i64)>) -> String {
    match state {
        None => "the group has as many places as members".into(),
        Some((places, wanted)) if places < wanted => format!("the group has {places} of {wanted} places: more are made as nodes join"),
        Some((places, 0)) => format!("the group has {places} places, and is to have as many as members"),
        Some((places, wanted)) if places > wanted => format!("the group has {places} places, and is to have {wanted}"),
        Some((places, _)) => format!("the group has {places} places"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_so_when_there_are_as_many_as_wanted_or_as_there_are_nodes_for() {
        assert!(is_so(None, 0, 3) && !is_so(None, 3, 3));
        assert!(is_so(Some((3, 3)), 3, 3) && !is_so(Some((5, 3)), 3, 5) && !is_so(Some((3, 0)), 0, 3));
        assert!(!is_so(Some((3, 5)), 5, 5), "two nodes are to come yet");
        assert!(is_so(Some((3, 5)), 5, 3), "there are no more nodes");
        assert!(!is_so(Some((3, 5)), 4, 3), "it was not noted");
    }

    #[test]
    fn a_reply_is_read_as_the_node_wrote_it() {
        assert_eq!(places(&Value::Array(Some(vec![Value::Integer(3), Value::Integer(5)]))), Some((3, 5)));
        assert_eq!(places(&Value::Array(None)), None);
        assert_eq!(text(Some((3, 5))), "the group has 3 of 5 places: more are made as nodes join");
    }
}
