//! Rehearsals: the replica that would take over from the primary plays the takeover through now and then, on memory of its own.
//!
//! A process runs the code of a takeover only when one happens, so its instructions, and the page table entries for them, then have to come from far away. In a
//! virtual machine that takes longer than all the rest. A rehearsal brings them near. It is played on a [`stage`] that shares nothing with the node, so a life
//! with rehearsals is the same as one without: a rehearsal takes only time, and between its acts it checks whether another process has died.

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
    /// Built when it is first needed: most nodes never are the primary's successor.
    stage: Option<Stage<F, E, A>>,
}

impl<F: Backend, E: NodeEngine, A: Application> Rehearsals<F, E, A> {
    /// Rehearsals as configured, for a life that begins at `now`.
    pub fn new(settings: &Settings, clocks: ClockBounds, now: Time) -> Self {
        let every_ns = match E::TRAITS.leadership {
            Leadership::Views => settings.node().threads.rehearse_every_us * 1_000,
            // Views do not decide who leads here, and elections are not rehearsed.
            Leadership::Election => 0,
        };
        Rehearsals { schedule: Schedule::new(every_ns, now), clocks, stage: None }
    }

    /// When the next rehearsal is due, if this node rehearses.
    pub fn due(&self, host: &Host<F, E, A::Machine>) -> Option<Time> {
        self.schedule.due().filter(|_| matches!(host.engine.standing(), Standing::Backup { .. }) && is_successor(host))
    }

    /// Plays a rehearsal if one is due. Returns whether it has: then the next turn is to follow at once. `bed` tells whether another process has died.
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
            // The next rehearsal has a stage of its own, on which nothing is left of this one.
            self.stage = None;
        }
        // The code is at hand now; this prepares the memory that a takeover writes first.
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
