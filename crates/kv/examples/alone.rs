//! The store behind its socket front end without any cluster: the price of the front end itself, to be set beside a redis-server.
//!
//! `cargo run --release -p martlet-kv --example alone -- 127.0.0.1:7700`, then `redis-benchmark -p 7700`. It spins for a while after its last
//! request, then sleeps until a socket is ready, as a node does that shares its core; with `spin` as second argument it never sleeps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use martlet_fabric::double::Nobody;
use martlet_fabric::{Incarnation, NodeId, Pulse};
use martlet_kv::store::KvMachine;
use martlet_kv::{KvApp, KvConfig};
use martlet_protocol::basics::{LogIndex, ProcessId, Time, ViewNumber};
use martlet_protocol::replica::{Application, ClientEvent, ProposeError, Replica, Standing, Ticket};

/// A primary by itself: what it proposes is committed.
struct Alone {
    fabric: Nobody,
    pulse: Pulse,
    machine: KvMachine,
    start: Instant,
    now: Time,
    entries: u64,
}

impl Replica for Alone {
    type Fabric = Nobody;
    type Machine = KvMachine;
    fn now(&self) -> Time {
        self.now
    }
    fn standing(&self) -> Standing {
        Standing::Primary
    }
    fn view(&self) -> ViewNumber {
        ViewNumber(1)
    }
    fn address_of(&self, _: ProcessId) -> Option<&str> {
        None
    }
    fn reign(&self) -> u64 {
        1
    }
    fn shows_committed(&self) -> bool {
        false
    }
    fn pulse(&self) -> &Pulse {
        &self.pulse
    }
    fn machine(&self) -> &KvMachine {
        &self.machine
    }
    fn machine_mut(&mut self) -> &mut KvMachine {
        &mut self.machine
    }
    fn has_room(&self, _: usize) -> bool {
        true
    }
    fn propose(&mut self, _: &[u8]) -> Result<LogIndex, ProposeError> {
        self.entries += 1;
        Ok(LogIndex(self.entries))
    }
    fn ticket(&self) -> Ticket {
        Ticket(self.now.0)
    }
    fn released(&self) -> Ticket {
        Ticket(self.now.0)
    }
    fn ticket_by_quorum(&mut self) -> Ticket {
        self.ticket()
    }
    fn released_by_quorum(&self) -> Ticket {
        self.released()
    }
    fn fabric(&mut self) -> &mut Nobody {
        &mut self.fabric
    }
    fn client_event(&mut self) -> Option<ClientEvent> {
        None
    }
}

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args().nth(1).ok_or("which address to listen on, host:port?")?.parse()?;
    let id = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
    let config = KvConfig { node: id.node, listen: Some(listen), ..KvConfig::default() };
    // What is measured here holds no secret.
    let mut app = KvApp::new(config, Box::new(wall_ns), [wall_ns(), 1])?;
    let mut replica =
        Alone { fabric: Nobody, pulse: Pulse::default(), machine: KvMachine::new(), start: Instant::now(), now: Time(1), entries: 0 };
    let spin_ns = if std::env::args().nth(2).as_deref() == Some("spin") { u64::MAX } else { 20_000 };
    let mut busy_at = Time(0);
    while !app.wants_end() {
        replica.now = Time(replica.start.elapsed().as_nanos() as u64 + 1);
        let work = app.poll(&mut replica) + app.release(&mut replica);
        if work > 0 {
            busy_at = replica.now;
        } else if replica.now.since(busy_at) > spin_ns && app.is_idle() && !app.sleep(1_000_000_000) {
            return Err("the kernel lets nobody wait for sockets".into());
        }
    }
    Ok(())
}
