//! What a process does all the time: the duty cycle, step by step. Nodes, simulated nodes and rehearsals of a failover share it.
//!
//! A [`Member`] is a process with its endpoint and its membership. A [`Host`] is a replica: a member, an engine and a state. A [`DutyCycle`] gives it
//! its turns, in steps, and never blocks. Clocks, threads, sleep and disks are outside ([`Environment`]).
//!
//! One turn:
//!
//! 1. Take what the fabric says about peers, and datagrams.
//! 2. Give membership its tick. Among other things, it reads the death words of all peers.
//! 3. Handle completions until there are none left; each may post further operations. If the fabric completes operations at once, a death seen here
//!    goes through proposal, decision and lease within this one step. A takeover that has become possible is then made before anything else is looked
//!    at, since everything else has gone cold in the cache by then.
//! 4. The application takes requests, executes them on the primary's state, and proposes their effects.
//! 5. The engine posts these to the backups or, on a backup, applies what has arrived. Completions are handled again.
//! 6. With a clock that was read after the last completion, check whether the view is active. The engine draws its conclusions. If the clock is found
//!    to have jumped since it was last read, the lease is given up before that, and the next turn is a whole one.
//! 7. If replies must not depend on a lease, ask the coordinators whether the view is still current. Answers that are there at once are taken.
//! 8. The application sends the replies that may go out: each of them follows a check that is later than its execution (TRAPS 7).
//!
//! If the engine elects by itself, nothing waits for membership's decisions, and its tick comes last: when it is due and there is no other work, or
//! when there has been other work for a while. A process that is woken by a death, or by a candidate that asks for its permission after one, sees to
//! that first.
//!
//! While requests keep coming to a primary that leads by views, most turns are *short*: they begin with step 4. Steps 1 to 3, which no request waits
//! for, are left to the first turn that begins [`Pace::short_turns_ns`] after the last whole one. The reason is that an arriving request finds the
//! thread somewhere in a turn, and has to wait for everything that this turn looks at. A busy process sees deaths later by as much.
//!
//! Work that nothing waits for, such as giving up a dead peer's memory, is left for a turn without other work. If there is none for long, it is done
//! bit by bit.

mod cycle;
mod environment;
mod host;
mod member;

pub use cycle::{DutyCycle, Pace, Turn};
pub use environment::{Environment, Note};
pub use host::Host;
pub use member::{Member, PeerChange};
