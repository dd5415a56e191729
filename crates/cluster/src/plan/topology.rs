//! A network as its file describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use martlet_settings::Allowed::{Made, Names, Number, Table, Truth, Words};
use martlet_settings::{Checker, ConfigError, Keys, Setting, read, read_text};
use serde::Deserialize;

use super::critical::Probabilities;

/// What a packet carries besides its payload: FiDe's header of 54 bytes, UDP, IP, Ethernet, and the gap to the next frame.
pub const OVERHEAD_BYTES: u64 = 120;

/// The largest payload of a packet (section 3.1).
pub const MAX_PAYLOAD_BYTES: u64 = 1418;

/// The most receivers of one request.
pub const MAX_RECEIVERS: usize = 64;

/// The size of a full frame on the wire. One may already be on its way when a packet of higher priority comes.
const FRAME_BYTES: u64 = 1538;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    failures: FailuresEntry,
    #[serde(default)]
    host: Vec<HostEntry>,
    #[serde(default)]
    switch: Vec<SwitchEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
    #[serde(default)]
    shared: Vec<SharedEntry>,
    #[serde(default)]
    request: Vec<RequestEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    bandwidth_percent: u64,
    queue_percent: u64,
    frame_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bandwidth_percent: 100, queue_percent: 100, frame_bytes: FRAME_BYTES }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FailuresEntry {
    trunk: f64,
    core: f64,
    group: f64,
}

impl Default for FailuresEntry {
    fn default() -> FailuresEntry {
        let Probabilities { trunk, core, group } = Probabilities::MEASURED;
        FailuresEntry { trunk, core, group }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    #[serde(default)]
    latency_ns: u64,
    #[serde(default)]
    jitter_ns: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: String,
    latency_ns: u64,
    #[serde(default)]
    jitter_ns: u64,
    queue_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: [String; 2],
    mbit_per_s: u64,
    #[serde(default)]
    latency_ns: u64,
    #[serde(default)]
    jitter_ns: u64,
    #[serde(default)]
    kind: LinkKind,
    #[serde(default = "yes")]
    usable: bool,
}

fn yes() -> bool {
    true
}

/// The kind of a link, as far as failures are concerned (appendix C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Below the core: from a host to its switch, and from there to the next switch.
    #[default]
    Trunk,
    /// To or from a core switch.
    Core,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedEntry {
    from: String,
    to: String,
    burst_bytes: u64,
    mbit_per_s: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestEntry {
    sender: String,
    receivers: Vec<String>,
    payload_bytes: u64,
    period_ns: u64,
    #[serde(default = "two")]
    trees: u64,
}

fn two() -> u64 {
    2
}

/// A host or a switch.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, unique among nodes.
    pub name: String,
    /// For a switch, the size of its queue of the highest priority, per port; `None` for a host, which forwards nothing.
    pub queue_bytes: Option<u64>,
    /// The least time that a packet takes in it, in nanoseconds: through a switch, or between an application of a host and its link.
    pub latency_ns: u64,
    /// How much longer it may take, in nanoseconds, apart from waiting in queues.
    pub jitter_ns: u64,
}

impl Node {
    /// Whether it is a host.
    pub fn is_host(&self) -> bool {
        self.queue_bytes.is_none()
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Arc {
    /// From which node.
    pub from: usize,
    /// To which node.
    pub to: usize,
    /// Its speed, in megabits per second.
    pub mbit_per_s: u64,
    /// How long a bit travels, in nanoseconds.
    pub latency_ns: u64,
    /// How much longer that may be, in nanoseconds.
    pub jitter_ns: u64,
    /// How it fails.
    pub kind: LinkKind,
    /// The most that other traffic of the same priority puts on it at once, in bytes, added up.
    pub shared_burst_bytes: u64,
    /// How much such traffic puts on it in the long run, in megabits per second, added up.
    pub shared_mbit_per_s: u64,
}

/// A sender that asks for multicast trees.
#[derive(Clone, Debug)]
pub struct Request {
    /// The host that sends.
    pub sender: usize,
    /// The hosts that receive, without repetition.
    pub receivers: Vec<usize>,
    /// The largest packet it wants to send, on the wire, in bytes.
    pub packet_bytes: u64,
    /// The interval at which it wants to send one, in nanoseconds.
    pub period_ns: u64,
    /// How many trees it wants; no two of them share a switch.
    pub trees: usize,
}

/// A network, and the requests that are made of it.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Where it was read from.
    pub file: PathBuf,
    /// Hosts and switches, hosts first.
    pub nodes: Vec<Node>,
    /// Links, each as its two directions, `2n` and `2n + 1`. Links that may not be used are left out.
    pub arcs: Vec<Arc>,
    /// The arcs that leave each node, as indices into `arcs`.
    pub leaving: Vec<Vec<usize>>,
    /// The requests, in the order of the file.
    pub requests: Vec<Request>,
    /// How much of each link's bandwidth the plan may take, in percent.
    pub bandwidth_percent: u64,
    /// How much of each queue the plan may take, in percent.
    pub queue_percent: u64,
    /// The largest frame of lower priority, in bytes on the wire.
    pub frame_bytes: u64,
    /// How likely links are to fail.
    pub failures: Probabilities,
}

/// The largest accepted values. With them every sum over a path fits into 64 bits.
/// The file of a network of some hundred thousand links.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_NS: u64 = 1_000_000_000_000;
const MAX_BYTES: u64 = 1_000_000_000;
const MAX_MBIT: u64 = 10_000_000;

/// The most multicast trees of one request.
const MAX_TREES: u64 = 8;

const SHARE: &str = "a probability, from 0 to 1";
const NAME: &str = "1 to 64 letters, digits, '-', '_' or '.', in quotes";
const ANY: &str = "the name of a [[host]] or a [[switch]], in quotes";
const HOST: &str = "the name of a [[host]], in quotes";

impl Keys for File {
    const PARTS: &'static [&'static [Setting]] = &[
        &[
            ("limits", Table("[limits]")),
            ("limits.bandwidth_percent", Number(1, 100)),
            ("limits.queue_percent", Number(1, 100)),
            ("limits.frame_bytes", Number(0, MAX_BYTES)),
            ("failures", Table("[failures]")),
            ("failures.trunk", Words(SHARE)),
            ("failures.core", Words(SHARE)),
            ("failures.group", Words(SHARE)),
            ("host", Words("[[host]] tables")),
            ("host[..]", Words("a table that begins with [[host]]")),
            ("host[..].name", Words(NAME)),
            ("host[..].latency_ns", Number(0, MAX_NS)),
            ("host[..].jitter_ns", Number(0, MAX_NS)),
            ("switch", Words("[[switch]] tables")),
            ("switch[..]", Words("a table that begins with [[switch]]")),
            ("switch[..].name", Words(NAME)),
            ("switch[..].latency_ns", Number(0, MAX_NS)),
            ("switch[..].jitter_ns", Number(0, MAX_NS)),
            ("switch[..].queue_bytes", Number(1, MAX_BYTES)),
        ],
        &[
            ("link", Words("[[link]] tables")),
            ("link[..]", Words("a table that begins with [[link]]")),
            ("link[..].between", Words("a list of two names, each of a [[host]] or a [[switch]], such as [\"h1\", \"s1\"]")),
            ("link[..].mbit_per_s", Number(1, MAX_MBIT)),
            ("link[..].latency_ns", Number(0, MAX_NS)),
            ("link[..].jitter_ns", Number(0, MAX_NS)),
            ("link[..].kind", Names(&["trunk", "core"])),
            ("link[..].usable", Truth),
            ("shared", Words("[[shared]] tables")),
            ("shared[..]", Words("a table that begins with [[shared]]")),
            ("shared[..].from", Words(ANY)),
            ("shared[..].to", Words(ANY)),
            ("shared[..].burst_bytes", Number(0, MAX_BYTES)),
            ("shared[..].mbit_per_s", Words("a whole number from 0 to less than the link's mbit_per_s")),
            ("request", Words("[[request]] tables")),
            ("request[..]", Words("a table that begins with [[request]]")),
            ("request[..].sender", Words(HOST)),
            ("request[..].receivers", Made(|| format!("a list of 1 to {MAX_RECEIVERS} names of a [[host]], such as [\"h1\", \"h2\"]"))),
            ("request[..].payload_bytes", Number(0, MAX_PAYLOAD_BYTES)),
            ("request[..].period_ns", Number(1, MAX_NS)),
            ("request[..].trees", Number(1, MAX_TREES)),
        ],
    ];
}

/// Looks values up, and reports bad ones with their file and key.
struct Reader<'a> {
    check: Checker<'a>,
    nodes: BTreeMap<String, usize>,
}

impl Reader<'_> {
    /// A number that its key may have.
    fn number(&self, key: &str, value: u64) -> Result<u64, ConfigError> {
        self.check.number(key, value).map(|()| value)
    }

    fn share(&self, key: &str, value: f64) -> Result<f64, ConfigError> {
        if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(self.check.refuse_known(key, value)) }
    }

    fn name(&mut self, key: &str, name: &str) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(self.check.refuse_known(key, format_args!("{name:?}")));
        }
        let number = self.nodes.len();
        match self.nodes.insert(name.to_owned(), number) {
            None => Ok(()),
            Some(_) => Err(self.check.refuse(key, format_args!("{name:?}"), "a name that no other [[host]] or [[switch]] has")),
        }
    }

    fn node(&self, key: &str, name: &str) -> Result<usize, ConfigError> {
        self.nodes.get(name).copied().ok_or_else(|| self.check.refuse(key, format_args!("{name:?}"), ANY))
    }
}

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has a value that is not allowed. The error names the file, the key, the value and what is allowed.
    pub fn read(file: &Path) -> Result<Topology, ConfigError> {
        Topology::parse(file, &read_text(file, MAX_FILE_BYTES)?)
    }

    /// Parses the text of a file. `file` is for errors.
    ///
    /// # Errors
    /// As for [`Topology::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Topology, ConfigError> {
        let found = read(file, text)?;
        Topology::validated(file, &found).map_err(|error| error.in_text(text))
    }

    fn validated(file: &Path, found: &File) -> Result<Topology, ConfigError> {
        let mut reader = Reader { check: Checker::of::<File>(file), nodes: BTreeMap::new() };
        let nodes = nodes(&mut reader, found)?;
        let mut arcs = arcs(&reader, &nodes, &found.link)?;
        shared(&reader, &mut arcs, &found.shared)?;
        arcs.retain(|(_, usable)| *usable);
        let arcs: Vec<Arc> = arcs.into_iter().map(|(arc, _)| arc).collect();
        let requests = requests(&reader, &nodes, &found.request)?;
        let Limits { bandwidth_percent, queue_percent, frame_bytes } = found.limits;
        Ok(Topology {
            file: file.to_owned(),
            leaving: leaving(nodes.len(), &arcs),
            nodes,
            arcs,
            requests,
            bandwidth_percent: reader.number("limits.bandwidth_percent", bandwidth_percent)?,
            queue_percent: reader.number("limits.queue_percent", queue_percent)?,
            frame_bytes: reader.number("limits.frame_bytes", frame_bytes)?,
            failures: Probabilities {
                trunk: reader.share("failures.trunk", found.failures.trunk)?,
                core: reader.share("failures.core", found.failures.core)?,
                group: reader.share("failures.group", found.failures.group)?,
            },
        })
    }

    /// The same network after a failure: without a switch or a host (`name`), or without a link (`name:name`).
    ///
    /// # Errors
    /// When the network has no such thing; says what is allowed.
    pub fn without(mut self, what: &str) -> Result<Topology, String> {
        let find = |name: &str| {
            let found = self.nodes.iter().position(|node| node.name == name);
            found.ok_or_else(|| {
                format!("{} has no host and no switch {name:?}; allowed is a NAME of one, or NAME:NAME for a link", self.file.display())
            })
        };
        let goes: Box<dyn Fn(&Arc) -> bool> = match what.split_once(':') {
            None => {
                let gone = find(what)?;
                Box::new(move |arc| arc.from == gone || arc.to == gone)
            }
            Some((a, b)) => {
                let (a, b) = (find(a)?, find(b)?);
                Box::new(move |arc| (arc.from, arc.to) == (a, b) || (arc.from, arc.to) == (b, a))
            }
        };
        let before = self.arcs.len();
        self.arcs.retain(|arc| !goes(arc));
        if self.arcs.len() == before {
            return Err(format!(
                "{} has no usable link {what}; allowed is a NAME of a host or a switch, or NAME:NAME for a link",
                self.file.display()
            ));
        }
        self.leaving = leaving(self.nodes.len(), &self.arcs);
        Ok(self)
    }

    /// A node's name.
    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// How long sending a packet of this size on an arc takes, in nanoseconds, rounded up.
    pub fn transmission_ns(&self, arc: usize, bytes: u64) -> u64 {
        (bytes * 8_000).div_ceil(self.arcs[arc].mbit_per_s)
    }

    /// How long such a packet keeps the packets behind it waiting, in nanoseconds, rounded up: other traffic of the same priority may take part of the
    /// bandwidth.
    pub fn waiting_ns(&self, arc: usize, bytes: u64) -> u64 {
        let Arc { mbit_per_s, shared_mbit_per_s, .. } = self.arcs[arc];
        (bytes * 8_000).div_ceil(mbit_per_s - shared_mbit_per_s)
    }
}

fn leaving(nodes: usize, arcs: &[Arc]) -> Vec<Vec<usize>> {
    let mut leaving = vec![Vec::new(); nodes];
    arcs.iter().enumerate().for_each(|(number, arc)| leaving[arc.from].push(number));
    leaving
}

fn nodes(reader: &mut Reader<'_>, found: &File) -> Result<Vec<Node>, ConfigError> {
    let mut nodes = Vec::new();
    for (at, host) in found.host.iter().enumerate() {
        let key = |name| format!("host[{at}].{name}");
        reader.name(&key("name"), &host.name)?;
        nodes.push(Node {
            name: host.name.clone(),
            queue_bytes: None,
            latency_ns: reader.number(&key("latency_ns"), host.latency_ns)?,
            jitter_ns: reader.number(&key("jitter_ns"), host.jitter_ns)?,
        });
    }
    for (at, switch) in found.switch.iter().enumerate() {
        let key = |name| format!("switch[{at}].{name}");
        reader.name(&key("name"), &switch.name)?;
        nodes.push(Node {
            name: switch.name.clone(),
            queue_bytes: Some(reader.number(&key("queue_bytes"), switch.queue_bytes)?),
            latency_ns: reader.number(&key("latency_ns"), switch.latency_ns)?,
            jitter_ns: reader.number(&key("jitter_ns"), switch.jitter_ns)?,
        });
    }
    Ok(nodes)
}

/// Both directions of every link, and whether each may be used.
fn arcs(reader: &Reader<'_>, nodes: &[Node], links: &[LinkEntry]) -> Result<Vec<(Arc, bool)>, ConfigError> {
    let mut arcs = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, link) in links.iter().enumerate() {
        let key = |name| format!("link[{at}].{name}");
        let [a, b] = [0, 1].map(|end| reader.node(&key("between"), &link.between[end]));
        let (a, b) = (a?, b?);
        let shown = format!("{:?}", link.between);
        if a == b {
            return Err(reader.check.refuse(key("between"), shown, "two different nodes"));
        }
        if nodes[a].is_host() && nodes[b].is_host() {
            return Err(reader.check.refuse(
                key("between"),
                shown,
                "a host and a switch, or two switches: between two hosts there is nothing to plan",
            ));
        }
        if !seen.insert((a.min(b), a.max(b))) {
            return Err(reader.check.refuse(key("between"), shown, "two nodes that no other [[link]] joins"));
        }
        let mbit_per_s = reader.number(&key("mbit_per_s"), link.mbit_per_s)?;
        let latency_ns = reader.number(&key("latency_ns"), link.latency_ns)?;
        let jitter_ns = reader.number(&key("jitter_ns"), link.jitter_ns)?;
        for (from, to) in [(a, b), (b, a)] {
            let arc = Arc { from, to, mbit_per_s, latency_ns, jitter_ns, kind: link.kind, shared_burst_bytes: 0, shared_mbit_per_s: 0 };
            arcs.push((arc, link.usable));
        }
    }
    Ok(arcs)
}

/// Notes on each arc how much other traffic of the same priority it carries.
fn shared(reader: &Reader<'_>, arcs: &mut [(Arc, bool)], entries: &[SharedEntry]) -> Result<(), ConfigError> {
    for (at, entry) in entries.iter().enumerate() {
        let key = |name| format!("shared[{at}].{name}");
        let (from, to) = (reader.node(&key("from"), &entry.from)?, reader.node(&key("to"), &entry.to)?);
        let burst = reader.number(&key("burst_bytes"), entry.burst_bytes)?;
        let found = arcs.iter_mut().map(|(arc, _)| arc).find(|arc| (arc.from, arc.to) == (from, to));
        let arc = found.ok_or_else(|| {
            reader.check.refuse(
                key("to"),
                format_args!("{:?}", entry.to),
                format_args!("a node that a [[link]] joins with from, which is {:?}", entry.from),
            )
        })?;
        let left = arc.mbit_per_s - arc.shared_mbit_per_s;
        reader.check.range(key("mbit_per_s"), entry.mbit_per_s, 0..=left - 1)?;
        arc.shared_mbit_per_s += entry.mbit_per_s;
        arc.shared_burst_bytes += burst;
    }
    Ok(())
}

fn requests(reader: &Reader<'_>, nodes: &[Node], entries: &[RequestEntry]) -> Result<Vec<Request>, ConfigError> {
    let mut requests = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let key = |name| format!("request[{at}].{name}");
        let host = |name: &'static str, text: &str| match reader.nodes.get(text) {
            Some(&found) if nodes[found].is_host() => Ok(found),
            _ => Err(reader.check.refuse(key(name), format_args!("{text:?}"), HOST)),
        };
        let sender = host("sender", &entry.sender)?;
        let mut receivers = Vec::new();
        for name in &entry.receivers {
            let receiver = host("receivers", name)?;
            if receiver == sender || receivers.contains(&receiver) {
                return Err(reader.check.refuse(key("receivers"), format_args!("{name:?}"), "hosts other than the sender, each once"));
            }
            receivers.push(receiver);
        }
        if receivers.is_empty() || receivers.len() > MAX_RECEIVERS {
            return Err(reader.check.refuse_known(&key("receivers"), format_args!("a list of {}", receivers.len())));
        }
        let trees = reader.number(&key("trees"), entry.trees)?;
        requests.push(Request {
            sender,
            receivers,
            packet_bytes: reader.number(&key("payload_bytes"), entry.payload_bytes)? + OVERHEAD_BYTES,
            period_ns: reader.number(&key("period_ns"), entry.period_ns)?,
            trees: trees as usize,
        });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests;
