//! Everything in a public signature can be named through this crate alone. Each type is taken apart here, down to those that are not ours.

use std::io;
use std::path::PathBuf;

use martlet::counters::{Event, EventKind, Reading, ReadingError};
use martlet::errors::*;
use martlet::observe::{Departed, Member, OpenError, PeerEvent, PeerId, ReadError, Roles, View};
use martlet::*;

/// The file or directory that a disk's error is about, if it is about one.
fn of_disk(error: DiskError) -> Option<PathBuf> {
    match error {
        DiskError::Wal(error) => {
            let _: &WalError = &error;
            Some(match error {
                WalError::Disk { path, operation, error } => {
                    let _: (Operation, io::Error) = (operation, error);
                    path
                }
                WalError::Foreign { path, found, own } => {
                    let _: [Owner; 2] = [found, own];
                    path
                }
                WalError::Broken { path }
                | WalError::Corrupt { path, offset: _, what: _ }
                | WalError::Format { path, found: _, known: _ }
                | WalError::InUse { path } => path,
            })
        }
        DiskError::Log { path, error } => {
            let _: RecoverError = error;
            match error {
                RecoverError::Order { entry: _, fault } => {
                    let _: String = fault;
                }
                RecoverError::Part(UnreadablePart) => {}
                RecoverError::NoEntry(_) | RecoverError::Ring { .. } | RecoverError::Snapshot => {}
            }
            Some(path)
        }
        DiskError::WornOut { path, most: _ } => Some(path),
        DiskError::Chance(error) => {
            let _: io::Error = error;
            None
        }
    }
}

fn of_run(error: RunError) -> Option<PathBuf> {
    match error {
        RunError::Fabric { node, error } => {
            let _: NodeId = node;
            let _: &FabricError = &error;
            match error {
                FabricError::Shm(ShmError::Party(error))
                | FabricError::Verbs(VerbsError::Party(error))
                | FabricError::Ethernet(EthernetError::Party(error)) => {
                    let _: PartyError = error;
                }
                FabricError::Verbs(VerbsError::Device(error)) => {
                    let _: DeviceError = error;
                }
                FabricError::Shm(_) | FabricError::Verbs(_) | FabricError::Ethernet(_) => {}
            }
            None
        }
        RunError::DeathWords { node: _, error } => {
            let _: ActingError = error;
            None
        }
        RunError::Warden { node: _, error } => {
            let _: fide::Error = error;
            None
        }
        RunError::Disk { node: _, error } => of_disk(error),
        RunError::System { node: _, what: _, error: _ }
        | RunError::Removed { node: _, why: _ }
        | RunError::Limit { node: _, why: _ }
        | RunError::NothingHeld { node: _ }
        | RunError::Cores { node: _, named: _, allowed: _ }
        | RunError::OnCommit { node: _ } => None,
        RunError::Level { node: _, level: _, build } => {
            let _: Protocol = build;
            None
        }
        RunError::Build { node: _, why: _ } => None,
        RunError::Unreadable { node: _, entry, build: _ } => {
            let _: UnreadableEntry = entry;
            None
        }
    }
}

/// What a program might do that tells its operator which disk to look at.
fn of_start(error: StartError) -> Option<PathBuf> {
    match error {
        StartError::Run(error) => of_run(error),
        StartError::Config(config::ConfigError::Read { file, .. } | config::ConfigError::Parse { file, .. }) => Some(file),
        StartError::Config(config::ConfigError::Value { .. })
        | StartError::Missing { .. }
        | StartError::Value { .. }
        | StartError::Given { .. } => None,
        StartError::System { .. } | StartError::Panicked(_) => None,
    }
}

fn of_stop(error: StopError) -> Option<PathBuf> {
    match error {
        StopError::Run(error) => of_run(error),
        StopError::Panicked(_) | StopError::Elsewhere => None,
    }
}

/// What a replica tells of itself, and an endpoint of a cluster.
fn told(started: Started, reading: Reading, view: View, event: PeerEvent) -> (ProcessId, Option<u16>, Vec<Time>, ViewNumber) {
    let ProcessId { node, incarnation } = started.process;
    let _: (NodeId, Incarnation) = (node, incarnation);
    let Placement { core, class, refused: _ } = started.placement;
    let (Class::Fifo | Class::Slice | Class::Normal) = class;
    let events = reading.events.iter().map(|(_, event): &(u64, Event)| (event.at, event.kind));
    let members: Vec<(Roles, &Member)> = view.members.iter().map(|member| (member.roles, member)).collect();
    let departed: &[Departed] = &view.departed;
    let peer: Option<PeerId> = match event {
        PeerEvent::Up { peer, .. } => Some(peer),
        _ => None,
    };
    drop((members, departed, peer));
    (started.process, core, events.filter(|(_, kind)| *kind != EventKind::Started).map(|(at, _)| at).collect(), view.number)
}

#[test]
fn whatever_a_program_is_given_it_can_name() {
    let _ = (of_stop as fn(StopError) -> _, told as fn(Started, Reading, View, PeerEvent) -> _);
    let _: [fn(ReadingError) -> CallError; 1] = [CallError::Metrics];
    let _: fn(OpenError, ReadError) = |_, _| {};
    let nowhere = Replica::builder().cluster_file("/nowhere/cluster.toml").node(0).start(crate::cluster::Text::default());
    let file = of_start(nowhere.expect_err("there is no such file"));
    assert_eq!(file.as_deref(), Some(std::path::Path::new("/nowhere/cluster.toml")));
}
