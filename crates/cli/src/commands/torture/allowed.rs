//! What may be asked for together.

use martlet_cluster::directory::check_durability;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_node::config::{DurabilityKind, EngineKind, FabricKind};

use super::Arguments;

/// Refuses what cannot be carried out, or would check nothing.
pub fn check(arguments: &Arguments) -> Outcome {
    let kept = arguments.kept_connections();
    if kept > 0 && !arguments.has_one_address() {
        return Err(Fail::usage(format_args!(
            "--connections is {kept}, and --fabric {}: nodes that may be on several hosts have no address in common; allowed is 0",
            arguments.fabric.kind()
        )));
    }
    if kept > 0 && arguments.power_losses > 0 {
        return Err(Fail::usage(format_args!(
            "--connections is {kept}, and --power-losses {}: no connection outlives a loss of power; allowed is 0",
            arguments.power_losses
        )));
    }
    if arguments.clients + arguments.redis_clients + kept == 0 {
        return Err(Fail::usage("--clients, --redis-clients and --connections are all 0; without clients nothing is checked"));
    }
    let Arguments { kills, pauses, restarts, changes, all_but_one, power_losses, wardens, .. } = *arguments;
    if [kills, pauses, restarts, changes, all_but_one, power_losses, wardens].iter().all(|count| *count == 0) {
        return Err(Fail::usage(
            "the counts of all faults are 0: --kills, --pauses, --restarts and the others; without faults nothing is checked",
        ));
    }
    check_durability(arguments.durability, arguments.engine)?;
    if arguments.power_losses > 0 && arguments.durability != DurabilityKind::Sync {
        return Err(Fail::usage(format_args!(
            "--power-losses is {}, and --durability {}; only with sync nothing acknowledged may be lost with the power",
            arguments.power_losses, arguments.durability
        )));
    }
    if arguments.all_but_one > 0 {
        check_all_but_one(arguments)?;
    }
    if arguments.wardens > 0 && !arguments.fabric.kind().traits().spans_hosts {
        let (kind, allowed) = (arguments.fabric.kind(), FabricKind::names_with(|traits| traits.spans_hosts));
        return Err(Fail::usage(format_args!(
            "--wardens is {}, but with --fabric {kind} nodes need no warden to see each other's deaths; allowed are {allowed}",
            arguments.wardens
        )));
    }
    Ok(())
}

/// Whether one of the nodes can go on without all others.
fn check_all_but_one(arguments: &Arguments) -> Outcome {
    let refused = |what: String, allowed: String| {
        Err(Fail::usage(format_args!("--all-but-one is {}, but {what}; allowed are {allowed}", arguments.all_but_one)))
    };
    let (engine, fabric) = (arguments.engine, arguments.fabric.kind());
    if engine.traits().commits_by_majority() {
        let allowed = EngineKind::names_with(|traits| !traits.commits_by_majority());
        return refused(format!("with --engine {engine} a majority of the replicas has to live"), allowed);
    }
    if !fabric.traits().memory_outlives_process {
        let allowed = FabricKind::names_with(|traits| traits.memory_outlives_process);
        return refused(format!("with --fabric {fabric} a majority of the coordinators has to live"), allowed);
    }
    Ok(())
}
