//! Flags for the fabric that a cluster of ours runs on.

use clap::Args;
use martlet_fabric::Multicast;
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};

use crate::directory::FabricPlan;
use crate::fail::{Fail, Outcome};
use crate::named::fabric;

/// How the nodes reach each other's memory.
#[derive(Clone, Debug, Args)]
pub struct FabricFlags {
    /// How the nodes reach each other's memory: shm, shared memory; ethernet, sealed packets over UDP; or verbs, RDMA [default: shm].
    #[arg(long, value_name = "NAME", value_parser = fabric(), hide_possible_values = true)]
    pub fabric: Option<FabricKind>,
    /// With --fabric verbs: the RDMA devices, separated by commas; the nodes take them in turn [default: the first with an active port].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// With --fabric verbs: send what a node tells all others to a multicast group: off, on, or the group's address [default: off].
    #[arg(long, value_name = "WHERE", value_parser = multicast)]
    pub multicast: Option<Multicast>,
}

fn multicast(text: &str) -> Result<Multicast, String> {
    text.parse().map_err(|allowed| format!("allowed: {allowed}"))
}

impl FabricFlags {
    /// Which fabric that is.
    pub fn kind(&self) -> FabricKind {
        self.fabric.unwrap_or_default()
    }

    /// Before anything is made or started: a host without a device says so, and a name that is none of a device is refused.
    fn check_devices(&self) -> Outcome {
        let known = martlet_fabric::devices::names().map_err(Fail::failed)?;
        match self.devices.iter().find(|name| !known.contains(name)) {
            Some(name) => Err(Fail::usage(format_args!("--devices names {name:?}; this host's RDMA devices are {}", known.join(", ")))),
            None if known.is_empty() => Err(Fail::failed("this host has no RDMA device")),
            None => Ok(()),
        }
    }

    /// A port on which nodes meet, of a fabric whose nodes meet otherwise.
    ///
    /// # Errors
    /// When one is named.
    pub fn check_port(kind: FabricKind, port: Option<u16>) -> Outcome {
        match port {
            Some(port) if !kind.traits().needs_address => Err(Fail::usage(format_args!(
                "--fabric-port is {port}, but the fabric is {kind}, whose nodes need no port to meet; allowed is --fabric-port with --fabric {}",
                FabricKind::names_with(|traits| traits.needs_address)
            ))),
            _ => Ok(()),
        }
    }

    /// Devices and multicast, on a fabric that has no such thing.
    ///
    /// # Errors
    /// When one of them is named.
    pub fn check_traits(&self, kind: FabricKind) -> Outcome {
        let traits = kind.traits();
        if self.multicast.is_some() && !traits.has_multicast {
            let allowed = FabricKind::names_with(|traits| traits.has_multicast);
            return Err(Fail::usage(format_args!(
                "the fabric is {kind}, which has no multicast; allowed is --multicast with --fabric {allowed}"
            )));
        }
        if !traits.has_devices && !self.devices.is_empty() {
            return Err(Fail::usage(format_args!(
                "--devices is {}, but the fabric is {kind}, which has none; allowed is --devices with --fabric {}",
                self.devices.join(","),
                FabricKind::names_with(|traits| traits.has_devices)
            )));
        }
        Ok(())
    }

    /// What it means for a cluster to be made. Between hosts, node `i` meets the others on `port` plus `i`.
    ///
    /// # Errors
    /// When devices are named for a fabric that has none, or this host has none.
    pub fn plan(&self, port: Option<u16>) -> Outcome<FabricPlan> {
        let kind = self.kind();
        self.check_traits(kind)?;
        if kind.traits().has_devices {
            self.check_devices()?;
        }
        Ok(FabricPlan { kind, port, devices: self.devices.clone(), multicast: self.multicast })
    }
}

/// An engine by its name, as long as it is one that an unmodified server can be replicated by: that one cannot take back what it has executed.
///
/// # Errors
/// When it is none of those, with those.
pub fn engine_of_a_server(name: &str) -> Result<EngineKind, String> {
    let allowed = || format!("allowed for a server are {}", EngineKind::names_with(|traits| traits.executes_on_commit));
    let named: EngineKind = name.parse().map_err(|_| format!("there is no engine {name:?}; {}", allowed()))?;
    match named.traits().executes_on_commit {
        true => Ok(named),
        false => Err(format!("its leader executes what is not committed yet; {}", allowed())),
    }
}

/// Whether an engine can keep what it acknowledges so.
///
/// # Errors
/// When it cannot, with what is allowed.
pub fn check_durability(durability: DurabilityKind, engine: EngineKind) -> Outcome {
    if durability == DurabilityKind::Memory || engine.traits().has_journal {
        return Ok(());
    }
    Err(Fail::usage(format_args!(
        "--durability is {durability}; with --engine {engine}, which has no journal, allowed is memory; async and sync need --engine {}",
        EngineKind::names_with(|traits| traits.has_journal)
    )))
}
