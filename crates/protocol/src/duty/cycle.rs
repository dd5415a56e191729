//! The duty cycle: one turn of a replica, in steps. A process may be paused between any two of them, and what it does afterwards is still correct.

use martlet_fabric::{Completion, Fabric};

use super::{Environment, Host};
use crate::basics::Time;
use crate::basics::canary::Canary;
use crate::basics::layout::Component;
use crate::engine::Engine;
use crate::replica::{Application, Standing};

/// The most datagrams taken in one turn.
const DATAGRAMS_A_TURN: usize = 64;
/// How often per turn an election continues with the results of its last step.
const ELECTION_STEPS: u8 = 8;
/// How often per turn a takeover continues: once to begin, and once more when the others' memory has answered; the rest is left for later turns.
const TAKEOVER_STEPS: u8 = 2;

/// How a duty cycle divides its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long membership waits after it is due, in nanoseconds, if the engine elects by itself and has work to do without a break: longer than an
    /// election takes, and shorter than any of membership's own intervals.
    pub patience_ns: u64,
    /// How long turns stay short, in nanoseconds: a few times as long as a whole turn takes, and little compared with the time that it takes to see a
    /// death.
    pub short_turns_ns: u64,
    /// How long after a request more requests are expected, in nanoseconds.
    pub expects_requests_ns: u64,
    /// How long the memory of a member that the engine has let go of is kept at least, in nanoseconds: longer than a failover takes.
    pub forget_after_ns: u64,
    /// How long the memory of a peer that is gone is kept while every turn has work, in nanoseconds. After that it is given up in such turns too, one
    /// peer per turn.
    pub forget_while_busy_after_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            patience_ns: 1_000_000,
            short_turns_ns: 4_000,
            expects_requests_ns: 50_000,
            forget_after_ns: 5_000_000,
            forget_while_busy_after_ns: 20_000_000,
        }
    }
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// When the turn ended, or a little earlier.
    pub now: Time,
    /// Whether there was anything to do.
    pub worked: bool,
    /// Whether the turn was for requests only; anything else that has come waits for the next whole turn.
    pub short: bool,
    /// Requests taken.
    pub taken: usize,
    /// Replies sent.
    pub sent: usize,
    /// How often this process, leading by views, checked whether its view is active.
    pub active_checks: u32,
    /// How often the answer was no.
    pub inactive_checks: u32,
}

/// The steps of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Decide whether this turn is for requests only.
    Begin,
    /// Take what the fabric says about peers, and datagrams; give membership its tick, if views determine who leads.
    LookAround,
    /// Collect completions, as far as there are any.
    Collect(After),
    /// Hand out the completions, with a clock read after the last of them.
    HandOut(After),
    /// Take over, if that has become possible; this many attempts are left.
    TakeOver(u8),
    /// Serve requests, and let the engine post.
    Serve,
    /// The engine draws its conclusions, with the clock read after all completions; this many steps of an election may follow.
    Conclude(u8),
    /// An election continues, if it can do so at once.
    Elect(u8),
    /// Ask the coordinators, for replies that wait for their answer.
    AskByQuorum,
    /// Take the answers that have arrived at once.
    TakeAnswers,
    /// Send replies.
    Release,
    /// The end. If membership's tick comes last, it has happened.
    End,
}

/// The step whose completions are handled, which determines what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    LookAround,
    TakeOver(u8),
    Serve,
    Elect(u8),
    AskByQuorum,
    Tend,
}

/// When a leading replica has to look at everything again: in every turn, except while requests keep coming.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    /// When the last whole turn began.
    begun: Time,
    /// The time until which more requests are expected.
    requests_until: Time,
    /// Something has come up that the next turn has to see to, even if requests are expected.
    urgent: bool,
}

impl Rounds {
    #[inline]
    fn is_due(&self, now: Time, pace: &Pace) -> bool {
        self.urgent || now >= self.requests_until || now.since(self.begun) >= pace.short_turns_ns
    }
}

/// The state of a duty cycle between its steps. See the [module](super) for what a turn is.
#[derive(Debug)]
pub struct DutyCycle {
    pace: Pace,
    step: Step,
    /// The outcome so far of the turn under way.
    turn: Turn,
    looked: usize,
    posted: bool,
    completions: Vec<Completion>,
    /// When membership last had its tick, if the engine goes before it.
    tended: Time,
    /// Since when each turn has had other work.
    busy: Option<Time>,
    rounds: Rounds,
    /// Since when no other leader has been known: either an election is under way, or the engine designates this process, which does not lead yet.
    asked: Option<Time>,
    /// Whether requests are still accepted.
    pub serving: bool,
}

impl DutyCycle {
    /// The state before the first turn.
    pub fn new(pace: Pace) -> Self {
        DutyCycle {
            pace,
            step: Step::Begin,
            turn: Turn::default(),
            looked: 0,
            posted: false,
            completions: Vec::with_capacity(4096),
            tended: Time(0),
            busy: None,
            rounds: Rounds::default(),
            asked: None,
            serving: true,
        }
    }

    /// Whether the cycle is between two steps of a turn.
    pub fn is_mid_turn(&self) -> bool {
        self.step != Step::Begin
    }

    /// Runs one turn, or the rest of one.
    #[inline]
    pub fn turn<F, E, A, V>(&mut self, host: &mut Host<F, E, A::Machine>, app: &mut A, env: &mut V) -> Turn
    where
        F: Fabric,
        E: Engine,
        A: Application,
        V: Environment<F>,
    {
        loop {
            if let Some(turn) = self.step(host, app, env) {
                return turn;
            }
        }
    }

    /// Runs one step of a turn. Returns the outcome of the turn if that was the last step.
    #[inline]
    pub fn step<F, E, A, V>(&mut self, host: &mut Host<F, E, A::Machine>, app: &mut A, env: &mut V) -> Option<Turn>
    where
        F: Fabric,
        E: Engine,
        A: Application,
        V: Environment<F>,
    {
        self.step = match self.step {
            Step::Begin => {
                self.turn = Turn::default();
                self.looked = 0;
                host.pulse.allow(host.engine.may_beat());
                self.turn.short = self.may_be_short(host, env);
                if self.turn.short { Step::Serve } else { Step::LookAround }
            }
            Step::LookAround => {
                self.look_around(host, env);
                Step::Collect(After::LookAround)
            }
            Step::Collect(after) => {
                self.collect(host);
                Step::HandOut(after)
            }
            Step::HandOut(after) => {
                if self.hand_out(host, app, env) {
                    Step::Collect(after)
                } else {
                    match after {
                        // If the engine elects, no view says that this process leads.
                        After::LookAround if E::TRAITS.elects() => Step::Serve,
                        After::LookAround => Step::TakeOver(TAKEOVER_STEPS),
                        After::TakeOver(0) => Step::Serve,
                        After::TakeOver(left) => Step::TakeOver(left),
                        After::Serve => Step::Conclude(ELECTION_STEPS),
                        After::Elect(left) => Step::Conclude(left),
                        After::AskByQuorum => Step::TakeAnswers,
                        After::Tend => Step::End,
                    }
                }
            }
            Step::TakeOver(left) => {
                let (standing, view) = (host.engine.standing(), host.engine.view());
                if left == 0 || standing == Standing::Primary || !host.member.core.lease().active(view, host.member.now) {
                    Step::Serve
                } else {
                    self.looked += 1;
                    self.conclude(host, env);
                    if self.has_completions(host) { Step::Collect(After::TakeOver(left - 1)) } else { Step::TakeOver(left - 1) }
                }
            }
            Step::Serve => {
                self.turn.taken = if self.serving { app.poll(host) } else { 0 };
                let Host { member, engine, machine, .. } = host;
                self.posted = !host.dormant && engine.post(member.now, &mut member.fabric, machine);
                host.mind_the_unreadable(env);
                Step::Collect(After::Serve)
            }
            Step::Conclude(left) => {
                self.conclude(host, env);
                Step::Elect(left)
            }
            Step::Elect(left) => {
                if left > 0 && is_electing(host) && self.has_completions(host) {
                    Step::Collect(After::Elect(left - 1))
                } else {
                    Step::AskByQuorum
                }
            }
            Step::AskByQuorum => {
                if check_by_quorum(host) && self.has_completions(host) {
                    Step::Collect(After::AskByQuorum)
                } else {
                    Step::Release
                }
            }
            Step::TakeAnswers => {
                check_by_quorum(host);
                Step::Release
            }
            Step::Release => {
                if self.release(host, app, env) {
                    Step::Collect(After::Tend)
                } else {
                    Step::End
                }
            }
            Step::End => {
                host.forget_the_gone(&self.pace, self.turn.worked);
                self.turn.now = host.member.now;
                self.step = Step::Begin;
                return Some(self.turn);
            }
        };
        None
    }

    /// Whether this turn is for requests only. If it may be, the clock is read anew: a process that was kept from running since its last turn must
    /// neither continue as before nor give requests an earlier time than that.
    #[inline]
    fn may_be_short<F: Fabric, E: Engine, M>(&self, host: &mut Host<F, E, M>, env: &mut impl Environment<F>) -> bool {
        let leads = !E::TRAITS.elects() && host.engine.standing() == Standing::Primary;
        if !leads || self.rounds.urgent || host.member.now >= self.rounds.requests_until {
            return false;
        }
        host.member.now = env.now();
        !self.rounds.is_due(host.member.now, &self.pace)
    }

    /// Makes the next turn a whole one: before a sleep, everything that could end the sleep has to be looked at.
    pub fn look_around_next(&mut self) {
        self.rounds.urgent = true;
    }

    fn look_around<F, E, M>(&mut self, host: &mut Host<F, E, M>, env: &mut impl Environment<F>)
    where
        F: Fabric,
        E: Engine,
        M: crate::replica::StateMachine,
    {
        (self.rounds.begun, self.rounds.urgent) = (host.member.now, false);
        self.looked = host.take_peer_events(env);
        for _ in 0..DATAGRAMS_A_TURN {
            if !host.member.take_datagram(env) {
                break;
            }
            self.looked += 1;
            host.take_membership_events(env);
        }
        if !E::TRAITS.elects() {
            host.tend_membership(env);
        }
    }

    #[inline]
    fn collect<F: Fabric, E, M>(&mut self, host: &mut Host<F, E, M>) {
        while let Some(completion) = host.member.fabric.poll() {
            self.completions.push(completion);
        }
    }

    /// Whether operations have completed that have not been handed out yet.
    fn has_completions<F: Fabric, E, M>(&mut self, host: &mut Host<F, E, M>) -> bool {
        let Some(completion) = host.member.fabric.poll() else { return false };
        self.completions.push(completion);
        true
    }

    /// Hands out the collected completions. Returns whether there are more by now. The time is read after the last of them arrived.
    #[inline]
    fn hand_out<F, E, A, V>(&mut self, host: &mut Host<F, E, A::Machine>, app: &mut A, env: &mut V) -> bool
    where
        F: Fabric,
        E: Engine,
        A: Application,
        V: Environment<F>,
    {
        // Later than every completion just taken, as membership and the engine require.
        let now = env.now();
        host.member.now = now;
        // Check for a clock jump first: a jump would invalidate any lease that is extended or checked at that time.
        if host.member.mind_jumps(env) {
            self.rounds.urgent = true;
        }
        if self.completions.is_empty() {
            return false;
        }
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            if Component::Engine.owns(completion.token) {
                host.engine.handle_completion(completion);
            } else if Component::Application.owns(completion.token) {
                app.complete(host, completion);
            } else if Component::Founding.owns(completion.token) {
                host.member.boards_read.push(completion);
            } else {
                host.member.core.handle_completion(now, &mut host.member.fabric, completion);
                host.take_membership_events(env);
            }
        }
        self.completions.clear();
        self.has_completions(host)
    }

    /// Tells the engine whether the view is active, at a time read after all completions so far, and acts on the result.
    fn conclude<F, E, M>(&mut self, host: &mut Host<F, E, M>, env: &mut impl Environment<F>)
    where
        F: Fabric,
        E: Engine,
        M: crate::replica::StateMachine,
    {
        let Host { member, engine, machine, .. } = host;
        host.dormant &= !member.core.is_member();
        if host.dormant {
            return;
        }
        let view = engine.view();
        let active = member.core.lease().active(view, member.now) || Canary::UncheckedView.is_planted();
        if !E::TRAITS.elects() && engine.standing() == Standing::Primary {
            self.turn.active_checks += 1;
            self.turn.inactive_checks += u32::from(!active);
        }
        engine.advance(member.now, active.then_some(view), &mut member.fabric, machine);
        host.take_engine_events(env);
    }

    /// Sends the application's replies, and records what this turn was. Returns whether membership has had its tick now, which happens only if its
    /// tick comes last.
    fn release<F, E, A, V>(&mut self, host: &mut Host<F, E, A::Machine>, app: &mut A, env: &mut V) -> bool
    where
        F: Fabric,
        E: Engine,
        A: Application,
        V: Environment<F>,
    {
        let now = host.member.now;
        self.asked = if is_electing(host) { self.asked.or(Some(now)) } else { None };
        self.turn.sent = app.release(host);
        host.note_replies(env, self.turn.sent);
        if self.turn.taken > 0 {
            self.rounds.requests_until = now.after(self.pace.expects_requests_ns);
        }
        self.turn.worked = self.looked > 0 || self.turn.taken > 0 || self.posted || self.turn.sent > 0 || goes_on(host);
        self.busy = if self.turn.worked || is_electing(host) { self.busy.or(Some(now)) } else { None };
        if !E::TRAITS.elects() || now < self.membership_due(host) {
            return false;
        }
        self.tended = now;
        host.tend_membership(env);
        true
    }

    /// When membership's next tick is due, if it comes after the engine's work.
    fn membership_due<F, E, M>(&self, host: &Host<F, E, M>) -> Time {
        membership_due(self.tended, self.busy, host.member.core.deadline(), self.pace.patience_ns)
    }

    /// Takes effect in the next turn.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Whether this process waits, and not yet for long, for the others' permission to lead, or for an election to be settled.
    pub fn waits_for_permission(&self, now: Time) -> bool {
        self.asked.is_some_and(|asked| now.since(asked) < self.pace.patience_ns)
    }

    /// When the next turn is due at the latest, for a process that would rather sleep until then.
    pub fn deadline<F: Fabric, E: Engine, A: Application>(&self, host: &Host<F, E, A::Machine>, app: &A) -> Time {
        let membership = if is_electing(host) { self.membership_due(host) } else { host.member.core.deadline() };
        let engine = if host.dormant { Time(u64::MAX) } else { host.engine.deadline() };
        membership.min(engine).min(app.deadline())
    }
}

/// Whether the engine elects by itself and, as far as this process knows, an election is under way here or elsewhere.
fn is_electing<F, E: Engine, M>(host: &Host<F, E, M>) -> bool {
    E::TRAITS.elects() && !host.dormant && host.engine.standing() == Standing::Backup { primary: None }
}

/// Asks the coordinators, for replies that wait for their answer. What was executed in this turn was executed before.
#[inline]
fn check_by_quorum<F: Fabric, E: Engine, M>(host: &mut Host<F, E, M>) -> bool {
    let member = &mut host.member;
    host.engine.check_by_quorum(member.now, &mut member.core, &mut member.fabric)
}

/// Whether something is under way that continues by itself in the next turn: a takeover, proposals that wait for a backup's lane, or replies that
/// wait for the coordinators. If a process cannot reach the coordinators, so that its lease has run out, it waits until something arrives.
fn goes_on<F, E: Engine, M>(host: &Host<F, E, M>) -> bool {
    let active = || host.member.core.lease().active(host.engine.view(), host.member.now);
    match host.engine.standing() {
        Standing::Primary => host.engine.committed() != host.engine.last() || (host.engine.wants_round() && active()),
        // The engine's own election waits for what others write, and their writes wake this process.
        _ if E::TRAITS.elects() => false,
        _ => active(),
    }
}

/// When membership's next tick is due. It had its last tick at `tended`, is by itself due at `deadline`, and there has been other work since `busy`.
fn membership_due(tended: Time, busy: Option<Time>, deadline: Time, patience_ns: u64) -> Time {
    match busy {
        Some(since) => tended.max(since).after(patience_ns),
        None => tended.after(patience_ns).min(deadline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_only_between_requests_and_never_for_long() {
        let mut rounds = Rounds::default();
        let pace = Pace::default();
        let start = 1_000_000;
        assert!(rounds.is_due(Time(start), &pace), "nobody has asked for anything");
        rounds.begun = Time(start);
        rounds.requests_until = Time(start + 100).after(pace.expects_requests_ns);
        assert!(!rounds.is_due(Time(start + 200), &pace));
        assert!(!rounds.is_due(Time(start + pace.short_turns_ns - 1), &pace));
        assert!(rounds.is_due(Time(start + pace.short_turns_ns), &pace), "however many requests there are");
        rounds.begun = Time(start + 100 + pace.expects_requests_ns - 1);
        assert!(!rounds.is_due(Time(start + 100 + pace.expects_requests_ns - 1), &pace));
        assert!(rounds.is_due(Time(start + 100 + pace.expects_requests_ns), &pace), "they have stopped coming");
    }

    #[test]
    fn membership_comes_after_an_election_and_before_long() {
        let (tended, woken) = (Time(1_000_000), Time(50_000_000));
        let deadline = Time(2_000_000);
        let patience_ns = Pace::default().patience_ns;
        assert_eq!(membership_due(tended, None, deadline, patience_ns), deadline, "there is nothing else to do");
        assert_eq!(
            membership_due(tended, Some(woken), deadline, patience_ns),
            woken.after(patience_ns),
            "who is woken by a death sees to that first"
        );
        let again = woken.after(patience_ns);
        assert_eq!(membership_due(again, Some(woken), deadline, patience_ns), again.after(patience_ns), "however long the work lasts");
    }
}
