//! Serves the exchange over TCP: whatever comes in on a connection is proposed or read, and answered from the replica's callbacks.
//!
//! Two threads a connection: one reads and hands requests to the replica, one writes what the replica's thread has put into the outbox, so that
//! the replica's thread never makes a system call for a client.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use martlet::{CallError, LogIndex, Replica, SessionCommand, StateMachine, UnreadablePart};

use crate::command::Side;
use crate::market::Market;
use crate::wire::{Request, Response, best_prices, first_frame};

/// The most requests of one connection that are under way at once: who sends more is not read from.
const MAX_UNDER_WAY: usize = 1024;
/// The most bytes that wait for a client to read them before its requests are not read any more.
const MAX_UNREAD_BYTES: usize = 4 << 20;

impl StateMachine for Market {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        Market::apply(self, command, reply);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        Market::transfer(self, 0, usize::MAX, out);
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        Market::install(self, snapshot).ok_or(UnreadablePart)
    }

    fn clear(&mut self) {
        Market::clear(self);
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        Market::transfer(self, cursor, budget, out)
    }

    fn digest(&self) -> u64 {
        Market::digest(self)
    }
}

/// What is on its way to one client.
#[derive(Default)]
struct Outbox {
    state: Mutex<Unsent>,
    changed: Condvar,
}

#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    under_way: usize,
    /// No more requests come, or nobody reads.
    closed: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Unsent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, tag: u64, response: Response<'_>) {
        let mut unsent = self.lock();
        unsent.under_way -= 1;
        if unsent.bytes.is_empty() || unsent.under_way + 1 == MAX_UNDER_WAY {
            self.changed.notify_all();
        }
        response.encode(tag, &mut unsent.bytes);
    }

    /// Waits until another request may come; `false`: none may, ever.
    fn admit(&self) -> bool {
        let full = |unsent: &mut Unsent| !unsent.closed && (unsent.under_way >= MAX_UNDER_WAY || unsent.bytes.len() >= MAX_UNREAD_BYTES);
        let mut unsent = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        unsent.under_way += usize::from(!unsent.closed);
        !unsent.closed
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for something to send; empty: there will be nothing any more.
    fn next(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.clear();
        let nothing = |unsent: &mut Unsent| unsent.bytes.is_empty() && !(unsent.closed && unsent.under_way == 0);
        let mut unsent = self.changed.wait_while(self.lock(), nothing).unwrap_or_else(PoisonError::into_inner);
        let full = unsent.bytes.len() >= MAX_UNREAD_BYTES;
        std::mem::swap(&mut unsent.bytes, &mut buffer);
        if full {
            self.changed.notify_all();
        }
        buffer
    }
}

/// Serves clients until the listener fails.
///
/// # Errors
/// What the listener's failure was.
pub fn serve(replica: &Replica<Market>, listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let replica = replica.clone();
        std::thread::Builder::new().name("exchange-reader".into()).spawn(move || {
            // A connection's failure is its client's to notice.
            let _ = connection(&replica, stream);
        })?;
    }
}

fn connection(replica: &Replica<Market>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let outbox = Arc::new(Outbox::default());
    let (its, mut writing) = (Arc::clone(&outbox), stream.try_clone()?);
    let writer = std::thread::Builder::new().name("exchange-writer".into()).spawn(move || {
        let mut buffer = Vec::new();
        loop {
            buffer = its.next(buffer);
            if buffer.is_empty() || writing.write_all(&buffer).is_err() {
                its.close();
                return;
            }
        }
    })?;
    let (mut arrived, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    'reading: loop {
        let bytes = match stream.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => bytes,
        };
        arrived.extend_from_slice(&chunk[..bytes]);
        let mut taken = 0;
        while let Ok(found) = first_frame(&arrived[taken..]) {
            let Some((body, bytes)) = found else {
                arrived.drain(..taken);
                continue 'reading;
            };
            taken += bytes;
            // Whoever sends what is no request is cut off.
            let Some((tag, request)) = Request::decode(body) else { break 'reading };
            if !outbox.admit() {
                break 'reading;
            }
            take(replica, &outbox, tag, request);
        }
        break;
    }
    outbox.close();
    let _ = stream.shutdown(std::net::Shutdown::Read);
    let _ = writer.join();
    Ok(())
}

/// Hands one request to the replica.
fn take(replica: &Replica<Market>, outbox: &Arc<Outbox>, tag: u64, request: Request<'_>) {
    let outbox = Arc::clone(outbox);
    match request {
        Request::Open => {
            replica.open_session_with(move |session| answer(&outbox, tag, session.map(u64::to_le_bytes)));
        }
        Request::Order { session, seq, confirmed, command } => {
            let command = SessionCommand { session, seq, confirmed, command };
            replica.propose_once_with(command, move |reply| answer(&outbox, tag, reply));
        }
        Request::Best(symbol) => {
            let look = move |market: &Market| {
                let best = |side: Side| market.book(symbol).and_then(|book| book.depth(side).next()).map(|(price, _)| price);
                best_prices(best(Side::Buy), best(Side::Sell))
            };
            replica.read_with(look, move |prices| answer(&outbox, tag, prices));
        }
        Request::Digest => {
            let seen = replica.read_stale(|market| (Market::digest(market), market.accepted()));
            answer(&outbox, tag, seen.map(|(digest, accepted)| [digest.to_le_bytes(), accepted.to_le_bytes()].concat()));
        }
    }
}

fn answer<T: AsRef<[u8]>>(outbox: &Outbox, tag: u64, result: Result<T, CallError>) {
    match &result {
        Ok(bytes) => outbox.answer(tag, Response::Done(bytes.as_ref())),
        Err(CallError::NotLeader { leader }) => {
            let address = leader.as_ref().and_then(|leader| leader.address.as_deref()).unwrap_or("");
            outbox.answer(tag, Response::NotLeader(address.as_bytes()));
        }
        Err(CallError::OutcomeUnknown | CallError::TimedOut) => outbox.answer(tag, Response::Unknown),
        Err(other) => outbox.answer(tag, Response::Refused(other.to_string().as_bytes())),
    }
}
