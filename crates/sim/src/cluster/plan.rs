//! Which life to run: a kind of cluster, a seed, and what is to differ from what the seed says.

use super::faults::{Fault, Mask};

/// Where a cluster runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// One host with shared memory: the memory of dead processes can be read, and the kernel says which processes have died.
    Host,
    /// Hosts with one-sided operations between them: the memory of dead processes is out of reach, and death is presumed.
    Network,
}

/// What is to differ in a life from what its seed says; changes only leave something out. As far as possible, the rest stays as the seed has it: each kind of
/// fault, the clients and the processes have their own sources of randomness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Faults that are left out.
    pub without: Vec<Mask>,
    /// How long trouble lasts, in nanoseconds.
    pub trouble_ns: Option<u64>,
    /// How many requests the clients make in all during the trouble.
    pub operations: Option<u64>,
    /// The most nodes.
    pub nodes: Option<u16>,
    /// The most clients.
    pub clients: Option<u64>,
    /// The most keys.
    pub keys: Option<u64>,
}

impl Changes {
    /// Whether a whole kind of fault is left out.
    pub fn lacks(&self, fault: Fault) -> bool {
        self.without.contains(&Mask { fault, nth: None })
    }

    /// Whether a single fault is left out.
    pub fn lacks_one(&self, fault: Fault, nth: u32) -> bool {
        self.lacks(fault) || self.without.contains(&Mask { fault, nth: Some(nth) })
    }

    /// The command line's flags for these changes.
    pub fn flags(&self) -> String {
        let mut flags = String::new();
        if Fault::ALL.into_iter().all(|fault| self.lacks(fault)) {
            flags += " --without all";
        } else if !self.without.is_empty() {
            let masks: Vec<String> = self.without.iter().map(Mask::to_string).collect();
            flags += &format!(" --without {}", masks.join(","));
        }
        let mut number = |flag: &str, value: Option<u64>| {
            if let Some(value) = value {
                flags += &format!(" {flag} {value}");
            }
        };
        number("--trouble-ns", self.trouble_ns);
        number("--operations", self.operations);
        number("--nodes", self.nodes.map(u64::from));
        number("--clients", self.clients);
        number("--keys", self.keys);
        flags
    }
}

/// A deliberate mistake: an oracle that does not find it is worthless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Now and then a process that is still running is declared dead for certain.
    FalseCertainty,
    /// Clocks drift far more than the bounds allow, which is outside the model.
    WildClocks,
}

/// Which life to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// What differs from what the seed says.
    pub changes: Changes,
    /// A deliberate mistake in it.
    pub canary: Option<Canary>,
    /// Whether to tell its story.
    pub narrate: bool,
    /// Whether the report includes what the clients saw.
    pub keep_history: bool,
    /// Whether the report includes the fabric's trace: everything that happened, byte for byte.
    pub keep_trace: bool,
}

impl Plan {
    /// The life of a seed as it is, without its story.
    pub fn new(seed: u64) -> Plan {
        Plan { seed, changes: Changes::default(), canary: None, narrate: false, keep_history: false, keep_trace: false }
    }
}
