//! A server that `martlet run` runs, as shown by the replica that serves.

use martlet_node::counters::Counter;
use martlet_protocol::basics::Time;
use serde_json::{Value, json};

use super::observer::{Role, Sight};
use crate::output::duration;

/// What can be seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The replica that serves.
    pub node: u16,
    /// Its process.
    pub pid: u64,
    /// How long it has been serving, in nanoseconds.
    pub serves_for_ns: u64,
    /// Clients' connections that it holds.
    pub connections: u64,
    /// How often a replica has taken over from another one.
    pub takeovers: u64,
    /// How long the last takeover took, in nanoseconds: from when the death or silence was noticed until the successor served.
    pub last_takeover_ns: Option<u64>,
    /// How many replicas have been started to replace others.
    pub replaced: u64,
}

impl Service {
    /// Its present state; `None` if no replica serves.
    pub fn of<'a>(sights: impl Iterator<Item = &'a Sight>, now: Time) -> Option<Service> {
        // A replica that was stopped and has been succeeded still shows its old state.
        let serves = |sight: &&Sight| sight.role() == Some(Role::Primary) && sight.counter(Counter::ServesSinceNs) != 0;
        let sight = sights.filter(serves).max_by_key(|sight| sight.counter(Counter::ServesSinceNs))?;
        Some(Service {
            node: sight.node,
            pid: sight.counter(Counter::Pid),
            serves_for_ns: now.0.saturating_sub(sight.counter(Counter::ServesSinceNs)),
            connections: sight.counter(Counter::Connections),
            takeovers: sight.counter(Counter::Takeovers),
            last_takeover_ns: Some(sight.counter(Counter::LastTakeoverNs)).filter(|ns| *ns != 0),
            replaced: sight.counter(Counter::ReplacedReplicas),
        })
    }

    /// As a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "node": self.node,
            "pid": self.pid,
            "serves_for_ms": self.serves_for_ns / 1_000_000,
            "connections": self.connections,
            "takeovers": self.takeovers,
            "last_takeover_us": self.last_takeover_ns.map(|ns| ns as f64 / 1e3),
            "replaced": self.replaced,
        })
    }
}

impl std::fmt::Display for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Service { node, pid, serves_for_ns, connections, takeovers, last_takeover_ns, replaced } = *self;
        let counted = |count: u64, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        write!(f, "replica {node}, process {pid}, serves for {}", duration(serves_for_ns))?;
        write!(f, ", {}; {}", counted(connections, "connection", "connections"), counted(takeovers, "takeover", "takeovers"))?;
        if let Some(ns) = last_takeover_ns {
            write!(f, ", the last one took {}", duration(ns))?;
        }
        write!(f, "; {} replaced", counted(replaced, "replica", "replicas"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::observer::tests::sight;
    use super::*;

    #[test]
    fn the_replica_that_began_to_serve_last_tells_of_the_service() {
        use Counter::{Connections, LastTakeoverNs, Pid, ReplacedReplicas, ServesSinceNs, Standing, Takeovers};
        let stopped = sight(0, &[(Standing, 2), (Pid, 70), (ServesSinceNs, 1_000), (Connections, 50)]);
        let begins = sight(2, &[(Standing, 2), (Pid, 72)]);
        let serves = |takeover_ns| {
            sight(
                1,
                &[
                    (Standing, 2),
                    (Pid, 71),
                    (ServesSinceNs, 2_000_000_000),
                    (Connections, 1),
                    (Takeovers, 2),
                    (LastTakeoverNs, takeover_ns),
                    (ReplacedReplicas, 1),
                ],
            )
        };
        let now = Time(14_300_000_000);
        assert_eq!(Service::of([&begins].into_iter(), now), None, "it leads, and does not serve so far");
        let sights = [stopped, serves(1_234_000), begins];
        let text = Service::of(sights.iter(), now).expect("one serves").to_string();
        assert_eq!(
            text,
            "replica 1, process 71, serves for 12.3 s, 1 connection; 2 takeovers, the last one took 1.2 ms; 1 replica replaced"
        );
        let unknown = Service::of([&serves(0)].into_iter(), now).expect("one serves");
        assert_eq!(unknown.to_string(), "replica 1, process 71, serves for 12.3 s, 1 connection; 2 takeovers; 1 replica replaced");
        assert_eq!(unknown.json()["last_takeover_us"], Value::Null);
    }
}
