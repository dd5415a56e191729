//! What all engines have in common.

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
/// 1. peers and views, as they come: [`handle_peer_up`](Engine::handle_peer_up), [`handle_peer_gone`](Engine::handle_peer_gone),
///    [`handle_view`](Engine::handle_view);
/// 2. the application executes requests on the machine and hands their effects to [`propose`](Engine::propose);
/// 3. [`post`](Engine::post) writes them to the others, or applies what came from the leader;
/// 4. completions, to the end: [`handle_completion`](Engine::handle_completion);
/// 5. with a clock read after that, [`advance`](Engine::advance) draws the conclusions: it takes over, commits, and releases;
/// 6. [`check_by_quorum`](Engine::check_by_quorum), for replies that are not to depend on a lease; where operations complete at once, a second time in the
///    same turn, after their completions;
/// 7. the application sends the replies up to [`released`](Engine::released), or to [`released_by_quorum`](Engine::released_by_quorum), and the node acts on
///    [`poll_event`](Engine::poll_event).
///
/// The order is what makes a reply safe: whatever entitles a process to lead is checked after everything that the reply depends on (TRAPS 7).
///
/// The machine is executed on ahead, unless [`execution`](Engine::execution) says otherwise: as leader it shows exactly the effects of everything proposed. Decided entries reach
/// the machine of everybody else through [`StateMachine::apply`], in order and each once.
pub trait Engine: Debug + Sized {
    /// What can be set about it.
    type Config: Copy + Debug;

    /// What it is like, as far as code outside it has to know.
    const TRAITS: Traits;

    /// Whether it can work with these settings.
    ///
    /// # Errors
    /// Names the first setting that it cannot work with.
    fn check(config: &Self::Config) -> Result<(), ConfigError>;

    /// Adds what a process has to offer for this engine to what it offers anyway ([`regions`](crate::basics::layout::regions)); its log lanes
    /// replace those.
    fn add_regions(spec: &mut RegionSpec, config: &Self::Config);

    /// The words of this process's memory that move while it lives: which region, which word. Long work counts in them too.
    fn hearts() -> &'static [(RegionName, usize)] {
        &[(LIFE, life::HEARTBEAT)]
    }

    /// The engine of the process `me`, which holds the empty state and belongs to nothing yet: views say the rest. Panics when the settings do not
    /// [check](Engine::check).
    fn new(me: ProcessId, config: Self::Config) -> Self;

    // Queries.

    /// When the machine of a leader executes. Where it is on commit, a reply is [released](Engine::released) no earlier than its machine has applied everything that was
    /// proposed before.
    fn execution(&self) -> Execution {
        Execution::Speculative
    }
    /// What this replica is.
    fn standing(&self) -> Standing;
    /// The newest view that it has been told; 0 for none. It is the one whose activity [`advance`](Engine::advance) wants to know.
    fn view(&self) -> ViewNumber;
    /// Counts the times that this process became or ceased to be leader. Tickets mean nothing across a change.
    fn reign(&self) -> u64;
    /// While it leads: the number of its reign among those of all processes, above 0 and the same for as long as the reign lasts. Of two reigns the one with the
    /// larger number is the later: what the other one proposes once that has begun is never acknowledged.
    fn fencing_token(&self) -> Option<u64>;
    /// The ticket for replies computed in this turn.
    fn ticket(&self) -> Ticket;
    /// Replies with tickets up to this one may go out, if they were computed in this reign.
    fn released(&self) -> Ticket;
    /// Replies whose ticket was [asked for by quorum](Engine::ticket_by_quorum) may go out up to this one, if they were computed in this reign: what they saw
    /// is committed, and a majority, asked after that, knew of nobody else who could lead. Nobody's clock says so.
    fn released_by_quorum(&self) -> Ticket;
    /// Whether replies wait for a round of questions to the coordinators that has not begun, or not been won.
    fn wants_round(&self) -> bool {
        false
    }
    /// The highest index that this replica knows to be committed.
    fn committed(&self) -> LogIndex;
    /// The last entry that this replica holds, or has proposed.
    fn last(&self) -> LogIndex;
    /// Up to which entry the machine shows the log, if it [is complete](Engine::is_complete).
    fn applied(&self) -> LogIndex;
    /// Whether the machine shows the state: every entry up to [`applied`](Engine::applied), and none that the log has lost.
    fn is_complete(&self) -> bool;
    /// Whether it does not lead, and its machine shows the state after some committed command: [the whole](Engine::is_complete) of it, and nothing beyond. See
    /// [`Replica::shows_committed`](crate::replica::Replica::shows_committed).
    fn shows_committed(&self) -> bool;
    /// Whether proposals of `bytes` in all would find room now.
    fn has_room(&self, bytes: usize) -> bool;
    /// The longest proposal that is taken, in bytes.
    fn max_proposal_bytes(&self) -> usize;
    /// Whether it leads and no other replica holds the state: one more crash and the service ends.
    fn is_alone(&self) -> bool;

    /// Whether those who stay may still need this replica, which has asked to be removed: as long as it counts among those whose majority commits, and others of them
    /// live. Where views alone say who counts, a view without it is enough.
    fn is_needed(&self) -> bool {
        false
    }

    /// The processes that count for commits: those whose majority commits, as far as they are known to be committed; where views alone say who counts, the replicas of the newest
    /// view, each of which has to hold what is committed.
    fn committed_group(&self) -> &[ProcessId];

    /// Whether somebody else waits for what this process does in its next turn, which nothing has to come for: it should have that before it lets others run.
    fn goes_on(&self) -> bool {
        false
    }
    /// When [`post`](Engine::post) has something to do by itself, at the latest.
    fn deadline(&self) -> Time;
    /// Whether work for this process is a sign of life. Not while the engine keeps its own heart from beating because it gets nowhere.
    fn may_beat(&self) -> bool {
        true
    }

    // What comes from outside.

    /// A member's process is connected; its lanes, in both directions, are fresh. Clients are none of the engine's business.
    fn handle_peer_up<F: Fabric>(&mut self, peer: PeerId, process: ProcessId, fabric: &mut F);
    /// A peer's process is gone, or its connection; `certain`: its kernel says so.
    fn handle_peer_gone(&mut self, peer: PeerId, certain: bool);
    /// A view has been decided. Numbers may skip; what is not newer is ignored. This is how the group changes: the replicas of the first view found it,
    /// learners are to be taken in, and who is no longer listed is to go.
    fn handle_view(&mut self, view: &View);
    /// An operation with a token of [`Component::Engine`](crate::basics::layout::Component::Engine) has completed.
    fn handle_completion(&mut self, completion: Completion);

    // Commands.

    /// Long copies show by this pulse that the process lives, until it is [reset](Engine::reset).
    fn keep_alive(&mut self, pulse: Pulse);
    /// The ticket for replies computed in this turn that wait for [`released_by_quorum`](Engine::released_by_quorum).
    fn ticket_by_quorum(&mut self) -> Ticket;
    /// A round of questions has just begun: whatever is [released](Engine::released) by now was executed, and replicated, before anybody was asked.
    fn note_round(&mut self, _round: Round) {}
    /// A round of questions was won, perhaps some time ago.
    fn handle_proof(&mut self, _proof: Proof) {}
    /// Takes what rounds of questions have proved, and has another one begun if replies wait for that. To be called after [`advance`](Engine::advance).
    /// Returns whether one has begun.
    fn check_by_quorum<F: Fabric>(&mut self, now: Time, core: &mut Core, fabric: &mut F) -> bool {
        if !self.wants_round() {
            return false;
        }
        if let Some(proof) = core.proof() {
            self.handle_proof(proof);
        }
        // All replies that wait share a round: those that come while it is under way wait for the next.
        let round = if self.wants_round() { core.begin_round(now, fabric) } else { None };
        if let Some(round) = round {
            self.note_round(round);
        }
        round.is_some()
    }
    /// Takes the effects of requests, which the machine already shows, into the log. The next [`post`](Engine::post) posts them.
    ///
    /// # Errors
    /// When this process does not lead, or the proposal is longer than [`max_proposal_bytes`](Engine::max_proposal_bytes): whoever executes on
    /// ahead asks before it does.
    fn propose(&mut self, effects: &[u8]) -> Result<LogIndex, ProposeError>;
    /// Does what needs no further check. Returns whether there was anything to do.
    fn post<F: Fabric, S: StateMachine>(&mut self, now: Time, fabric: &mut F, machine: &mut S) -> bool;
    /// Draws the conclusions of a turn. `active` is the view that the lease said to be active at `now`, which was read after every completion
    /// handed in so far.
    fn advance<F: Fabric, S: StateMachine>(&mut self, now: Time, active: Option<ViewNumber>, fabric: &mut F, machine: &mut S);
    /// A hint that this replica may lead soon: the memory that it would write first is brought near, where the fabric can do so. It changes nothing.
    fn expect_to_lead<F: Fabric>(&self, _fabric: &F) {}
    /// Hands the lead over to the replica of this node, or to whoever comes next. [`hand_over_state`](Engine::hand_over_state) tells what
    /// comes of it. Until then there may be no [room](Engine::has_room) for proposals; those that were taken are committed and released as ever.
    ///
    /// # Errors
    /// See [`HandOverError`]: then nothing has changed.
    fn hand_over(&mut self, to: Option<NodeId>) -> Result<(), HandOverError>;
    /// What has come of the last wish to hand the lead over that was not refused; `None` if there was none in this life.
    fn hand_over_state(&self) -> Option<HandOverState>;
    /// Has the group have so many places, or as many as members if `places` is 0 (DARE section 3.4). It is on its way once [`places`](Engine::places) shows it.
    ///
    /// # Errors
    /// See [`ResizeError`]: then nothing has changed.
    fn resize(&mut self, places: usize) -> Result<(), ResizeError> {
        let _ = places;
        Err(ResizeError::ByMembers)
    }
    /// How many places the group in force has, and how many it is to have, if that does not follow from its members.
    fn places(&self) -> Option<(usize, usize)> {
        None
    }
    /// Brings into the machine all that this process holds, known to be committed or not, and says what that is: for an operator who goes on from it alone, since those
    /// who could say what was committed are lost. The engine is of no use after that. `None`: its machine does not show the whole state.
    fn gather<F: Fabric, S: StateMachine>(&mut self, fabric: &mut F, machine: &mut S) -> Option<Gathered>;
    /// The engine of the process `me`, whose machine shows what was gathered, and who alone holds it: the first view, [`Gathered::first_view`], lists nobody else.
    fn go_on_from(me: ProcessId, config: Self::Config, gathered: &Gathered) -> Self;
    /// Starts over as the new incarnation `me`, with an empty machine and fresh lanes: every peer has to come up anew.
    fn reset<S: StateMachine>(&mut self, me: ProcessId, machine: &mut S);

    /// What the node has to do or to report, in order.
    fn poll_event(&mut self) -> Option<Event>;
}
