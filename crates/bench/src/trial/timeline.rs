//! Failovers as timelines: where each microsecond went, from the kill to the first reply of the next primary.

use martlet_cluster::output::{DIM, HEAD, styled};
use martlet_node::counters::{Event, EventKind};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};
use serde_json::{Value, json};

/// A moment of a failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since the signal.
    pub after_ns: u64,
    /// What happened.
    pub what: String,
    /// Where: a node or a client.
    pub whose: String,
}

/// One failover.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The process that was struck.
    pub victim: ProcessId,
    /// By what.
    pub struck: &'static str,
    /// The view without it, as far as anybody recorded it.
    pub view: Option<ViewNumber>,
    /// In order.
    pub moments: Vec<Moment>,
}

/// The steps that a timeline shows, in the order in which a failover goes through them.
const STEPS: [EventKind; 9] = [
    EventKind::DeathSeen,
    EventKind::PermissionAsked,
    EventKind::PermissionHeld,
    EventKind::ViewProposed,
    EventKind::ViewDecided,
    EventKind::ViewAcknowledged,
    EventKind::ViewActive,
    EventKind::TookOver,
    EventKind::FirstReply,
];

impl Timeline {
    /// Puts together what the nodes recorded about a death. `events` are those of each node; the kill is a moment of the same clock.
    /// The survivors' steps towards the first view without the victim are kept, and nothing after it.
    pub fn new(victim: ProcessId, killed: Time, events: &[(u16, Vec<Event>)]) -> Timeline {
        let relevant = |event: &&Event| event.at >= killed && STEPS.contains(&event.kind);
        let all = || events.iter().flat_map(|(_, events)| events).filter(relevant);
        let of_kind = |kind| all().filter(move |event| event.kind == kind).map(|event| event.view).min();
        // The process that took over did so in the view without the victim. Where nobody has to, it is the first one decided.
        let view = of_kind(EventKind::TookOver).or_else(|| of_kind(EventKind::ViewDecided));
        let took_over = |event: &&Event| event.kind == EventKind::TookOver && Some(event.view) == view;
        let successor = events
            .iter()
            .filter_map(|(node, events)| Some((events.iter().filter(relevant).find(took_over)?.at, *node)))
            .min()
            .map(|(_, node)| node);
        let about_it = |node: u16, event: &Event| match event.kind {
            EventKind::DeathSeen => event.process == Some(victim),
            // An engine that elects by itself asks no view.
            EventKind::PermissionAsked | EventKind::PermissionHeld | EventKind::FirstReply => Some(node) == successor,
            _ => Some(event.view) == view,
        };
        let mut moments: Vec<(u64, usize, Moment)> = Vec::new();
        for (node, events) in events {
            for event in events.iter().filter(relevant).filter(|event| about_it(*node, event)) {
                let after_ns = event.at.since(killed);
                let step = STEPS.iter().position(|kind| *kind == event.kind).expect("filtered");
                let what = match event.kind {
                    EventKind::FirstReply => "first reply sent".to_owned(),
                    kind => kind.name().to_owned(),
                };
                moments.push((after_ns, step, Moment { after_ns, what, whose: format!("n{node}") }));
            }
        }
        moments.sort_by(|a, b| (a.0, a.1, &a.2.whose).cmp(&(b.0, b.1, &b.2.whose)));
        Timeline { victim, struck: "killed with SIGKILL", view, moments: moments.into_iter().map(|(_, _, moment)| moment).collect() }
    }

    /// The same, of a victim that was stopped.
    #[must_use]
    pub fn of_a_pause(self) -> Timeline {
        Timeline { struck: "stopped with SIGSTOP", ..self }
    }

    /// Adds the moment when a client had its first reply from the next primary.
    pub fn add_reply(&mut self, after_ns: u64) {
        let at = self.moments.partition_point(|moment| moment.after_ns <= after_ns);
        self.moments.insert(at, Moment { after_ns, what: "first reply received".into(), whose: "client".into() });
    }

    /// Nanoseconds from the kill to the first moment of that kind.
    pub fn first(&self, what: &str) -> Option<u64> {
        self.moments.iter().find(|moment| moment.what == what).map(|moment| moment.after_ns)
    }

    /// As one JSON object.
    pub fn json(&self, number: usize) -> Value {
        let moments: Vec<Value> =
            self.moments.iter().map(|m| json!({"after_us": m.after_ns as f64 / 1e3, "what": m.what, "whose": m.whose})).collect();
        json!({
            "event": "failover",
            "number": number,
            "victim": self.victim.to_string(),
            "view": self.view.map(|view| view.0),
            "moments": moments,
        })
    }
}

impl std::fmt::Display for Timeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let view = self.view.map_or_else(|| "no view without it was recorded".into(), |view| format!("view {view}"));
        writeln!(f, "{} {}; {view}", styled(HEAD, self.victim), self.struck)?;
        let mut last = 0;
        for moment in &self.moments {
            let step = moment.after_ns - last;
            last = moment.after_ns;
            writeln!(
                f,
                "  {:>10.1} us  {:<22} {:<7} {}",
                moment.after_ns as f64 / 1e3,
                moment.what,
                moment.whose,
                styled(DIM, format_args!("+{:.1}", step as f64 / 1e3))
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;

    fn process(node: u16) -> ProcessId {
        ProcessId { node: NodeId(node), incarnation: Incarnation(9) }
    }

    fn event(at: u64, kind: EventKind, view: u64, about: Option<u16>) -> Event {
        Event { at: Time(at), kind, view: ViewNumber(view), process: about.map(process), detail: 0 }
    }

    #[test]
    fn the_steps_of_one_failover_are_picked_from_all_that_was_recorded() {
        let survivor = vec![
            event(500, EventKind::DeathSeen, 3, Some(0)),
            event(1_010_000, EventKind::DeathSeen, 4, Some(0)),
            event(1_012_000, EventKind::ViewProposed, 5, None),
            event(1_015_000, EventKind::ViewDecided, 5, None),
            event(1_016_000, EventKind::ViewActive, 5, None),
            event(1_017_000, EventKind::TookOver, 5, Some(1)),
            event(1_020_000, EventKind::FirstReply, 5, None),
            event(2_000_000, EventKind::ViewDecided, 6, None),
            event(2_100_000, EventKind::DeathSeen, 6, Some(2)),
        ];
        let other = vec![event(1_018_000, EventKind::ViewAcknowledged, 5, None)];
        let mut timeline = Timeline::new(process(0), Time(1_000_000), &[(1, survivor), (2, other)]);
        timeline.add_reply(22_000);
        assert_eq!(timeline.view, Some(ViewNumber(5)));
        let told: Vec<_> = timeline.moments.iter().map(|m| (m.after_ns, m.what.as_str(), m.whose.as_str())).collect();
        assert_eq!(
            told,
            [
                (10_000, "death seen", "n1"),
                (12_000, "view proposed", "n1"),
                (15_000, "view decided", "n1"),
                (16_000, "view active", "n1"),
                (17_000, "took over", "n1"),
                (18_000, "view acknowledged", "n2"),
                (20_000, "first reply sent", "n1"),
                (22_000, "first reply received", "client"),
            ]
        );
        assert_eq!(timeline.first("view active"), Some(16_000));
        assert_eq!(timeline.json(1)["moments"][0]["after_us"], 10.0);
    }

    #[test]
    fn a_failover_that_nobody_recorded_is_said_so() {
        let timeline = Timeline::new(process(0), Time(5), &[(1, vec![])]);
        assert!(timeline.to_string().contains("no view without it was recorded"));
    }
}
