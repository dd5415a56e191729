//! A client that keeps several orders under way, and repeats each until it has an outcome; a load of orders; and the books that must follow from the answers.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::book::{Book, Resting};
use crate::command::{Account, Command, Outcome, Side, Symbol};
use crate::market::Market;
use crate::wire::{Request, Response, first_frame, two_numbers};

/// How long a server may be silent while an answer is awaited, before another one is asked.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long to leave the servers alone after a round in which none of them led.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection to one server.
struct Connection {
    stream: TcpStream,
    arrived: Vec<u8>,
    used: usize,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, arrived: Vec::new(), used: 0 })
    }

    /// The body of the next frame.
    fn next(&mut self) -> io::Result<&[u8]> {
        loop {
            let found = first_frame(&self.arrived[self.used..]).map_err(io::Error::other)?.map(|(body, taken)| (body.len(), taken));
            if let Some((bytes, taken)) = found {
                let start = self.used + taken - bytes;
                self.used += taken;
                return Ok(&self.arrived[start..start + bytes]);
            }
            self.arrived.drain(..self.used);
            self.used = 0;
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => self.arrived.extend_from_slice(&chunk[..bytes]),
            }
        }
    }

    /// Sends a single request, and waits for the response.
    fn ask(&mut self, request: Request<'_>) -> io::Result<Result<Vec<u8>, Option<SocketAddr>>> {
        let mut frame = Vec::new();
        request.encode(0, &mut frame);
        self.stream.write_all(&frame)?;
        match Response::decode(self.next()?) {
            Some((_, Response::Done(bytes))) => Ok(Ok(bytes.to_vec())),
            Some((_, Response::NotLeader(address))) => Ok(Err(address_of(address))),
            Some((_, Response::Unknown)) => Ok(Err(None)),
            Some((_, Response::Refused(why))) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
            None => Err(io::Error::other("a response that is none")),
        }
    }
}

fn address_of(bytes: &[u8]) -> Option<SocketAddr> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Asks one server for the digest of its replica's books, and for how many orders they have accepted.
///
/// # Errors
/// When it cannot be reached.
pub fn digest(server: SocketAddr) -> io::Result<(u64, u64)> {
    let answer = Connection::open(server)?.ask(Request::Digest)?;
    answer.ok().and_then(|bytes| two_numbers(&bytes)).ok_or_else(|| io::Error::other("no digest"))
}

/// Finds out which of the servers leads: the one that answers a linearizable read.
///
/// # Errors
/// Never: it asks until one does.
pub fn leader(servers: &[SocketAddr]) -> SocketAddr {
    loop {
        for &server in servers {
            if let Ok(Ok(_)) = Connection::open(server).and_then(|mut connection| connection.ask(Request::Best(0))) {
                return server;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// A command and its outcome.
#[derive(Clone, Debug)]
pub struct Executed {
    /// What was asked for.
    pub command: Command,
    /// The outcome.
    pub outcome: Outcome,
    /// The time from when the command was first sent until its outcome arrived, in nanoseconds.
    pub latency_ns: u64,
}

/// A client with a session.
pub struct Client {
    servers: Vec<SocketAddr>,
    at: usize,
    connection: Option<Connection>,
    session: u64,
    /// The number of the first command under way.
    first: u64,
    under_way: VecDeque<(Command, Instant, Option<Outcome>, u64)>,
    /// How often everything under way was sent again.
    pub repeats: u64,
}

impl Client {
    /// Opens a session with the leader.
    ///
    /// # Errors
    /// When a server refuses, but not when it is dead.
    pub fn open(servers: &[SocketAddr]) -> io::Result<Client> {
        let mut client =
            Client { servers: servers.to_vec(), at: 0, connection: None, session: 0, first: 1, under_way: VecDeque::new(), repeats: 0 };
        loop {
            client.connect();
            let Some(connection) = &mut client.connection else { continue };
            match connection.ask(Request::Open) {
                Ok(Ok(name)) => {
                    let name = name.first_chunk().ok_or_else(|| io::Error::other("a session without a name"))?;
                    client.session = u64::from_le_bytes(*name);
                    return Ok(client);
                }
                Ok(Err(leader)) => client.look_elsewhere(leader),
                Err(error) if error.kind() == io::ErrorKind::Other => return Err(error),
                Err(_) => client.look_elsewhere(None),
            }
        }
    }

    fn connect(&mut self) {
        while self.connection.is_none() {
            match Connection::open(self.servers[self.at]) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => self.look_elsewhere(None),
            }
        }
    }

    fn look_elsewhere(&mut self, leader: Option<SocketAddr>) {
        self.connection = None;
        let named = leader.and_then(|leader| self.servers.iter().position(|server| *server == leader));
        self.at = match named {
            Some(named) if named != self.at => named,
            _ => (self.at + 1) % self.servers.len(),
        };
        if self.at == 0 || named.is_some() {
            std::thread::sleep(PAUSE);
        }
    }

    /// How many commands have no outcome yet, or one that was not handed out yet.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Sends a command.
    pub fn send(&mut self, command: Command) {
        self.under_way.push_back((command, Instant::now(), None, 0));
        let at = self.under_way.len() - 1;
        if self.connection.is_some() && self.write(at).is_err() {
            self.look_elsewhere(None);
        }
    }

    fn write(&mut self, from: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut frames = Vec::new();
        for (at, (command, ..)) in self.under_way.iter().enumerate().skip(from) {
            let mut bytes = Vec::with_capacity(Command::MAX_BYTES);
            command.encode(&mut bytes);
            let seq = self.first + at as u64;
            let request = Request::Order { session: self.session, seq, confirmed: self.first - 1, command: &bytes };
            request.encode(seq, &mut frames);
        }
        connection.stream.write_all(&frames)
    }

    /// Waits for the outcome of the command that has been under way for longest.
    ///
    /// # Errors
    /// When a server refuses for good, for instance because the session is not known any more.
    pub fn next_executed(&mut self) -> io::Result<Option<Executed>> {
        loop {
            match self.under_way.front() {
                None => return Ok(None),
                Some((_, _, Some(_), _)) => break,
                Some(_) => self.advance()?,
            }
        }
        let Some((command, _, Some(outcome), latency_ns)) = self.under_way.pop_front() else { return Ok(None) };
        self.first += 1;
        Ok(Some(Executed { command, outcome, latency_ns }))
    }

    /// Takes one response. If this server does not lead, is silent or is gone, goes to another one and repeats everything there.
    fn advance(&mut self) -> io::Result<()> {
        if self.connection.is_none() {
            self.connect();
            self.repeats += 1;
            if self.write(0).is_err() {
                self.look_elsewhere(None);
                return Ok(());
            }
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let Ok(body) = connection.next() else {
            self.look_elsewhere(None);
            return Ok(());
        };
        let Some((tag, response)) = Response::decode(body) else { return Err(io::Error::other("a response that is none")) };
        match response {
            Response::Done(bytes) => {
                let outcome = Outcome::decode(bytes).ok_or_else(|| io::Error::other("an outcome that is none"))?;
                let at = tag.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
                if let Some((_, sent, slot, latency_ns)) = at.and_then(|at| self.under_way.get_mut(at)) {
                    *latency_ns = sent.elapsed().as_nanos() as u64;
                    *slot = Some(outcome);
                }
            }
            Response::NotLeader(leader) => {
                let leader = address_of(leader);
                self.look_elsewhere(leader);
            }
            Response::Unknown => self.look_elsewhere(None),
            Response::Refused(why) => {
                let why = String::from_utf8_lossy(why).into_owned();
                // A command before this one was not executed, and is asked for again, with this one after it; or the log is full, and will empty; or the server
                // is ending, and there are others.
                if !["is out of turn", "the log is full", "is shutting down"].iter().any(|known| why.contains(known)) {
                    return Err(io::Error::other(why));
                }
                self.look_elsewhere(None);
            }
        }
        Ok(())
    }
}

/// Random orders, the same for the same seed, around a price that does not move, so that many of them trade. Cancellations are of orders that rested when their
/// outcome came.
pub struct Orders {
    chance: Rng,
    account: Account,
    symbols: Symbol,
    resting: Vec<(Symbol, u64)>,
}

impl Orders {
    /// Orders of one account for this many symbols.
    pub fn new(seed: u64, account: Account, symbols: Symbol) -> Orders {
        Orders { chance: Rng::with_seed(seed ^ u64::from(account) << 32), account, symbols, resting: Vec::new() }
    }

    /// The next one.
    pub fn next_command(&mut self) -> Command {
        let (symbol, account) = (self.chance.u16(..self.symbols), self.account);
        let side = if self.chance.bool() { Side::Buy } else { Side::Sell };
        let quantity = self.chance.u64(1..=100);
        match self.chance.u8(..10) {
            0 => Command::Market { symbol, account, side, quantity },
            1..=3 if !self.resting.is_empty() => {
                let (symbol, order) = self.resting.swap_remove(self.chance.usize(..self.resting.len()));
                Command::Cancel { symbol, account, order }
            }
            _ => {
                let away = self.chance.u64(..20);
                let price = if side == Side::Buy { 10_005 - away } else { 9_995 + away };
                Command::Limit { symbol, account, side, price, quantity }
            }
        }
    }

    /// Takes an outcome into account.
    pub fn note(&mut self, executed: &Executed) {
        if let (Command::Limit { symbol, .. }, Outcome::Accepted { order, resting: 1.., .. }) = (executed.command, &executed.outcome) {
            self.resting.push((symbol, *order));
        }
    }
}

/// The books that must follow from all outcomes of all clients.
///
/// Every accepted order has a number of its own in its book, and these are counted without a gap. So a command that was executed twice would have used up a
/// number that no client was told. An acknowledged command that was lost would be missing from the books, or its number would have been told twice.
///
/// # Errors
/// What is inconsistent.
pub fn expected_market<'a>(executed: impl Iterator<Item = &'a Executed> + Clone) -> Result<Market, String> {
    let mut orders: BTreeMap<Symbol, BTreeMap<u64, Resting>> = BTreeMap::new();
    for Executed { command, outcome, .. } in executed.clone() {
        let Outcome::Accepted { order, dropped, fills, .. } = outcome else { continue };
        let (symbol, account, side, price, quantity) = match *command {
            Command::Limit { symbol, account, side, price, quantity } => (symbol, account, side, price, quantity),
            Command::Market { symbol, account, side, quantity } => (symbol, account, side, 0, quantity),
            Command::Cancel { .. } => return Err(format!("{command:?} had the outcome {outcome:?}")),
        };
        let traded: u64 = fills.iter().map(|fill| fill.quantity).sum();
        let left = quantity.checked_sub(traded + dropped).ok_or(format!("{command:?} traded more than it asked for: {outcome:?}"))?;
        let resting = Resting { id: *order, account, side, price, quantity: left };
        if orders.entry(symbol).or_default().insert(*order, resting).is_some() {
            return Err(format!("order {order} of symbol {symbol} was reported to two clients"));
        }
    }
    let mut take = |symbol: Symbol, order: u64, quantity: u64| -> Result<(), String> {
        let resting = orders.get_mut(&symbol).and_then(|orders| orders.get_mut(&order));
        let resting = resting.ok_or(format!("order {order} of symbol {symbol} traded, but was reported to no client"))?;
        resting.quantity =
            resting.quantity.checked_sub(quantity).ok_or(format!("order {order} of symbol {symbol} traded more than its quantity"))?;
        Ok(())
    };
    for Executed { command, outcome, .. } in executed {
        match (command, outcome) {
            (_, Outcome::Accepted { fills, .. }) => {
                fills.iter().try_for_each(|fill| take(command.symbol(), fill.maker, fill.quantity))?;
            }
            (Command::Cancel { symbol, order, .. }, Outcome::Cancelled { quantity }) => take(*symbol, *order, *quantity)?,
            (_, Outcome::Rejected(_)) => {}
            (command, outcome) => return Err(format!("{command:?} had the outcome {outcome:?}")),
        }
    }
    orders
        .into_iter()
        .map(|(symbol, orders)| {
            let (accepted, last) = (orders.len() as u64, orders.last_key_value().map_or(0, |(order, _)| *order));
            if accepted != last {
                return Err(format!("symbol {symbol}: {accepted} orders were reported, but the last one has the number {last}"));
            }
            Ok((symbol, Book::of(accepted, orders.into_values().filter(|order| order.quantity > 0))))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> (Market, Vec<Executed>) {
        let mut market = Market::default();
        let mut clients: Vec<Orders> = (1..=3).map(|account| Orders::new(7, account, 2)).collect();
        let mut executed = Vec::new();
        for turn in 0..600 {
            let client = &mut clients[turn % 3];
            let command = client.next_command();
            let done = Executed { command, outcome: market.execute(&command), latency_ns: 0 };
            client.note(&done);
            executed.push(done);
        }
        (market, executed)
    }

    #[test]
    fn the_books_follow_from_what_was_answered() {
        let (market, executed) = some();
        assert!(market.books().any(|(_, book)| !book.is_empty()), "something rests");
        assert!(executed.iter().any(|e| matches!(&e.outcome, Outcome::Cancelled { .. })), "something was cancelled");
        let expected = expected_market(executed.iter()).expect("it fits together");
        expected.check();
        assert_eq!(expected.digest(), market.digest());
    }

    #[test]
    fn a_command_that_was_executed_twice_is_found() {
        let (mut market, mut executed) = some();
        let twice = Command::Limit { symbol: 0, account: 1, side: Side::Buy, price: 1, quantity: 5 };
        market.execute(&twice);
        // The client is told of the second execution only.
        executed.push(Executed { command: twice, outcome: market.execute(&twice), latency_ns: 0 });
        assert!(expected_market(executed.iter()).expect_err("a number is missing").contains("the last one has the number"));
    }

    #[test]
    fn an_order_that_was_lost_is_found() {
        let (mut market, mut executed) = some();
        let command = Command::Limit { symbol: 0, account: 1, side: Side::Buy, price: 1, quantity: 5 };
        let lost = market.clone().execute(&command);
        executed.push(Executed { command, outcome: lost, latency_ns: 0 });
        let expected = expected_market(executed.iter()).expect("it fits together");
        assert_ne!(expected.digest(), market.digest(), "acknowledged, and not in the book");
        executed.push(Executed { command, outcome: market.execute(&command), latency_ns: 0 });
        assert!(expected_market(executed.iter()).expect_err("two of one number").contains("reported to two clients"));
    }
}
