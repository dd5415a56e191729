//! The interface of all engines.

use std::fmt::Debug;

use martlet_fabric::{Completion, Fabric, NodeId, PeerId, Pulse, RegionName, RegionSpec};

use super::{ConfigError, Event, Gathered, Traits};
use crate::basics::layout::{LIFE, life};
use crate::basics::{LogIndex, ProcessId, Time, ViewNumber};
use crate::membership::{Core, Proof, Round, View};
use crate::replica::{Execution, HandOverError, HandOverState, ProposeError, ResizeError, Standing, StateMachine, Ticket};

/// A replication engine, as a node and a simulated node drive it. Static dispatch: a node is generic over its engine.
///
/// A turn of a node:
/// 1. peers and views, as they arrive: [`handle_peer_up`](Engine::handle_peer_up), [`handle_peer_gone`](Engine::handle_peer_gone),
///    [`handle_view`](Engine::handle_view);
/// 2. the application executes requests on the machine and hands their effects to [`propose`](Engine::propose);
/// 3. [`post`](Engine::post) writes them to the others, or applies what came from the leader;
/// 4. completions, to the end: [`handle_completion`](Engine::handle_completion);
/// 5. with a clock read after that, [`advance`](Engine::advance) draws the conclusions: it takes over, commits, and releases;
/// 6. [`check_by_quorum`](Engine::check_by_quorum), for replies that must not depend on a lease. Where operations complete at once, it is called again in the
///    same turn, after their completions;
/// 7. the application sends the replies up to [`released`](Engine::released), or to [`released_by_quorum`](Engine::released_by_quorum), and the node acts on
///    [`poll_event`](Engine::poll_event).
///
/// This order makes a reply safe: the process's right to lead is checked after everything that the reply depends on (TRAPS 7).
///
/// Unless [`execution`](Engine::execution) says otherwise, a leader executes ahead: its machine shows exactly the effects of everything proposed. Decided
/// entries reach the machines of the other replicas through [`StateMachine::apply`], in order and each once.
pub trait Engine: Debug + Sized {
    /// The settings of this engine.
    type Config: Copy + Debug;

    /// Its properties, as far as code outside it has to know them.
    const TRAITS: Traits;

    /// Whether it can work with these settings.
    ///
    /// # Errors
    /// Names the first setting that it cannot work with.
    fn check(config: &Self::Config) -> Result<(), ConfigError>;

    /// Adds the regions that a process offers for this engine to those that it offers anyway ([`regions`](crate::basics::layout::regions)). This engine's log
    /// lanes replace the ones there.
    fn add_regions(spec: &mut RegionSpec, config: &Self::Config);

    /// The heartbeat words in this process's memory, as region and word. Long work advances them too.
    fn hearts() -> &'static [(RegionName, usize)] {
        &[(LIFE, life::HEARTBEAT)]
    }

    /// The engine of the process `me`, which holds the empty state and is in no group yet; views say the rest. Panics when the settings do not
    /// [check](Engine::check).
    fn new(me: ProcessId, config: Self::Config) -> Self;

    // Queries.

    /// When a leader's machine executes. If on commit, a reply is [released](Engine::released) only after the machine has applied everything that was proposed
    /// before it.
    fn execution(&self) -> Execution {
        Execution::Speculative
    }
    /// What this replica is.
    fn standing(&self) -> Standing;
    /// The newest view that it has been told; 0 for none. [`advance`](Engine::advance) has to know whether this view is active.
    fn view(&self) -> ViewNumber;
    /// Counts the times that this process became or ceased to be leader. Tickets mean nothing across a change.
    fn reign(&self) -> u64;
    /// While it leads: the number of its reign, above 0, unique among the reigns of all processes and constant during the reign. Of two reigns, the one with
    /// the larger number is the later. Once the later one has begun, nothing that the earlier one proposes is acknowledged.
    fn fencing_token(&self) -> Option<u64>;
    /// The ticket for replies computed in this turn.
    fn ticket(&self) -> Ticket;
    /// Replies with tickets up to this one may go out, if they were computed in this reign.
    fn released(&self) -> Ticket;
    /// Replies whose ticket was [asked for by quorum](Engine::ticket_by_quorum) may go out up to this one, if they were computed in this reign: what they saw
    /// is committed, and a majority that was asked after that knew of no other process that could lead. This depends on no clock.
    fn released_by_quorum(&self) -> Ticket;
    /// Whether replies wait for a round of questions to the coordinators that has not begun or has not been won.
    fn wants_round(&self) -> bool {
        false
    }
    /// The highest index that this replica knows to be committed.
    fn committed(&self) -> LogIndex;
    /// The last entry that this replica holds, or has proposed.
    fn last(&self) -> LogIndex;
    /// The last entry whose effects the machine shows, if it [is complete](Engine::is_complete).
    fn applied(&self) -> LogIndex;
    /// Whether the machine shows the whole state: every entry up to [`applied`](Engine::applied), and none that the log has lost.
    fn is_complete(&self) -> bool;
    /// Whether it does not lead, and its machine shows exactly the state after some committed command: [the whole](Engine::is_complete) of it and nothing
    /// beyond. See [`Replica::shows_committed`](crate::replica::Replica::shows_committed).
    fn shows_committed(&self) -> bool;
    /// Whether proposals of `bytes` in total would find room now.
    fn has_room(&self, bytes: usize) -> bool;
    /// The longest proposal that is taken, in bytes.
    fn max_proposal_bytes(&self) -> usize;
    /// Whether it leads and no other replica holds the state, so that one more crash would end the service.
    fn is_alone(&self) -> bool;

    /// Whether the remaining replicas may still need this one, which has asked to be removed. They do as long as its vote counts for commits and other voters
    /// live. Where views alone determine the voters, a view without this replica is enough.
    fn is_needed(&self) -> bool {
        false
    }

    /// The processes that count for commits: the newest group, known to be committed, whose majority commits. Where views alone determine it, the replicas of
    /// the newest view, each of which has to hold what is committed.
    fn committed_group(&self) -> &[ProcessId];

    /// Whether another process waits for what this one does in its next turn, for which no further input is needed. This process should take that turn before
    /// it lets others run.
    fn goes_on(&self) -> bool {
        false
    }
    /// The latest time at which [`post`](Engine::post) has something to do without further input.
    fn deadline(&self) -> Time;
    /// Whether work for this process counts as a sign of life. It does not while the engine has stopped its own heart because it makes no progress.
    fn may_beat(&self) -> bool {
        true
    }

    // What comes from outside.

    /// A member's process is connected; its lanes, in both directions, are fresh. The engine is not told of clients.
    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F);
    /// A peer's process or its connection is gone; `certain`: the kernel says that the process is.
    fn handle_peer_gone(&mut self, peer: PeerId, certain: bool);
    /// A view has been decided. Numbers may skip; a view that is not newer is ignored. Views change the group: the replicas of the first view found it,
    /// learners are to be added, and a process that is no longer listed is to be removed.
    fn handle_view(&mut self, view: &View);
    /// An operation with a token of [`Component::Engine`](crate::basics::layout::Component::Engine) has completed.
    fn handle_completion(&mut self, completion: Completion);

    // Commands.

    /// Long copies use this pulse to show that the process lives, until it is [reset](Engine::reset).
    fn keep_alive(&mut self, pulse: Pulse);
    /// The ticket for replies computed in this turn that wait for [`released_by_quorum`](Engine::released_by_quorum).
    fn ticket_by_quorum(&mut self) -> Ticket;
    /// A round of questions has just begun: everything [released](Engine::released) by now was executed and replicated before the first process was asked.
    fn note_round(&mut self, _round: Round) {}
    /// A round of questions was won, perhaps some time ago.
    fn handle_proof(&mut self, _proof: Proof) {}
    /// Takes the results of rounds of questions, and starts another round if replies wait for one. To be called after [`advance`](Engine::advance). Returns
    /// whether one has begun.
    fn check_by_quorum<F: Fabric>(&mut self, now: Time, core: &mut Core, fabric: &mut F) -> bool {
        if !self.wants_round() {
            return false;
        }
        if let Some(proof) = core.proof() {
            self.handle_proof(proof);
        }
        // All waiting replies share a round. Those that arrive while it is under way wait for the next.
        let round = if self.wants_round() { core.begin_round(now, fabric) } else { None };
        if let Some(round) = round {
            self.note_round(round);
        }
        round.is_some()
    }
    /// Adds the effects of requests, which the machine already shows, to the log. The next [`post`](Engine::post) posts them.
    ///
    /// # Errors
    /// When this process does not lead, or the proposal is longer than [`max_proposal_bytes`](Engine::max_proposal_bytes): a caller that executes ahead must
    /// check both before.
    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError>;
    /// Does everything that needs no check of the right to lead. Returns whether there was anything to do.
    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool;
    /// Draws the conclusions of a turn. `active` is the view that the lease showed to be active at `now`; that time was read after every completion handed in
    /// so far.
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S);
    /// A hint that this replica may lead soon: it prefetches the memory that it would write first, where the fabric supports that. It changes nothing.
    fn expect_to_lead<F: Fabric>(&self, _fabric: &F) {}
    /// Hands leadership over to the replica of this node, or to the next in line. [`hand_over_state`](Engine::hand_over_state) reports the outcome. Until then
    /// there may be no [room](Engine::has_room) for proposals; those already taken are committed and released as usual.
    ///
    /// # Errors
    /// See [`HandOverError`]: then nothing has changed.
    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError>;
    /// The state of the last hand-over that was not refused; `None` if there was none in this life.
    fn hand_over_state(&self) -> Option<HandOverState>;
    /// Asks for a group of `places` places, or of as many as members if `places` is 0 (DARE section 3.4). The request is in the log once
    /// [`places`](Engine::places) shows it.
    ///
    /// # Errors
    /// See [`ResizeError`]: then nothing has changed.
    fn resize(&mut self, places: usize) -> Result<(), ResizeError> {
        let _ = places;
        Err(ResizeError::ByMembers)
    }
    /// How many places the group in force has and how many it will have; `None` if both follow from its members.
    fn places(&self) -> Option<(usize, usize)> {
        None
    }
    /// Applies everything that this process holds, known to be committed or not, to the machine, and says what that is. This is for an operator who continues
    /// from this replica alone because the processes that could say what was committed are lost. The engine cannot be used after that. `None`: its machine does
    /// not show the whole state.
    fn gather<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered>;
    /// The engine of the process `me`, whose machine shows what was gathered. It alone holds that: the first view, [`Gathered::first_view`], lists no other
    /// process.
    fn go_on_from(me: ProcessId, config: Self::Config, gathered: &Gathered) -> Self;
    /// Starts over as the new incarnation `me`, with an empty machine and fresh lanes. Every peer has to be reported as connected again.
    fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S);

    /// The next thing that the node has to do or report, in order.
    fn poll_event(&mut self) -> Option<Event>;
}
