//! The fabrics that a cluster can run on, by name, and what each of them is like. Code outside a fabric's folder asks for a property and not for a name, so that
//! a new fabric is a line here, and whatever its [`Traits`] say.

use std::fmt;
use std::str::FromStr;

/// What a fabric is like, as far as code outside its folder has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Its name in configurations and on command lines.
    pub name: &'static str,
    /// Whether the processes of a cluster may run on several hosts.
    pub spans_hosts: bool,
    /// Whether each node needs an address of the network, at which the others reach it.
    pub needs_address: bool,
    /// Whether the death of a process is known for certain, from words in its memory that the kernel marks and a look at which costs next to nothing.
    pub certain_deaths: bool,
    /// Whether the memory of a process that has died can still be read by those that were connected with it.
    pub memory_outlives_process: bool,
    /// Whether a process does in its turns what others ask of its memory, so that they wait while it has no core.
    pub answers_in_turns: bool,
    /// Whether it uses devices of the host, which can be named.
    pub has_devices: bool,
    /// Whether what a process tells all others can go to a multicast group.
    pub has_multicast: bool,
    /// How long a lease lasts unless the cluster's file says so, in microseconds: longer where what a member hears of the others comes late.
    pub default_lease_us: u64,
}

/// A fabric, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FabricKind {
    /// Shared memory: all processes run on one host.
    #[default]
    Shm,
    /// RDMA.
    Verbs,
    /// Sealed UDP, between ordinary hosts.
    Ethernet,
}

impl FabricKind {
    /// All of them.
    pub const ALL: [FabricKind; 3] = [FabricKind::Shm, FabricKind::Verbs, FabricKind::Ethernet];

    /// What it is like.
    pub const fn traits(self) -> Traits {
        match self {
            FabricKind::Shm => crate::shm::TRAITS,
            FabricKind::Verbs => crate::verbs::TRAITS,
            FabricKind::Ethernet => crate::ethernet::TRAITS,
        }
    }

    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        self.traits().name
    }

    /// The one between ordinary hosts: it needs no device.
    pub fn between_ordinary_hosts() -> FabricKind {
        FabricKind::ALL.into_iter().find(|kind| kind.traits().spans_hosts && !kind.traits().has_devices).expect("one of them is")
    }

    /// The names of all fabrics with a property, as a message lists them.
    pub fn names_with(property: impl Fn(&Traits) -> bool) -> String {
        let kinds = FabricKind::ALL.into_iter().filter(|kind| property(&kind.traits()));
        kinds.map(FabricKind::name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FabricKind {
    type Err = String;

    fn from_str(name: &str) -> Result<FabricKind, String> {
        FabricKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = FabricKind::names_with(|_| true);
            format!("the fabric is {name:?}; allowed are {names}")
        })
    }
}

/// Runs an expression with `$fabric` standing for the type of the fabric `$kind`: the one place where a name in a configuration becomes a type.
#[macro_export]
macro_rules! with_fabric {
    ($kind:expr, $fabric:ident => $body:expr) => {
        match $kind {
            $crate::FabricKind::Shm => {
                type $fabric = $crate::shm::ShmFabric;
                $body
            }
            $crate::FabricKind::Verbs => {
                type $fabric = $crate::verbs::VerbsFabric;
                $body
            }
            $crate::FabricKind::Ethernet => {
                type $fabric = $crate::ethernet::EthernetFabric;
                $body
            }
        }
    };
}

/// Samples of what the fabrics write: see [`samples`](crate::samples).
#[cfg(feature = "fuzzing")]
pub(crate) fn samples() -> Vec<crate::samples::Sample> {
    let mut samples = vec![("memory/lanes of shared memory".into(), crate::shm::sample_of_lanes())];
    samples.extend(crate::verbs::samples());
    samples.extend(crate::ethernet::samples());
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fabric_is_found_by_its_name() {
        for kind in FabricKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("tin".parse::<FabricKind>(), Err("the fabric is \"tin\"; allowed are shm, verbs, ethernet".to_owned()));
    }
}
