//! `cargo xtask guests`: a cluster of hosts that each have a kernel and a clock of their own. Their clocks run apart, their machines are paused without
//! noticing it, and they are partitioned.
//!
//! | file | contents |
//! |---|---|
//! | `wanted` | the command line |
//! | `guest` | a virtual machine |
//! | `wire` | the switch between them |
//! | `clock` | how fast their clocks go |

mod clock;
mod guest;
mod wanted;
mod wire;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ci;
use crate::family::Family;
use crate::net::cluster::{NODES, write_files};
use crate::vm::image::Image;
use crate::vm::machine::{self, Ended};
use crate::vm::options::Accel;
use crate::vm::{UNAVAILABLE, ready};
use clock::Rates;
use guest::{Guest, ip_address};
pub use wanted::Wanted;
use wanted::{Fault, Faults};
use wire::Wire;

/// The machine with the clients.
const CLIENTS: usize = NODES;
/// How long a machine may take to boot, and the cluster to start to serve: without KVM both take long.
const PATIENCE: Duration = Duration::from_secs(300);
/// For how long clocks have run apart when a fault comes.
const APART: Duration = Duration::from_secs(1);
/// The ticks of a slow clock, a fast one and a right one, in microseconds. The first two are the least and the most that the kernel allows.
const TICKS: [u32; 3] = [9_000, 11_000, 10_000];
/// How many times longer than by default nodes wait before they take another one for dead, where machines are emulated, which makes them this much slower.
const EMULATED: u32 = 10;
/// How many lines of a machine's last output are shown when something does not hold.
const TAIL: usize = 15;
/// How often to check what is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(root: &Path, wanted: &Wanted) -> ExitCode {
    let Some(image) = ready(root) else { return ExitCode::from(UNAVAILABLE) };
    let outcome = || -> Result<(), String> {
        // On emulated machines, nodes that are not optimised do not keep up.
        let built = ci::cargo(root).args(["build", "--quiet", "--release", "--package", "martlet-cli"]).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("`martlet` does not build".into());
        }
        let accel = machine::chosen(&image, Accel::Auto)?;
        let mut hosts = Hosts::boot(&image, accel, &ci::target_directory(root).join("release/martlet"), wanted)?;
        let held = (0..wanted.rounds).try_for_each(|round| hosts.round(round, wanted)).and_then(|()| hosts.check_clocks(wanted));
        held.inspect_err(|_| hosts.show_tails())?;
        println!("{} rounds: linearizable", wanted.rounds);
        Ok(())
    };
    match outcome() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The machines. When this is dropped, they are ended, and everything that was made for them is removed.
struct Hosts {
    guests: Vec<Guest>,
    said: Receiver<Line>,
    /// The last output of each.
    tails: Vec<VecDeque<String>>,
    rates: Rates,
    wire: Wire,
    family: Family,
    _directory: Scratch,
}

/// A line of a machine's output.
struct Line {
    machine: usize,
    /// `None`: the output has ended.
    text: Option<String>,
    at: Instant,
}

/// A directory that is deleted when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the directory cannot be removed, nothing better can be done.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Hosts {
    fn boot(image: &Image, accel: Accel, martlet: &Path, wanted: &Wanted) -> Result<Hosts, String> {
        let family = Family::found()?;
        // Not below the build, whose path may be longer than a socket's may be.
        let directory = Scratch(std::env::temp_dir().join(format!("martlet-guests-{}", std::process::id())));
        fs::create_dir_all(&directory.0).map_err(|e| format!("{}: {e}", directory.0.display()))?;
        let cluster = directory.0.join("cluster");
        let hosts: Vec<String> = (0..NODES).map(ip_address).collect();
        let patience = if accel == Accel::Tcg { EMULATED } else { 1 };
        write_files(&cluster, &hosts, &wanted.engine, wanted.reads.as_deref().unwrap_or("auto"), patience)?;
        let wire = Wire::make(&directory.0, NODES + 1)?;
        let (say, said) = channel();
        let mut guests = Vec::new();
        for number in 0..=NODES {
            let script = if number == CLIENTS { clients(martlet, &cluster, wanted) } else { node(martlet, &cluster, number) };
            let mut guest = Guest::boot(image, accel, &wire, &directory.0, number, &script, &family)?;
            listen(guest.output(), number, say.clone());
            guest.set_tick(TICKS[2])?;
            guests.push(guest);
        }
        println!(
            "{} machines boot, with {accel:?}; engine {}, reads {}",
            guests.len(),
            wanted.engine,
            wanted.reads.as_deref().unwrap_or("by default")
        );
        Ok(Hosts {
            tails: vec![VecDeque::new(); guests.len()],
            guests,
            said,
            rates: Rates::new(NODES),
            wire,
            family,
            _directory: directory,
        })
    }

    /// One round of the clients, with a fault in the middle, and the verdict.
    fn round(&mut self, round: usize, wanted: &Wanted) -> Result<(), String> {
        let leader = loop {
            let begun = self.await_event("round", PATIENCE)?;
            if let Some(leader) = begun["leader"].as_u64() {
                break usize::try_from(leader).expect("few nodes");
            }
            // In such a round the clients wait for nodes that have yet to find each other again.
            self.await_event("judged", PATIENCE)?;
        };
        let fault = wanted.fault(round);
        for (number, guest) in self.guests[..NODES].iter().enumerate() {
            guest.set_tick(TICKS[usize::from(number != leader)])?;
        }
        self.pass(APART)?;
        self.rates.begin();
        match fault {
            Fault::Stop => {
                self.guests[leader].stop()?;
                self.wire.hold_for(leader, true);
            }
            Fault::Part => self.wire.part(Some(leader), NODES),
        }
        self.pass(wanted.lasting)?;
        match fault {
            Fault::Stop => {
                self.guests[leader].go_on()?;
                self.wire.hold_for(leader, false);
            }
            Fault::Part => self.wire.part(None, NODES),
        }
        self.rates.end((fault == Fault::Stop).then_some(leader));
        let judged = self.await_event("judged", PATIENCE)?;
        let number = |key: &str| judged[key].as_f64().unwrap_or_default();
        println!(
            "{:>4}/{} {} of node {leader}, which led: {} requests, {} without a reply, the slowest took {:.0} ms: linearizable",
            round + 1,
            wanted.rounds,
            fault.name(),
            number("operations"),
            number("unknown"),
            number("slowest_ms")
        );
        Ok(())
    }

    /// Checks that the clocks have been as far apart as they should be: otherwise the round shows nothing.
    fn check_clocks(&self, wanted: &Wanted) -> Result<(), String> {
        let Some((slowest, fastest)) = self.rates.seen() else { return Ok(()) };
        println!("the hosts' clocks went {slowest:.3} to {fastest:.3} times as fast as this machine's");
        let is_slow_seen = wanted.faults == Faults::Stop || slowest < 0.95;
        if is_slow_seen && fastest > 1.05 { Ok(()) } else { Err("the clocks have not run apart as they were told".into()) }
    }

    /// Lets this much time pass.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            // Nothing that the clients say meanwhile matters: their round lasts longer than this.
            self.hear(left.min(LOOK))?;
        }
        Ok(())
    }

    /// Waits until the clients report this event.
    fn await_event(&mut self, name: &str, patience: Duration) -> Result<Value, String> {
        let until = Instant::now() + patience;
        let mut last = String::new();
        loop {
            if let Some(text) = self.hear(LOOK)? {
                match serde_json::from_str::<Value>(&text) {
                    Ok(event) if event["event"] == name => return Ok(event),
                    Ok(event) if event["event"] == "passed" => return Err(format!("the clients have ended, and {name:?} was awaited")),
                    _ => last = text,
                }
            }
            if Instant::now() > until {
                return Err(format!("the clients told of no {name:?} within {} s; the last they said: {last}", patience.as_secs()));
            }
        }
    }

    /// The clients' next line, if one comes within this time.
    fn hear(&mut self, time: Duration) -> Result<Option<String>, String> {
        self.family.check()?;
        let line = match self.said.recv_timeout(time) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        };
        match line.text {
            None => Err(self.last_words(line.machine)),
            Some(text) if line.machine == CLIENTS && text.starts_with('{') => Ok(Some(text)),
            Some(text) => {
                if !self.rates.note(line.machine, line.at, &text) {
                    let tail = &mut self.tails[line.machine];
                    tail.push_back(text);
                    if tail.len() > TAIL {
                        tail.pop_front();
                    }
                }
                Ok(None)
            }
        }
    }

    /// Prints the last output of the machines.
    fn show_tails(&self) {
        for (machine, tail) in self.tails.iter().enumerate().filter(|(_, tail)| !tail.is_empty()) {
            let who = if machine == CLIENTS { "the clients".to_owned() } else { format!("node {machine}") };
            eprintln!("the last that {who} said:");
            tail.iter().for_each(|line| eprintln!("    {line}"));
        }
    }

    /// The reason why a machine's output has ended.
    fn last_words(&mut self, machine: usize) -> String {
        let until = Instant::now() + Duration::from_secs(10);
        let ended = loop {
            match self.guests[machine].ended() {
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
                ended => break ended,
            }
        };
        let who = if machine == CLIENTS { "the machine with the clients".to_owned() } else { format!("the machine of node {machine}") };
        match ended {
            Ok(Some(Ended::WithStatus(status))) => format!("{who} has ended, and what it ran with status {status}"),
            Ok(Some(Ended::Broken { status, log })) => format!("{who} has broken ({status}):\n{log}"),
            Ok(Some(Ended::Late) | None) => format!("{who} prints no more"),
            Err(why) => why,
        }
    }
}

/// Passes a machine's output on.
fn listen(output: impl Read + Send + 'static, machine: usize, say: Sender<Line>) {
    std::thread::spawn(move || {
        for text in BufReader::new(output).lines() {
            let Ok(text) = text else { break };
            if say.send(Line { machine, text: Some(text), at: Instant::now() }).is_err() {
                return;
            }
        }
        let _ = say.send(Line { machine, text: None, at: Instant::now() });
    });
}

/// The script of a node's machine. It runs the node, and beside it a loop that sets the clock as it is told and prints what it shows.
fn node(martlet: &Path, cluster: &Path, number: usize) -> String {
    format!(
        "( last=; while :; do
               tick=$(cat /run/job/tick)
               if [ \"$tick\" != \"$last\" ]; then busybox adjtimex -q -t \"$tick\" || echo 'the clock cannot be set'; last=$tick; fi
               read -r up rest </proc/uptime
               echo \"{} $up\"
               sleep 0.1
           done ) &
           exec '{}' node --config '{}/node-{number}.toml'",
        clock::WORD,
        martlet.display(),
        cluster.display()
    )
}

/// The script of the machine with the clients.
fn clients(martlet: &Path, cluster: &Path, wanted: &Wanted) -> String {
    let lasts = APART.as_secs() + wanted.lasting.as_secs() + 6;
    format!(
        "tries=0
           while :; do
               '{martlet}' judge --json --dir '{cluster}' --clients 2 --redis-clients 2 --redis-readers 2 --rest-us 5000 --seconds 2592000 --round-seconds {lasts} --seed {seed}
               # Nobody leads so far.
               ended=$?; tries=$((tries + 1))
               [ $ended = 3 ] && [ $tries -lt 30 ] || exit $ended
           done",
        cluster = cluster.display(),
        martlet = martlet.display(),
        seed = wanted.seed
    )
}
