//! The captured descriptors, as every replica knows them: listeners, connections, and what the server waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::RawFd;

use crate::socket::is_unix;
use crate::stream::Stream;

/// The descriptor of the connection in slot 0.
pub const FIRST_FD: RawFd = 256;

/// Descriptors that the library opens and keeps. Replicas differ in them. Everything else that the server opens is below them, or above [those of
/// connections](OF_CONNECTIONS), and has the same number at every replica.
pub const OF_LIBRARY: Range<RawFd> = 160..FIRST_FD;

/// The descriptors that connections may have.
pub const OF_CONNECTIONS: Range<RawFd> = FIRST_FD..FIRST_FD + crate::board::SLOTS as RawFd;

/// A connection in its slot.
#[derive(Debug)]
pub struct Connection {
    /// What all replicas know of it.
    pub stream: Stream,
    /// What the leader's poller watches its socket for.
    pub watched: u32,
    /// The leader cannot send to it any more: what the server writes goes nowhere until the log says that the connection has ended.
    pub broken: bool,
    /// What the previous leader had received and not proposed.
    pub recovered: Vec<u8>,
    /// It was lost with the previous leader, and the log is to say so.
    pub lost: bool,
    /// Its slot is in the list of slots with unread input.
    pub noted: bool,
    /// It is over a Unix socket.
    pub is_unix: bool,
}

impl Connection {
    /// A new one.
    pub fn new(stream: Stream) -> Connection {
        let is_unix = is_unix(&stream.local);
        Connection { stream, watched: 0, broken: false, recovered: Vec::new(), lost: false, noted: false, is_unix }
    }
}

/// Used in place of an epoll instance's number for what a server waits for by `poll` or `select`.
pub const POLLED: RawFd = -1;

/// What a server wants to hear of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Events, as for `epoll_ctl`.
    pub events: u32,
    /// What comes back with them.
    pub data: u64,
    /// At which epoll instance, or [`POLLED`].
    pub epoll: RawFd,
}

impl Interest {
    /// Whether it wants to hear of input.
    pub fn reads(self) -> bool {
        self.events & libc::EPOLLIN as u32 != 0
    }

    /// Whether it wants to hear of room for output.
    pub fn writes(self) -> bool {
        self.events & libc::EPOLLOUT as u32 != 0
    }

    /// The events that the server is told of when these have happened. A server hears of errors and ends without asking, except by `poll`, which tells it
    /// nothing that it has not asked for.
    pub fn told(self, events: u32, has_ended: bool) -> u32 {
        let unasked = if self.epoll == POLLED { 0 } else { (libc::EPOLLERR | libc::EPOLLHUP) as u32 };
        let ended = if has_ended { libc::EPOLLRDHUP as u32 } else { 0 };
        events & (self.events | unasked) | ended & self.events
    }

    /// Whether it wants to hear only of what is new, and not of what is still so (edge-triggered).
    pub fn is_edge(self) -> bool {
        self.events & libc::EPOLLET as u32 != 0
    }
}

/// A listener that the server has closed since it last waited. The server may reopen it at the same address.
#[derive(Debug, Default)]
pub struct Withdrawn {
    /// The connections that wait to be accepted from it.
    pub queue: VecDeque<u32>,
    /// The server has been given it again as a new socket.
    pub is_taken: bool,
}

/// The table.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Option<Connection>>,
    /// Free slots below the table's end.
    free: BTreeSet<u32>,
    /// Listeners, and the connections that wait to be accepted from each.
    pub listeners: BTreeMap<RawFd, VecDeque<u32>>,
    /// The listeners that the server has closed since it last waited.
    pub withdrawn: BTreeMap<RawFd, Withdrawn>,
    /// What the server waits for.
    pub interests: BTreeMap<RawFd, Interest>,
    /// Whether the server has waited for some of it by `poll` or `select`.
    pub is_polled: bool,
    /// The connections that the server waits to be able to write to. A connection that is waited for edge-triggered is here only if it has run out of room
    /// since the server was last told of some.
    pub wants_room: BTreeSet<u32>,
    /// How many connections there have been so far.
    pub connections: u64,
    /// Connections, with their slots, that the server has closed and whose clients still lack some of what it wrote.
    pub lingering: Vec<(u32, Connection)>,
    /// The cookies of the last connections that the server has closed.
    closed: VecDeque<u64>,
}

/// How many cookies of closed connections are remembered: one event may close as many connections as there are.
const REMEMBERED: usize = crate::board::SLOTS;

impl Table {
    /// The slot of a connection's descriptor.
    pub fn slot_of(&self, fd: RawFd) -> Option<u32> {
        let slot = u32::try_from(fd - FIRST_FD).ok()?;
        self.get(slot).map(|_| slot)
    }

    /// The descriptor of a slot's connection.
    pub fn fd_of(slot: u32) -> RawFd {
        FIRST_FD + slot as RawFd
    }

    /// Whether a descriptor is captured.
    pub fn captures(&self, fd: RawFd) -> bool {
        self.slot_of(fd).is_some() || self.listeners.contains_key(&fd)
    }

    /// A slot's connection.
    pub fn get(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The same, mutably.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// All connections, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Connection)> {
        self.slots.iter().enumerate().filter_map(|(slot, connection)| connection.as_ref().map(|connection| (slot as u32, connection)))
    }

    /// The lowest free slot that is not among `taken`.
    pub fn free_slot(&self, taken: &BTreeSet<u32>) -> u32 {
        let lingers = |slot: u32| self.lingering.iter().any(|(other, _)| *other == slot);
        let free = |slot: &u32| !taken.contains(slot) && !lingers(*slot);
        let end = self.slots.len() as u32;
        self.free.iter().copied().find(free).unwrap_or_else(|| (end..).find(free).unwrap_or(end))
    }

    /// Puts a connection into a slot.
    ///
    /// # Panics
    /// When the slot is taken.
    pub fn put(&mut self, slot: u32, connection: Connection) {
        while self.slots.len() <= slot as usize {
            self.free.insert(self.slots.len() as u32);
            self.slots.push(None);
        }
        assert!(self.free.remove(&slot), "slot {slot} has a connection");
        self.slots[slot as usize] = Some(connection);
    }

    /// Removes a connection that the server has closed.
    pub fn take(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.get_mut(slot as usize)?.take()?;
        self.free.insert(slot);
        self.interests.remove(&Self::fd_of(slot));
        self.wants_room.remove(&slot);
        self.closed.push_back(connection.stream.cookie);
        if self.closed.len() > REMEMBERED {
            self.closed.pop_front();
        }
        Some(connection)
    }

    /// Whether the server waits for a descriptor's input, or for a listener's connections.
    pub fn reads(&self, fd: RawFd) -> bool {
        self.interests.get(&fd).is_some_and(|interest| interest.reads())
    }

    /// The listeners that are ready: connections wait there, and the server waits for them. Any other listener would take a place in the round from what the
    /// server does wait for.
    pub fn ready_listeners(&self) -> impl Iterator<Item = RawFd> {
        self.listeners.iter().filter(|(fd, queue)| !queue.is_empty() && self.reads(**fd)).map(|(fd, _)| *fd)
    }

    /// Whether the server has closed the connection with this cookie.
    pub fn has_closed(&self, cookie: u64) -> bool {
        self.closed.contains(&cookie)
    }

    /// The changes after which the server waits for exactly `wanted`. A descriptor that the server already waits for in the same way is not among them.
    pub fn changes_to(&self, wanted: &BTreeMap<RawFd, Interest>) -> Vec<(RawFd, Option<Interest>)> {
        let gone = self.interests.keys().filter(|fd| !wanted.contains_key(fd)).map(|fd| (*fd, None));
        let new =
            wanted.iter().filter(|(fd, interest)| self.interests.get(fd) != Some(interest)).map(|(fd, interest)| (*fd, Some(*interest)));
        gone.chain(new).collect()
    }

    /// Notes what the server wants to hear of a descriptor; `None`: nothing. Returns what it wanted before.
    pub fn set_interest(&mut self, fd: RawFd, interest: Option<Interest>) -> Option<Interest> {
        if let Some(slot) = self.slot_of(fd) {
            match interest.is_some_and(Interest::writes) {
                true => self.wants_room.insert(slot),
                false => self.wants_room.remove(&slot),
            };
        }
        self.is_polled |= interest.is_some_and(|interest| interest.epoll == POLLED);
        match interest {
            Some(interest) => self.interests.insert(fd, interest),
            None => self.interests.remove(&fd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(number: u64) -> Connection {
        Connection::new(Stream::new(number, 100 + number, b"", b""))
    }

    #[test]
    fn slots_are_the_lowest_free_ones() {
        let mut table = Table::default();
        assert_eq!(table.free_slot(&BTreeSet::new()), 0);
        assert_eq!(table.free_slot(&BTreeSet::from([0, 1])), 2);
        for slot in 0..3 {
            table.put(slot, connection(u64::from(slot)));
        }
        let gone = table.take(1).expect("it was there");
        assert_eq!(table.free_slot(&BTreeSet::new()), 1);
        table.lingering.push((1, gone));
        assert_eq!(table.free_slot(&BTreeSet::new()), 3, "its number is in use where it leads");
        // A leader that has sent all of it has no reason to wait.
        table.put(1, connection(9));
        assert!(table.has_closed(101) && !table.has_closed(109));
        assert_eq!((table.slot_of(FIRST_FD + 1), table.slot_of(FIRST_FD + 3), table.slot_of(2)), (Some(1), None, None));
    }

    #[test]
    fn what_is_polled_in_the_same_way_again_changes_nothing() {
        let mut table = Table::default();
        let interest = |events: i32| Interest { events: events as u32, data: 7, epoll: POLLED };
        let (reads, writes) = (interest(libc::EPOLLIN), interest(libc::EPOLLOUT));
        let wanted = BTreeMap::from([(3, reads), (4, reads)]);
        assert_eq!(table.changes_to(&wanted), [(3, Some(reads)), (4, Some(reads))]);
        assert!(!table.is_polled);
        for (fd, interest) in table.changes_to(&wanted) {
            table.set_interest(fd, interest);
        }
        assert!(table.is_polled);
        assert_eq!(table.changes_to(&wanted), []);
        assert_eq!(table.changes_to(&BTreeMap::from([(4, writes), (5, reads)])), [(3, None), (4, Some(writes)), (5, Some(reads))]);
    }

    #[test]
    fn a_listener_that_the_server_does_not_wait_for_is_not_ready() {
        let mut table = Table::default();
        let interest = |events: i32| Some(Interest { events: events as u32, data: 7, epoll: POLLED });
        table.listeners.extend([(3, VecDeque::from([0])), (4, VecDeque::from([1])), (5, VecDeque::new()), (6, VecDeque::from([2]))]);
        table.set_interest(4, interest(libc::EPOLLIN));
        table.set_interest(5, interest(libc::EPOLLIN));
        table.set_interest(6, interest(libc::EPOLLOUT));
        assert_eq!(table.ready_listeners().collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_server_is_told_what_it_has_asked_for() {
        let (input, room, end) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32, libc::EPOLLRDHUP as u32);
        let bad = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let interest = |events, epoll| Interest { events, data: 7, epoll };
        assert_eq!(interest(room, POLLED).told(input, false), 0);
        assert_eq!(interest(room, POLLED).told(input | room | bad, true), room);
        assert_eq!(interest(room, 5).told(input | bad, true), bad);
        assert_eq!(interest(input | end, 5).told(input | room, true), input | end);
        assert_eq!(interest(input | end, POLLED).told(input, false), input);
    }

    #[test]
    fn what_is_closed_is_waited_for_no_more() {
        let mut table = Table::default();
        table.put(0, connection(1));
        let interest = Interest { events: (libc::EPOLLIN | libc::EPOLLOUT) as u32, data: 7, epoll: 5 };
        assert_eq!(table.set_interest(FIRST_FD, Some(interest)), None);
        assert!(table.wants_room.contains(&0));
        assert_eq!(table.set_interest(FIRST_FD, None), Some(interest));
        assert!(table.wants_room.is_empty());
        table.set_interest(FIRST_FD, Some(interest));
        table.take(0);
        assert!(table.wants_room.is_empty() && table.interests.is_empty());
    }
}
