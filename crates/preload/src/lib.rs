//! What `martlet run` loads into an unmodified server, so that the server runs in three replicas and its clients' connections outlive `kill -9`.
//!
//! The library sits between the server and the C library. It collects everything that the server learns from outside into *rounds*, has an embedded replica
//! replicate them, and gives each round to the server once it is committed. So the servers of all replicas execute the same, and each replica knows what every
//! client has been sent. When the leader dies, a follower fetches the leader's sockets from the leader's keeper (`martlet_node::connections`) and continues at
//! the byte where the leader stopped. `docs/run.md` says what a user sees and what is promised.
//!
//! | module | contents |
//! |---|---|
//! | `hooks` | the entry points: functions of the C library that the server calls |
//! | `serving` | what the server does with captured descriptors |
//! | `table`, `stream` | the captured descriptors and connections, as every replica knows them |
//! | `requests` | what clients may not ask for |
//! | `entry` | the format of log entries |
//! | `replay`, `machine` | rounds on their way from the log to the server, and to newcomers |
//! | `replica` | what a replica does in its node's turns, and as a follower |
//! | `leading` | how a leader collects rounds, and sends output |
//! | `pace`, `backpressure` | how the leader slows down while a newcomer lacks many rounds, or while a follower is far behind the answers on the board |
//! | `takeover` | how a follower becomes the leader, with all connections |
//! | `answers`, `known` | the system's answers to the leader's server that are in no round, and how the other replicas are told them |
//! | `files`, `own` | the files that the server writes; its own pipes, socket pairs and the like |
//! | `wording` | output of the server that differs between replicas |
//! | `children` | the processes that the server forks |
//! | `fault` | requests that crash the server, or never end |
//! | `outside` | signals that are sent to one replica alone |
//! | `heart` | signs of life while a request takes long |
//! | `board` | memory that outlives every replica |
//! | `service` | what operators are told of the service as a whole |
//! | `birth`, `threads` | how replicas are forked, and the server's helper threads in a fork |
//! | `turnstile` | running several threads of a server one at a time |
//! | `fiber`, `main_thread` | the captured thread, its two stacks, and what belongs to it alone |
//! | `clock` | the time that the server sees |
//! | `control` | what replicas and `martlet run` tell each other |
//! | `socket`, `process`, `sys` | calls to the kernel |

#![allow(missing_docs, reason = "nothing links it: what is public is so for its own modules")]
// A test program must not come between itself and the C library, so it has no entry points.
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
mod outside;
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
