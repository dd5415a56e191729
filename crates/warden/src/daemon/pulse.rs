//! The pulse: speaks with the wardens of other hosts. What is said, [`Wardens`] decides; here are the sockets and the clock.
//!
//! What a death costs between hosts is mostly waits for a core, so two are left out. The eye, which hears of a death, sends the word of it itself where the pulse sleeps. And the pulse
//! that receives it tells the programs that monitor the application, before the desk is told.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use martlet_protocol::basics::Time;
use martlet_protocol::detector::stall::StallMeter;
use martlet_protocol::detector::wardens::{AppLife, Certainty, Config, Event, HostId, Output, Secret, Wardens};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::{Party, RunError, Seat, system};
use crate::board::{Board, End, Evidence, Slot};
use crate::packet;
use crate::wire::Answer;

/// What the pulse is told.
pub(super) enum Order {
    /// An application of this host is alive.
    Begin(AppLife, Secret),
    /// One is over: it has failed, or else it has quit.
    End(AppLife, bool),
    /// To tell a program of the end of this life, which is of another host.
    Subscribe(HostId, AppLife, Slot, Arc<Seat>),
    /// To tell it no more.
    Unsubscribe(Slot, u8),
    /// The life is over, or another's affair.
    Forget(Slot),
    /// The warden ends.
    Leave,
}

/// The way to the pulse.
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

    /// The same, and other hosts are told by the calling thread where the pulse sleeps: it may have to wait for a core. One that is awake takes the order itself.
    pub(super) fn send_at_once(&self, order: Order) {
        let _ = self.sender.send(order);
        let speech = match self.speech.try_lock() {
            Ok(speech) => Some(speech),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut speech) = speech {
            speech.take_orders();
            // Nobody is judged: what waits in the sockets has not been looked at.
            speech.wardens.speak(Time(crate::now_ns()));
            speech.put_out();
        }
        // It repeats what has been sent, so it has to sleep for less long now.
        let _ = rustix::io::write(&*self.stir, &1u64.to_ne_bytes());
    }
}

/// The pulse's way to the desk.
pub(super) struct News {
    pub(super) sender: Sender<Event>,
    pub(super) stir: Arc<OwnedFd>,
}

/// What is kept for another host, path by path.
struct Link {
    addresses: Vec<SocketAddr>,
    senders: Vec<packet::Sender>,
    /// Of the lives of its warden that were heard last.
    receivers: Vec<Vec<packet::Receiver>>,
}

/// How often a warden that ends in order says so, beside the first time.
const BYES: u32 = 2;
/// How many lives of a warden have their keys at hand: of one that is restarted, the old one and the new one.
const LIVES_AT_HAND: usize = 2;

pub(super) struct Pulse {
    interval_ns: u64,
    sockets: Arc<Vec<UdpSocket>>,
    stir: Arc<OwnedFd>,
    speech: Arc<Mutex<Speech>>,
}

/// A life of another host, and who is told of its end.
struct Watched {
    slot: Slot,
    told: Vec<Arc<Seat>>,
}

/// What is said and heard. The pulse has it while it is awake, and the eye for a moment while it sleeps; the desk never does.
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

/// The sockets of all paths, so that an address that is not there is found before anybody relies on the warden.
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
            (peer.host, Link { addresses: peer.addresses.clone(), senders, receivers: (0..paths).map(|_| Vec::new()).collect() })
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
            // Read after the sockets were drained: a clock that is read before would make silence of what waits there.
            let now = Time(crate::now_ns());
            if late_ns > self.interval_ns {
                tracing::debug!(late_ns, "the pulse stood still");
                speech.wardens.forgive(now, late_ns);
            }
            speech.wardens.poll(now);
            speech.put_out();
            if speech.leaves {
                // Nobody repeats it later.
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
    /// Takes what the others of this warden say.
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
            // So many as a flood may bring before heartbeats are sent again.
            for _ in 0..1_000 {
                match self.sockets[path].recv_from(buffer) {
                    Ok((len, _)) => self.take(path, &mut buffer[..len]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // Of an earlier packet that nobody took.
                    Err(_) => {}
                }
            }
        }
    }

    fn take(&mut self, path: usize, bytes: &mut [u8]) {
        let Some(head) = packet::head(bytes) else { return };
        let (own, key) = (self.own, &self.key);
        let Some(link) = self.links.get_mut(&head.host) else { return };
        let receivers = &mut link.receivers[path];
        let opened = match receivers.iter_mut().find(|receiver| receiver.life == head.life) {
            Some(receiver) => receiver.open(bytes),
            None => {
                let mut receiver = packet::Receiver::new(key, head.host, own, path as u8, head.life);
                let opened = receiver.open(bytes);
                if opened.is_ok() {
                    // Only a warden with the key comes this far.
                    receivers.insert(0, receiver);
                    receivers.truncate(LIVES_AT_HAND);
                }
                opened
            }
        };
        match opened {
            Ok(packet) => {
                if let Err(why) = self.wardens.handle(Time(crate::now_ns()), head.host, path as u8, &packet) {
                    tracing::trace!(host = head.host.0, ?why, "a packet is not believed");
                }
            }
            Err(why) => tracing::trace!(host = head.host.0, %why, "a packet does not open"),
        }
    }

    fn put_out(&mut self) {
        while let Some(output) = self.wardens.take_output() {
            match output {
                Output::Send(to, packet) => {
                    let link = self.links.get_mut(&to).expect("a host of the configuration");
                    for (path, socket) in self.sockets.iter().enumerate() {
                        // What a path does not take is sent over the other, and again.
                        let _ = socket.send_to(&link.senders[path].seal(&packet), link.addresses[path]);
                    }
                }
                Output::Told(event) => {
                    if let Event::Failed(host, life, Certainty::Certified(secret)) = event {
                        self.tell(host, life, secret);
                    }
                    let _ = self.news.sender.send(event);
                    let _ = rustix::io::write(&*self.news.stir, &1u64.to_ne_bytes());
                }
            }
        }
    }

    /// Tells the programs that monitor an application of another host that it has certainly failed. The desk, which is told after that, finds it on the board.
    fn tell(&mut self, host: HostId, life: AppLife, secret: Secret) {
        let Some(Watched { slot, mut told }) = self.watched.remove(&(host, life)) else { return };
        if !self.board.end(slot, &End::failure(Evidence::Certificate, crate::now_ns(), secret)) {
            return;
        }
        // A program of which an order speaks that has come since may have found it alive still.
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
