//! What a process does all the time: the duty cycle that nodes, simulated nodes and rehearsals of a failover share, step by step.
//!
//! A [`Member`] is a process with its endpoint and its membership. A [`Host`] is a replica: a member, an engine and a state. A [`DutyCycle`] gives it its turns,
//! in steps, and never blocks. Clocks, threads, sleep and disks are outside ([`Environment`]).
//!
//! One turn:
//!
//! 1. take what the fabric says about peers, and datagrams;
//! 2. membership's tick: it reads the death words of all peers, among other things;
//! 3. completions, until there are none: each may post further operations. A death seen here goes through proposal, decision and lease in
//!    this one step, where the fabric completes operations at once; and a takeover that has become possible is made, before anything else
//!    is looked at, since all that is cold by then;
//! 4. the application takes requests, executes them on the primary's state and proposes their effects;
//! 5. the engine posts them to the backups, or applies what has come as a backup; completions again;
//! 6. with a clock that was read after the last completion: is the view active? The engine draws its conclusions. A clock that is found to have jumped since it was
//!    last read costs the lease before that, and makes the next turn a whole one;
//! 7. where replies are not to depend on a lease: the coordinators are asked whether the view still stands, and where the answers are there at once they are taken;
//! 8. the application sends the replies that may go out: every one of them follows a check that is later than its execution (TRAPS 7).
//!
//! Where the engine elects by itself, membership decides nothing that anybody waits for, and its tick comes last: when it is due and there is
//! no other work, or when there has been other work for a while. A process that is woken by a death, or by a candidate that asks for its permission after one, sees
//! to that first.
//!
//! While requests keep coming to a primary that leads by views, most turns are *short*: they begin with step 4, and what nobody waits for in such a turn, steps 1 to 3,
//! comes with the first turn that begins [`Pace::short_turns_ns`] after the last of its kind. A request that arrives finds the thread somewhere in a turn, so what
//! a turn looks at is what it waits for. A busy process sees deaths later by as much.
//!
//! What nobody waits for, such as giving up a dead peer's memory, is left for a turn without work. If there is none for long it is done bit by bit.

mod cycle;
mod environment;
mod host;
mod member;

pub use cycle::{DutyCycle, Pace, Turn};
pub use environment::{Environment, Note};
pub use host::Host;
pub use member::{Member, PeerChange};
