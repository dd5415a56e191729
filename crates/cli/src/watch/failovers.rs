//! Changes of leadership as the nodes' events tell them, remembered for as long as somebody looks: a dead node's events go with its memory.
//!
//! A change is told by the node that took over, with its own stamps only. So the steps of one are on one clock, over a network too.

use martlet_node::counters::{Counter, Event, EventKind, Reading};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use martlet_protocol::membership::{Evidence, View};
use serde_json::{Value, json};

/// Why leadership changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nobody is known to have led before: it was the first, or what its predecessor recorded is gone with its memory.
    Unknown,
    /// The one before died for certain.
    Death,
    /// The one before was presumed dead, or did not answer.
    Silence,
    /// The one before handed it over, or left.
    Handover,
    /// With `mu` the lowest leads: it was away, and is back.
    Return,
}

impl Cause {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Unknown => "unknown",
            Cause::Death => "death",
            Cause::Silence => "silence",
            Cause::Handover => "handover",
            Cause::Return => "return",
        }
    }
}

/// That a node took over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reign {
    /// The node that leads by it.
    pub node: u16,
    /// Which life of it.
    pub incarnation: u64,
    /// The node that led before, as far as it is known.
    pub before: Option<u16>,
    /// Why.
    pub cause: Cause,
    /// In which view.
    pub view: u64,
    /// When it took over, on its host's clock since its start.
    pub took_over: Time,
    /// The same on our wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// From when on its steps count: it saw the death, or with `mu` asked for permission where it saw none. `None`: nothing of that kind was recorded.
    pub began: Option<Time>,
    /// When it knew that the view without the one before is decided, in nanoseconds since it began.
    pub decided_ns: Option<u64>,
    /// When a majority gave its permission (mu), in nanoseconds since it began.
    pub permitted_ns: Option<u64>,
    /// The first reply, in nanoseconds since it began. It waits for a request, so it says nothing of the failover when nobody asked.
    pub first_reply_ns: Option<u64>,
}

impl Reign {
    /// Whether it followed a failure.
    pub fn is_failover(&self) -> bool {
        matches!(self.cause, Cause::Death | Cause::Silence)
    }

    /// From its beginning to the takeover, in nanoseconds.
    pub fn took_over_ns(&self) -> Option<u64> {
        self.began.map(|began| self.took_over.since(began))
    }

    /// Takes in what the node has recorded since.
    fn learn(&mut self, reading: &Reading) {
        self.first_reply_ns = self.first_reply_ns.or_else(|| first_reply(reading, self.took_over, self.began));
        // An engine that elects may have taken over before membership saw why.
        let after = |event: &Event| event.at >= self.took_over && event.at.since(self.took_over) <= AFTERWARDS_NS;
        let died = |event: &Event| {
            event.kind == EventKind::DeathSeen && !is_farewell(event) && event.process.map(|process| process.node.0) == self.before
        };
        if self.cause == Cause::Silence && reading.events.iter().any(|(_, event)| after(event) && died(event)) {
            self.cause = Cause::Death;
        }
    }

    /// As a JSON object. `now_ns`: the wall clock.
    pub fn json(&self, now_ns: u64) -> Value {
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
        json!({
            "cause": self.cause.name(),
            "from": self.before,
            "to": self.node,
            "view": self.view,
            "ago_ms": now_ns.saturating_sub(self.wall_ns) / 1_000_000,
            "view_decided_us": us(self.decided_ns),
            "permission_held_us": us(self.permitted_ns),
            "took_over_us": us(self.took_over_ns()),
            "first_reply_us": us(self.first_reply_ns),
        })
    }
}

/// A leader's death that is seen so soon after another has taken over for its silence was the reason of that.
const AFTERWARDS_NS: u64 = 1_000_000_000;
/// How many are remembered.
const KEPT: usize = 256;

/// What has been seen of them, oldest first.
#[derive(Debug, Default)]
pub struct Reigns {
    known: Vec<Reign>,
    /// Failovers that were seen, those no longer remembered included, each by how long the takeover took in nanoseconds.
    noted: Vec<u64>,
    /// Processes that have left in order, as far as views have told, the latest last.
    left: Vec<ProcessId>,
}

impl Reigns {
    /// Takes in who has gone without failing, as a view says. A view tells it of those only whom it has removed itself, so each is to be noted.
    pub fn note_view(&mut self, view: &View) {
        for departed in view.departed.iter().filter(|departed| departed.evidence == Evidence::Left) {
            if !self.left.contains(&departed.id) {
                self.left.push(departed.id);
            }
        }
        let surplus = self.left.len().saturating_sub(KEPT);
        self.left.drain(..surplus);
    }

    /// Takes in what the nodes show now; `elects`: whether the engine elects by itself, so that leadership may change without a view. `now_ns`: the wall
    /// clock.
    pub fn note(&mut self, readings: &[(u16, &Reading)], elects: bool, now_ns: u64) {
        let mut fresh: Vec<(u64, u16, Event, &Reading)> = Vec::new();
        // What is older than all that is remembered was seen, and forgotten.
        let forgotten_ns = self.known.first().filter(|_| self.known.len() >= KEPT).map_or(0, |oldest| oldest.wall_ns);
        for (node, reading) in readings {
            for (_, event) in reading.events.iter().filter(|(_, event)| event.kind == EventKind::TookOver) {
                match self.known.iter_mut().find(|reign| reign.node == *node && reign.took_over == event.at) {
                    Some(reign) => reign.learn(reading),
                    None => {
                        let wall_ns = wall_of(event.at, reading, now_ns);
                        if wall_ns >= forgotten_ns {
                            fresh.push((wall_ns, *node, *event, reading));
                        }
                    }
                }
            }
        }
        fresh.sort_by_key(|(wall_ns, ..)| *wall_ns);
        for (wall_ns, node, event, reading) in fresh {
            let before = self.before(node, event.view, wall_ns, readings, now_ns);
            let mut reign = reign(node, &event, reading, before, elects, now_ns);
            reign.learn(reading);
            if reign.is_failover() {
                self.noted.extend(reign.took_over_ns());
            }
            // Of a node that was only just connected, an older one may come to light.
            let at = self.known.partition_point(|known| known.wall_ns <= wall_ns);
            self.known.insert(at, reign);
        }
        let surplus = self.known.len().saturating_sub(KEPT);
        self.known.drain(..surplus);
    }

    /// The node that led before that one took over at that moment, and whether it had stepped aside by then.
    fn before(&self, node: u16, view: ViewNumber, wall_ns: u64, readings: &[(u16, &Reading)], now_ns: u64) -> Option<Before> {
        let last = self.known.iter().rfind(|reign| reign.wall_ns < wall_ns)?;
        // Views begin anew when a cluster is founded; and nobody takes over from itself, so somebody has led in between who cannot tell any more.
        if view.0 < last.view || node == last.node {
            return None;
        }
        let aside = |event: &Event| matches!(event.kind, EventKind::SteppedDown | EventKind::Leaving) && event.at >= last.took_over;
        let stepped_aside = readings
            .iter()
            .filter(|(node, _)| *node == last.node)
            .any(|(_, reading)| reading.events.iter().any(|(_, event)| aside(event) && wall_of(event.at, reading, now_ns) <= wall_ns));
        let left = self.left.iter().any(|id| id.node.0 == last.node && id.incarnation.0 == last.incarnation);
        Some(Before { node: last.node, since_wall_ns: last.wall_ns, stepped_aside: stepped_aside || left })
    }

    /// All that are remembered, oldest first.
    pub fn all(&self) -> &[Reign] {
        &self.known
    }

    /// The same, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Reign> {
        self.known.iter().rev()
    }

    /// Since when a node leads, on our wall clock in nanoseconds, provided that its was the last takeover.
    pub fn leads_since_ns(&self, node: u16) -> Option<u64> {
        self.known.last().filter(|reign| reign.node == node).map(|reign| reign.wall_ns)
    }

    /// How long each failover took from its beginning to the takeover, in nanoseconds, that has been seen since this began to look.
    pub fn takeovers_ns(&self) -> &[u64] {
        &self.noted
    }
}

/// Whether it is about somebody who asked to leave.
fn is_farewell(event: &Event) -> bool {
    event.detail == u64::from(Evidence::Left.code())
}

struct Before {
    node: u16,
    since_wall_ns: u64,
    stepped_aside: bool,
}

/// A node's stamp on our wall clock. Its counters were published a moment ago, so their stamp is its now, on whichever host it runs.
fn wall_of(at: Time, reading: &Reading, now_ns: u64) -> u64 {
    now_ns.saturating_sub(reading.get(Counter::PublishedNs).saturating_sub(at.0))
}

fn first_reply(reading: &Reading, took_over: Time, began: Option<Time>) -> Option<u64> {
    let after = || reading.events.iter().map(|(_, event)| event).filter(|event| event.at >= took_over);
    let end = after().find(|event| event.kind == EventKind::TookOver && event.at > took_over).map_or(u64::MAX, |event| event.at.0);
    let reply = after().find(|event| event.kind == EventKind::FirstReply && event.at.0 <= end)?;
    Some(reply.at.since(began?))
}

fn reign(node: u16, took_over: &Event, reading: &Reading, before: Option<Before>, elects: bool, now_ns: u64) -> Reign {
    let events = || reading.events.iter().map(|(_, event)| event).filter(|event| event.at <= took_over.at);
    // What it did when it led before belongs to that.
    let led = |event: &&Event| event.at < took_over.at && matches!(event.kind, EventKind::TookOver | EventKind::SteppedDown);
    let since = events().filter(led).map(|event| event.at).max().unwrap_or(Time(0));
    let of = |kind: EventKind| events().filter(move |event| event.at >= since && event.kind == kind);
    let wall_ns = |event: &Event| wall_of(event.at, reading, now_ns);
    let asked = of(EventKind::PermissionAsked).next_back().filter(|_| elects);
    // A death of the one that led; or, where nobody knows who did, one that leads to this view, and where the engine elects, one in the view in which it asked. What an
    // earlier view has answered is another story.
    let answered_by = if elects { asked.unwrap_or(took_over).view.0 } else { took_over.view.0.saturating_sub(1) };
    let deaths = || {
        let death = |event: &&Event| matches!(event.kind, EventKind::DeathSeen | EventKind::Suspected) && event.at >= since;
        events().filter(death).filter(|event| event.process.is_some_and(|process| process.node.0 != node))
    };
    let of_the_leader = |event: &&Event| {
        let led =
            |before: &Before| event.process.is_some_and(|process| process.node.0 == before.node) && wall_ns(event) >= before.since_wall_ns;
        before.as_ref().is_some_and(led)
    };
    let in_order = before.as_ref().is_some_and(|before| before.stepped_aside);
    let death = deaths().rfind(of_the_leader).or_else(|| deaths().find(|event| event.view.0 >= answered_by)).filter(|_| !in_order);
    let is_back = |before: &Before| {
        let away = |event: &Event| matches!(event.kind, EventKind::Started | EventKind::Stalled) && wall_ns(event) >= before.since_wall_ns;
        node < before.node && events().any(away)
    };
    let (cause, began) = match (death, asked, &before) {
        (Some(death), asked, _) if is_farewell(death) => (Cause::Handover, Some(asked.map_or(death.at, |asked| asked.at))),
        // An engine that elects may have begun before membership saw it.
        (Some(death), asked, _) => {
            let cause = if death.kind == EventKind::DeathSeen { Cause::Death } else { Cause::Silence };
            (cause, Some(asked.map_or(death.at, |asked| asked.at.min(death.at))))
        }
        (None, _, None) => (Cause::Unknown, None),
        (None, Some(asked), Some(before)) if !in_order => (if is_back(before) { Cause::Return } else { Cause::Silence }, Some(asked.at)),
        (None, asked, Some(_)) => (Cause::Handover, asked.map(|asked| asked.at)),
    };
    let after_began = |event: Option<&Event>| began.and_then(|began| event?.at.0.checked_sub(began.0));
    Reign {
        node,
        incarnation: took_over.process.map_or(0, |process| process.incarnation.0),
        before: death.and_then(|death| Some(death.process?.node.0)).or(before.map(|before| before.node)),
        cause,
        view: took_over.view.0,
        took_over: took_over.at,
        wall_ns: wall_ns(took_over),
        began,
        decided_ns: after_began(of(EventKind::ViewDecided).find(|event| event.view == took_over.view)),
        permitted_ns: after_began(of(EventKind::PermissionHeld).next_back()),
        first_reply_ns: first_reply(reading, took_over.at, began),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_node::counters::Counters;
    use martlet_protocol::basics::layout;

    use super::*;

    /// A node's counters and events, as somebody reads them.
    pub(crate) fn reading(values: &[(Counter, u64)], events: &[Event]) -> Reading {
        use martlet_fabric::primitive::{AtomicU64, Ordering};
        let region: Vec<AtomicU64> = (0..layout::COUNTERS_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let mut counters = Counters::default();
        values.iter().for_each(|(counter, value)| counters.set(*counter, *value));
        counters.open(&region);
        events.iter().for_each(|event| counters.record(&region, *event));
        let bytes: Vec<u8> = region.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        Reading::parse(&bytes).expect("just written")
    }

    pub(crate) fn event(at: u64, kind: EventKind, view: u64, about: u16) -> Event {
        let process = Some(ProcessId { node: NodeId(about), incarnation: Incarnation(1) });
        Event { at: Time(at), kind, view: ViewNumber(view), process, detail: u64::from(Evidence::Certain.code()) }
    }

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1_000 * SECOND;

    fn published(at: u64, events: &[Event]) -> Reading {
        reading(&[(Counter::PublishedNs, at)], events)
    }

    fn founding() -> Vec<Event> {
        vec![event(SECOND, EventKind::Started, 0, 0), event(SECOND + 5, EventKind::TookOver, 1, 0)]
    }

    fn successor() -> Vec<Event> {
        vec![
            event(2 * SECOND, EventKind::DeathSeen, 4, 2),
            event(2 * SECOND + 9, EventKind::ViewDecided, 5, 1),
            event(9 * SECOND, EventKind::DeathSeen, 5, 0),
            event(9 * SECOND + 10_000, EventKind::ViewDecided, 6, 1),
            event(9 * SECOND + 18_000, EventKind::TookOver, 6, 1),
        ]
    }

    #[test]
    fn a_death_is_told_by_its_successor_and_remembered_when_nobody_shows_it_any_more() {
        let mut reigns = Reigns::default();
        reigns.note(&[(0, &published(8 * SECOND, &founding()))], false, NOW - 2 * SECOND);
        assert_eq!(reigns.all()[0].cause, Cause::Unknown);
        assert_eq!(reigns.leads_since_ns(0), Some(NOW - 9 * SECOND + 5));
        let mut events = successor();
        reigns.note(&[(1, &published(10 * SECOND, &events))], false, NOW);
        events.push(event(9 * SECOND + 25_000, EventKind::FirstReply, 6, 1));
        reigns.note(&[(1, &published(10 * SECOND, &events))], false, NOW);
        reigns.note(&[], false, NOW);
        let found: Vec<_> = reigns.newest_first().collect();
        assert_eq!(found.len(), 2, "the same ones each time");
        let reign = found[0];
        assert_eq!((reign.cause, reign.before, reign.node, reign.view), (Cause::Death, Some(0), 1, 6), "not the backup that died before");
        assert_eq!((reign.decided_ns, reign.took_over_ns(), reign.first_reply_ns), (Some(10_000), Some(18_000), Some(25_000)));
        assert_eq!(reigns.leads_since_ns(0), None);
        assert_eq!(reigns.takeovers_ns(), [18_000]);
        let object = reign.json(NOW);
        assert_eq!((&object["took_over_us"], &object["ago_ms"]), (&json!(18.0), &json!(999)));
    }

    #[test]
    fn one_that_died_is_known_to_somebody_who_comes_later() {
        let mut reigns = Reigns::default();
        reigns.note(&[(1, &published(10 * SECOND, &successor()))], false, NOW);
        let reign = reigns.newest_first().next().expect("a failover");
        assert_eq!((reign.cause, reign.before), (Cause::Death, Some(0)));
    }

    #[test]
    fn one_that_steps_aside_has_not_failed() {
        let mut before = founding();
        before.push(event(5 * SECOND, EventKind::SteppedDown, 1, 0));
        let after = vec![
            event(5 * SECOND + 1_000, EventKind::PermissionAsked, 1, 1),
            event(5 * SECOND + 3_000, EventKind::PermissionHeld, 1, 1),
            event(5 * SECOND + 4_000, EventKind::TookOver, 1, 1),
        ];
        let mut reigns = Reigns::default();
        let (before, after) = (published(10 * SECOND, &before), published(10 * SECOND, &after));
        reigns.note(&[(1, &after), (0, &before)], true, NOW);
        let reign = reigns.newest_first().next().expect("a change");
        assert_eq!(
            (reign.cause, reign.before, reign.permitted_ns, reign.took_over_ns()),
            (Cause::Handover, Some(0), Some(2_000), Some(3_000))
        );
        assert!(reigns.takeovers_ns().is_empty());
    }

    #[test]
    fn a_leader_that_does_not_answer_is_silent_whatever_it_does_later() {
        let mut before = founding();
        // It goes on, and finds that another leads.
        before.push(event(7 * SECOND, EventKind::SteppedDown, 1, 0));
        let after = vec![event(5 * SECOND, EventKind::PermissionAsked, 1, 1), event(5 * SECOND + 4_000, EventKind::TookOver, 1, 1)];
        let mut reigns = Reigns::default();
        let (before, after) = (published(10 * SECOND, &before), published(10 * SECOND, &after));
        reigns.note(&[(0, &before), (1, &after)], true, NOW);
        let reign = reigns.newest_first().next().expect("a change");
        assert_eq!((reign.cause, reign.before, reign.took_over_ns()), (Cause::Silence, Some(0), Some(4_000)));
    }

    #[test]
    fn one_that_leaves_has_not_failed_as_the_view_without_it_says() {
        let mut reigns = Reigns::default();
        reigns.note(&[(0, &published(8 * SECOND, &founding()))], true, NOW - 2 * SECOND);
        let id = ProcessId { node: NodeId(0), incarnation: Incarnation(1) };
        let departed = vec![martlet_protocol::membership::Departed { id, evidence: Evidence::Left }];
        let view = View { number: ViewNumber(2), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members: Vec::new(), departed };
        (0..2).for_each(|_| reigns.note_view(&view));
        let after = vec![event(9 * SECOND, EventKind::PermissionAsked, 2, 1), event(9 * SECOND + 4_000, EventKind::TookOver, 2, 1)];
        reigns.note(&[(1, &published(10 * SECOND, &after))], true, NOW);
        assert_eq!(reigns.newest_first().next().map(|reign| (reign.cause, reign.before)), Some((Cause::Handover, Some(0))));
        assert_eq!(reigns.left.len(), 1);
    }

    #[test]
    fn one_that_elects_may_be_faster_than_membership() {
        // The leader was asked for permission before its death was seen, and the view without it was decided in between.
        let after = vec![
            event(9 * SECOND, EventKind::PermissionAsked, 5, 1),
            event(9 * SECOND + 1_000, EventKind::DeathSeen, 5, 0),
            event(9 * SECOND + 2_000, EventKind::ViewDecided, 6, 1),
            event(9 * SECOND + 4_000, EventKind::TookOver, 6, 1),
        ];
        for knows_who_led in [true, false] {
            let mut reigns = Reigns::default();
            if knows_who_led {
                reigns.note(&[(0, &published(8 * SECOND, &founding()))], true, NOW - 2 * SECOND);
            }
            reigns.note(&[(1, &published(10 * SECOND, &after))], true, NOW);
            let reign = reigns.newest_first().next().expect("a failover");
            assert_eq!((reign.cause, reign.before, reign.took_over_ns()), (Cause::Death, Some(0), Some(4_000)));
        }
    }

    #[test]
    fn a_death_that_membership_sees_late_was_the_reason_all_the_same() {
        let mut reigns = Reigns::default();
        reigns.note(&[(0, &published(8 * SECOND, &founding()))], true, NOW - 2 * SECOND);
        let mut after = vec![event(9 * SECOND, EventKind::PermissionAsked, 5, 1), event(9 * SECOND + 4_000, EventKind::TookOver, 5, 1)];
        let cause = |reigns: &Reigns| reigns.newest_first().next().expect("a change").cause;
        reigns.note(&[(1, &published(10 * SECOND, &after))], true, NOW);
        assert_eq!(cause(&reigns), Cause::Silence);
        after.push(event(9 * SECOND + 5_000, EventKind::DeathSeen, 5, 0));
        reigns.note(&[(1, &published(10 * SECOND, &after))], true, NOW);
        assert_eq!(cause(&reigns), Cause::Death);
        after.push(Event { detail: u64::from(Evidence::Left.code()), ..event(20 * SECOND, EventKind::DeathSeen, 6, 1) });
        let next = [after[3], event(20 * SECOND + 1, EventKind::PermissionAsked, 6, 2), event(20 * SECOND + 9, EventKind::TookOver, 7, 2)];
        reigns.note(&[(2, &published(20 * SECOND, &next))], true, NOW + 10 * SECOND);
        assert_eq!(cause(&reigns), Cause::Handover, "who says goodbye has not failed");
        assert_eq!(reigns.takeovers_ns(), [4_000], "counted once");
    }

    #[test]
    fn a_cluster_that_is_founded_again_follows_nobody() {
        let mut reigns = Reigns::default();
        reigns.note(&[(1, &published(10 * SECOND, &successor()))], false, NOW);
        let founded = [event(20 * SECOND, EventKind::PermissionAsked, 1, 2), event(20 * SECOND + 9, EventKind::TookOver, 1, 2)];
        reigns.note(&[(2, &published(21 * SECOND, &founded))], true, NOW + 11 * SECOND);
        let reign = reigns.newest_first().next().expect("a beginning");
        assert_eq!((reign.cause, reign.before, reign.node), (Cause::Unknown, None, 2));
        let again = [event(20 * SECOND + 9, EventKind::TookOver, 1, 2), event(30 * SECOND, EventKind::TookOver, 4, 2)];
        reigns.note(&[(2, &published(31 * SECOND, &again))], true, NOW + 21 * SECOND);
        assert_eq!(
            reigns.newest_first().next().map(|reign| (reign.cause, reign.before)),
            Some((Cause::Unknown, None)),
            "nobody follows itself"
        );
    }

    #[test]
    fn the_lowest_that_comes_back_replaces_nobody_who_failed() {
        let led = vec![event(4 * SECOND, EventKind::DeathSeen, 1, 0), event(4 * SECOND + 9, EventKind::TookOver, 1, 1)];
        let back = vec![
            event(6 * SECOND, EventKind::Stalled, 1, 0),
            event(6 * SECOND + 9, EventKind::PermissionAsked, 1, 0),
            event(6 * SECOND + 99, EventKind::TookOver, 1, 0),
        ];
        let mut reigns = Reigns::default();
        reigns.note(&[(0, &published(10 * SECOND, &back)), (1, &published(10 * SECOND, &led))], true, NOW);
        let reign = reigns.newest_first().next().expect("a change");
        assert_eq!((reign.cause, reign.before, reign.took_over_ns()), (Cause::Return, Some(1), Some(90)));
        assert_eq!(reigns.takeovers_ns(), [9], "of the failure before it");
    }

    #[test]
    fn only_so_many_are_kept_and_all_are_counted() {
        let mut reigns = Reigns::default();
        for i in 0..KEPT as u64 + 20 {
            let at = (10 + i) * SECOND;
            let events = [event(at, EventKind::DeathSeen, i + 1, 1), event(at + 7, EventKind::TookOver, i + 2, 0)];
            reigns.note(&[(0, &published(at + 9, &events))], false, NOW + at);
        }
        assert_eq!((reigns.all().len(), reigns.takeovers_ns().len()), (KEPT, KEPT + 20));
        // A node that has been quiet since goes on showing what is forgotten.
        let at = 10 * SECOND;
        let old =
            published((10 + KEPT as u64 + 20) * SECOND, &[event(at, EventKind::DeathSeen, 1, 1), event(at + 7, EventKind::TookOver, 2, 0)]);
        for _ in 0..3 {
            reigns.note(&[(0, &old)], false, NOW + (10 + KEPT as u64 + 20) * SECOND);
        }
        assert_eq!(reigns.takeovers_ns().len(), KEPT + 20, "counted once");
    }
}
