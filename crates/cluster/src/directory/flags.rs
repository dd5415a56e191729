//! Flags for the fabric that a cluster of ours runs on.

use clap::{Args, ValueEnum};
use martlet_fabric::verbs::Multicast;
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};

use crate::directory::FabricPlan;
use crate::fail::{Fail, Outcome};

/// What the nodes reach each other's memory by.
#[derive(Clone, Debug, Args)]
pub struct FabricFlags {
    /// What the nodes reach each other's memory by [default: shm].
    #[arg(long)]
    pub fabric: Option<FabricFlag>,
    /// With --fabric verbs: the RDMA devices, which the nodes take in turn, separated by commas [default: the first with an active port].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// With --fabric verbs: whether what a node tells all others goes to a multicast group: off, on, or the group's address [default: off].
    #[arg(long, value_name = "WHERE", value_parser = multicast)]
    pub multicast: Option<Multicast>,
}

fn multicast(text: &str) -> Result<Multicast, String> {
    text.parse().map_err(|allowed| format!("allowed: {allowed}"))
}

/// A fabric by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FabricFlag {
    /// Shared memory.
    Shm,
    /// RDMA.
    Verbs,
}

impl FabricFlag {
    /// As the cluster's file has it.
    pub fn kind(self) -> FabricKind {
        match self {
            FabricFlag::Shm => FabricKind::Shm,
            FabricFlag::Verbs => FabricKind::Verbs,
        }
    }
}

impl FabricFlags {
    /// Which fabric that is.
    pub fn kind(&self) -> FabricKind {
        self.fabric.map_or(FabricKind::Shm, FabricFlag::kind)
    }

    /// Before anything is made or started: a host without a device says so, and a name that is none of a device is refused.
    fn check_devices(&self) -> Outcome {
        let known = martlet_fabric::verbs::devices().map_err(Fail::failed)?;
        match self.devices.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(Fail::usage(format_args!("--devices names {name:?}; this host's RDMA devices are {}", known.join(", ")))),
            None if known.is_empty() => Err(Fail::failed("this host has no RDMA device")),
            None => Ok(()),
        }
    }

    /// What it means for a cluster to be made. On RDMA, node `i` meets the others on `port` plus `i`.
    ///
    /// # Errors
    /// When devices are named for a fabric that has none, or this host has none.
    pub fn plan(&self, port: Option<u16>) -> Outcome<FabricPlan> {
        match self.kind() {
            FabricKind::Verbs => {
                self.check_devices()?;
                Ok(FabricPlan::Verbs { port, devices: self.devices.clone(), multicast: self.multicast.unwrap_or_default() })
            }
            FabricKind::Shm if self.multicast.is_some() => {
                Err(Fail::usage("the fabric is shm, which has no multicast; allowed is --multicast with --fabric verbs"))
            }
            FabricKind::Shm if self.devices.is_empty() => Ok(FabricPlan::Shm),
            FabricKind::Shm => Err(Fail::usage(format_args!(
                "--devices is {}, but the fabric is shm, which has none; allowed is --devices with --fabric verbs",
                self.devices.join(",")
            ))),
        }
    }
}

/// Whether an engine can keep what it acknowledges so.
///
/// # Errors
/// When it cannot, with what is allowed.
pub fn check_durability(durability: DurabilityKind, engine: EngineKind) -> Outcome {
    if durability == DurabilityKind::Memory || engine == EngineKind::Mu {
        return Ok(());
    }
    Err(Fail::usage(format_args!(
        "--durability is {durability}; with --engine {engine}, which has no journal, allowed is memory; async and sync need --engine mu"
    )))
}
