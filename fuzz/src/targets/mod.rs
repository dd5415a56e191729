//! The targets, one file for each kind of bytes.

mod client;
mod commands;
mod config;
mod dare;
mod effects;
mod elected;
mod embedded;
mod engine;
mod handshake;
mod machine;
mod membership;
mod memory;
mod mu;
mod orders;
mod resp;
mod ring;
mod sealed;
mod topology;
mod views;
mod wal;
mod wardens;

use crate::Target;

pub(super) const ALL: &[Target] = &[
    Target { name: "client_records", about: "what clients and servers write into each other's lanes", max_bytes: 1024, run: client::run },
    Target { name: "commands", about: "commands of Redis clients, executed and replicated", max_bytes: 2048, run: commands::run },
    Target { name: "config", about: "the cluster's and the node's file", max_bytes: 4096, run: config::run },
    Target {
        name: "dare_lanes",
        about: "whatever other servers of `dare` write here, or show when they are read",
        max_bytes: 2048,
        run: dare::run,
    },
    Target { name: "effects", about: "entries of the log, and parts of the state for a learner", max_bytes: 2048, run: effects::run },
    Target {
        name: "embedded",
        about: "entries of the log and parts of the state of an embedded replica",
        max_bytes: 1024,
        run: embedded::run,
    },
    Target {
        name: "handshake",
        about: "what processes say before they share memory, and their datagrams",
        max_bytes: 2048,
        run: handshake::run,
    },
    Target { name: "log_lanes", about: "sealed records of a primary that has lost its mind", max_bytes: 2048, run: engine::run },
    Target { name: "membership", about: "datagrams, words and boards of peers", max_bytes: 2048, run: membership::run },
    Target {
        name: "mu_lanes",
        about: "whatever other replicas of `mu` write here, or show when they are read",
        max_bytes: 2048,
        run: mu::run,
    },
    Target { name: "orders", about: "commands for the exchange among the examples", max_bytes: 2048, run: orders::run },
    Target { name: "resp", about: "requests and replies of the Redis protocol, cut anywhere", max_bytes: 2048, run: resp::run },
    Target { name: "ring", about: "a lane's words, written by a peer that keeps to no rule", max_bytes: 2048, run: ring::run },
    Target { name: "sealed_packets", about: "packets between ordinary hosts, and what stands in them", max_bytes: 1400, run: sealed::run },
    Target { name: "topology", about: "a network's file, and the plan of its heartbeats", max_bytes: 2048, run: topology::run },
    Target { name: "views", about: "views, datagrams, records, groups and counters", max_bytes: 2048, run: views::run },
    Target { name: "wal", about: "segments of the log as a disk gives them back", max_bytes: 2048, run: wal::run },
    Target {
        name: "wardens",
        about: "what programs and other hosts' wardens tell a warden, and its file",
        max_bytes: 2048,
        run: wardens::run,
    },
];
