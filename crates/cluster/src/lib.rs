//! A cluster as its operator sees it: the directory that describes it, its nodes' processes, what the nodes show to an outside observer, and clients. The
//! commands of `martlet` and the benchmarks build on this.
//!
//! | module | what it contains |
//! |---|---|
//! | [`directory`] | what `martlet cluster up` writes and all other commands read |
//! | [`hosts`] | a cluster of several hosts: how they are invited, join, and keep one list of nodes |
//! | [`process`] | a node's process, named so that another process with a reused number is not taken for it |
//! | [`watch`] | what the nodes show, and what the cluster can do without one of them |
//! | [`plan`] | a network's multicast trees and timeouts, before anything runs on it |
//! | [`clients`] | requests over the fabric, and over the Redis protocol |
//! | [`output`], [`fail`], [`interrupt`], [`log`] | how a command prints, fails, and ends on Ctrl-C, and where a node logs to |
//! | [`number`](mod@number) | whole numbers on the command line |
//! | [`svg`] | shapes and text of drawings |
//! | [`starter`] | how a service manager is told that a service is ready |
//! | [`scratch`] | temporary directories |

#![forbid(unsafe_code)]

pub mod clients;
pub mod directory;
pub mod fail;
pub mod hosts;
pub mod interrupt;
pub mod log;
pub mod named;
pub mod number;
pub mod output;
pub mod plan;
pub mod process;
pub mod scratch;
pub mod starter;
pub mod svg;
pub mod watch;
