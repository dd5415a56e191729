//! The counter of `counter.rs`, serving its clients on the replica's own thread, so that commands are executed without passing through another thread:
//! `counter_direct CLUSTER_FILE NODE HOST:PORT`. It answers the line `open` with a session, and the line `SESSION SEQ` with the counter after one more
//! increment. Repeating a line returns the same number, whichever node leads by then. When a line cannot be answered, the reply says why.
use std::cell::RefCell;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;

use martlet::{CallError, Here, LogIndex, Replica, SessionCommand, StateMachine, Turn, UnreadablePart};

#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _: LogIndex, _: &[u8], reply: &mut Vec<u8>) {
        self.0 = self.0.wrapping_add(1);
        self.snapshot(reply);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| UnreadablePart)?);
        Ok(())
    }
    fn clear(&mut self) {
        self.0 = 0;
    }
}

/// A client's connection. The thread that answers holds it too, so it lives until the last answer.
struct Client {
    stream: TcpStream,
    line: RefCell<Vec<u8>>,
}

impl Client {
    /// An answer is a few bytes. A client that has left so many of them unread that there is no room for another is cut off.
    fn answer(&self, text: Result<u64, String>) {
        let text = text.map_or_else(|error| format!("error: {error}\n"), |number| format!("{number}\n"));
        if (&self.stream).write_all(text.as_bytes()).is_err() {
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Takes what has come. `Ok`: whether that was anything; an error: nothing more comes.
    fn serve(self: &Rc<Client>, here: &mut Here<'_, Counter>) -> Result<bool, Error> {
        let mut chunk = [0; 512];
        let came = match (&self.stream).read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(came) => came,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        for byte in &chunk[..came] {
            if *byte == b'\n' {
                let line = std::mem::take(&mut *self.line.borrow_mut());
                self.take(here, &String::from_utf8_lossy(&line));
            } else if self.line.borrow().len() < 64 {
                self.line.borrow_mut().push(*byte);
            } else {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        Ok(true)
    }

    fn take(self: &Rc<Client>, here: &mut Here<'_, Counter>, line: &str) {
        let client = Rc::clone(self);
        if line == "open" {
            return here.open_session_with(move |session| client.answer(session.map_err(|error| error.to_string())));
        }
        let command = line.split_once(' ').and_then(|(session, seq)| Some((session.parse().ok()?, seq.parse::<u64>().ok()?)));
        let Some((session, seq)) = command else { return self.answer(Err(format!("{line:?} is neither `open` nor SESSION SEQ"))) };
        let command = SessionCommand { session, seq, confirmed: seq.saturating_sub(1), command: b"" };
        here.propose_once_with(command, move |reply: Result<Vec<u8>, CallError>| {
            let number = reply.map_err(|error| error.to_string());
            client.answer(number.and_then(|reply| reply.as_slice().try_into().map(u64::from_le_bytes).map_err(|_| "no number".into())));
        });
    }
}

/// The clients that have connected.
struct Clients {
    listener: TcpListener,
    connected: Vec<Rc<Client>>,
}

impl Clients {
    fn turn(&mut self, here: &mut Here<'_, Counter>) -> Turn {
        let mut worked = false;
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that we cannot serve sees its connection end.
            if stream.set_nonblocking(true).is_ok() && here.watch(&stream).is_ok() {
                self.connected.push(Rc::new(Client { stream, line: RefCell::default() }));
                worked = true;
            }
        }
        self.connected.retain(|client| client.serve(here).inspect(|came| worked |= came).is_ok());
        if worked { Turn::Worked } else { Turn::Idle }
    }
}

fn main() {
    if let Err(error) = serve() {
        eprintln!("counter: {error}");
        std::process::exit(1);
    }
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, cluster, node, address] = &args[..] else { return Err("counter_direct CLUSTER_FILE NODE HOST:PORT".into()) };
    let direct = Replica::builder().cluster_file(cluster).node(node.parse()?).listen(address).direct(Counter::default())?;
    direct.stop_handle().on_signals()?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    direct.watch(&listener)?;
    let mut clients = Clients { listener, connected: Vec::new() };
    direct.run(|here| clients.turn(here))?;
    Ok(())
}
