//! One handshake, from either end: a state machine that is handed messages. See [`super::wire`] for its steps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::peer::{Kept, Own, Peer};
use super::plan;
use super::socket;
use super::wire::{self, Code, Hello, Message, Prover};
use crate::contract::{Identity, NodeId, PeerKind, RegionSpec};

/// What all handshakes of a process have in common.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) identity: Identity,
    pub(super) cluster: String,
    pub(super) members: RegionSpec,
    pub(super) clients: RegionSpec,
    pub(super) key: Vec<u8>,
    pub(super) own: Arc<Own>,
    pub(super) prefault: bool,
}

impl Ours {
    /// Our Hello with a fresh nonce.
    fn hello(&self) -> Result<Vec<u8>, Refusal> {
        let mut nonce = [0; wire::PROOF];
        let mut filled = 0;
        while filled < nonce.len() {
            filled += rustix::rand::getrandom(&mut nonce[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| Refusal::new(Code::Mismatch, format!("no random numbers ({e})")))?;
        }
        let (identity, cluster) = (self.identity, self.cluster.clone());
        Ok(Hello { nonce, identity, cluster, members: self.members.clone(), clients: self.clients.clone() }.encode())
    }

    /// Whether this process decides which connection of the pair is kept.
    fn decides(&self, peer: Identity) -> bool {
        match (self.identity.kind, peer.kind) {
            (PeerKind::Member, PeerKind::Member) => self.identity.node < peer.node,
            (kind, _) => kind == PeerKind::Member,
        }
    }
}

/// Why a handshake ends without a connection.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) text: String,
    /// Whether the other end knows already.
    pub(super) told: bool,
}

impl Refusal {
    pub(super) fn new(code: Code, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), told: false }
    }
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal::new(Code::Mismatch, text)
    }
}

/// How far a message has brought us.
pub(super) enum Progress {
    Waiting,
    Connected(Box<Peer>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Hello,
    Answer,
    Offer,
    Commit,
}

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) socket: OwnedFd,
    pub(super) pidfd: OwnedFd,
    /// When patience ends.
    pub(super) deadline: Instant,
    /// Whom we have dialled; `None` at the accepting end.
    pub(super) target: Option<NodeId>,
    step: Step,
    mine: Vec<u8>,
    theirs: Vec<u8>,
    peer: Option<(Identity, RegionSpec)>,
    kept: Option<Kept>,
    ready: Option<Box<Peer>>,
}

impl Handshake {
    /// Begins at either end; the dialer speaks first.
    pub(super) fn start(ours: &Ours, socket: OwnedFd, target: Option<NodeId>, deadline: Instant) -> Result<Handshake, Refusal> {
        socket::authorised(&socket)?;
        let pidfd = socket::pidfd(&socket).map_err(|e| format!("its process cannot be watched ({e})"))?;
        let mine = ours.hello()?;
        let step = if target.is_some() { Step::Answer } else { Step::Hello };
        let handshake = Handshake { socket, pidfd, deadline, target, step, mine, theirs: Vec::new(), peer: None, kept: None, ready: None };
        if target.is_some() {
            handshake.send(&Message::Hello(&handshake.mine), &[])?;
        }
        Ok(handshake)
    }

    /// Whether nothing has been heard from an accepted connection yet.
    pub(super) fn is_silent(&self) -> bool {
        self.step == Step::Hello
    }

    /// Who the peer claims to be, for messages.
    pub(super) fn peer_name(&self) -> String {
        match (&self.peer, self.target) {
            (Some((identity, _)), _) => describe(*identity),
            (None, Some(target)) => format!("member {target}"),
            (None, None) => "an unknown process".into(),
        }
    }

    /// Takes a message. `admit` says whether a process may be connected now.
    pub(super) fn handle(
        &mut self,
        ours: &Ours,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        admit: impl Fn(Identity) -> Result<(), Refusal>,
    ) -> Result<Progress, Refusal> {
        match (self.step, Message::decode(bytes)?) {
            (Step::Hello, Message::Hello(hello)) => {
                let identity = self.meet(ours, hello)?;
                if ours.decides(identity) {
                    admit(identity)?;
                }
                let proof = wire::prove(&ours.key, Prover::Acceptor, &self.theirs, &self.mine);
                self.send(&Message::Answer { proof: &proof, hello: &self.mine }, &[])?;
                self.step = Step::Offer;
            }
            (Step::Answer, Message::Answer { proof, hello }) => {
                let identity = self.meet(ours, hello)?;
                self.check_proof(ours, proof)?;
                self.offer(ours, identity)?;
                self.step = Step::Offer;
            }
            (Step::Offer, Message::Offer { proof }) => {
                self.check_proof(ours, proof)?;
                let (identity, spec) = self.peer.clone().expect("met before");
                let decides = ours.decides(identity);
                if decides {
                    admit(identity)?;
                }
                if self.target.is_none() {
                    self.offer(ours, identity)?;
                }
                let kept = self.kept.take().expect("offered before");
                let peer = Box::new(Peer::map(identity, &spec, ours.identity.kind, kept, fds, ours.prefault)?);
                if decides {
                    self.send(&Message::Commit, &[])?;
                    return Ok(Progress::Connected(peer));
                }
                self.ready = Some(peer);
                self.step = Step::Commit;
            }
            (Step::Commit, Message::Commit) => return Ok(Progress::Connected(self.ready.take().expect("mapped before"))),
            (_, Message::Refuse { code, text }) => return Err(Refusal { code, text: format!("it refuses: {text}"), told: true }),
            (step, message) => return Err(format!("it sent {} while {step:?} was expected", message.name()).into()),
        }
        Ok(Progress::Waiting)
    }

    /// Reads the peer's Hello and checks that the two belong together.
    fn meet(&mut self, ours: &Ours, hello: &[u8]) -> Result<Identity, Refusal> {
        let theirs = Hello::decode(hello)?;
        if theirs.cluster != ours.cluster {
            return Err(format!("it belongs to cluster {:?}, this process to {:?}", theirs.cluster, ours.cluster).into());
        }
        let identity = theirs.identity;
        if ours.identity.kind == PeerKind::Client && identity.kind == PeerKind::Client {
            return Err("both are clients".to_owned().into());
        }
        if identity.kind == PeerKind::Member {
            if let Some(target) = self.target.filter(|target| *target != identity.node) {
                return Err(format!("member {target} was dialled, but it says that it is {}", identity.node).into());
            }
            if ours.identity.kind == PeerKind::Member && identity.node == ours.identity.node {
                return Err(format!("both are member {}: every node needs a number of its own", identity.node).into());
            }
        } else if self.target.is_some() {
            return Err("a member was dialled, but a client answers".to_owned().into());
        }
        for (whose, mine, other) in [("members", &ours.members, &theirs.members), ("clients", &ours.clients, &theirs.clients)] {
            let difference = plan::difference(mine, other);
            if !difference.is_empty() {
                return Err(format!("the two disagree about what {whose} offer: {difference}").into());
            }
        }
        self.theirs = hello.to_vec();
        let spec = match identity.kind {
            PeerKind::Member => theirs.members,
            PeerKind::Client => theirs.clients,
        };
        self.peer = Some((identity, spec));
        Ok(identity)
    }

    fn check_proof(&self, ours: &Ours, proof: &[u8; wire::PROOF]) -> Result<(), Refusal> {
        let right = match self.target {
            Some(_) => wire::proven(&ours.key, Prover::Acceptor, &self.mine, &self.theirs, proof),
            None => wire::proven(&ours.key, Prover::Dialer, &self.theirs, &self.mine, proof),
        };
        if right { Ok(()) } else { Err("the two have different cluster keys".to_owned().into()) }
    }

    /// Makes the lanes for the peer and sends all that it may map.
    fn offer(&mut self, ours: &Ours, identity: Identity) -> Result<(), Refusal> {
        let kept = Kept::create(&ours.own.spec, ours.identity.kind, identity.kind, ours.prefault)
            .map_err(|e| format!("no memory for its lanes ({e})"))?;
        let proof = match self.target {
            Some(_) => wire::prove(&ours.key, Prover::Dialer, &self.mine, &self.theirs),
            None => wire::prove(&ours.key, Prover::Acceptor, &self.theirs, &self.mine),
        };
        let [public, bell] = ours.own.fds(identity.kind);
        self.send(&Message::Offer { proof: &proof }, &[public, bell, kept.fd.as_fd()])?;
        self.kept = Some(kept);
        Ok(())
    }

    fn send(&self, message: &Message<'_>, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Refusal> {
        socket::send(&self.socket, &message.encode(), fds).map_err(|e| Refusal {
            code: Code::Mismatch,
            text: format!("{} cannot be sent to it ({e})", message.name()),
            told: true,
        })
    }

    /// Tells the other end why it is turned down, as far as it listens.
    pub(super) fn turn_down(&self, refusal: &Refusal) {
        if !refusal.told {
            let _ = self.send(&Message::Refuse { code: refusal.code, text: refusal.text.clone() }, &[]);
        }
    }
}

/// A process as messages name it.
pub(super) fn describe(identity: Identity) -> String {
    let kind = match identity.kind {
        PeerKind::Member => "member",
        PeerKind::Client => "client",
    };
    format!("{kind} {} (incarnation {:x})", identity.node, identity.incarnation.0)
}
