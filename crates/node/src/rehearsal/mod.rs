//! Rehearsals: whoever would take over from the primary plays it through now and then, on memory of its own.
//!
//! No process runs the code of a takeover before the moment that it is for, so then its instructions, and the page tables' entries for them, come
//! from far away; in a virtual machine that takes longer than all the rest. A rehearsal brings them near. It plays on a [`stage`] that has nothing
//! of the node's, so that a life with rehearsals is the same life as one without: all that it takes is time, and it looks between its acts whether
//! somebody has died.

mod schedule;
mod stage;

use martlet_protocol::basics::Time;
use martlet_protocol::duty::Host;
use martlet_protocol::engine::Leadership;
use martlet_protocol::membership::{ClockBounds, Roles, View};
use martlet_protocol::replica::{Application, Standing};

use self::schedule::Schedule;
use self::stage::{Played, Stage};
use crate::agent::Agent;
use crate::backend::{Backend, Rest};
use crate::config::Settings;
use crate::counters::Counter;
use crate::engine::NodeEngine;

/// When a node rehearses, and where.
pub(crate) struct Rehearsals<F: Backend, E: NodeEngine, A: Application> {
    schedule: Schedule,
    clocks: ClockBounds,
    /// Built when it is needed first: most nodes never are the primary's successor.
    stage: Option<Stage<F, E, A>>,
}

impl<F: Backend, E: NodeEngine, A: Application> Rehearsals<F, E, A> {
    /// As configured, for a life that begins at `now`.
    pub fn new(settings: &Settings, clocks: ClockBounds, now: Time) -> Self {
        let every_ns = match E::TRAITS.leadership {
            Leadership::Views => settings.node().threads.rehearse_every_us * 1_000,
            // Leadership is not decided by views, and elections are not rehearsed.
            Leadership::Election => 0,
        };
        Rehearsals { schedule: Schedule::new(every_ns, now), clocks, stage: None }
    }

    /// When the next one is due, if this node rehearses.
    pub fn due(&self, host: &Host<F, E, A::Machine>) -> Option<Time> {
        self.schedule.due().filter(|_| matches!(host.engine.standing(), Standing::Backup { .. }) && is_successor(host))
    }

    /// Plays if it is due. Returns whether it has: the next turn is to follow at once. `bed` tells whether somebody has died.
    pub fn play(&mut self, now: Time, settings: &Settings, agent: &mut Agent<F, E, A>, bed: &impl Rest<F>) -> bool {
        let Agent { host, app, instruments, .. } = agent;
        self.schedule.note_primary(host.member.core.view().and_then(View::primary).map(|m| m.id), now);
        if self.due(host).is_none_or(|due| now < due) {
            return false;
        }
        if self.stage.as_ref().is_none_or(Stage::is_worn_out) {
            self.stage = match Stage::build(settings.cluster(), self.clocks, app, instruments.clock) {
                Ok(stage) => stage,
                Err(error) => {
                    tracing::warn!(%error, "cannot set up rehearsals: this node does not rehearse takeovers");
                    None
                }
            };
        }
        let Some(stage) = &mut self.stage else {
            self.schedule.end();
            return true;
        };
        let played = stage.play(|| !bed.has_seen_death(&host.member.fabric));
        instruments.counters.add(if played == Played::Whole { Counter::Rehearsals } else { Counter::RehearsalsCut }, 1);
        if played == Played::Failed {
            // The next one has a stage of its own, on which nothing is left of this.
            self.stage = None;
        }
        // The code is at hand now; this is for the memory that a takeover writes first.
        host.member.core.expect_to_propose(&host.member.fabric);
        host.engine.expect_to_lead(&host.member.fabric);
        app.expect_to_lead(&host.member.fabric);
        let end = instruments.clock();
        instruments.counters.add(Counter::RehearsalNs, end.since(now));
        self.schedule.note_played(end);
        true
    }
}

/// Whether this process is next in seniority after the primary.
fn is_successor<F: martlet_fabric::Fabric, E: martlet_protocol::engine::Engine, M: martlet_protocol::replica::StateMachine>(
    host: &Host<F, E, M>,
) -> bool {
    let member = &host.member;
    member.core.view().is_some_and(|view: &View| view.with_roles(Roles::REPLICA).nth(1).is_some_and(|m| m.id == member.me))
}
