//! A replicated counter: `counter CLUSTER_FILE NODE HOST:PORT`. It answers the line `open` with a session, and the line `SESSION SEQ` with the counter after
//! one more increment. Repeating a line returns the same number, whichever node leads by then. When a line cannot be answered, the reply says why. SIGTERM
//! makes the node leave in order.
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};

use martlet::{Plain, Replica, SessionCommand};

fn count(counter: &mut u64, _command: &[u8], reply: &mut Vec<u8>) {
    *counter = counter.wrapping_add(1);
    reply.extend_from_slice(&counter.to_le_bytes());
}

fn answer(replica: &Replica<Plain<u64>>, line: &str) -> Result<u64, Box<dyn Error>> {
    let Some((session, seq)) = line.split_once(' ') else { return Ok(replica.open_session()?) };
    let (session, seq) = (session.parse()?, seq.parse::<u64>()?);
    let reply = replica.propose_once(SessionCommand { session, seq, confirmed: seq.saturating_sub(1), command: b"" })?;
    Ok(u64::from_le_bytes(reply.as_slice().try_into()?))
}

fn serve(replica: Replica<Plain<u64>>, mut client: std::net::TcpStream) {
    std::thread::spawn(move || {
        for line in BufReader::new(client.try_clone()?).lines() {
            let text = answer(&replica, &line?).map_or_else(|error| format!("error: {error}\n"), |n| format!("{n}\n"));
            client.write_all(text.as_bytes())?;
        }
        Ok::<(), std::io::Error>(())
    });
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, cluster, node, address] = &args[..] else { return Err("the arguments are CLUSTER_FILE NODE HOST:PORT".into()) };
    let replica = Replica::builder().cluster_file(cluster).node(node.parse()?).listen(address).start(Plain::new(count))?;
    replica.stop_handle().on_signals()?;
    let (listener, its) = (std::net::TcpListener::bind(address)?, replica.clone());
    std::thread::spawn(move || listener.incoming().flatten().for_each(|client| serve(its.clone(), client)));
    replica.join()?; // Until a signal ends it, or its disk.
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("counter: {error}");
        std::process::exit(1);
    }
}
