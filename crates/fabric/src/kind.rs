//! The fabrics that a cluster can run on, by name, and the properties of each. Code outside a fabric's folder asks for a property and not for a name,
//! so a new fabric is one line here, together with its [`Traits`].

use std::fmt;
use std::str::FromStr;

/// The properties of a fabric, as far as code outside its folder needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Its name in configurations and on command lines.
    pub name: &'static str,
    /// Whether the processes of a cluster may run on several hosts.
    pub spans_hosts: bool,
    /// Whether each node needs a network address at which the others reach it.
    pub needs_address: bool,
    /// Whether the death of a process is known for certain, from words in its memory that the kernel marks. Looking at these costs next to nothing.
    pub certain_deaths: bool,
    /// Whether the memory of a dead process can still be read by those that were connected to it.
    pub memory_outlives_process: bool,
    /// Whether a process itself has to carry out, in its turns, what others ask of its memory, so that they wait while it has no core.
    pub answers_in_turns: bool,
    /// Whether it uses devices of the host, which have names.
    pub has_devices: bool,
    /// Whether datagrams to all members can go to a multicast group.
    pub has_multicast: bool,
    /// How long a lease lasts unless the cluster's file says otherwise, in microseconds. It is longer where news of other members may come late.
    pub default_lease_us: u64,
    /// What is known of a host, for people, once an endpoint of this fabric has begun there by itself.
    pub proves: &'static str,
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

    /// Its properties.
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

    /// The fabric between ordinary hosts, which needs no device.
    pub fn between_ordinary_hosts() -> FabricKind {
        FabricKind::ALL.into_iter().find(|kind| kind.traits().spans_hosts && !kind.traits().has_devices).expect("one of them is")
    }

    /// The names of all fabrics that have a property, as a list for a message.
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

/// Runs an expression in which `$fabric` is the type of the fabric `$kind`. This is the one place where a name in a configuration becomes a type.
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
