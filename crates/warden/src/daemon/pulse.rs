//! The pulse: exchanges packets with the wardens of other hosts. [`Wardens`] decides what is said; this module has the sockets and the clock.
//!
//! Telling another host of a death costs mostly waits for a core, so two of these waits are avoided. The eye, which hears of a death first, sends the news to
//! other hosts itself if the pulse is asleep. And a pulse that receives such news tells the programs that monitor the application itself, before it tells the
//! desk.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use martlet_fabric::sealing::Unopened;
use martlet_protocol::basics::Time;
use martlet_protocol::detector::stall::StallMeter;
use martlet_protocol::detector::wardens::{AppLife, Certainty, Config, Event, HostId, Output, Packet, Secret, Wardens};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::{Party, RunError, Seat, system};
use crate::board::{Board, End, Evidence, Slot};
use crate::packet;
use crate::wire::Answer;

/// What the pulse is asked to do.
pub(super) enum Order {
    /// An application of this host is alive.
    Begin(AppLife, Secret),
    /// One has ended: if `true` it has failed, otherwise it has quit.
    End(AppLife, bool),
    /// Tell a program of the end of this life, which is on another host.
    Subscribe(HostId, AppLife, Slot, Arc<Seat>),
    /// Stop telling it.
    Unsubscribe(Slot, u8),
    /// The life has ended, or another thread is responsible for it now.
    Forget(Slot),
    /// The warden ends.
    Leave,
}

/// How orders get to the pulse.
#[derive(Clone)]
pub(super) struct Orders {
    sender: Sender<Order>,
    stir: Arc<OwnedFd>,
    speech: Arc<Mutex<Speech>>,
}

impl Orders {
    pub(super) fn send(&self, order: Order) {
        let _ = self.sender.send(order);
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }

    /// The same, but if the pulse is asleep, the calling thread tells the other hosts itself, since the pulse might have to wait for a core. A pulse that is
    /// awake takes the order itself.
    pub(super) fn send_at_once(&self, order: Order) {
        let _ = self.sender.send(order);
        let speech = match self.speech.try_lock() {
            Ok(speech) => Some(speech),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut speech) = speech {
            speech.take_orders();
            // This only sends. It judges no host, since packets may be waiting in the sockets.
            speech.wardens.speak(Time(crate::now_ns()));
            speech.put_out();
        }
        // The pulse has to repeat what has been sent, so it must wake earlier than it intended.
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }
}

/// What the pulse has to say.
pub(super) enum Word {
    /// What another warden has told, or its silence.
    Told(Event),
    /// Packets from an address of that host do not authenticate: so many up to now.
    Unauthenticated { host: HostId, address: SocketAddr, packets: u64 },
}

/// How the pulse's news gets to the desk.
pub(super) struct News {
    pub(super) sender: Sender<Word>,
    pub(super) stir: Arc<OwnedFd>,
}

impl News {
    fn send(&self, word: Word) {
        let _ = self.sender.send(word);
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }
}

/// What is kept about another host, for each path.
struct Link {
    addresses: Vec<SocketAddr>,
    senders: Vec<packet::Sender>,
    /// Receivers for the lives of its warden that were heard last.
    receivers: Vec<Vec<packet::Receiver>>,
    /// The packets from these addresses that did not authenticate; the desk reads it.
    unauthenticated: Arc<AtomicU64>,
    /// When that was last said.
    said: Option<Time>,
}

/// How often at most it is said of a host that its packets do not authenticate. A warden with another key sends as many as any.
const SAY_EVERY_NS: u64 = 60_000_000_000;

/// How often a warden that ends in an orderly way repeats that it does.
const BYES: u32 = 2;
/// For how many lives of a warden the keys are kept ready: when it is restarted, the old life and the new one.
const LIVES_AT_HAND: usize = 2;

pub(super) struct Pulse {
    interval_ns: u64,
    sockets: Arc<Vec<UdpSocket>>,
    stir: Arc<OwnedFd>,
    speech: Arc<Mutex<Speech>>,
}

/// A life on another host, and the programs to be told of its end.
struct Watched {
    slot: Slot,
    told: Vec<Arc<Seat>>,
}

/// The state of the conversation. The pulse holds it while it is awake, and the eye for a moment while the pulse sleeps; the desk never does.
struct Speech {
    own: HostId,
    key: [u8; 32],
    wardens: Wardens,
    sockets: Arc<Vec<UdpSocket>>,
    links: BTreeMap<HostId, Link>,
    orders: Receiver<Order>,
    news: News,
    board: Board,
    watched: BTreeMap<(HostId, AppLife), Watched>,
    leaves: bool,
}

/// Binds the sockets of all paths, so that an address that does not exist is found before anything relies on the warden.
pub(super) fn bind(party: &Party) -> Result<Vec<UdpSocket>, RunError> {
    let bind = |address: &SocketAddr| {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    party
        .neighbours
        .listen
        .iter()
        .map(|address| bind(address).map_err(|error: io::Error| RunError::Address { address: *address, error }))
        .collect()
}

impl Pulse {
    pub(super) fn new(party: &Party, sockets: Vec<UdpSocket>, board: Board, news: News) -> Result<(Pulse, Orders), RunError> {
        let life = board.life();
        let neighbours = &party.neighbours;
        let stir = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("cannot make a descriptor for the pulse"))?;
        let (stir, orders) = (Arc::new(stir), std::sync::mpsc::channel());
        let peers: Vec<(HostId, u64)> = neighbours.hosts.iter().map(|peer| (peer.host, neighbours.timeout_ns)).collect();
        let paths = neighbours.listen.len() as u8;
        let config = Config { life, interval_ns: neighbours.interval_ns, paths, digest: crate::digest };
        let link = |peer: &crate::neighbours::Neighbour| {
            let senders = (0..paths).map(|path| packet::Sender::new(&party.key, neighbours.host, peer.host, path, life)).collect();
            let receivers = (0..paths).map(|_| Vec::new()).collect();
            (peer.host, Link { addresses: peer.addresses.clone(), senders, receivers, unauthenticated: Arc::default(), said: None })
        };
        let sockets = Arc::new(sockets);
        let speech = Speech {
            own: neighbours.host,
            key: party.key,
            wardens: Wardens::new(Time(crate::now_ns()), config, &peers),
            sockets: Arc::clone(&sockets),
            links: neighbours.hosts.iter().map(link).collect(),
            orders: orders.1,
            news,
            board,
            watched: BTreeMap::new(),
            leaves: false,
        };
        let speech = Arc::new(Mutex::new(speech));
        let pulse = Pulse { interval_ns: neighbours.interval_ns, sockets, stir: Arc::clone(&stir), speech: Arc::clone(&speech) };
        Ok((pulse, Orders { sender: orders.0, stir, speech }))
    }

    /// For each other host, the count of the packets from its addresses that did not authenticate.
    pub(super) fn unauthenticated(&self) -> BTreeMap<HostId, Arc<AtomicU64>> {
        let speech = self.speech.lock().unwrap_or_else(PoisonError::into_inner);
        speech.links.iter().map(|(host, link)| (*host, Arc::clone(&link.unauthenticated))).collect()
    }

    pub(super) fn run(self) {
        let mut meter = StallMeter::new(Time(crate::now_ns()));
        let mut buffer = vec![0; 2048];
        loop {
            let late_ns = meter.tick(Time(crate::now_ns()));
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.stir, &mut count);
            let mut speech = self.speech.lock().unwrap_or_else(PoisonError::into_inner);
            speech.take_orders();
            speech.drain(&mut buffer);
            // The sockets are drained before the clock is read and silence is judged: otherwise packets that wait there would count as silence.
            let now = Time(crate::now_ns());
            if late_ns > self.interval_ns {
                tracing::debug!(late_ns, "the thread that sends heartbeats did not run in time");
                speech.wardens.forgive(now, late_ns);
            }
            speech.wardens.poll(now);
            speech.put_out();
            if speech.leaves {
                // No other thread repeats it later.
                for _ in 0..BYES {
                    speech.wardens.leave(now);
                    speech.wardens.poll(now);
                    speech.put_out();
                }
                return;
            }
            let until = speech.wardens.wake_at();
            drop(speech);
            meter.sleep_until(until);
            let wait = Duration::from_nanos(until.since(Time(crate::now_ns())));
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            let mut fds = vec![PollFd::from_borrowed_fd(self.stir.as_fd(), PollFlags::IN)];
            fds.extend(self.sockets.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
            let _ = poll(&mut fds, Some(&wait));
        }
    }
}

impl Speech {
    /// Takes what the warden's other threads have ordered.
    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.take_order(order);
        }
    }

    fn take_order(&mut self, order: Order) {
        let now = Time(crate::now_ns());
        match order {
            Order::Begin(life, secret) => self.wardens.begin(now, life, secret),
            Order::End(life, failed) => self.wardens.end(now, life, failed),
            Order::Subscribe(host, life, slot, seat) => {
                let watched = self.watched.entry((host, life)).or_insert_with(|| Watched { slot, told: Vec::new() });
                if watched.slot != slot {
                    *watched = Watched { slot, told: Vec::new() };
                }
                watched.told.push(seat);
            }
            Order::Unsubscribe(slot, seat) => {
                let of_slot = self.watched.values_mut().filter(|watched| watched.slot == slot);
                of_slot.for_each(|watched| watched.told.retain(|one| one.index != seat));
            }
            Order::Forget(slot) => self.watched.retain(|_, watched| watched.slot != slot),
            Order::Leave => {
                self.wardens.leave(now);
                self.leaves = true;
            }
        }
    }

    fn drain(&mut self, buffer: &mut [u8]) {
        for path in 0..self.sockets.len() {
            // At most as many packets as a flood may bring before heartbeats have to be sent again.
            for _ in 0..1_000 {
                match self.sockets[path].recv_from(buffer) {
                    Ok((len, from)) => self.take(path, from, &mut buffer[..len]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The error is about an earlier packet that found no listener.
                    Err(_) => {}
                }
            }
        }
    }

    fn take(&mut self, path: usize, from: SocketAddr, bytes: &mut [u8]) {
        match self.open(path, bytes) {
            Ok((host, packet)) => {
                if let Err(why) = self.wardens.handle(Time(crate::now_ns()), host, path as u8, &packet) {
                    tracing::trace!(host = host.0, ?why, "a packet from another host is ignored");
                }
            }
            Err(Unopened::Repeated) => tracing::trace!(%from, "a packet from another host is repeated"),
            Err(Unopened::Forged) => self.count_unauthenticated(path, from),
        }
    }

    fn open(&mut self, path: usize, bytes: &mut [u8]) -> Result<(HostId, Packet), Unopened> {
        let head = packet::head(bytes).ok_or(Unopened::Forged)?;
        let link = self.links.get_mut(&head.host).ok_or(Unopened::Forged)?;
        let receivers = &mut link.receivers[path];
        let packet = match receivers.iter_mut().find(|receiver| receiver.life == head.life) {
            Some(receiver) => receiver.open(bytes)?,
            None => {
                let mut receiver = packet::Receiver::new(&self.key, head.host, self.own, path as u8, head.life);
                let packet = receiver.open(bytes)?;
                // Only the packets of a warden that has the key get this far.
                receivers.insert(0, receiver);
                receivers.truncate(LIVES_AT_HAND);
                packet
            }
        };
        Ok((head.host, packet))
    }

    /// Such a packet says nothing, whatever is in it. But an operator whose wardens have different keys is to learn from which address it came.
    fn count_unauthenticated(&mut self, path: usize, from: SocketAddr) {
        let is_from = |address: &SocketAddr| (address.ip(), address.port()) == (from.ip(), from.port());
        let Some((host, link)) = self.links.iter_mut().find(|(_, link)| is_from(&link.addresses[path])) else { return };
        let packets = link.unauthenticated.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Time(crate::now_ns());
        if link.said.is_none_or(|said| now.since(said) >= SAY_EVERY_NS) {
            link.said = Some(now);
            self.news.send(Word::Unauthenticated { host: *host, address: from, packets });
        }
    }

    fn put_out(&mut self) {
        while let Some(output) = self.wardens.take_output() {
            match output {
                Output::Send(to, packet) => {
                    let link = self.links.get_mut(&to).expect("a host of the configuration");
                    for (path, socket) in self.sockets.iter().enumerate() {
                        // What one path does not take is sent over the other, and repeated.
                        let _ = socket.send_to(&link.senders[path].seal(&packet), link.addresses[path]);
                    }
                }
                Output::Told(event) => {
                    if let Event::Failed(host, life, Certainty::Certified(secret)) = event {
                        self.tell(host, life, secret);
                    }
                    self.news.send(Word::Told(event));
                }
            }
        }
    }

    /// Tells the programs that monitor an application of another host that it has certainly failed. The desk is told afterwards, and finds it on the board.
    fn tell(&mut self, host: HostId, life: AppLife, secret: Secret) {
        let Some(Watched { slot, mut told }) = self.watched.remove(&(host, life)) else { return };
        if !self.board.end(slot, &End::failure(Evidence::Certificate, crate::now_ns(), secret)) {
            return;
        }
        // An order may have arrived meanwhile for a program that still found the application alive.
        while let Ok(order) = self.orders.try_recv() {
            if let Order::Subscribe(_, _, of, seat) = &order
                && *of == slot
            {
                told.push(Arc::clone(seat));
            }
            self.take_order(order);
        }
        told.iter().for_each(|seat| _ = seat.tell(&self.board, &Answer::Look));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::AppId;
    use crate::board::{Marking, State};
    use crate::neighbours::Neighbours;

    #[test]
    fn who_begins_to_monitor_a_life_of_another_host_while_it_ends_is_told() {
        let neighbours = Neighbours {
            host: HostId(1),
            listen: Vec::new(),
            interval_ns: 1_000_000,
            timeout_ns: 2_000_000,
            hosts: Vec::new(),
            key_file: PathBuf::new(),
        };
        let board = Board::create(1, 1, Marking::Nothing).expect("memory");
        let (sender, news) = channel();
        let stir = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
        let party = Party { neighbours, key: [7; 32] };
        let (pulse, orders) = Pulse::new(&party, Vec::new(), board.clone(), News { sender, stir }).expect("descriptors");
        let (slot, host, life) = (Slot { index: 0, generation: 1 }, HostId(2), AppLife { app: 7, incarnation: 5 });
        board.begin(slot, AppId::new(7).expect("in range"), 2, 5, 0, State::Alive);
        let mut speech = pulse.speech.lock().expect("nobody else has it");
        let mut monitors = Vec::new();
        for index in 0..2 {
            let (socket, monitor) = UnixStream::pair().expect("sockets");
            monitor.set_nonblocking(true).expect("a socket");
            monitors.push(monitor);
            orders.send(Order::Subscribe(host, life, slot, Arc::new(Seat { socket: socket.into(), index })));
            if index == 0 {
                speech.take_orders();
            }
        }
        speech.tell(host, life, [4; 16]);
        for mut monitor in monitors {
            assert!(std::io::Read::read(&mut monitor, &mut [0; 64]).expect("told") > 0);
        }
        assert_eq!(board.look(slot).map(|seen| (seen.state, seen.secret)), Some((State::Failed, Some([4; 16]))));
        drop(news);
    }
}
