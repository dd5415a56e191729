//! What `martlet run` loads into an unmodified server, so that it runs in three replicas and its clients' connections outlive `kill -9`.
//!
//! The library stands between the server and the C library. It collects all that the server learns from outside into *rounds*, has them replicated by an embedded
//! replica, and gives them to the server when they are committed; so the servers of all replicas execute the same, and each knows what every client has been sent. When the
//! leader dies a follower fetches its sockets from its keeper (`martlet_node::connections`) and goes on at the byte where it stopped. `docs/run.md` says what a user sees and what is promised.
//!
//! | module | what stands there |
//! |---|---|
//! | `hooks` | the entry points: functions of the C library that the server calls |
//! | `serving` | what the server does with captured descriptors |
//! | `table`, `stream` | the captured descriptors and connections, as every replica knows them |
//! | `requests` | what clients may not ask for |
//! | `entry` | what stands in the log |
//! | `replay`, `machine` | rounds on their way from the log to the server, and to newcomers |
//! | `replica` | what a replica does in its node's turns, and as a follower |
//! | `leading` | how a leader collects rounds, and sends |
//! | `pace`, `backpressure` | how fast, while a newcomer lacks many rounds, or a follower many of the leader's words |
//! | `takeover` | how a follower becomes the leader, with all connections |
//! | `answers`, `known` | what the system answers to the leader's server beside that, and how the others are told |
//! | `files`, `own` | the files that the server writes; its pipes, pairs of sockets and the like |
//! | `wording` | output in which the server says what differs between replicas |
//! | `children` | the processes that it forks |
//! | `fault` | requests that crash the server, or never end |
//! | `heart` | signs of life while a request takes long |
//! | `board` | memory that outlives each replica |
//! | `service` | what operators are told of the service as a whole |
//! | `birth`, `threads` | how replicas are forked, and the server's helpers in a fork |
//! | `turnstile` | several threads of a server, one at a time |
//! | `fiber`, `main_thread` | the captured thread, its two stacks, and what is its alone |
//! | `clock` | the time that the server sees |
//! | `control` | what replicas and `martlet run` tell each other |
//! | `socket`, `process`, `sys` | the kernel |

#![allow(missing_docs, reason = "nothing links it: what is public is so for its own modules")]
// A program of tests must not stand between itself and the C library, so it has no entry points.
#![cfg_attr(test, allow(dead_code, reason = "what only the entry points use"))]

mod answers;
mod backpressure;
mod birth;
mod board;
mod children;
mod clock;
mod control;
mod entry;
mod fault;
mod fiber;
mod files;
mod heart;
#[cfg(not(test))]
mod hooks;
mod known;
mod leaders;
mod leading;
mod machine;
mod main_thread;
mod own;
mod pace;
mod process;
mod replay;
mod replica;
mod requests;
mod service;
mod serving;
mod socket;
mod stream;
mod sys;
mod table;
mod takeover;
mod threads;
mod turnstile;
mod wording;
