//! One handshake, from either end, as a state machine that is handed messages. See [`crate::meeting::wire`] for its steps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::peer::{Kept, Own, Peer};
use crate::contract::{Identity, NodeId};
use crate::host::socket;
use crate::meeting::wire::Message;
use crate::meeting::{Meeting, Party, Refusal, handshakes};

/// What all handshakes of a process have in common.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) party: Party,
    pub(super) own: Arc<Own>,
    pub(super) prefault: bool,
    /// A user whose processes may connect besides our own user's and root's.
    pub(super) further_user: Option<u32>,
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
    pub(super) meeting: Meeting,
    step: Step,
    kept: Option<Kept>,
    ready: Option<Box<Peer>>,
}

impl Handshake {
    /// Begins at either end. The dialer speaks first.
    pub(super) fn start(ours: &Ours, socket: OwnedFd, target: Option<NodeId>) -> Result<Handshake, Refusal> {
        socket::authorised(&socket, ours.further_user)?;
        let pidfd = socket::pidfd(&socket).map_err(|e| format!("its process cannot be watched ({e})"))?;
        let meeting = Meeting::start(&ours.party, target)?;
        let step = if target.is_some() { Step::Answer } else { Step::Hello };
        let handshake = Handshake { socket, pidfd, meeting, step, kept: None, ready: None };
        if target.is_some() {
            handshake.send(&Message::Hello(&handshake.meeting.mine), &[])?;
        }
        Ok(handshake)
    }

    /// Takes a message. `admit` says whether a process may connect now.
    pub(super) fn handle(
        &mut self,
        ours: &Ours,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        admit: impl Fn(Identity) -> Result<(), Refusal>,
    ) -> Result<Progress, Refusal> {
        match (self.step, Message::decode(bytes)?) {
            (Step::Hello, Message::Hello(hello)) => {
                let proof = self.meeting.answer(&ours.party, hello, admit)?;
                self.send(&Message::Answer { proof: &proof, hello: &self.meeting.mine }, &[])?;
                self.step = Step::Offer;
            }
            (Step::Answer, Message::Answer { proof, hello }) => {
                let identity = self.meeting.answered(&ours.party, proof, hello)?;
                self.offer(ours, identity)?;
                self.step = Step::Offer;
            }
            (Step::Offer, Message::Offer { proof, body }) => {
                self.meeting.check_proof(&ours.party, proof, body)?;
                let (identity, spec) = self.meeting.peer().cloned().expect("met before");
                let decides = ours.party.decides(identity);
                if decides {
                    admit(identity)?;
                }
                if self.meeting.target.is_none() {
                    self.offer(ours, identity)?;
                }
                let kept = self.kept.take().expect("offered before");
                let peer = Box::new(Peer::map(identity, &spec, ours.party.identity.kind, kept, fds, ours.prefault)?);
                if decides {
                    self.send(&Message::Commit, &[])?;
                    return Ok(Progress::Connected(peer));
                }
                self.ready = Some(peer);
                self.step = Step::Commit;
            }
            (Step::Commit, Message::Commit) => return Ok(Progress::Connected(self.ready.take().expect("mapped before"))),
            (_, Message::Refuse { code, text }) => return Err(Refusal::heard(code, &text)),
            (step, message) => return Err(format!("it sent {} while {step:?} was expected", message.name()).into()),
        }
        Ok(Progress::Waiting)
    }

    /// Creates the lanes for the peer and sends everything that it may map.
    fn offer(&mut self, ours: &Ours, identity: Identity) -> Result<(), Refusal> {
        let kept = Kept::create(&ours.own.spec, ours.party.identity.kind, identity.kind, ours.prefault)
            .map_err(|e| format!("no memory for its lanes ({e}{})", crate::limits::hint(&e)))?;
        let proof = self.meeting.prove(&ours.party, b"");
        let [public, owned, bell] = ours.own.fds(identity.kind);
        self.send(&Message::Offer { proof: &proof, body: b"" }, &[public, owned, bell, kept.fd.as_fd()])?;
        self.kept = Some(kept);
        Ok(())
    }

    fn send(&self, message: &Message<'_>, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), Refusal> {
        socket::send(&self.socket, &message.encode(), fds).map_err(|e| Refusal::unsendable(message, &e))
    }
}

impl handshakes::Handshake for Handshake {
    fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    fn turn_down(&mut self, refusal: &Refusal) {
        if !refusal.told {
            let _ = self.send(&Message::Refuse { code: refusal.code, text: refusal.text.clone() }, &[]);
        }
    }
}
