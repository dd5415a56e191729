//! The page: Prometheus's text exposition format, version 0.0.4.

use std::fmt::Write as _;

use martlet_cluster::watch::observer::Role;
use martlet_node::counters::{Counter, Reading};

use crate::watch::failovers::{Reign, Reigns};
use crate::watch::lookout::{Look, Node, State};

/// What the format is called in HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It only grows, until its process ends.
    Counter,
    /// It goes both ways.
    Gauge,
}

/// How a counter's word is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// As it is.
    Plain,
    /// Nanoseconds, in seconds.
    Seconds,
    /// A node's number plus 1, 0 for none: the number, -1 for none.
    NodePlusOne,
}

/// How a counter is shown; `None`: as a label, or otherwise, below.
fn shown(counter: Counter) -> Option<(&'static str, Kind, Value)> {
    use Kind::{Counter as Count, Gauge};
    use Value::{NodePlusOne, Plain, Seconds};
    Some(match counter {
        Counter::Pid | Counter::Node | Counter::Incarnation | Counter::Standing | Counter::Group | Counter::Awaited => return None,
        Counter::StartedNs => ("martlet_started_seconds", Gauge, Seconds),
        Counter::PublishedNs => ("martlet_published_seconds", Gauge, Seconds),
        Counter::View => ("martlet_view", Gauge, Plain),
        Counter::ActiveView => ("martlet_active_view", Gauge, Plain),
        Counter::Primary => ("martlet_primary_node", Gauge, NodePlusOne),
        Counter::Members => ("martlet_members", Gauge, Plain),
        Counter::Replicas => ("martlet_replicas", Gauge, Plain),
        Counter::Reign => ("martlet_reign_changes_total", Count, Plain),
        Counter::Resets => ("martlet_resets_total", Count, Plain),
        Counter::LeaseNs => ("martlet_lease_seconds", Gauge, Seconds),
        Counter::ActiveChecks => ("martlet_active_checks_total", Count, Plain),
        Counter::InactiveChecks => ("martlet_inactive_checks_total", Count, Plain),
        Counter::ProposedIndex => ("martlet_proposed_index", Gauge, Plain),
        Counter::CommittedIndex => ("martlet_committed_index", Gauge, Plain),
        Counter::AppliedIndex => ("martlet_applied_index", Gauge, Plain),
        Counter::Requests => ("martlet_requests_total", Count, Plain),
        Counter::Replies => ("martlet_replies_total", Count, Plain),
        Counter::Clients => ("martlet_clients", Gauge, Plain),
        Counter::Turns => ("martlet_turns_total", Count, Plain),
        Counter::BusyTurns => ("martlet_busy_turns_total", Count, Plain),
        Counter::Parks => ("martlet_parks_total", Count, Plain),
        Counter::LongestGapNs => ("martlet_longest_gap_seconds", Gauge, Seconds),
        Counter::Stalls => ("martlet_stalls_total", Count, Plain),
        Counter::Demotions => ("martlet_demotions_total", Count, Plain),
        Counter::CacheRenewals => ("martlet_cache_renewals_total", Count, Plain),
        Counter::Rehearsals => ("martlet_rehearsals_total", Count, Plain),
        Counter::RehearsalsCut => ("martlet_rehearsals_cut_total", Count, Plain),
        Counter::RehearsalNs => ("martlet_rehearsal_seconds_total", Count, Seconds),
        Counter::DiskPendingBytes => ("martlet_disk_pending_bytes", Gauge, Plain),
        Counter::DiskSyncs => ("martlet_disk_syncs_total", Count, Plain),
        Counter::DiskSnapshots => ("martlet_disk_snapshots_total", Count, Plain),
        Counter::StableIndex => ("martlet_stable_index", Gauge, Plain),
        Counter::DiskErrno => ("martlet_disk_errno", Gauge, Plain),
        Counter::Whole => ("martlet_whole", Gauge, Plain),
        Counter::HeldAtNs => ("martlet_held_at_seconds", Gauge, Seconds),
        Counter::ClockJumps => ("martlet_clock_jumps_total", Count, Plain),
        Counter::GroupProcesses => ("martlet_group_processes", Gauge, Plain),
        Counter::Protocol => ("martlet_protocol_version", Gauge, Plain),
        Counter::Level => ("martlet_level", Gauge, Plain),
        Counter::LevelMost => ("martlet_highest_level", Gauge, Plain),
        Counter::RefusedConnections => ("martlet_refused_connections_total", Count, Plain),
        Counter::RefusedBuilds => ("martlet_refused_builds_total", Count, Plain),
        Counter::MalformedDatagrams => ("martlet_malformed_datagrams_total", Count, Plain),
        Counter::MalformedMessages => ("martlet_malformed_messages_total", Count, Plain),
        Counter::MalformedViews => ("martlet_malformed_views_total", Count, Plain),
        Counter::Contradictions => ("martlet_contradictions_total", Count, Plain),
        Counter::LaneFaults => ("martlet_lane_faults_total", Count, Plain),
        Counter::MalformedRequests => ("martlet_malformed_requests_total", Count, Plain),
        Counter::Warden => ("martlet_warden", Gauge, Plain),
        Counter::CertifiedDeaths => ("martlet_certified_deaths_total", Count, Plain),
        Counter::DisbelievedCertificates => ("martlet_disbelieved_certificates_total", Count, Plain),
        Counter::ServesSinceNs => ("martlet_run_serves_since_seconds", Gauge, Seconds),
        Counter::Connections => ("martlet_run_connections", Gauge, Plain),
        Counter::Takeovers => ("martlet_run_takeovers", Gauge, Plain),
        Counter::LastTakeoverNs => ("martlet_run_last_takeover_seconds", Gauge, Seconds),
        Counter::ReplacedReplicas => ("martlet_run_replaced_replicas", Gauge, Plain),
    })
}

/// What it means; where the counter's own words speak of its encoding, in others.
fn help(counter: Counter) -> &'static str {
    match counter {
        Counter::Primary => "The number of the node that leads, as this node knows it; -1 when unknown.",
        Counter::Clients => "Clients connected over the fabric, this exporter included.",
        counter => counter.help(),
    }
}

const ROLES: [Role; 6] = [Role::Joining, Role::Backup, Role::Primary, Role::Deposed, Role::Excluded, Role::Leaving];

/// Bounds of the histogram's buckets, in nanoseconds: from what a death on one host takes to what a lease on a network does.
const BUCKETS_NS: [u64; 14] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

/// What a cluster shows, as one page.
pub fn text(look: &Look, reigns: &Reigns) -> String {
    let mut page = Page { text: String::new(), cluster: escaped(&look.cluster, true) };
    page.family("martlet_up", Kind::Gauge, "Whether the node is connected and its counters can be read.");
    for node in &look.nodes {
        page.of_node("martlet_up", node, "", u8::from(reading(node).is_some()));
    }
    page.family(
        "martlet_silent",
        Kind::Gauge,
        "Whether the node has published nothing for a second although it is connected, or its process is stopped.",
    );
    for node in &look.nodes {
        page.of_node("martlet_silent", node, "", u8::from(matches!(node.state, State::Silent | State::Stopped)));
    }
    page.family(
        "martlet_node_info",
        Kind::Gauge,
        "1, with the node's process in the labels: its number, and which life of the node it is.",
    );
    for (node, reading) in readings(look) {
        let labels = format!(",pid=\"{}\",incarnation=\"{}\"", reading.get(Counter::Pid), reading.get(Counter::Incarnation));
        page.of_node("martlet_node_info", node, &labels, 1);
    }
    page.family("martlet_role", Kind::Gauge, "1 for what the node is, 0 for what it is not.");
    for (node, _) in readings(look) {
        for role in ROLES {
            page.of_node("martlet_role", node, &format!(",role=\"{}\"", role.name()), u8::from(node.role == Some(role)));
        }
    }
    for counter in Counter::ALL {
        let Some((name, kind, value)) = shown(*counter) else { continue };
        page.family(name, kind, help(*counter));
        for (node, reading) in readings(look) {
            page.of_node(name, node, "", written(reading.get(*counter), value));
        }
    }
    page.family(
        "martlet_group_member",
        Kind::Gauge,
        "1 for each node that counts for commits, as this node knows it: a majority of them where that is enough, or all.",
    );
    for (node, reading) in readings(look) {
        let group = reading.get(Counter::Group);
        for member in (0..64).filter(|member| group >> member & 1 == 1) {
            page.of_node("martlet_group_member", node, &format!(",member=\"{member}\""), 1);
        }
    }
    page.failovers(look, reigns);
    page.text
}

fn reading(node: &Node) -> Option<&Reading> {
    node.sight.as_ref()?.reading.as_ref()
}

fn readings(look: &Look) -> impl Iterator<Item = (&Node, &Reading)> {
    look.nodes.iter().filter_map(|node| Some((node, reading(node)?)))
}

struct Page {
    text: String,
    /// The cluster's name, as it stands in labels.
    cluster: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(help, false));
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.head(name, kind, help);
    }

    /// `more`: labels behind those that every node has, each after a comma.
    fn of_node(&mut self, name: &str, node: &Node, more: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{name}{{cluster=\"{}\",node=\"{}\"{more}}} {value}", self.cluster, node.number);
    }

    fn of_cluster(&mut self, name: &str, more: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{name}{{cluster=\"{}\"{more}}} {value}", self.cluster);
    }

    fn failovers(&mut self, look: &Look, reigns: &Reigns) {
        let name = "martlet_failover_seconds";
        self.head(
            name,
            "histogram",
            "From the moment at which a leader's death or silence was seen to the takeover, of failovers that were seen since this exporter started or that the nodes still recorded then.",
        );
        let takeovers = reigns.takeovers_ns();
        for bound in BUCKETS_NS {
            let count = takeovers.iter().filter(|ns| **ns <= bound).count();
            self.of_cluster(&format!("{name}_bucket"), &format!(",le=\"{}\"", seconds(bound)), count);
        }
        self.of_cluster(&format!("{name}_bucket"), ",le=\"+Inf\"", takeovers.len());
        self.of_cluster(&format!("{name}_sum"), "", seconds(takeovers.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns))));
        self.of_cluster(&format!("{name}_count"), "", takeovers.len());
        let last = reigns.newest_first().find(|reign| reign.is_failover());
        self.family(
            "martlet_last_failover_seconds",
            Kind::Gauge,
            "How long the last failover took, from the moment at which a death or silence was seen to each step. The first reply waits for a request.",
        );
        for (step, ns) in last.map(steps).into_iter().flatten() {
            self.of_cluster("martlet_last_failover_seconds", &format!(",step=\"{step}\""), seconds(ns));
        }
        self.family("martlet_last_failover_timestamp_seconds", Kind::Gauge, "When the last failover was, in seconds since 1970.");
        if let Some(last) = last {
            self.of_cluster("martlet_last_failover_timestamp_seconds", "", seconds(last.wall_ns));
        }
        self.family("martlet_leads_for_seconds", Kind::Gauge, "For how long the present leader has led.");
        if let (Some(leader), Some(leads_for)) = (look.nodes.iter().find(|node| Some(node.number) == look.leader), look.leads_for) {
            self.of_node("martlet_leads_for_seconds", leader, "", seconds(leads_for.as_nanos() as u64));
        }
    }
}

fn steps(reign: &Reign) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let steps = [
        ("permission_held", reign.permitted_ns),
        ("view_decided", reign.decided_ns),
        ("took_over", reign.took_over_ns()),
        ("first_reply", reign.first_reply_ns),
    ];
    steps.into_iter().filter_map(|(step, ns)| Some((step, ns?)))
}

fn written(word: u64, value: Value) -> String {
    match value {
        Value::Plain => word.to_string(),
        Value::Seconds => seconds(word),
        Value::NodePlusOne => (i128::from(word) - 1).to_string(),
    }
}

/// Nanoseconds in seconds, to the last digit.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A help text, or a label's value, which stands in quotation marks.
fn escaped(text: &str, in_quotes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str(r"\\"),
            '\n' => escaped.push_str(r"\n"),
            '"' if in_quotes => escaped.push_str("\\\""),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::commands::top::tests::after_a_failover;

    #[test]
    fn names_tell_their_unit_last_and_counters_that_they_are_totals() {
        let mut names = BTreeSet::new();
        for counter in Counter::ALL {
            let Some((name, kind, value)) = shown(*counter) else { continue };
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("martlet_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            let unit = name.trim_end_matches("_total");
            assert_eq!(value == Value::Seconds, unit.ends_with("_seconds"), "{name}");
            assert_eq!(value == Value::Seconds, counter.name().ends_with("_ns"), "{name}");
            assert_eq!(counter.name().ends_with("_bytes"), unit.ends_with("_bytes"), "{name}");
        }
    }

    #[test]
    fn numbers_lose_nothing() {
        for (ns, text) in [(0, "0"), (1, "0.000000001"), (18_200, "0.0000182"), (1_500_000_000, "1.5"), (u64::MAX, "18446744073.709551615")]
        {
            assert_eq!(seconds(ns), text);
        }
        assert_eq!([written(0, Value::NodePlusOne), written(3, Value::NodePlusOne)], ["-1", "2"]);
    }

    #[test]
    fn what_would_end_a_label_is_escaped() {
        let text = "a\"b\\c\nd";
        assert_eq!(escaped(text, true), r#"a\"b\\c\nd"#);
        assert_eq!(escaped(text, false), "a\"b\\\\c\\nd");
        let (look, reigns, _) = after_a_failover();
        let page = super::text(&Look { cluster: text.into(), ..look }, &reigns);
        assert!(page.contains("martlet_up{cluster=\"a\\\"b\\\\c\\nd\",node=\"1\"} 1\n"), "{page}");
    }

    #[test]
    fn a_page_holds_each_family_once_and_each_series_once_with_its_head_before_it() {
        let (look, reigns, _) = after_a_failover();
        let page = super::text(&look, &reigns);
        assert!(page.ends_with('\n'));
        let (mut family, mut families, mut series) = (String::new(), BTreeSet::new(), BTreeSet::new());
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().expect("a name").to_owned();
                assert!(families.insert(family.clone()), "{family} twice");
                let typed = lines.next().expect("a type");
                assert!(typed.starts_with(&format!("# TYPE {family} ")), "{typed}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(series.insert(name), "{name} twice");
            let bare = name.split('{').next().expect("a name");
            let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end)).filter(|stem| *stem == family);
            assert_eq!(stem.unwrap_or(bare), family, "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for line in [
            "martlet_up{cluster=\"c\",node=\"0\"} 0",
            "martlet_up{cluster=\"c\",node=\"1\"} 1",
            "martlet_role{cluster=\"c\",node=\"1\",role=\"primary\"} 1",
            "martlet_role{cluster=\"c\",node=\"2\",role=\"primary\"} 0",
            "martlet_longest_gap_seconds{cluster=\"c\",node=\"2\"} 0.00125",
            "# TYPE martlet_requests_total counter",
            "martlet_failover_seconds_bucket{cluster=\"c\",le=\"0.00001\"} 0",
            "martlet_failover_seconds_bucket{cluster=\"c\",le=\"0.000025\"} 1",
            "martlet_failover_seconds_bucket{cluster=\"c\",le=\"1\"} 1",
            "martlet_failover_seconds_bucket{cluster=\"c\",le=\"+Inf\"} 1",
            "martlet_failover_seconds_sum{cluster=\"c\"} 0.0000182",
            "martlet_last_failover_seconds{cluster=\"c\",step=\"first_reply\"} 0.0000227",
            "martlet_leads_for_seconds{cluster=\"c\",node=\"1\"} 10",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in:\n{page}");
        }
        assert!(!page.contains("martlet_view{cluster=\"c\",node=\"0\"}"), "of a node that is gone nothing is known");
    }
}
