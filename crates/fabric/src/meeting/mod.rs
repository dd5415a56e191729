//! How two processes meet before they act on each other's memory, whatever carries their messages. Each tells the other what it is, both check that
//! they belong together, and each proves that it has the cluster's key. What they then hand each other is up to the backend.

pub(crate) mod admission;
pub(crate) mod attempts;
pub(crate) mod dialer;
pub(crate) mod handshakes;
pub(crate) mod regions;
pub(crate) mod tcp;
pub(crate) mod watch;
pub(crate) mod wire;

use crate::contract::{Identity, NodeId, PeerKind, RegionSpec};
use crate::speech::{self, Protocol};
use admission::Standing;
use wire::{Code, Hello, HelloError, Message, Preface, Prover, Said};

/// The shortest cluster key.
pub const MIN_KEY_BYTES: usize = 16;
/// How many clients a member serves unless told otherwise.
pub const DEFAULT_MAX_CLIENTS: usize = 256;

/// Why a process cannot take part in any handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartyError {
    /// The cluster's name is not allowed.
    #[error("{0}")]
    Cluster(String),
    /// The key is too short.
    #[error("the cluster key has {0} bytes; allowed are {MIN_KEY_BYTES} or more")]
    Key(usize),
    /// A region is not allowed.
    #[error("{whose} regions: {why}")]
    Regions {
        /// Whether members' or clients' regions are meant.
        whose: &'static str,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// A client was told to listen.
    #[error("a client cannot listen: only members do")]
    ListeningClient,
    /// The name of the build is not allowed.
    #[error("the build is called {0:?}; allowed are at most {max} bytes without control characters", max = speech::MAX_BUILD_BYTES)]
    Build(String),
}

/// What a process says of itself in every handshake.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) protocol: Protocol,
    pub(crate) identity: Identity,
    pub(crate) cluster: String,
    pub(crate) members: RegionSpec,
    pub(crate) clients: RegionSpec,
    pub(crate) key: Vec<u8>,
}

impl Party {
    /// Checks what can be checked before anything is created. `listens` says whether it will accept connections.
    pub(crate) fn check(self, listens: bool) -> Result<Party, PartyError> {
        wire::check_cluster(&self.cluster).map_err(PartyError::Cluster)?;
        if self.key.len() < MIN_KEY_BYTES {
            return Err(PartyError::Key(self.key.len()));
        }
        let build = &self.protocol.build;
        if build.len() > speech::MAX_BUILD_BYTES || build.chars().any(char::is_control) {
            return Err(PartyError::Build(build.clone().into_owned()));
        }
        for (whose, spec) in [("members'", &self.members), ("clients'", &self.clients)] {
            regions::check(spec).map_err(|why| PartyError::Regions { whose, why })?;
        }
        if listens && self.identity.kind == PeerKind::Client {
            return Err(PartyError::ListeningClient);
        }
        Ok(self)
    }

    /// What this process offers.
    pub(crate) fn offers(&self) -> &RegionSpec {
        match self.identity.kind {
            PeerKind::Member => &self.members,
            PeerKind::Client => &self.clients,
        }
    }

    /// Our Hello with a fresh nonce.
    fn hello(&self) -> Result<Vec<u8>, Refusal> {
        let nonce: [u8; wire::PROOF] = random()?;
        let preface = Preface { protocol: self.protocol.clone(), identity: self.identity, cluster: self.cluster.clone() };
        Ok(Hello { preface, nonce, members: self.members.clone(), clients: self.clients.clone() }.encode())
    }

    /// The refusal of a peer whose build and ours do not understand each other. It names both builds, so that both ends report the same.
    fn misfit(&self, handshake: u32, theirs: Option<&Preface>) -> Refusal {
        let ours = format!("{} runs {}", describe(self.identity), self.protocol);
        let theirs = match theirs {
            Some(preface) => format!("{} runs {}", describe(preface.identity), preface.protocol),
            None => "the other end runs a build that does not say what it is".to_owned(),
        };
        let of_handshake = if handshake == wire::VERSION {
            String::new()
        } else {
            format!("; the handshake is of version {} here and {handshake} there", wire::VERSION)
        };
        let text = format!("{ours}, {theirs}{of_handshake}: they do not understand each other (docs/operating.md, \"Upgrade\")");
        Refusal::new(Code::Version, text)
    }

    /// Whether this process is the authority of the pair, which decides which of its connections is kept.
    pub(crate) fn decides(&self, peer: Identity) -> bool {
        match (self.identity.kind, peer.kind) {
            (PeerKind::Member, PeerKind::Member) => self.identity.node < peer.node,
            (kind, _) => kind == PeerKind::Member,
        }
    }
}

/// Why a handshake ends without a connection.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
    /// Whether the other end knows already.
    pub(crate) told: bool,
}

impl Refusal {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), told: false }
    }

    /// The other end has refused us.
    pub(crate) fn heard(code: Code, text: &str) -> Refusal {
        Refusal { code, text: format!("it refuses: {text}"), told: true }
    }

    /// A message cannot be sent, so the other end cannot be told of it either.
    pub(crate) fn unsendable(message: &Message<'_>, why: &std::io::Error) -> Refusal {
        Refusal { code: Code::Mismatch, text: format!("{} cannot be sent to it ({why})", message.name()), told: true }
    }
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal::new(Code::Mismatch, text)
    }
}

/// Random bytes, without which there can be no handshake.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    crate::host::random().map_err(|error| format!("no random numbers ({error})").into())
}

/// What has been said between two processes, at either end.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// The node that we have dialled; `None` at the accepting end.
    pub(crate) target: Option<NodeId>,
    /// Our Hello.
    pub(crate) mine: Vec<u8>,
    theirs: Vec<u8>,
    peer: Option<(Identity, RegionSpec)>,
    /// The identity that the other end has claimed, even if its Hello was not accepted.
    named: Option<Identity>,
}

impl Meeting {
    /// Begins at either end. The dialer names a target and speaks first.
    pub(crate) fn start(party: &Party, target: Option<NodeId>) -> Result<Meeting, Refusal> {
        Ok(Meeting { target, mine: party.hello()?, theirs: Vec::new(), peer: None, named: None })
    }

    /// The identity and the regions that the other end claims, once its Hello has been read.
    pub(crate) fn peer(&self) -> Option<&(Identity, RegionSpec)> {
        self.peer.as_ref()
    }

    /// What the peer claims to be, for messages.
    pub(crate) fn peer_name(&self) -> String {
        match (self.peer.as_ref().map(|(identity, _)| *identity).or(self.named), self.target) {
            (Some(identity), _) => describe(identity),
            (None, Some(target)) => format!("member {target}"),
            (None, None) => "an unknown process".into(),
        }
    }

    /// Reads the peer's Hello and checks that the two processes belong together.
    fn meet(&mut self, party: &Party, hello: &[u8]) -> Result<Identity, Refusal> {
        let Hello { preface, members, clients, .. } = match Hello::decode(hello) {
            Ok(theirs) => theirs,
            Err(HelloError::Malformed(why)) => return Err(why.into()),
            Err(HelloError::Version(handshake, preface)) => {
                self.named = preface.as_ref().map(|preface| preface.identity);
                return Err(party.misfit(handshake, preface.as_deref()));
            }
        };
        self.named = Some(preface.identity);
        if preface.cluster != party.cluster {
            return Err(format!("it belongs to cluster {:?}, this process to {:?}", preface.cluster, party.cluster).into());
        }
        if !party.protocol.suits(&preface.protocol) {
            return Err(party.misfit(wire::VERSION, Some(&preface)));
        }
        let identity = preface.identity;
        if party.identity.kind == PeerKind::Client && identity.kind == PeerKind::Client {
            return Err("both are clients".to_owned().into());
        }
        if identity.kind == PeerKind::Member {
            if let Some(target) = self.target.filter(|target| *target != identity.node) {
                return Err(format!("member {target} was dialled, but it says that it is {}", identity.node).into());
            }
            if party.identity.kind == PeerKind::Member && identity.node == party.identity.node {
                return Err(format!("both are member {}: every node needs a number of its own", identity.node).into());
            }
        } else if self.target.is_some() {
            return Err("a member was dialled, but a client answers".to_owned().into());
        }
        for (whose, mine, other) in [("members", &party.members, &members), ("clients", &party.clients, &clients)] {
            let difference = regions::difference(mine, other);
            if !difference.is_empty() {
                return Err(format!("the two disagree about what {whose} offer: {difference}").into());
            }
        }
        self.theirs = hello.to_vec();
        let spec = match identity.kind {
            PeerKind::Member => members,
            PeerKind::Client => clients,
        };
        self.peer = Some((identity, spec));
        Ok(identity)
    }

    /// How far this handshake has come.
    pub(crate) fn standing(&self) -> Standing {
        match (self.target, &self.peer) {
            (Some(_), _) => Standing::Ours,
            (None, None) => Standing::Silent,
            (None, Some(_)) => Standing::Speaking,
        }
    }

    /// At the accepting end: reads the dialer's Hello and returns our proof for the answer. `admit` says whether a process may connect now.
    pub(crate) fn answer(
        &mut self,
        party: &Party,
        hello: &[u8],
        admit: impl Fn(Identity) -> Result<(), Refusal>,
    ) -> Result<[u8; wire::PROOF], Refusal> {
        let identity = self.meet(party, hello)?;
        if party.decides(identity) {
            admit(identity)?;
        }
        Ok(self.prove(party, b""))
    }

    /// At the dialling end: reads the answer.
    pub(crate) fn answered(&mut self, party: &Party, proof: &[u8; wire::PROOF], hello: &[u8]) -> Result<Identity, Refusal> {
        let identity = self.meet(party, hello)?;
        self.check_proof(party, proof, b"")?;
        Ok(identity)
    }

    /// Both Hellos, and `body`.
    pub(crate) fn said<'a>(&'a self, body: &'a [u8]) -> Said<'a> {
        match self.target {
            Some(_) => Said { dialer: &self.mine, acceptor: &self.theirs, body },
            None => Said { dialer: &self.theirs, acceptor: &self.mine, body },
        }
    }

    /// Our proof, to be sent with `body`. Only after [`Meeting::meet`].
    pub(crate) fn prove(&self, party: &Party, body: &[u8]) -> [u8; wire::PROOF] {
        let prover = if self.target.is_some() { Prover::Dialer } else { Prover::Acceptor };
        wire::prove(&party.key, prover, self.said(body))
    }

    /// Two keys that only the two processes of this meeting know: one for what we send from now on, and one for what the peer sends. Only after
    /// [`Meeting::meet`].
    pub(crate) fn session_keys(&self, party: &Party) -> ([u8; wire::PROOF], [u8; wire::PROOF]) {
        let key = |prover| wire::prove(&party.key, prover, self.said(b"session"));
        match self.target {
            Some(_) => (key(Prover::Dialer), key(Prover::Acceptor)),
            None => (key(Prover::Acceptor), key(Prover::Dialer)),
        }
    }

    /// Checks the peer's proof, which came with `body`. Only after [`Meeting::meet`].
    pub(crate) fn check_proof(&self, party: &Party, proof: &[u8; wire::PROOF], body: &[u8]) -> Result<(), Refusal> {
        let prover = if self.target.is_some() { Prover::Acceptor } else { Prover::Dialer };
        let right = wire::proven(&party.key, prover, self.said(body), proof);
        if right { Ok(()) } else { Err("the two have different cluster keys".to_owned().into()) }
    }
}

/// A process as messages name it. A client's node number means nothing, and would look like that of a member.
pub(crate) fn describe(identity: Identity) -> String {
    let life = identity.incarnation.0;
    match identity.kind {
        PeerKind::Member => format!("member {} (incarnation {life:x})", identity.node),
        PeerKind::Client => format!("client {life:x}"),
    }
}

/// Logs what becomes of the connection with a peer, at this level if it is a member. Clients come and go with every command, so what becomes of theirs is
/// logged as a detail.
macro_rules! log_of {
    ($level:ident, $identity:expr, $peer:expr, $text:literal $(, $value:expr)*) => {
        match $identity.kind {
            $crate::contract::PeerKind::Member => tracing::$level!(peer = $peer.0, $text, $crate::meeting::describe($identity) $(, $value)*),
            $crate::contract::PeerKind::Client => tracing::debug!(peer = $peer.0, $text, $crate::meeting::describe($identity) $(, $value)*),
        }
    };
}
pub(crate) use log_of;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Incarnation;

    #[test]
    fn a_client_is_not_named_like_a_node() {
        let of = |kind| describe(Identity { node: NodeId(0), incarnation: Incarnation(0x2a), kind });
        assert_eq!(of(PeerKind::Member), "member n0 (incarnation 2a)");
        assert_eq!(of(PeerKind::Client), "client 2a");
    }
}
