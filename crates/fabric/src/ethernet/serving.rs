//! What others ask of this process: the guarded half of an endpoint. Every effect that a peer has on our memory is made by the thread that holds the
//! guard, be it the endpoint's own or its stand-in. So a revocation is a change under the guard, and no write can take effect late.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::bundle::{Incoming, Outgoing};
use super::mail::Assembly;
use super::packet::{Head, Kind, MAX_PACKET};
use super::peer::{Epochs, Lanes, Line};
use super::responder::Responder;
use super::seal::{Opener, Rejected, Sealer, body};
use super::socket_filter;
use crate::contract::PeerId;

/// How many packets are taken at once under the guard. A large packet counts as several small ones. A thread that wants to revoke waits for one batch
/// at most, some 50 us.
pub(super) const BATCH: usize = 32;
/// The most datagrams that wait to be received. Further ones are lost.
const MAILBOX: usize = 1024;

/// What one turn of serving has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The number of packets; a large one counts as several small ones.
    pub(super) packets: usize,
    /// Whether there may be more.
    pub(super) more: bool,
}

/// What has arrived since the start. Of the kinds of packets that are refused, a stranger can cause all but the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetCounters {
    /// Packets that were taken.
    pub taken: u64,
    /// Packets of another layout, or of a length that no packet has.
    pub foreign: u64,
    /// Packets for no existing connection.
    pub unknown: u64,
    /// Packets that have been taken before, or come too late to tell.
    pub repeated: u64,
    /// Packets that do not open.
    pub forged: u64,
    /// Packets that opened, but that no process of ours sends.
    pub malformed: u64,
    /// Datagrams for which there was no room.
    pub dropped: u64,
}

/// A peer as one that asks.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) opener: Opener,
    pub(super) sealer: Sealer,
    pub(super) responder: Responder,
    pub(super) lanes: Arc<Lanes>,
    /// The epochs that it has told us for the lanes that it keeps for us.
    pub(super) told: Arc<Epochs>,
    /// Where its requests come from: the source of its newest packet.
    pub(super) asks_at: SocketAddr,
    pub(super) assembly: Assembly,
    /// Whether datagrams from it are taken.
    pub(super) is_member: bool,
}

/// All peers that we serve, by the number with which their packets are marked.
#[derive(Debug, Default)]
pub(super) struct Serving {
    flows: HashMap<u32, (PeerId, Box<Served>)>,
    mailbox: VecDeque<(PeerId, Vec<u8>)>,
    touched: Vec<u32>,
    packet: Vec<u8>,
    incoming: Incoming,
    outgoing: Outgoing,
    pub(super) counters: EthernetCounters,
}

impl Serving {
    /// Serves a peer from now on.
    pub(super) fn add(&mut self, line: &Line, flow: u32, peer: PeerId, served: Box<Served>) {
        self.flows.insert(flow, (peer, served));
        // Under the guard, so that the latest change of the flows also sets the latest filter.
        socket_filter::admit(&line.answers, &[Kind::Request, Kind::Datagram], self.flows.keys().copied());
    }

    /// Stops serving a peer: nothing that it has sent takes effect any more. The filter still lets its packets reach the socket until the next
    /// connection is made: a failover does not wait for the system to install another filter.
    pub(super) fn remove(&mut self, peer: PeerId) {
        self.flows.retain(|_, (of, _)| *of != peer);
        self.mailbox.retain(|(of, _)| *of != peer);
    }

    /// The responder of that peer. `None` if the number now belongs to a later connection.
    pub(super) fn responder(&mut self, flow: u32, peer: PeerId) -> Option<&mut Responder> {
        self.flows.get_mut(&flow).filter(|(of, _)| *of == peer).map(|(_, served)| &mut served.responder)
    }

    /// Delivers a datagram, one of our own or one that has arrived.
    pub(super) fn deliver(&mut self, from: PeerId, datagram: Vec<u8>) {
        if self.mailbox.len() < MAILBOX {
            self.mailbox.push_back((from, datagram));
        } else {
            self.counters.dropped += 1;
        }
    }

    pub(super) fn collect(&mut self) -> Option<(PeerId, Vec<u8>)> {
        self.mailbox.pop_front()
    }

    /// Takes up to `most` of the packets that have arrived, and the rest of the last bundle, and answers them.
    pub(super) fn serve(&mut self, line: &Line, most: usize) -> Taken {
        let socket = &line.answers;
        let mut incoming = std::mem::take(&mut self.incoming);
        let (mut more, mut taken) = (true, 0);
        while taken < most {
            match incoming.receive(socket) {
                Ok(came) => {
                    for packet in incoming.packets(came) {
                        self.take(packet, came.from);
                        taken += packet.len().div_ceil(MAX_PACKET).max(1);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    more = false;
                    break;
                }
                // Any other error of a socket concerns a single packet.
                Err(_) => taken += 1,
            }
        }
        self.incoming = incoming;
        for flow in std::mem::take(&mut self.touched) {
            let Some((_, served)) = self.flows.get_mut(&flow) else { continue };
            let Served { sealer, responder, lanes, asks_at, .. } = &mut **served;
            let send = |packets: &[u8], size: usize| line.send_all(socket, packets, size, *asks_at);
            responder.answer(&**lanes, &mut self.packet, Sealer::begin, |packet| {
                sealer.seal(Kind::Response, packet);
                self.outgoing.push(packet, send);
            });
            self.outgoing.flush(send);
        }
        Taken { packets: taken, more }
    }

    fn take(&mut self, packet: &mut [u8], from: SocketAddr) {
        let Some(head) = Head::decode(packet).filter(|head| head.kind != Kind::Response) else {
            self.counters.foreign += 1;
            return;
        };
        let Some((peer, served)) = self.flows.get_mut(&head.flow) else {
            self.counters.unknown += 1;
            return;
        };
        let peer = *peer;
        match served.opener.open(head, packet) {
            Ok(opened) if opened.newest => served.asks_at = from,
            Ok(_) => {}
            Err(Rejected::Repeated) => return self.counters.repeated += 1,
            Err(Rejected::Forged) => return self.counters.forged += 1,
        }
        self.counters.taken += 1;
        let body = body(packet);
        if head.kind == Kind::Datagram {
            match served.assembly.take(body) {
                Ok(Some(datagram)) if served.is_member => self.deliver(peer, datagram),
                Ok(None) => {}
                Ok(Some(_)) | Err(()) => self.counters.malformed += 1,
            }
            return;
        }
        let told = &served.told;
        let well = served.responder.take(body, &*served.lanes, |grants| told.note(grants)).is_ok();
        self.counters.malformed += u64::from(!well);
        if served.responder.owes() && !self.touched.contains(&head.flow) {
            self.touched.push(head.flow);
        }
    }
}
