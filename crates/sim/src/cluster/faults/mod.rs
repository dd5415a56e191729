//! Kinds of faults, and how to leave some of them out of a life.

mod quorum;
mod trouble;

use std::fmt;
use std::str::FromStr;

/// What can go wrong in a life. The first kinds are single events; the others are properties of the world during the whole trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// SIGKILL. On a host the memory of the process stays reachable (a zombie); on a network it does not.
    Kill,
    /// A whole host stops, and no process is told (network).
    HostCrash,
    /// A process leaves on request.
    Leave,
    /// SIGSTOP, for up to several leases, then SIGCONT.
    Pause,
    /// For a while a process gets the processor only now and then.
    Slow,
    /// The processes are divided in two, both ways (network).
    Partition,
    /// The processes are divided in two, one way (network).
    OneWay,
    /// One process's operations at another take effect, but their completions never arrive (network).
    LostCompletion,
    /// A NIC dies while its process lives on (network).
    Nic,
    /// An operator changes the length of leases.
    LeaseChange,
    /// An operator wants another leader: the current one hands over, or leaves if its engine has no other way.
    HandOver,
    /// All hosts lose their power at once: what is not on disk is gone (kinds with disks).
    PowerLoss,
    /// All nodes are asked to end, at nearly the same moment or one after another; when all have ended, they start again (kinds with disks).
    Shutdown,
    /// An attacker forges the certificate of a death, or claims without one that a living process is dead (network, where hosts have wardens).
    Forgery,
    /// An operator changes the group's number of places (kinds that resize).
    Resize,
    /// The processors of so many replicas die at once that the living ones are no majority; the memories still answer (kinds that count zombies).
    Zombies,
    /// Lost datagrams.
    Drop,
    /// Datagrams that arrive twice.
    Repeat,
    /// Datagrams that are late, and so arrive out of order.
    Delay,
    /// Transfers of several words that land, or are read, in pieces.
    Tear,
    /// Operations that take long, some across a revocation.
    Spike,
    /// Turns that the scheduler delays.
    Stall,
    /// Turns that stop between two of their steps.
    BrokenTurn,
    /// Processes that sleep until they are nudged.
    Sleep,
    /// Kernels that are slow to report a death.
    LateDeath,
    /// Connections that end without notice (network).
    LostNotice,
    /// Logs so small that they are full all the time.
    FullLog,
    /// Slots whose ballots are used up.
    WornBallots,
    /// Clocks that drift and differ, within their bounds.
    Drift,
    /// Nodes that start again as new incarnations.
    Restart,
}

/// How many kinds there are.
pub const FAULTS: usize = Fault::Restart as usize + 1;

impl Fault {
    /// All of them.
    pub const ALL: [Fault; FAULTS] = [
        Fault::Kill,
        Fault::HostCrash,
        Fault::Leave,
        Fault::Pause,
        Fault::Slow,
        Fault::Partition,
        Fault::OneWay,
        Fault::LostCompletion,
        Fault::Nic,
        Fault::LeaseChange,
        Fault::HandOver,
        Fault::PowerLoss,
        Fault::Shutdown,
        Fault::Forgery,
        Fault::Resize,
        Fault::Zombies,
        Fault::Drop,
        Fault::Repeat,
        Fault::Delay,
        Fault::Tear,
        Fault::Spike,
        Fault::Stall,
        Fault::BrokenTurn,
        Fault::Sleep,
        Fault::LateDeath,
        Fault::LostNotice,
        Fault::FullLog,
        Fault::WornBallots,
        Fault::Drift,
        Fault::Restart,
    ];

    /// Whether it happens at moments of its own, so that a single one can be left out.
    pub const fn is_event(self) -> bool {
        (self as usize) <= Fault::Zombies as usize
    }

    /// Whether it needs a network.
    pub const fn needs_network(self) -> bool {
        matches!(
            self,
            Fault::HostCrash | Fault::Partition | Fault::OneWay | Fault::LostCompletion | Fault::Nic | Fault::Forgery | Fault::LostNotice
        )
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::HostCrash => "host-crash",
            Fault::Leave => "leave",
            Fault::Pause => "pause",
            Fault::Slow => "slow",
            Fault::Partition => "partition",
            Fault::OneWay => "one-way",
            Fault::LostCompletion => "lost-completion",
            Fault::Nic => "nic",
            Fault::LeaseChange => "lease-change",
            Fault::HandOver => "hand-over",
            Fault::PowerLoss => "power-loss",
            Fault::Shutdown => "shutdown",
            Fault::Forgery => "forgery",
            Fault::Resize => "resize",
            Fault::Zombies => "zombies",
            Fault::Drop => "drop",
            Fault::Repeat => "repeat",
            Fault::Delay => "delay",
            Fault::Tear => "tear",
            Fault::Spike => "spike",
            Fault::Stall => "stall",
            Fault::BrokenTurn => "broken-turn",
            Fault::Sleep => "sleep",
            Fault::LateDeath => "late-death",
            Fault::LostNotice => "lost-notice",
            Fault::FullLog => "full-log",
            Fault::WornBallots => "worn-ballots",
            Fault::Drift => "drift",
            Fault::Restart => "restart",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind of fault, or a single fault, that is left out of a life: `pause`, or `pause/3` for the fourth pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Which kind.
    pub fault: Fault,
    /// Which fault of that kind, counted from 0; `None` for all.
    pub nth: Option<u32>,
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nth {
            None => write!(f, "{}", self.fault),
            Some(nth) => write!(f, "{}/{nth}", self.fault),
        }
    }
}

impl FromStr for Mask {
    type Err = String;

    fn from_str(text: &str) -> Result<Mask, String> {
        let (name, nth) = match text.split_once('/') {
            None => (text, None),
            Some((name, nth)) => (name, Some(nth)),
        };
        let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name).ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            format!("the fault is {name:?}; allowed are {names}")
        })?;
        let nth = match nth {
            None => None,
            Some(_) if !fault.is_event() => return Err(format!("{fault} is no single event: leave out the `/` and all of it")),
            Some(nth) => {
                Some(nth.parse().map_err(|_| format!("the number of the {fault} is {nth:?}; allowed is a whole number from 0 on"))?)
            }
        };
        Ok(Mask { fault, nth })
    }
}

/// Several masks given by one word on the command line: a mask, or `all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks(pub Vec<Mask>);

impl FromStr for Masks {
    type Err = String;

    fn from_str(text: &str) -> Result<Masks, String> {
        if text == "all" {
            return Ok(Masks(Fault::ALL.map(|fault| Mask { fault, nth: None }).to_vec()));
        }
        text.parse().map(|mask| Masks(vec![mask])).map_err(|why: String| format!("{why}, and all"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_as_they_are_written() {
        for fault in Fault::ALL {
            let nth = fault.is_event().then_some(7);
            for mask in [Mask { fault, nth: None }, Mask { fault, nth }] {
                assert_eq!(mask.to_string().parse(), Ok(mask));
            }
        }
        assert_eq!("pause/3".parse::<Masks>().map(|masks| masks.0.len()), Ok(1));
        assert_eq!("all".parse::<Masks>().map(|masks| masks.0.len()), Ok(FAULTS));
        assert!("killl".parse::<Mask>().is_err_and(|why| why.contains("killl") && why.contains("host-crash")));
        assert!("drop/3".parse::<Mask>().is_err_and(|why| why.contains("drop")));
        assert!("kill/x".parse::<Mask>().is_err_and(|why| why.contains('x')));
    }

    #[test]
    fn every_fault_stands_at_its_number() {
        assert!(Fault::ALL.iter().enumerate().all(|(at, fault)| *fault as usize == at));
    }
}
