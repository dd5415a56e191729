//! As much of HTTP as a page of metrics takes: one thread, so many connections, each for one request and not for ever.
//!
//! A client that is slow, silent or wrong is answered or cut off, and holds nobody up: connections wait together in one poll(2), and when there are too many
//! the one goes that has waited longest.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What one connection, and all of them, may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many at once.
    pub connections: usize,
    /// So long may a request be, with all its headers.
    pub request_bytes: usize,
    /// So long may it take to arrive, and again its answer to leave.
    pub patience: Duration,
    /// So long is an answered connection listened to, so that the answer is not lost: what arrives at a closed socket resets it.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 64, request_bytes: 8 << 10, patience: Duration::from_secs(10), linger: Duration::from_secs(1) }
    }
}

/// So many headers a request may have.
const HEADERS: usize = 64;
/// So much is read from an answered connection, and thrown away.
const LINGER_BYTES: usize = 256 << 10;
/// The caller has other things to look for too, signals among them, which may come just before a poll that they would have ended.
const GLANCE: Duration = Duration::from_millis(200);
/// After the system had no descriptor left, nobody is let in for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A page.
    Page {
        /// Its `Content-Type`.
        kind: &'static str,
        /// What stands on it.
        body: String,
    },
    /// Nothing.
    Absent,
}

/// A server of pages.
pub struct Server {
    listener: TcpListener,
    limits: Limits,
    /// The one that came first stands first.
    connections: Vec<Connection>,
    /// Nobody is let in before.
    open_from: Instant,
}

struct Connection {
    stream: TcpStream,
    step: Step,
    until: Instant,
}

enum Step {
    /// Its request is on its way.
    Asking(Vec<u8>),
    /// Its answer is, from that byte on.
    Answering(Vec<u8>, usize),
    /// It has been answered; so much of what it still sends may be thrown away.
    Lingering(usize),
    Over,
}

/// What a request is, as far as it has come.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Unfinished,
    /// A GET, or with `head` a HEAD.
    Get {
        path: String,
        head: bool,
    },
    Refused(&'static str),
}

const BAD_REQUEST: &str = "400 Bad Request";
const NOT_FOUND: &str = "404 Not Found";
const NOT_ALLOWED: &str = "405 Method Not Allowed";
const TIMEOUT: &str = "408 Request Timeout";
const TOO_LARGE: &str = "431 Request Header Fields Too Large";

impl Request {
    fn parse(bytes: &[u8], limit: usize) -> Request {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) if bytes.len() >= limit => Request::Refused(TOO_LARGE),
            Ok(httparse::Status::Partial) => Request::Unfinished,
            Ok(httparse::Status::Complete(_)) => {
                let target = request.path.unwrap_or_default();
                // Prometheus may be configured with parameters; they mean nothing here.
                let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
                match request.method {
                    Some("GET") => Request::Get { path, head: false },
                    Some("HEAD") => Request::Get { path, head: true },
                    _ => Request::Refused(NOT_ALLOWED),
                }
            }
            Err(httparse::Error::TooManyHeaders) => Request::Refused(TOO_LARGE),
            Err(_) => Request::Refused(BAD_REQUEST),
        }
    }
}

/// An answer's bytes. To a HEAD it says how long the body would be, and leaves it out.
fn response(status: &str, kind: &str, body: &str, head: bool) -> Vec<u8> {
    let allow = if status == NOT_ALLOWED { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n", body.len())
            .into_bytes();
    if !head {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

fn refusal(status: &str, head: bool) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", &format!("{status}\n"), head)
}

impl Server {
    /// A server on that socket.
    ///
    /// # Errors
    /// When the socket cannot be asked not to wait.
    pub fn new(listener: TcpListener, limits: Limits) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        Ok(Server { listener, limits, connections: Vec::new(), open_from: Instant::now() })
    }

    /// Waits for something to do, for a fifth of a second at most, and does it. `answer` is asked for what each path leads to.
    ///
    /// # Errors
    /// When poll(2) fails, which only a lack of memory can do.
    pub fn turn(&mut self, answer: &mut impl FnMut(&str) -> Answer) -> io::Result<()> {
        let now = Instant::now();
        let until = self.connections.iter().map(|connection| connection.until).chain([now + GLANCE]).min().unwrap_or(now);
        let until = if self.open_from > now { until.min(self.open_from) } else { until };
        let timeout = Timespec::try_from(until.saturating_duration_since(now)).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut fds: Vec<PollFd<'_>> = self.connections.iter().map(Connection::poll_fd).collect();
        if self.open_from <= now {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let now = Instant::now();
        for (connection, is_ready) in self.connections.iter_mut().zip(&ready) {
            if *is_ready {
                connection.go_on(&self.limits, now, answer);
            }
            if connection.until <= now {
                connection.expire(&self.limits, now);
            }
        }
        if ready.len() > self.connections.len() && ready.last() == Some(&true) {
            self.let_in(now);
        }
        self.connections.retain(|connection| !matches!(connection.step, Step::Over));
        Ok(())
    }

    fn let_in(&mut self, now: Instant) {
        // No more at a time than there may be at all, so that everybody has a turn.
        for _ in 0..self.limits.connections {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.connections.len() >= self.limits.connections {
                        self.connections.remove(0);
                    }
                    self.connections.push(Connection { stream, step: Step::Asking(Vec::new()), until: now + self.limits.patience });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                // No descriptor is left, most likely: whoever has waited longest makes room.
                Err(_) => {
                    if !self.connections.is_empty() {
                        self.connections.remove(0);
                    }
                    self.open_from = now + PAUSE;
                    return;
                }
            }
        }
    }
}

impl Connection {
    fn poll_fd(&self) -> PollFd<'_> {
        let what = if matches!(self.step, Step::Answering(..)) { PollFlags::OUT } else { PollFlags::IN };
        PollFd::new(&self.stream, what)
    }

    /// Reads or writes what it can without waiting.
    fn go_on(&mut self, limits: &Limits, now: Instant, answer: &mut impl FnMut(&str) -> Answer) {
        let done = match &mut self.step {
            Step::Asking(request) => match read_some(&mut self.stream, request, limits.request_bytes) {
                Ok(more) => match Request::parse(request, limits.request_bytes) {
                    Request::Unfinished if more => return,
                    // It has ended before its request did.
                    Request::Unfinished => Err(io::ErrorKind::UnexpectedEof.into()),
                    Request::Refused(status) => Ok(Some(refusal(status, false))),
                    Request::Get { path, head } => Ok(Some(match answer(&path) {
                        Answer::Page { kind, body } => response("200 OK", kind, &body, head),
                        Answer::Absent => refusal(NOT_FOUND, head),
                    })),
                },
                Err(error) => Err(error),
            },
            Step::Answering(bytes, sent) => match write_some(&mut self.stream, bytes, sent) {
                Ok(false) => return,
                Ok(true) => Ok(None),
                Err(error) => Err(error),
            },
            Step::Lingering(left) => match discard_some(&mut self.stream, left) {
                Ok(true) => return,
                Ok(false) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            },
            Step::Over => return,
        };
        match done {
            // There is mostly room for all of it at once.
            Ok(Some(bytes)) => {
                self.step = Step::Answering(bytes, 0);
                self.until = now + limits.patience;
                self.go_on(limits, now, answer);
            }
            Ok(None) => self.linger(limits, now),
            Err(_) => self.step = Step::Over,
        }
    }

    fn linger(&mut self, limits: &Limits, now: Instant) {
        self.step = match self.stream.shutdown(Shutdown::Write) {
            Ok(()) => Step::Lingering(LINGER_BYTES),
            Err(_) => Step::Over,
        };
        self.until = now + limits.linger;
    }

    /// Its time is up.
    fn expire(&mut self, limits: &Limits, now: Instant) {
        if matches!(self.step, Step::Asking(_)) {
            // As far as there is room for it at once; then it is over, one way or the other.
            let _ = self.stream.write(&refusal(TIMEOUT, false));
            self.linger(limits, now);
        } else {
            self.step = Step::Over;
        }
    }
}

/// Reads what is there, up to so much in all. `false`: no more will come.
fn read_some(stream: &mut TcpStream, into: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let mut some = [0; 1024];
    while into.len() < limit {
        let room = some.len().min(limit - into.len());
        match stream.read(&mut some[..room]) {
            Ok(0) => return Ok(false),
            Ok(n) => into.extend_from_slice(&some[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what there is room for. `true`: that was the rest.
fn write_some(stream: &mut TcpStream, bytes: &[u8], sent: &mut usize) -> io::Result<bool> {
    while *sent < bytes.len() {
        match stream.write(&bytes[*sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => *sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Throws away what is there. `false`: no more will come, or it was too much.
fn discard_some(stream: &mut TcpStream, left: &mut usize) -> io::Result<bool> {
    let mut some = [0; 4096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return Ok(false),
            Ok(n) if n > *left => return Ok(false),
            Ok(n) => *left -= n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A server that runs for as long as the value lives.
    struct Running {
        address: SocketAddr,
        end: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Running {
        fn new(limits: Limits, body: &str) -> Running {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let mut server = Server::new(listener, limits).expect("a socket");
            let (end, body) = (Arc::new(AtomicBool::new(false)), body.to_owned());
            let ends = Arc::clone(&end);
            let mut answer = move |path: &str| match path {
                "/page" => Answer::Page { kind: "text/plain", body: body.clone() },
                _ => Answer::Absent,
            };
            let serve = move || {
                while !ends.load(Ordering::Relaxed) {
                    server.turn(&mut answer).expect("poll works");
                }
            };
            Running { address, end, thread: Some(thread::spawn(serve)) }
        }

        fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).expect("it listens")
        }

        /// What it answers to these bytes, to the end of the connection.
        fn ask(&self, bytes: &[u8]) -> String {
            let mut stream = self.connect();
            // What it does not want to read it need not.
            let _ = stream.write_all(bytes);
            told(stream)
        }
    }

    fn told(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an end, and no reset");
        String::from_utf8(answer).expect("text")
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.end.store(true, Ordering::Relaxed);
            let ended = self.thread.take().expect("once").join();
            assert!(ended.is_ok() || thread::panicking(), "the server died");
        }
    }

    fn default_limits() -> Limits {
        // Nothing here may depend on how fast a machine is.
        Limits { patience: Duration::from_secs(3_600), linger: Duration::from_secs(3_600), ..Limits::default() }
    }

    #[test]
    fn a_page_is_served_whole_and_with_its_length() {
        let server = Running::new(default_limits(), "two\nlines\n");
        let page = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
        assert_eq!(server.ask(b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"), format!("{page}two\nlines\n"));
        assert_eq!(server.ask(b"GET /page?name=martlet_up HTTP/1.0\r\n\r\n"), format!("{page}two\nlines\n"));
        assert_eq!(server.ask(b"HEAD /page HTTP/1.1\r\n\r\n"), page);
    }

    #[test]
    fn what_is_longer_than_a_sockets_buffer_arrives_too() {
        let body = "0123456789".repeat(2_000_000);
        let server = Running::new(default_limits(), &body);
        let found = server.ask(b"GET /page HTTP/1.1\r\n\r\n");
        assert!(found.ends_with(&body), "{} bytes", found.len());
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let server = Running::new(default_limits(), "");
        let status = |bytes: &[u8]| server.ask(bytes).lines().next().unwrap_or_default().to_owned();
        assert_eq!(status(b"GET /else HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status(b"POST /page HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"), "HTTP/1.1 405 Method Not Allowed");
        for garbage in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"*1\r\n$4\r\nPING\r\n",
            b"GET /page\r\n\r\n",
            b"GET /page HTTP/9\r\n\r\n",
            b"\0\0\0\0",
        ] {
            assert_eq!(status(garbage), "HTTP/1.1 400 Bad Request", "{garbage:?}");
        }
        let header = |count: usize| format!("GET /page HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes();
        assert_eq!(status(&header(HEADERS)), "HTTP/1.1 200 OK");
        assert_eq!(status(&header(HEADERS + 1)), format!("HTTP/1.1 {TOO_LARGE}"));
        let long = [b"GET /page HTTP/1.1\r\na: ".to_vec(), vec![b'x'; 100_000]].concat();
        assert_eq!(status(&long), format!("HTTP/1.1 {TOO_LARGE}"));
    }

    #[test]
    fn a_request_may_come_in_pieces_and_one_that_ends_early_is_dropped() {
        let server = Running::new(default_limits(), "here");
        let mut slow = server.connect();
        for byte in b"GET /page HTTP/1.1\r\n\r\n" {
            slow.write_all(&[*byte]).expect("it waits");
        }
        assert!(told(slow).ends_with("here"));
        let mut half = server.connect();
        half.write_all(b"GET /page").expect("it waits");
        half.shutdown(Shutdown::Write).expect("ours");
        assert_eq!(told(half), "");
        drop(server.connect());
        assert!(server.ask(b"GET /page HTTP/1.1\r\n\r\n").ends_with("here"));
    }

    #[test]
    fn one_that_asks_nothing_is_told_so_in_the_end() {
        let server = Running::new(Limits { patience: Duration::from_millis(20), ..Limits::default() }, "");
        assert!(server.ask(b"GET /page HTTP/1.1\r\n").starts_with("HTTP/1.1 408 Request Timeout\r\n"));
        assert!(server.ask(b"").starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    }

    #[test]
    fn many_who_ask_nothing_keep_nobody_from_being_served() {
        let server = Running::new(Limits { connections: 8, ..default_limits() }, "here");
        let silent: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
        assert!(server.ask(b"GET /page HTTP/1.1\r\n\r\n").ends_with("here"));
        // Those that came first have made room.
        let first = silent.into_iter().next().expect("a hundred");
        assert_eq!(told(first), "");
    }
}
