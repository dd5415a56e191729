//! Serves the exchange over TCP on the replica's own thread. A request is executed in the turn in which it is read from its connection, and the answer is
//! written in the next turn. Nothing here blocks.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use martlet::{CallError, Here, SessionCommand, Turn};
use rustix::event::{Timespec, epoll};

use super::{MAX_UNDER_WAY, MAX_UNREAD_BYTES, best, digest, respond};
use crate::market::Market;
use crate::wire::{Request, first_frame};

/// The most that is read from one connection in a turn, since others wait for theirs.
const READ_BYTES: usize = 64 << 10;
/// The most connections that are looked at in a turn.
const LOOKED_AT: usize = 64;
/// The listener's name among the events. A connection's name is its place.
const LISTENER: u64 = u64::MAX;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A client's connection. Callbacks of its requests hold it, too.
struct Connection {
    stream: TcpStream,
    /// Its place in the server's list.
    place: usize,
    arrived: RefCell<Vec<u8>>,
    unsent: RefCell<Vec<u8>>,
    under_way: Cell<usize>,
    /// Whether no more requests come.
    ended: Cell<bool>,
    /// Whether the client does not read, or has sent something that is no request.
    broken: Cell<bool>,
    /// Whether it is among those that the next turn attends to.
    noted: Cell<bool>,
    watched_for: Cell<epoll::EventFlags>,
}

/// Connections with news for the next turn.
type News = Rc<RefCell<Vec<Rc<Connection>>>>;

impl Connection {
    /// Whether another request may come.
    fn admits(&self) -> bool {
        self.under_way.get() < MAX_UNDER_WAY && self.unsent.borrow().len() < MAX_UNREAD_BYTES
    }

    fn is_over(&self) -> bool {
        self.broken.get() || self.ended.get() && self.under_way.get() == 0 && self.unsent.borrow().is_empty()
    }

    fn note(self: &Rc<Connection>, news: &News) {
        if !self.noted.replace(true) {
            news.borrow_mut().push(Rc::clone(self));
        }
    }

    /// Reads what has come, if there is room for it. Returns whether there was anything.
    fn read(&self, chunk: &mut [u8]) -> bool {
        if self.ended.get() || !self.admits() {
            return false;
        }
        match (&self.stream).read(chunk) {
            Ok(0) => self.ended.set(true),
            Ok(bytes) => self.arrived.borrow_mut().extend_from_slice(&chunk[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return false,
            Err(_) => self.broken.set(true),
        }
        true
    }

    /// Hands over complete requests, as many as may be under way.
    fn take(self: &Rc<Connection>, here: &mut Here<'_, Market>, news: &News) {
        // Taken out, since a request that is answered at once comes back to this connection.
        let mut arrived = self.arrived.take();
        let mut taken = 0;
        while self.admits() && !self.broken.get() {
            let request = match first_frame(&arrived[taken..]) {
                Ok(None) => break,
                Ok(Some((body, bytes))) => {
                    taken += bytes;
                    Request::decode(body)
                }
                Err(_) => None,
            };
            match request {
                Some((tag, request)) => self.ask(here, news, tag, request),
                // A client that sends something that is no request is cut off.
                None => self.broken.set(true),
            }
        }
        arrived.drain(..taken);
        self.arrived.replace(arrived);
    }

    fn ask(self: &Rc<Connection>, here: &mut Here<'_, Market>, news: &News, tag: u64, request: Request<'_>) {
        self.under_way.set(self.under_way.get() + 1);
        let (connection, news) = (Rc::clone(self), Rc::clone(news));
        match request {
            Request::Open => here.open_session_with(move |session| connection.answer(&news, tag, session.map(u64::to_le_bytes))),
            Request::Order { session, seq, confirmed, command } => {
                let command = SessionCommand { session, seq, confirmed, command };
                here.propose_once_with(command, move |reply| connection.answer(&news, tag, reply));
            }
            Request::Best(symbol) => {
                here.read_with(move |market| best(market, symbol), move |prices| connection.answer(&news, tag, prices));
            }
            Request::Digest => connection.answer(&news, tag, Ok(digest(here.machine()))),
        }
    }

    fn answer<T: AsRef<[u8]>>(self: &Rc<Connection>, news: &News, tag: u64, result: Result<T, CallError>) {
        self.under_way.set(self.under_way.get() - 1);
        respond(tag, &result, &mut self.unsent.borrow_mut());
        self.note(news);
    }

    /// Sends as much as the client takes.
    fn flush(&self) {
        let mut unsent = self.unsent.borrow_mut();
        let mut sent = 0;
        while sent < unsent.len() && !self.broken.get() {
            match (&self.stream).write(&unsent[sent..]) {
                Ok(bytes) if bytes > 0 => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.broken.set(true),
            }
        }
        unsent.drain(..sent);
    }

    /// The events of its descriptor that may wake the thread: those that cannot be acted on must not.
    fn wanted(&self) -> epoll::EventFlags {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, !self.ended.get() && self.admits());
        wanted.set(epoll::EventFlags::OUT, !self.unsent.borrow().is_empty());
        wanted
    }
}

/// All clients of this process.
pub struct Server {
    listener: TcpListener,
    events: OwnedFd,
    connections: Vec<Option<Rc<Connection>>>,
    news: News,
    found: Vec<epoll::Event>,
    chunk: Vec<u8>,
}

impl Server {
    /// Serves the clients that connect there.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(listener: TcpListener) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        let (connections, news, found) = (Vec::new(), News::default(), Vec::with_capacity(LOOKED_AT));
        Ok(Server { listener, events, connections, news, found, chunk: vec![0; READ_BYTES] })
    }

    /// Readable when a turn would find something to do.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Looks at all clients once.
    ///
    /// # Errors
    /// The reason why no client can be served any more.
    pub fn turn(&mut self, here: &mut Here<'_, Market>) -> io::Result<Turn> {
        self.found.clear();
        match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut self.found), Some(&AT_ONCE)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for at in 0..self.found.len() {
            let (place, flags) = (self.found[at].data.u64(), self.found[at].flags);
            if place == LISTENER {
                self.accept()?;
            } else if let Some(Some(connection)) = self.connections.get(place as usize) {
                if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    connection.broken.set(true);
                } else {
                    connection.read(&mut self.chunk);
                }
                connection.note(&self.news);
            }
        }
        let news = self.news.take();
        let worked = !news.is_empty();
        for connection in news {
            connection.noted.set(false);
            connection.flush();
            connection.take(here, &self.news);
            self.settle(&connection)?;
        }
        Ok(if worked { Turn::Worked } else { Turn::Idle })
    }

    /// Sends what is left, when there will be no further turn.
    pub fn finish(self) {
        self.news.take().iter().for_each(|connection| connection.flush());
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let place = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
            if place == self.connections.len() {
                self.connections.push(None);
            }
            let watched_for = Cell::new(epoll::EventFlags::IN);
            epoll::add(&self.events, &stream, epoll::EventData::new_u64(place as u64), watched_for.get())?;
            let connection = Connection {
                stream,
                place,
                arrived: RefCell::default(),
                unsent: RefCell::default(),
                under_way: Cell::new(0),
                ended: Cell::new(false),
                broken: Cell::new(false),
                noted: Cell::new(false),
                watched_for,
            };
            self.connections[place] = Some(Rc::new(connection));
        }
    }

    /// Closes a connection that is over. Watches any other one for what it waits for.
    fn settle(&mut self, connection: &Rc<Connection>) -> io::Result<()> {
        let place = &mut self.connections[connection.place];
        if !place.as_ref().is_some_and(|there| Rc::ptr_eq(there, connection)) {
            // It has been closed already, and one of its requests was still answered.
            return Ok(());
        }
        if connection.is_over() {
            *place = None;
            // Callbacks may hold it for a while yet. The client and the thread must not notice that.
            epoll::delete(&self.events, &connection.stream)?;
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
            return Ok(());
        }
        let wanted = connection.wanted();
        if connection.watched_for.replace(wanted) != wanted {
            epoll::modify(&self.events, &connection.stream, epoll::EventData::new_u64(connection.place as u64), wanted)?;
        }
        Ok(())
    }
}
