//! The messages of a [meeting](super), and the proofs in them.
//!
//! ```text
//! dialer                                        acceptor
//!   Hello: versions, identity, cluster, nonce, regions ->
//!      <- Answer: the same of the acceptor, and its proof
//!   Offer: proof; what the acceptor needs to reach the dialer's memory ->
//!      <- Offer: proof; what the dialer needs to reach the acceptor's
//!   Ready, from the dialer if the backend has something to set up with the acceptor's offer and the acceptor decides
//!   Commit, from whichever end is the authority of the pair
//! ```
//!
//! A Hello begins with its sender's identity and the versions that the sender speaks, in a form that no later version of the handshake changes. So
//! any two builds from version 4 on can say which process they have refused, and why.
//!
//! What an offer holds is up to the backend: descriptors that travel beside it, or a body.
//!
//! A proof is an HMAC-SHA256, under the cluster's key, of the prover's role, both Hellos including their nonces, and the body that the proof comes
//! with. It can be neither replayed nor reflected, and nobody on the way can alter the body.
//!
//! The **authority** of two members is the one with the lower number; of a member and a client, it is the member. Only the authority sends Commit. So
//! if both members dial at once, one of the two connections is kept, and it is the same one at both ends.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::regions;
use crate::contract::{Identity, Incarnation, NodeId, PeerKind, RegionName, RegionSpec};
use crate::speech::{Levels, MAX_BUILD_BYTES, Protocol};

/// The first bytes of every Hello.
const MAGIC: &[u8; 8] = b"MARTLET1";
/// The version of the handshake and of the hidden parts of shared memory. The layers above have a version of their own, [`Protocol::version`].
pub(crate) const VERSION: u32 = 5;
/// The first version whose Hellos begin with a [`Preface`].
const FIRST_WITH_PREFACE: u32 = 4;
/// Length of a proof, and of a nonce.
pub(crate) const PROOF: usize = 32;
/// The longest name of a cluster, in bytes.
pub(crate) const MAX_CLUSTER: usize = 64;
/// The longest text of a refusal, in bytes.
const MAX_TEXT: usize = 1024;

/// How a Hello begins, whatever its version of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    pub(crate) protocol: Protocol,
    pub(crate) identity: Identity,
    pub(crate) cluster: String,
}

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) preface: Preface,
    pub(crate) nonce: [u8; PROOF],
    /// What members of this cluster offer.
    pub(crate) members: RegionSpec,
    /// What clients of this cluster offer.
    pub(crate) clients: RegionSpec,
}

/// Why this build cannot continue with a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloError {
    /// It is not a Hello, for this reason.
    Malformed(String),
    /// It is of another version of the handshake. If that version has a preface, the preface says which process sent it.
    Version(u32, Option<Box<Preface>>),
}

impl From<String> for HelloError {
    fn from(why: String) -> HelloError {
        HelloError::Malformed(why)
    }
}

impl From<&str> for HelloError {
    fn from(why: &str) -> HelloError {
        HelloError::Malformed(why.into())
    }
}

impl Preface {
    fn encode(&self, out: &mut Vec<u8>) {
        let Preface { protocol, identity, cluster } = self;
        out.extend_from_slice(&protocol.version.to_le_bytes());
        out.extend([protocol.levels.least, protocol.levels.most, protocol.build.len() as u8]);
        out.extend_from_slice(protocol.build.as_bytes());
        out.push(match identity.kind {
            PeerKind::Member => 0,
            PeerKind::Client => 1,
        });
        out.extend_from_slice(&identity.node.0.to_le_bytes());
        out.extend_from_slice(&identity.incarnation.0.to_le_bytes());
        out.push(cluster.len() as u8);
        out.extend_from_slice(cluster.as_bytes());
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Preface, String> {
        let version = u32::from_le_bytes(bytes.array()?);
        let (least, most) = (bytes.u8()?, bytes.u8()?);
        let levels = Levels::of(least, most)
            .ok_or_else(|| format!("its feature levels are {least} to {most}; allowed is a range that begins at 1 or above"))?;
        let len = usize::from(bytes.u8()?);
        let build = std::str::from_utf8(bytes.take(len)?).map_err(|_| "the name of its build is not UTF-8")?;
        if len > MAX_BUILD_BYTES || build.chars().any(char::is_control) {
            return Err(format!("the name of its build is {build:?}; allowed are {MAX_BUILD_BYTES} bytes without control characters"));
        }
        let protocol = Protocol { version, levels, build: build.to_owned().into() };
        let kind = match bytes.u8()? {
            0 => PeerKind::Member,
            1 => PeerKind::Client,
            other => return Err(format!("its kind is {other}; allowed are 0 (member) and 1 (client)")),
        };
        let node = NodeId(u16::from_le_bytes(bytes.array()?));
        let incarnation = Incarnation(u64::from_le_bytes(bytes.array()?));
        let len = usize::from(bytes.u8()?);
        let cluster = std::str::from_utf8(bytes.take(len)?).map_err(|_| "its cluster's name is not UTF-8")?.to_owned();
        check_cluster(&cluster)?;
        Ok(Preface { protocol, identity: Identity { node, incarnation, kind }, cluster })
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        self.preface.encode(&mut out);
        out.extend_from_slice(&self.nonce);
        for spec in [&self.members, &self.clients] {
            for (_, regions) in regions::lists(spec) {
                out.push(regions.len() as u8);
                for (name, len) in regions {
                    out.push(name.0);
                    out.extend_from_slice(&(*len as u64).to_le_bytes());
                }
            }
            out.push(spec.owned.len() as u8);
            out.extend(spec.owned.iter().map(|name| name.0));
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let mut bytes = Bytes(bytes);
        if bytes.take(8)? != MAGIC {
            return Err("it does not speak Martlet's handshake".into());
        }
        let version = u32::from_le_bytes(bytes.array()?);
        if version != VERSION {
            let preface = if version < FIRST_WITH_PREFACE { None } else { Preface::decode(&mut bytes).ok() };
            return Err(HelloError::Version(version, preface.map(Box::new)));
        }
        let preface = Preface::decode(&mut bytes)?;
        let nonce = bytes.array()?;
        let members = bytes.spec()?;
        let clients = bytes.spec()?;
        bytes.end()?;
        Ok(Hello { preface, nonce, members, clients })
    }
}

/// A cluster's name becomes part of a socket's name and of messages, so only plain characters are allowed.
pub(crate) fn check_cluster(name: &str) -> Result<(), String> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-~".contains(&b));
    if name.is_empty() || name.len() > MAX_CLUSTER || !plain {
        return Err(format!("cluster name {name:?}: allowed are 1 to {MAX_CLUSTER} of the characters a-z A-Z 0-9 . _ - ~"));
    }
    Ok(())
}

/// Why a connection was refused, as far as the other end acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// See the text.
    Mismatch,
    /// The two are already connected. Nothing is wrong.
    Duplicate,
    /// No more connections of that kind are accepted for now.
    Full,
    /// The two run builds that do not understand each other. See the text.
    Version,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Hello(&'a [u8]),
    Answer {
        proof: &'a [u8; PROOF],
        hello: &'a [u8],
    },
    Offer {
        proof: &'a [u8; PROOF],
        /// For the backend.
        body: &'a [u8],
    },
    Commit,
    /// The dialer has set up its side.
    Ready,
    Refuse {
        code: Code,
        text: String,
    },
    /// The sender closes the connection of its own will.
    Bye,
}

impl<'a> Message<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello(hello) => {
                out.push(1);
                out.extend_from_slice(hello);
            }
            Message::Answer { proof, hello } => {
                out.push(2);
                out.extend_from_slice(*proof);
                out.extend_from_slice(hello);
            }
            Message::Offer { proof, body } => {
                out.push(3);
                out.extend_from_slice(*proof);
                out.extend_from_slice(body);
            }
            Message::Commit => out.push(4),
            Message::Refuse { code, text } => {
                out.push(5);
                out.push(*code as u8);
                out.extend_from_slice(clipped(text).as_bytes());
            }
            Message::Bye => out.push(6),
            Message::Ready => out.push(7),
        }
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Message<'a>, String> {
        let mut bytes = Bytes(bytes);
        let message = match bytes.u8()? {
            1 => Message::Hello(bytes.rest()),
            2 => Message::Answer { proof: bytes.take_array()?, hello: bytes.rest() },
            3 => Message::Offer { proof: bytes.take_array()?, body: bytes.rest() },
            4 => Message::Commit,
            5 => {
                let code = match bytes.u8()? {
                    1 => Code::Duplicate,
                    2 => Code::Full,
                    3 => Code::Version,
                    _ => Code::Mismatch,
                };
                let text = bytes.rest();
                let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
                // This text goes into our log, so it must hold nothing that could control a terminal.
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                Message::Refuse { code, text: clipped(&text).to_owned() }
            }
            6 => Message::Bye,
            7 => Message::Ready,
            other => return Err(format!("its message is of type {other}; allowed are 1 to 7")),
        };
        bytes.end()?;
        Ok(message)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Message::Hello(_) => "Hello",
            Message::Answer { .. } => "Answer",
            Message::Offer { .. } => "Offer",
            Message::Commit => "Commit",
            Message::Refuse { .. } => "Refuse",
            Message::Bye => "Bye",
            Message::Ready => "Ready",
        }
    }
}

/// As much of a text as fits in a refusal, without cutting a character in two.
fn clipped(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Which end proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    Dialer,
    Acceptor,
}

/// Both Hellos, the dialer's first, and the body that a proof comes with, which is empty if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    pub(crate) dialer: &'a [u8],
    pub(crate) acceptor: &'a [u8],
    pub(crate) body: &'a [u8],
}

fn mac(key: &[u8], prover: Prover, said: Said<'_>) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(match prover {
        Prover::Dialer => b"martlet dialer  ",
        Prover::Acceptor => b"martlet acceptor",
    });
    for part in [said.dialer, said.acceptor, said.body] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// The proof that `prover` has the key.
pub(crate) fn prove(key: &[u8], prover: Prover, said: Said<'_>) -> [u8; PROOF] {
    mac(key, prover, said).finalize().into_bytes().into()
}

/// Whether `proof` is that proof. Takes the same time whatever `proof` is.
pub(crate) fn proven(key: &[u8], prover: Prover, said: Said<'_>, proof: &[u8; PROOF]) -> bool {
    mac(key, prover, said).verify_slice(proof).is_ok()
}

/// Takes a message apart.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.0.split_at_checked(len).ok_or("its message ends too early")?;
        self.0 = tail;
        Ok(head)
    }

    fn take_array<const N: usize>(&mut self) -> Result<&'a [u8; N], String> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take_array().copied()
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{} bytes follow its message", self.0.len())) }
    }

    fn regions(&mut self) -> Result<Vec<(RegionName, usize)>, String> {
        let count = usize::from(self.u8()?);
        if count > regions::MAX_REGIONS {
            return Err(format!("it declares {count} regions, at most {} are allowed", regions::MAX_REGIONS));
        }
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            let name = RegionName(self.u8()?);
            let len = u64::from_le_bytes(self.array()?);
            out.push((name, usize::try_from(len).map_err(|_| "a region's length is too large")?));
        }
        Ok(out)
    }

    fn spec(&mut self) -> Result<RegionSpec, String> {
        let (public, member_lanes, client_lanes) = (self.regions()?, self.regions()?, self.regions()?);
        let owned = usize::from(self.u8()?);
        let owned = self.take(owned)?.iter().map(|name| RegionName(*name)).collect();
        let spec = RegionSpec { public, owned, member_lanes, client_lanes };
        regions::check(&spec)?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let public = vec![(RegionName(1), 4096), (RegionName(2), 64)];
        let spec = RegionSpec { public, owned: vec![RegionName(2)], member_lanes: vec![(RegionName(9), 64)], client_lanes: vec![] };
        let preface = Preface {
            protocol: Protocol { version: 7, levels: Levels { least: 1, most: 2 }, build: "martlet 0.7".into() },
            identity: Identity { node: NodeId(3), incarnation: Incarnation(99), kind: PeerKind::Member },
            cluster: "blue-1".into(),
        };
        Hello { preface, nonce: [7; PROOF], members: spec.clone(), clients: spec }
    }

    #[test]
    fn hellos_survive_the_wire() {
        let encoded = hello().encode();
        assert_eq!(Hello::decode(&encoded), Ok(hello()));
        for cut in 0..encoded.len() {
            assert!(Hello::decode(&encoded[..cut]).is_err(), "cut at {cut}");
        }
        let mut longer = encoded.clone();
        longer.push(0);
        assert!(Hello::decode(&longer).is_err());
    }

    #[test]
    fn any_altered_byte_gives_an_error_or_another_hello() {
        let encoded = hello().encode();
        for at in 0..encoded.len() {
            for bit in 0..8 {
                let mut altered = encoded.clone();
                altered[at] ^= 1 << bit;
                assert_ne!(Hello::decode(&altered), Ok(hello()), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn of_another_version_it_is_read_who_speaks() {
        let mut encoded = hello().encode();
        encoded[8] = 9;
        // A later version may say anything after the part that never changes.
        encoded.extend_from_slice(b"more");
        assert_eq!(Hello::decode(&encoded), Err(HelloError::Version(9, Some(Box::new(hello().preface)))));
        assert_eq!(Hello::decode(&encoded[..20]), Err(HelloError::Version(9, None)), "and if even that is cut, which version it is");
        encoded[8] = 3;
        assert_eq!(Hello::decode(&encoded), Err(HelloError::Version(3, None)), "earlier builds did not say who they are first");
    }

    #[test]
    fn messages_survive_the_wire() {
        let proof = [3; PROOF];
        let all = [
            Message::Hello(b"h"),
            Message::Answer { proof: &proof, hello: b"h" },
            Message::Offer { proof: &proof, body: b"" },
            Message::Offer { proof: &proof, body: b"body" },
            Message::Commit,
            Message::Ready,
            Message::Refuse { code: Code::Full, text: "full".into() },
            Message::Refuse { code: Code::Version, text: "another".into() },
            Message::Bye,
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
        }
        assert!(Message::decode(&[]).is_err());
        assert!(Message::decode(&[8]).is_err());
        assert!(Message::decode(&[4, 0]).is_err());
        let shout = Message::decode(b"\x05\x00a\x1b[31mb\n").expect("a refusal");
        assert_eq!(shout, Message::Refuse { code: Code::Mismatch, text: "a[31mb".into() });
    }

    #[test]
    fn a_long_refusal_loses_its_end_and_no_half_character() {
        let long = format!("x{}", "é".repeat(MAX_TEXT));
        let encoded = Message::Refuse { code: Code::Full, text: long.clone() }.encode();
        assert_eq!(Message::decode(&encoded), Ok(Message::Refuse { code: Code::Full, text: long[..MAX_TEXT - 1].to_owned() }));
        // Each byte that is not UTF-8 becomes three bytes.
        let garbage = [&[5, 2][..], &[0xff; MAX_TEXT]].concat();
        let message = Message::decode(&garbage).expect("a refusal");
        assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
    }

    #[test]
    fn a_proof_holds_for_one_key_one_role_and_one_pair_of_hellos() {
        let said = Said { dialer: b"d", acceptor: b"a", body: b"b" };
        let proof = prove(b"key", Prover::Dialer, said);
        assert!(proven(b"key", Prover::Dialer, said, &proof));
        assert!(!proven(b"kez", Prover::Dialer, said, &proof));
        assert!(!proven(b"key", Prover::Acceptor, said, &proof), "reflected");
        assert!(!proven(b"key", Prover::Dialer, Said { dialer: b"da", acceptor: b"", ..said }, &proof), "cut elsewhere");
        assert!(!proven(b"key", Prover::Dialer, Said { dialer: b"x", ..said }, &proof), "replayed");
        assert!(!proven(b"key", Prover::Dialer, Said { body: b"c", ..said }, &proof), "altered");
    }

    #[test]
    fn names_of_clusters_are_plain() {
        assert_eq!(check_cluster("a.B-9_"), Ok(()));
        for bad in ["", "a b", "a/b", "é", &"x".repeat(65)] {
            assert!(check_cluster(bad).is_err(), "{bad:?}");
        }
    }
}
