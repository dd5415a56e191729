//! What commands know and keep about each client.

use std::collections::BTreeSet;

use martlet_fabric::Pulse;

use super::table::Command;
use super::watches::{Watched, Watchers};
use crate::resp::{Args, Protocol, QueuedRequests};

/// A slot in [`Clients`]. It is reused after its client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientSlot(pub usize);

/// Whether a client gets replies (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// To everything.
    #[default]
    On,
    /// To nothing.
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this one, unless it says otherwise.
    Skip,
}

/// The commands of a transaction, waiting for EXEC.
#[derive(Debug, Default)]
pub struct Queue {
    requests: QueuedRequests,
    commands: Vec<&'static Command>,
}

impl Queue {
    /// Appends a request for `command`.
    pub fn push(&mut self, command: &'static Command, args: Args<'_>, pulse: &Pulse) {
        self.requests.push(args, pulse);
        self.commands.push(command);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Forgets all of them, and gives their memory back.
    pub fn clear(&mut self) {
        *self = Queue::default();
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Command, Args<'_>)> {
        self.commands.iter().copied().zip(self.requests.iter())
    }
}

/// A transaction between MULTI and EXEC.
#[derive(Debug, Default)]
pub struct Transaction {
    /// What was queued.
    pub queue: Queue,
    /// A command could not be queued, so EXEC will refuse.
    pub broken: bool,
    /// Some queued command reads or writes keys.
    pub has_data: bool,
    /// Some queued command can be executed only by the primary.
    pub is_primarys: bool,
    /// Some queued command may need memory.
    pub deny_oom: bool,
    /// What the queue counts as in memory, in bytes.
    pub bytes: usize,
    /// How much the queue may add to the log, in bytes.
    pub effect_bytes: usize,
}

/// One client: everything that commands know about it. The front end keeps what its socket or lane needs.
#[derive(Debug)]
pub struct Client {
    /// Never used twice.
    pub id: u64,
    /// CLIENT SETNAME.
    pub name: String,
    /// The address it comes from.
    pub address: String,
    /// The address at which it reached us.
    pub local_address: String,
    /// The protocol it speaks.
    pub protocol: Protocol,
    /// Whether it has given the password, or none is needed.
    pub authenticated: bool,
    /// The open transaction.
    pub transaction: Option<Transaction>,
    /// The keys it watches.
    pub watched: Watched,
    /// A watched key has changed.
    pub watch_broken: bool,
    /// Whether it gets replies.
    pub reply_mode: ReplyMode,
    /// READONLY: it accepts a backup's answers.
    pub readonly: bool,
    /// Whether replies that say something about keys wait for a majority, whatever the lease says: its choice by READ QUORUM or READ LEASE, if it has made one.
    pub wants_quorum: Option<bool>,
    /// CLIENT NO-EVICT. Nothing is ever evicted; this is kept only to be shown.
    pub no_evict: bool,
    /// CLIENT SETINFO LIB-NAME.
    pub library: String,
    /// CLIENT SETINFO LIB-VER.
    pub library_version: String,
    /// When it connected, in milliseconds of Unix time.
    pub since_ms: u64,
    /// When something last arrived from it, in milliseconds of Unix time, according to the front end's latest report.
    pub last_ms: u64,
    /// Its last command's name.
    pub last_command: &'static str,
    /// It asked to be closed after its replies.
    pub quit: bool,
    /// Another client asked that it be closed at once.
    pub killed: bool,
    /// It has no connection that could keep state: its requests come over the fabric, each by itself.
    pub stateless: bool,
    /// Its descriptor; -1 where it has no socket.
    pub fd: i32,
    /// Bytes of input that wait to be executed or belong to the request being executed, according to the front end's latest report.
    pub input_bytes: usize,
    /// Bytes of the arguments of the request being executed, if it is a request that shows them.
    pub argument_bytes: usize,
    /// Bytes of output that wait to be sent, according to the front end's latest report.
    pub output_bytes: usize,
}

impl Client {
    /// Whether replies that tell it about keys wait for a majority, on a node with this `default`. The default does not apply to a client that accepts a
    /// backup's answers.
    pub fn reads_by_quorum(&self, default: bool) -> bool {
        self.wants_quorum.unwrap_or(default && !self.readonly)
    }

    /// A client that has just connected.
    pub fn new(address: String, local_address: String, authenticated: bool, now_ms: u64) -> Client {
        Client {
            id: 0,
            name: String::new(),
            address,
            local_address,
            protocol: Protocol::Resp2,
            authenticated,
            transaction: None,
            watched: Watched::default(),
            watch_broken: false,
            reply_mode: ReplyMode::On,
            readonly: false,
            wants_quorum: None,
            no_evict: false,
            library: String::new(),
            library_version: String::new(),
            since_ms: now_ms,
            last_ms: now_ms,
            last_command: "NULL",
            quit: false,
            killed: false,
            stateless: false,
            fd: -1,
            input_bytes: 0,
            argument_bytes: 0,
            output_bytes: 0,
        }
    }

    /// Its line in CLIENT LIST.
    pub fn describe(&self, now_ms: u64, out: &mut String) {
        use std::fmt::Write;
        let flags: String = [('x', self.transaction.is_some()), ('d', self.watch_broken), ('r', self.readonly)]
            .iter()
            .filter(|(_, is)| *is)
            .map(|(flag, _)| *flag)
            .collect();
        let flags = if flags.is_empty() { "N" } else { &flags };
        let multi = self.transaction.as_ref().map_or(-1, |t| t.queue.len() as i64);
        let memory = self.transaction.as_ref().map_or(0, |t| t.bytes);
        let resp = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db=0 sub=0 psub=0 ssub=0 multi={multi} qbuf={} qbuf-free=0 \
             argv-mem={} multi-mem={memory} rbs=0 rbp=0 obl={} oll=0 omem=0 tot-mem={} events=r cmd={} user=default redir=-1 resp={resp} \
             lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            self.fd,
            self.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(self.last_ms) / 1000,
            self.input_bytes,
            self.argument_bytes,
            self.output_bytes,
            size_of::<Client>() + memory + self.input_bytes + self.output_bytes,
            self.last_command,
            self.library,
            self.library_version,
        );
    }
}

/// All clients, and which of them watch which key.
#[derive(Debug, Default)]
pub struct Clients {
    slots: Vec<Option<Client>>,
    free: Vec<usize>,
    watchers: Watchers,
    next_id: u64,
    count: usize,
}

impl Clients {
    /// Adds a client and gives it its id.
    pub fn add(&mut self, mut client: Client) -> ClientSlot {
        self.next_id += 1;
        client.id = self.next_id;
        self.count += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(client);
                ClientSlot(slot)
            }
            None => {
                self.slots.push(Some(client));
                ClientSlot(self.slots.len() - 1)
            }
        }
    }

    /// Forgets a client.
    pub fn remove(&mut self, slot: ClientSlot, pulse: &Pulse) {
        self.unwatch(slot, pulse);
        if self.slots[slot.0].take().is_some() {
            self.free.push(slot.0);
            self.count -= 1;
        }
    }

    /// The client of that slot.
    ///
    /// # Panics
    /// When there is none: a slot is valid as long as its connection.
    #[inline]
    pub fn get(&self, slot: ClientSlot) -> &Client {
        self.slots[slot.0].as_ref().expect("a slot lives as long as its connection")
    }

    /// The client of that slot, to change.
    ///
    /// # Panics
    /// As [`Clients::get`].
    #[inline]
    pub fn get_mut(&mut self, slot: ClientSlot) -> &mut Client {
        self.slots[slot.0].as_mut().expect("a slot lives as long as its connection")
    }

    /// Every client, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().flatten()
    }

    /// The same, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.slots.iter_mut().flatten()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lets a client watch a key.
    pub fn watch(&mut self, slot: ClientSlot, key: &[u8]) {
        let client = self.slots[slot.0].as_mut().expect("a slot lives as long as its connection");
        self.watchers.add(slot, &mut client.watched, key);
    }

    /// Ends all watching of a client.
    pub fn unwatch(&mut self, slot: ClientSlot, pulse: &Pulse) {
        let Some(client) = self.slots[slot.0].as_mut() else { return };
        client.watch_broken = false;
        self.watchers.remove(slot, &mut client.watched, pulse);
    }

    /// How many keys are watched.
    pub fn watched_keys(&self) -> usize {
        self.watchers.len()
    }

    /// Takes note that a key has changed.
    #[inline]
    pub fn touched(&mut self, key: &[u8]) {
        if let Some(watchers) = self.watchers.changed(key) {
            self.break_watches(watchers);
        }
    }

    /// All keys are about to be removed; `is_there` says which watched keys exist.
    pub fn flushed(&mut self, mut is_there: impl FnMut(&[u8]) -> bool, pulse: &Pulse) {
        let watchers = self.watchers.flushed(|key| {
            pulse.stepped();
            is_there(key)
        });
        self.break_watches(watchers);
    }

    fn break_watches(&mut self, of: BTreeSet<ClientSlot>) {
        for slot in of {
            self.slots[slot.0].as_mut().expect("whoever watches is there").watch_broken = true;
        }
    }

    /// Notes that any key may have changed: this node was not primary for a while.
    pub fn break_all_watches(&mut self) {
        for client in self.slots.iter_mut().flatten() {
            client.watch_broken |= !client.watched.is_empty();
        }
    }
}
