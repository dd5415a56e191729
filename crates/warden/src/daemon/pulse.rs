//! The pulse: speaks with the wardens of other hosts. What is said, [`Wardens`] decides; here are the sockets and the clock.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use martlet_protocol::basics::Time;
use martlet_protocol::detector::stall::StallMeter;
use martlet_protocol::detector::wardens::{AppLife, Config, Event, HostId, Output, Secret, Wardens};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::{Party, RunError, system};
use crate::packet;

/// What the pulse is told of applications of this host.
pub(super) enum Order {
    /// One is alive.
    Begin(AppLife, Secret),
    /// One is over: it has failed, or else it has quit.
    End(AppLife, bool),
    /// The warden ends.
    Leave,
}

/// The way to the pulse.
#[derive(Clone)]
pub(super) struct Orders {
    sender: Sender<Order>,
    stir: Arc<OwnedFd>,
}

impl Orders {
    pub(super) fn send(&self, order: Order) {
        let _ = self.sender.send(order);
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
    own: HostId,
    key: [u8; 32],
    interval_ns: u64,
    wardens: Wardens,
    sockets: Vec<UdpSocket>,
    links: BTreeMap<HostId, Link>,
    orders: Receiver<Order>,
    stir: Arc<OwnedFd>,
    news: News,
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
    pub(super) fn new(party: &Party, sockets: Vec<UdpSocket>, life: u64, news: News) -> Result<(Pulse, Orders), RunError> {
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
        let pulse = Pulse {
            own: neighbours.host,
            key: party.key,
            interval_ns: neighbours.interval_ns,
            wardens: Wardens::new(Time(crate::now_ns()), config, &peers),
            sockets,
            links: neighbours.hosts.iter().map(link).collect(),
            orders: orders.1,
            stir: Arc::clone(&stir),
            news,
        };
        Ok((pulse, Orders { sender: orders.0, stir }))
    }

    pub(super) fn run(mut self) {
        let mut meter = StallMeter::new(Time(crate::now_ns()));
        let mut buffer = vec![0; 2048];
        loop {
            let late_ns = meter.tick(Time(crate::now_ns()));
            let leaves = self.take_orders();
            self.drain(&mut buffer);
            // Read after the sockets were drained: a clock that is read before would make silence of what waits there.
            let now = Time(crate::now_ns());
            if late_ns > self.interval_ns {
                tracing::debug!(late_ns, "the pulse stood still");
                self.wardens.forgive(now, late_ns);
            }
            self.wardens.poll(now);
            self.put_out();
            if leaves {
                // Nobody repeats it later.
                for _ in 0..BYES {
                    self.wardens.leave(now);
                    self.wardens.poll(now);
                    self.put_out();
                }
                return;
            }
            let until = self.wardens.wake_at();
            meter.sleep_until(until);
            let wait = Duration::from_nanos(until.since(Time(crate::now_ns())));
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            let mut fds = vec![PollFd::from_borrowed_fd(self.stir.as_fd(), PollFlags::IN)];
            fds.extend(self.sockets.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
            let _ = poll(&mut fds, Some(&wait));
        }
    }

    /// Takes what the others of this warden say, and returns whether it ends.
    fn take_orders(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.stir, &mut count);
        let mut leaves = false;
        while let Ok(order) = self.orders.try_recv() {
            let now = Time(crate::now_ns());
            match order {
                Order::Begin(life, secret) => self.wardens.begin(now, life, secret),
                Order::End(life, failed) => self.wardens.end(now, life, failed),
                Order::Leave => {
                    self.wardens.leave(now);
                    leaves = true;
                }
            }
        }
        leaves
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
                    let _ = self.news.sender.send(event);
                    let _ = rustix::io::write(&*self.news.stir, &1u64.to_ne_bytes());
                }
            }
        }
    }
}
