//! Serves the exchange over TCP with a replica that has a thread of its own. Whatever comes in on a connection is handed over to that thread, and answered from
//! its callbacks.
//!
//! Each connection has two threads. One reads, and hands requests to the replica. The other writes what the replica's thread has put into the outbox, so that
//! the replica's thread never makes a system call for a client.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use martlet::{CallError, Replica, SessionCommand};

use super::{MAX_UNDER_WAY, MAX_UNREAD_BYTES, best, digest, respond};
use crate::market::Market;
use crate::wire::{Request, first_frame};

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
    /// Whether no more requests come, or the client does not read.
    closed: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Unsent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer<T: AsRef<[u8]>>(&self, tag: u64, result: Result<T, CallError>) {
        let mut unsent = self.lock();
        unsent.under_way -= 1;
        if unsent.bytes.is_empty() || unsent.under_way + 1 == MAX_UNDER_WAY {
            self.changed.notify_all();
        }
        respond(tag, &result, &mut unsent.bytes);
    }

    /// Waits until another request may come. `false`: none ever may.
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

    /// Waits for something to send. Empty: there will be nothing more.
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
/// The listener's error.
pub fn serve(replica: &Replica<Market>, listener: &TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let replica = replica.clone();
        std::thread::Builder::new().name("exchange-reader".into()).spawn(move || {
            // A connection's failure concerns only its client, which notices it.
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
            // A client that sends something that is no request is cut off.
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
        Request::Open => replica.open_session_with(move |session| outbox.answer(tag, session.map(u64::to_le_bytes))),
        Request::Order { session, seq, confirmed, command } => {
            let command = SessionCommand { session, seq, confirmed, command };
            replica.propose_once_with(command, move |reply| outbox.answer(tag, reply));
        }
        Request::Best(symbol) => replica.read_with(move |market| best(market, symbol), move |prices| outbox.answer(tag, prices)),
        Request::Digest => outbox.answer(tag, replica.read_stale(digest)),
    }
}
