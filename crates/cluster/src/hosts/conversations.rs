//! Which conversations with other hosts are under way, and which of them has to make room for one more.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many conversations are held at a time.
const MOST: usize = 8;

#[derive(Debug)]
struct Conversation {
    number: u64,
    stream: TcpStream,
    /// Whether the other end has shown that it has the secret.
    is_known: bool,
}

/// The conversations that are under way. Anyone who reaches the port can begin one and say nothing, so when there is no room for another, the one that began
/// first and whose other end has not shown that it has the secret is ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversations(Arc<Mutex<(u64, Vec<Conversation>)>>);

/// A place among the conversations, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Conversations,
    number: u64,
}

impl Conversations {
    fn held(&self) -> MutexGuard<'_, (u64, Vec<Conversation>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a conversation that begins now. `None`: all places are taken by hosts of the cluster and by invited ones.
    ///
    /// # Errors
    /// When this process may open no more descriptors.
    pub(super) fn begin(&self, stream: &TcpStream) -> io::Result<Option<Place>> {
        let stream = stream.try_clone()?;
        let (next, all) = &mut *self.held();
        if all.len() >= MOST {
            let Some(stranger) = all.iter().position(|conversation| !conversation.is_known) else { return Ok(None) };
            // If it has ended by itself, its thread is about to say so.
            let _ = all.remove(stranger).stream.shutdown(Shutdown::Both);
        }
        let number = *next;
        *next += 1;
        all.push(Conversation { number, stream, is_known: false });
        Ok(Some(Place { all: self.clone(), number }))
    }
}

impl Place {
    /// The other end has shown that it has the secret.
    pub(super) fn keep(&self) {
        self.all.held().1.iter_mut().filter(|its| its.number == self.number).for_each(|its| its.is_known = true);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.held().1.retain(|its| its.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn strangers_make_room_in_the_order_in_which_they_came_and_known_hosts_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let all = Conversations::default();
        let begin = || {
            let outside = TcpStream::connect(at).expect("it listens");
            let (inside, _) = listener.accept().expect("it has connected");
            let place = all.begin(&inside).expect("a descriptor");
            (outside, place)
        };
        let mut places: Vec<_> = (0..MOST).map(|_| begin()).collect();
        places[0].1.as_ref().expect("there is room").keep();
        let (_newcomer, place) = begin();
        let place = place.expect("a stranger makes room");
        assert_eq!(places[1].0.read(&mut [0]).expect("it is told"), 0, "the first stranger has to go");
        for (_, place) in &places[2..] {
            place.as_ref().expect("there was room").keep();
        }
        place.keep();
        assert!(begin().1.is_none(), "all are known");
        // The thread of the one that had to go ends later, and frees no other's place.
        places.remove(1);
        assert!(begin().1.is_none());
        places.remove(0);
        assert!(begin().1.is_some(), "one has ended");
    }
}
