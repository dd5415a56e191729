//! A replicated counter, `counter CLUSTER_FILE NODE HOST:PORT`. To a line `open` it answers with a session, to `SESSION SEQ` with the counter after one
//! more, however often the same is asked for and of whichever node leads, and to either with why not.
use std::io::{BufRead as _, BufReader, Write as _};

use martlet::{LogIndex, Replica, SessionCommand, StateMachine};

#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _: LogIndex, _: &[u8], reply: &mut Vec<u8>) {
        self.0 += 1;
        self.snapshot(reply);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }
    fn restore(&mut self, snapshot: &[u8]) {
        self.0 = u64::from_le_bytes(snapshot.try_into().expect("what snapshot wrote"));
    }
    fn clear(&mut self) {
        self.0 = 0;
    }
}

fn answer(replica: &Replica<Counter>, line: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let Some((session, seq)) = line.split_once(' ') else { return Ok(replica.open_session()?) };
    let (session, seq) = (session.parse()?, seq.parse::<u64>()?);
    let reply = replica.propose_once(SessionCommand { session, seq, confirmed: seq.saturating_sub(1), command: b"" })?;
    Ok(u64::from_le_bytes(reply.as_slice().try_into()?))
}

fn main() {
    if let Err(error) = serve() {
        eprintln!("counter: {error}");
        std::process::exit(1);
    }
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, cluster, node, address] = &args[..] else { return Err("counter CLUSTER_FILE NODE HOST:PORT".into()) };
    let replica = Replica::builder().cluster_file(cluster).node(node.parse()?).listen(address).start(Counter::default())?;
    for client in std::net::TcpListener::bind(address)?.incoming() {
        let (mut client, replica) = (client?, replica.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(client.try_clone()?).lines() {
                let text = answer(&replica, &line?).map_or_else(|error| format!("error: {error}"), |n| n.to_string());
                client.write_all(format!("{text}\n").as_bytes())?;
            }
            Ok::<(), std::io::Error>(())
        });
    }
    Ok(())
}
