//! `martlet metrics`

mod exposition;
mod server;

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::{self, Format};
use serde_json::json;

use super::Which;
use crate::watch::lookout::Lookout;
use server::{Answer, Limits, Server};

/// Serve the nodes' counters to Prometheus, in the foreground, until Ctrl-C or SIGTERM.
///
/// `GET /metrics` answers in the text exposition format. Each request reads the nodes' memory, so no node is asked. Nodes that are not running are shown as such
/// (`martlet_up` 0).
///
/// Example: martlet metrics --once | grep martlet_up
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen; port 0 takes any free port. There is no password: listen on this host only, or on a trusted network.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    listen: SocketAddr,
    /// Whether to refuse to listen beyond this host, where anyone could read the metrics.
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, default_value_t = true)]
    protected_mode: bool,
    /// Print what would be served, and end.
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    #[command(flatten)]
    which: Which,
}

/// How often it looks by itself.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "allowed is an IP address and a port, such as 127.0.0.1:9464 or [::1]:9464".into())
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    if arguments.once && format == Format::Json {
        return Err(Fail::usage(
            "--json is given, but the exposition is no JSON; allowed with --once is text; `martlet status --json` shows the counters as objects",
        ));
    }
    if arguments.protected_mode && !arguments.once && !arguments.listen.ip().to_canonical().is_loopback() {
        return Err(Fail::usage(format_args!(
            "--listen is {}, beyond this host, and there is no password: anyone who reaches it could read the metrics. Listen on 127.0.0.1. If only trusted \
             hosts can reach it, give --protected-mode false",
            arguments.listen
        )));
    }
    let mut lookout = Lookout::open(Directory::new(&arguments.which.dir), &interrupt)?;
    // Nodes that are there are shown from the first answer on.
    lookout.connect()?;
    if arguments.once {
        let look = lookout.look();
        output::raw(exposition::text(&look, lookout.reigns()).as_bytes());
        return Ok(());
    }
    let listener = TcpListener::bind(arguments.listen).context(format_args!("cannot listen on {}", arguments.listen))?;
    let address = listener.local_addr().context("cannot tell on which port it listens")?;
    let mut server = Server::new(listener, Limits::default()).context(format_args!("cannot listen on {address}"))?;
    format.print(
        format_args!("serving http://{address}/metrics; Ctrl-C ends it"),
        || json!({"event": "listening", "address": address.to_string()}),
    );
    let mut looked = Instant::now();
    while !interrupt.is_raised() {
        server.turn(&mut |path| answer(&mut lookout, path)).context(format_args!("cannot serve on {address}"))?;
        // Whether or not anybody asks: the memory of a node that has died is given back, and a failover is seen while somebody remembers it.
        if looked.elapsed() >= BETWEEN_LOOKS {
            looked = Instant::now();
            lookout.look();
        }
    }
    Ok(())
}

fn answer(lookout: &mut Lookout, path: &str) -> Answer {
    match path {
        "/metrics" => {
            let look = lookout.look();
            Answer::Page { kind: exposition::CONTENT_TYPE, body: exposition::text(&look, lookout.reigns()) }
        }
        "/" => Answer::Page { kind: "text/plain; charset=utf-8", body: "Martlet: the metrics are at /metrics\n".into() },
        _ => Answer::Absent,
    }
}
