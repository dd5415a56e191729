//! What is shown, as lines of words: drawn on a screen, or printed.

use anstyle::Style;
use martlet_cluster::output::{BAD, DIM, GOOD, HEAD, WARN, duration, styled};
use martlet_cluster::watch::observer::Role;
use martlet_node::counters::Counter;
use martlet_protocol::membership::Roles;

use super::history::{History, KEPT};
use crate::watch::failovers::{Cause, Reign, Reigns};
use crate::watch::lookout::{Look, Node, State};

/// A word, or a few of one kind.
pub type Word = (Style, String);

/// Lines of words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page(Vec<Vec<Word>>);

/// How little of the history is worth a column.
const SHORTEST_HISTORY: usize = 16;
/// Where the history stands among the columns.
const HISTORY_RANK: u8 = 8;
const PLAIN: Style = Style::new();

/// How important a column is: those with the largest numbers go first where there is no room.
#[derive(Clone, Debug)]
struct Column {
    heading: &'static str,
    rank: u8,
    is_right: bool,
    cells: Vec<Word>,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().map(|(_, text)| shown_width(text)).chain([shown_width(self.heading)]).max().unwrap_or(0)
    }
}

impl Page {
    /// What is seen. `width`: the columns of a screen; `None`: everything but the history, which takes a screen to grow on.
    pub fn new(look: &Look, reigns: &Reigns, history: &History, width: Option<usize>) -> Page {
        let mut page = Page::default();
        page.0.push(vec![
            (HEAD, format!("cluster {}", look.cluster)),
            (PLAIN, format!(", engine {}", look.engine)),
            (DIM, if width.is_some() { "; q ends it".to_owned() } else { String::new() }),
        ]);
        page.0.push(summary(look));
        page.0.extend(look.server.as_ref().map(|server| of_server(server, look)));
        page.0.extend(look.runner.and_then(|runner| runner.lack()).map(|lack| vec![(BAD, lack)]));
        page.0.push(Vec::new());
        page.nodes(look, history, width);
        page.0.push(Vec::new());
        page.changes(look, reigns, width);
        page
    }

    /// The lines.
    pub fn lines(&self) -> &[Vec<Word>] {
        &self.0
    }

    /// As text, with colours that the output takes away where nobody sees them.
    pub fn as_text(&self) -> String {
        let line = |words: &Vec<Word>| {
            let mut words: Vec<Word> = words.clone();
            while let Some((_, last)) = words.last_mut() {
                last.truncate(last.trim_end().len());
                if !last.is_empty() {
                    break;
                }
                words.pop();
            }
            words.into_iter().map(|(style, word)| if style == PLAIN { word } else { styled(style, word) }).collect::<String>()
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn nodes(&mut self, look: &Look, history: &History, width: Option<usize>) {
        let column = |heading, rank, is_right, cell: &dyn Fn(&Node) -> Option<String>| Column {
            heading,
            rank,
            is_right,
            cells: look.nodes.iter().map(|node| cell(node).map_or((DIM, "-".into()), |text| (PLAIN, text))).collect(),
        };
        let counter = |heading, rank, counter| column(heading, rank, true, &move |node| Some(node.counter(counter)?.to_string()));
        let mut columns = vec![
            column("node", 0, true, &|node| Some(node.number.to_string())),
            Column { cells: look.nodes.iter().map(|node| state(node.state)).collect(), ..column("state", 0, false, &|_| None) },
            Column { cells: look.nodes.iter().map(role).collect(), ..column("role", 1, false, &|_| None) },
            counter("view", 5, Counter::View),
            column("requests/s", 2, true, &|node| Some(rate(node.rates?.requests))),
            column("replies/s", 7, true, &|node| Some(rate(node.rates?.replies))),
            counter("applied", 3, Counter::AppliedIndex),
            counter("committed", 10, Counter::CommittedIndex),
            column("lag", 4, true, &|node| Some(look.lag(node)?.to_string())),
            column("parks/s", 12, true, &|node| Some(rate(node.rates?.parks))),
            counter("stalls", 8, Counter::Stalls),
            column("longest gap", 9, true, &|node| Some(duration(node.counter(Counter::LongestGapNs)?))),
            column("lease checks/s", 13, true, &|node| Some(rate(node.rates?.active_checks))),
            counter("lease refused", 14, Counter::InactiveChecks),
            counter("rehearsals", 11, Counter::Rehearsals),
            column("fabric clients", 6, true, &|node| Some(other_clients(node)?.to_string())),
        ];
        // Most clusters keep nothing on a disk, or have no lease cache.
        let any = |counter| look.nodes.iter().any(|node| node.counter(counter).is_some_and(|value| value > 0));
        if any(Counter::StableIndex) || any(Counter::DiskPendingBytes) {
            columns.push(column("waits for disk", 5, true, &|node| Some(bytes(node.counter(Counter::DiskPendingBytes)?))));
        }
        if any(Counter::CacheRenewals) {
            columns.push(counter("cache renewals", 12, Counter::CacheRenewals));
        }
        let important: Vec<Column> = columns.iter().filter(|column| column.rank < HISTORY_RANK).cloned().collect();
        let history_fits = width.is_some_and(|width| width_of(&important) + SHORTEST_HISTORY + 2 <= width);
        let columns = fitting(columns, width.map(|width| if history_fits { width - SHORTEST_HISTORY - 2 } else { width }));
        let left = width.map_or(0, |width| width.saturating_sub(width_of(&columns) + 2)).min(KEPT);
        self.table(&columns);
        if left >= SHORTEST_HISTORY {
            let top = rate(history.top(left));
            let headings = [format!("requests/s, up to {top}"), format!("up to {top}/s"), String::new()];
            let heading = headings.into_iter().find(|heading| shown_width(heading) <= left).unwrap_or_default();
            let first = self.0.len() - look.nodes.len() - 1;
            self.0[first].push((HEAD, format!("  {heading}")));
            for (line, node) in self.0[first + 1..].iter_mut().zip(&look.nodes) {
                line.push((GOOD, format!("  {}", history.bars(node.number, left))));
            }
        }
    }

    fn changes(&mut self, look: &Look, reigns: &Reigns, width: Option<usize>) {
        let changes: Vec<&Reign> = reigns.newest_first().collect();
        if changes.is_empty() {
            self.0.push(vec![(DIM, "the running nodes have recorded no change of leadership".into())]);
            return;
        }
        let column = |heading, rank, is_right, cell: &dyn Fn(&Reign) -> Option<String>| Column {
            heading,
            rank,
            is_right,
            cells: changes.iter().map(|reign| cell(reign).map_or((DIM, "-".into()), |text| (PLAIN, text))).collect(),
        };
        let mut columns = vec![
            column("ago", 2, true, &|reign| Some(duration(look.wall_ns.saturating_sub(reign.wall_ns)))),
            column("change", 0, false, &|reign| Some(story(reign))),
            column("view", 5, true, &|reign| Some(reign.view.to_string())),
            column("view decided", 4, true, &|reign| reign.decided_ns.map(duration)),
            column("took over", 1, true, &|reign| reign.took_over_ns().map(duration)),
            column("first reply", 3, true, &|reign| reign.first_reply_ns.map(duration)),
        ];
        // Permissions are an affair of mu, whose failovers wait for no view.
        if changes.iter().any(|reign| reign.permitted_ns.is_some()) {
            columns[3] = column("permission held", 4, true, &|reign| reign.permitted_ns.map(duration));
        }
        self.table(&fitting(columns, width));
    }

    fn table(&mut self, columns: &[Column]) {
        let rows = columns.first().map_or(0, |column| column.cells.len());
        for row in 0..=rows {
            let cell = |column: &Column| match row.checked_sub(1) {
                None => (HEAD, column.heading.to_owned()),
                Some(row) => column.cells[row].clone(),
            };
            let mut line = Vec::new();
            for (place, column) in columns.iter().enumerate() {
                let (style, text) = cell(column);
                let blank = " ".repeat(column.width() - shown_width(&text));
                let gap = if place == 0 { "" } else { "  " };
                let padded = if column.is_right { format!("{gap}{blank}{text}") } else { format!("{gap}{text}{blank}") };
                line.push((style, padded));
            }
            self.0.push(line);
        }
    }
}

/// How wide a table is; two blanks stand between any two columns.
fn width_of(columns: &[Column]) -> usize {
    (columns.iter().map(|column| column.width() + 2).sum::<usize>()).saturating_sub(2)
}

/// Leaves out the least important columns until the others fit.
fn fitting(mut columns: Vec<Column>, width: Option<usize>) -> Vec<Column> {
    let Some(width) = width else { return columns };
    while width_of(&columns) > width {
        let least = columns.iter().map(|column| column.rank).max().unwrap_or(0);
        // What is left is cut off at the screen's edge.
        if least == 0 {
            break;
        }
        columns.retain(|column| column.rank != least);
    }
    columns
}

fn summary(look: &Look) -> Vec<Word> {
    let Some(view) = &look.view else { return vec![(BAD, "no node shows a view".into())] };
    let learners = view.with_roles(Roles::LEARNER).count();
    let mut words = vec![(PLAIN, format!("view {}, lease {}; ", view.number, duration(view.lease_ns)))];
    words.push(match look.leader {
        None => (BAD, "no node leads".into()),
        Some(node) => (GOOD, format!("node {node} leads")),
    });
    words.extend(look.leads_for.map(|leads_for| (PLAIN, format!(", for {}", duration(leads_for.as_nanos() as u64)))));
    words.push((PLAIN, "; data held by ".into()));
    words.push((PLAIN, look.holders(view).text(|| "no node".into())));
    if learners > 0 {
        words.push((PLAIN, format!(", {learners} more receiving it")));
    }
    words
}

/// The server that `martlet run` runs.
fn of_server(server: &str, look: &Look) -> Vec<Word> {
    let (style, text) = match look.service() {
        Some(service) => (PLAIN, service.to_string()),
        None => (BAD, "no replica serves".into()),
    };
    vec![(PLAIN, format!("{server}: ")), (style, text)]
}

/// How many clients a node has on the fabric besides the one that looks.
pub fn other_clients(node: &Node) -> Option<u64> {
    Some(node.counter(Counter::Clients)?.saturating_sub(1))
}

fn state(state: State) -> Word {
    let style = match state {
        State::Running => GOOD,
        State::Stopped | State::Silent => WARN,
        State::Gone | State::Unreached => BAD,
    };
    (style, state.name().into())
}

fn role(node: &Node) -> Word {
    match node.role {
        None => (DIM, "-".into()),
        Some(role @ Role::Primary) => (GOOD, role.name().into()),
        Some(role @ Role::Backup) => (PLAIN, role.name().into()),
        Some(role) => (WARN, role.name().into()),
    }
}

fn story(reign: &Reign) -> String {
    let before = reign.before.map_or("the leader".to_owned(), |before| format!("node {before}"));
    let node = reign.node;
    match reign.cause {
        Cause::Unknown => format!("node {node} began to lead"),
        Cause::Death => format!("{before} died, node {node} took over"),
        Cause::Silence => format!("{before} was silent, node {node} took over"),
        Cause::Return => format!("node {node} came back, and leads instead of {before}"),
        Cause::Handover => format!("{before} stepped aside, node {node} took over"),
    }
}

fn shown_width(text: &str) -> usize {
    text.chars().count()
}

/// A number of a second: three or four digits that count.
pub fn rate(rate: f64) -> String {
    let (rate, unit) = match rate {
        rate if rate < 9_999.5 => (rate, ""),
        rate if rate < 9_999_500.0 => (rate / 1e3, "k"),
        rate if rate < 9_999_500_000.0 => (rate / 1e6, "M"),
        rate => (rate / 1e9, "G"),
    };
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}{unit}") } else { format!("{rate:.0}{unit}") }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use martlet_cluster::watch::observer::Sight;
    use martlet_fabric::{Incarnation, NodeId};
    use martlet_node::config::EngineKind;
    use martlet_node::counters::EventKind;
    use martlet_protocol::basics::{ProcessId, ViewNumber};
    use martlet_protocol::membership::{Member, View};

    use super::*;
    use crate::watch::failovers::tests::{event, reading};
    use crate::watch::lookout::Rates;

    /// A node that runs, and whose requests came at that rate.
    pub fn node(number: u16, requests: Option<f64>) -> Node {
        Node {
            number,
            state: State::Running,
            sight: None,
            role: None,
            rates: requests.map(|requests| Rates { requests, replies: requests, parks: 40.0, active_checks: 2.0 * requests }),
        }
    }

    pub fn look(nodes: Vec<Node>) -> Look {
        Look {
            unlisted: crate::watch::known::Doing::Unlisted,
            cluster: "c".into(),
            engine: EngineKind::default(),
            wall_ns: 1_000_000_000_000,
            view: None,
            leader: None,
            leads_for: None,
            server: None,
            runner: None,
            nodes,
        }
    }

    /// Three nodes: the second leads since the first died, and the third follows.
    pub fn after_a_failover() -> (Look, Reigns, History) {
        let values = |standing, applied, committed| {
            [
                (Counter::Standing, standing),
                (Counter::View, 6),
                (Counter::Pid, 1),
                (Counter::Incarnation, 1),
                (Counter::PublishedNs, 100_000_000_000),
                (Counter::AppliedIndex, applied),
                (Counter::CommittedIndex, committed),
                (Counter::LongestGapNs, 1_250_000),
                (Counter::Clients, 2),
                (Counter::Rehearsals, 512),
                (Counter::RehearsalsCut, 3),
                (Counter::Whole, 1),
            ]
        };
        let events = [
            event(90_000_000_000, EventKind::DeathSeen, 5, 0),
            event(90_000_010_000, EventKind::ViewDecided, 6, 1),
            event(90_000_018_200, EventKind::TookOver, 6, 1),
            event(90_000_022_700, EventKind::FirstReply, 6, 1),
        ];
        let (second, third) = (reading(&values(2, 64_233, 64_233), &events), reading(&values(1, 64_230, 64_232), &[]));
        let member = |node: u16| Member::new(ProcessId { node: NodeId(node), incarnation: Incarnation(1) }, Roles::REPLICA);
        let mut reigns = Reigns::default();
        reigns.note(&[(1, &second), (2, &third)], false, 1_000_000_000_000);
        let see = |number: u16, reading, requests| {
            let sight = Sight { node: number, reading: Some(reading), view: None };
            Node { role: sight.role(), sight: Some(sight), ..node(number, Some(requests)) }
        };
        let view = View {
            number: ViewNumber(6),
            lease_ns: 20_000_000,
            fence_ns: 20_000_000,
            compatible: false,
            level: 1,
            members: vec![member(1), member(2)],
            departed: Vec::new(),
        };
        let gone = Node { state: State::Gone, ..node(0, None) };
        let look = Look {
            view: Some(view),
            leader: Some(1),
            leads_for: Some(Duration::from_secs(10)),
            ..look(vec![gone, see(1, second, 98_765.4), see(2, third, 0.0)])
        };
        let mut history = History::default();
        history.note(&Look { nodes: vec![node(0, Some(90_000.0)), node(1, Some(0.0)), node(2, Some(0.0))], ..look.clone() });
        history.note(&look);
        (look, reigns, history)
    }

    #[test]
    fn what_is_printed_has_every_column() {
        let (look, reigns, history) = after_a_failover();
        let text = anstream::adapter::strip_str(&Page::new(&look, &reigns, &history, None).as_text()).to_string();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "cluster c, engine primary-backup",
                "view 6, lease 20.0 ms; node 1 leads, for 10.0 s; data held by 2 nodes",
                "",
                "node  state    role     view  requests/s  replies/s  applied  committed  lag  parks/s  stalls  longest gap  lease checks/s  lease refused  rehearsals  fabric clients",
                "   0  gone     -           -           -          -        -          -    -        -       -            -               -              -           -               -",
                "   1  running  primary     6         99k        99k    64233      64233    0       40       0       1.2 ms            198k              0         512               1",
                "   2  running  backup      6           0          0    64230      64232    3       40       0       1.2 ms               0              0         512               1",
                "",
                "   ago  change                         view  view decided  took over  first reply",
                "10.0 s  node 0 died, node 1 took over     6       10.0 us    18.2 us      22.7 us",
            ]
        );
    }

    #[test]
    fn columns_go_in_the_order_of_their_importance() {
        let (look, reigns, history) = after_a_failover();
        let headings = |width| -> String {
            let page = Page::new(&look, &reigns, &history, Some(width));
            page.lines()[3].iter().map(|(_, word)| word.as_str()).collect()
        };
        assert!(headings(200).contains("lease refused") && headings(200).contains("requests/s, up to 99k"));
        for (width, there, missing) in
            [(130, "longest gap", "lease checks/s"), (80, "applied", "committed"), (40, "requests/s", "replies/s"), (15, "state", "role")]
        {
            let found = headings(width);
            assert!(found.contains(there) && !found.contains(missing), "{width}: {found}");
            assert!(shown_width(found.trim_end()) <= width, "{width}: {found}");
        }
        assert!(headings(1).contains("node"), "what is left is cut off by the screen");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.44, "0.4"),
            (9.94, "9.9"),
            (9.97, "10"),
            (9_999.0, "9999"),
            (9_999.7, "10k"),
            (98_765.4, "99k"),
            (2_360_000.0, "2360k"),
            (12e6, "12M"),
            (45e9, "45G"),
        ] {
            assert_eq!(rate(value), text);
        }
        assert_eq!([bytes(0), bytes(64 << 20), bytes(20 << 10)], ["0 B", "64 MiB", "20 KiB"]);
    }

    #[test]
    fn a_cluster_without_a_view_is_said_to_have_none() {
        let text = Page::new(&look(vec![node(0, None)]), &Reigns::default(), &History::default(), Some(80)).as_text();
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.contains("no node shows a view") && text.contains("have recorded no change of leadership"), "{text}");
    }
}
