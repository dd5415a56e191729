//! The processes that a follower may have to succeed. What it takes to make sure of their deaths, and to fetch their sockets, is looked up beforehand, because
//! clients would wait for it.

use std::io;

use martlet_node::connections::keeper::{self, Left};

use crate::board::Holder;
use crate::process::{self, Found, Watched};
use crate::replica::KEEPER;

/// The processes that may hold sockets, as a follower has seen them, except its own.
#[derive(Debug, Default)]
pub struct Leaders {
    seen: Vec<Leader>,
}

/// One of them.
#[derive(Debug)]
struct Leader {
    watched: Watched,
    /// Kept until the keeper is asked.
    keeper: Option<keeper::Connection>,
}

impl Leaders {
    /// Notes that these, and no others, are the holders. A holder that is dead by now, or cannot be watched, is looked up when it is succeeded.
    pub fn watch(&mut self, holders: Vec<Holder>) {
        self.seen.retain(|leader| holders.contains(&leader.watched.holder()));
        for holder in holders {
            if self.seen.iter().all(|leader| leader.watched.holder() != holder)
                && let Ok(Some(watched)) = Watched::new(holder)
            {
                self.seen.push(Leader { watched, keeper: keeper::Connection::new(&keeper::name_of(KEEPER, holder)).ok() });
            }
        }
    }

    /// Makes sure that a process that may hold sockets is dead. Returns what state it was found in.
    ///
    /// # Errors
    /// When it does not die, or the kernel refuses.
    pub fn make_sure_of_death(&self, holder: Holder) -> io::Result<Found> {
        match self.seen.iter().find(|leader| leader.watched.holder() == holder) {
            Some(leader) => leader.watched.make_sure_of_death(),
            None => process::make_sure_of_death(holder),
        }
    }

    /// Asks the keeper of a dead process for the sockets of that process.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn ask_keeper(&mut self, holder: Holder) -> io::Result<Left> {
        let known = self.seen.iter_mut().find(|leader| leader.watched.holder() == holder).and_then(|leader| leader.keeper.take());
        // The keeper may have closed that connection.
        known.and_then(|keeper| keeper.begin_to_ask().ok()).map_or_else(|| keeper::begin_to_ask(&keeper::name_of(KEEPER, holder)), Ok)
    }
}
