//! Commands on different hosts that restart nodes take turns. A command asks all hosts for the turn, in the order of the list, and has it if none of them has
//! given it to another command.
//!
//! A host keeps in the memory of its node's process which command has the turn, and until when; the command asks again every few seconds. A host that has been
//! restarted gives the turn to the first command that asks, but the other hosts still refuse a second command. The turn of a killed command becomes free after
//! [`VALID`].

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use martlet_node::config::{Cluster, Key, NodeEntry};

use super::asking::{self, Unanswered};
use super::{Request, hex};
use crate::fail::{Context as _, Fail, Outcome};

/// How long a host keeps the turn for a command that it does not hear from.
const VALID: Duration = Duration::from_secs(15);
/// How often the command asks for it again.
const RENEWED: Duration = Duration::from_secs(3);
/// How long a host may take to answer. A host that does not answer is taken not to run.
const ANSWER: Duration = Duration::from_secs(1);

/// The command that has the turn, as one host knows it.
#[derive(Debug, Default)]
pub(super) struct Holder(Option<Held>);

#[derive(Debug)]
struct Held {
    id: String,
    by: String,
    since: Instant,
    until: Instant,
}

impl Holder {
    /// Gives the turn to a command for this long; if `valid` is zero, takes it back.
    ///
    /// # Errors
    /// When another command has it.
    pub(super) fn take(&mut self, id: &str, by: &str, valid: Duration, now: Instant) -> Result<(), String> {
        let held = self.0.take_if(|held| held.id == id || now >= held.until);
        if let Some(other) = &self.0 {
            return Err(format!(
                "{} has been restarting nodes for {} s; try again when it has ended",
                other.by,
                now.duration_since(other.since).as_secs()
            ));
        }
        if !valid.is_zero() {
            let since = held.filter(|held| held.id == id).map_or(now, |held| held.since);
            // A command cannot keep it for longer by asking for more.
            self.0 = Some(Held {
                id: id.into(),
                by: by.chars().filter(|c| !c.is_control()).take(96).collect(),
                since,
                until: now + valid.min(VALID),
            });
        }
        Ok(())
    }
}

/// The turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    asks: Option<(Sender<()>, JoinHandle<()>)>,
}

/// A command that asks for the turn.
#[derive(Clone)]
struct Asker {
    cluster: Cluster,
    id: String,
    by: String,
}

impl Asker {
    fn ask(&self, node: &NodeEntry, valid: Duration) -> Result<(), Unanswered> {
        asking::noted(&self.cluster, node, &Request::Turn { id: self.id.clone(), by: self.by.clone(), valid_s: valid.as_secs() }, ANSWER)
    }

    /// Gives the turn back to these hosts. At a host that does not hear this, it ends after [`VALID`].
    fn give_back<'a>(&'a self, nodes: impl Iterator<Item = &'a NodeEntry>) {
        nodes.for_each(|node| _ = self.ask(node, Duration::ZERO));
    }
}

impl Turn {
    /// Asks for the turn. `by`: the command's name, shown when another command is refused.
    ///
    /// # Errors
    /// When another command has it, with its name.
    pub fn take(cluster: &Cluster, by: String) -> Outcome<Turn> {
        let chance = Key::generate().context("no random numbers")?;
        let id = hex::encode(chance.bytes().first_chunk::<8>().expect("32 bytes"));
        let asker = Asker { cluster: cluster.clone(), id, by };
        let nodes = &asker.cluster.config().nodes;
        for (at, node) in nodes.iter().enumerate() {
            match asker.ask(node, VALID) {
                Ok(()) => {}
                // A build that does not know this request closes the connection, and a host that does not run does not answer either.
                Err(why) if why.is_silence() => {}
                Err(why) => {
                    asker.give_back(nodes[..at].iter());
                    return Err(Fail::failed(format_args!("the host of node {} refuses{why}", node.number)));
                }
            }
        }
        let (end, ended) = channel();
        let renewing = asker.clone();
        let renew = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(RENEWED) {
                // A host that refuses it now has been restarted, and another command has asked it before this one; the other hosts refuse that command.
                renewing.cluster.config().nodes.iter().for_each(|node| _ = renewing.ask(node, VALID));
            }
            renewing.give_back(renewing.cluster.config().nodes.iter());
        };
        let thread =
            thread::Builder::new().name("martlet-turn".into()).spawn(renew).context("cannot start a thread that keeps the turn")?;
        Ok(Turn { asks: Some((end, thread)) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.asks.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_at_a_time_has_the_turn_and_one_that_was_killed_not_for_ever() {
        let (mut holder, now) = (Holder::default(), Instant::now());
        let s = Duration::from_secs;
        assert_eq!(holder.take("a", "the first", VALID, now), Ok(()));
        let refused = holder.take("b", "the second", VALID, now + s(7)).expect_err("the first has it");
        assert_eq!(refused, "the first has been restarting nodes for 7 s; try again when it has ended");
        assert_eq!(
            holder.take("b", "the second", Duration::ZERO, now + s(8)),
            Err(refused.replace('7', "8")),
            "nobody gives back another's"
        );
        assert_eq!(holder.take("a", "the first", s(1_000_000), now + s(8)), Ok(()), "it asks anew");
        assert!(holder.take("b", "the second", VALID, now + s(22)).expect_err("still").contains("for 22 s"));
        assert_eq!(holder.take("b", "the second", VALID, now + s(23)), Ok(()), "nothing was heard of the first");
        assert!(holder.take("a", "the first", VALID, now + s(24)).is_err());
        assert_eq!(holder.take("b", "the second", Duration::ZERO, now + s(24)), Ok(()));
        assert_eq!(holder.take("a", "the first", VALID, now + s(24)), Ok(()));
    }
}
