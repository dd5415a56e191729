//! One handshake, from either end, as a state machine that is handed messages. See [`crate::meeting::wire`] for its steps.

use super::stream::Stream;
use super::{Carrier, Introduction};
use crate::contract::{Identity, NodeId, PeerId};
use crate::meeting::wire::Message;
use crate::meeting::{Meeting, Party, Refusal, handshakes};

/// How far a message has brought us.
pub(super) enum Progress<P> {
    Waiting,
    Connected(Box<P>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Hello,
    Answer,
    Offer,
    Ready,
    Commit,
}

/// A handshake under way.
pub(super) struct Handshake<C: Carrier> {
    pub(super) stream: Stream,
    pub(super) meeting: Meeting,
    /// The number that the peer gets if the handshake succeeds.
    pub(super) number: PeerId,
    step: Step,
    kept: Option<C::Kept>,
    ready: Option<Box<C::Peer>>,
}

impl<C: Carrier> Handshake<C> {
    /// Begins at either end. The dialer speaks first.
    pub(super) fn start(party: &Party, stream: Stream, target: Option<NodeId>, number: PeerId) -> Result<Handshake<C>, Refusal> {
        let meeting = Meeting::start(party, target)?;
        let step = if target.is_some() { Step::Answer } else { Step::Hello };
        let mut handshake = Handshake { stream, meeting, number, step, kept: None, ready: None };
        if target.is_some() {
            let hello = handshake.meeting.mine.clone();
            handshake.send(&Message::Hello(&hello))?;
        }
        Ok(handshake)
    }

    /// Takes a message. `admit` says whether a process may connect now: either anew, or to give another socket to a connection that both ends hold.
    pub(super) fn handle(
        &mut self,
        party: &Party,
        carrier: &C,
        bytes: &[u8],
        admit: impl Fn(Identity, bool) -> Result<(), Refusal>,
    ) -> Result<Progress<C::Peer>, Refusal> {
        match (self.step, Message::decode(bytes)?) {
            (Step::Hello, Message::Hello(hello)) => {
                // Which connection the dialer already holds, it says only with its offer.
                let proof = self.meeting.answer(party, hello, |identity| admit(identity, C::ASKS))?;
                let mine = self.meeting.mine.clone();
                self.send(&Message::Answer { proof: &proof, hello: &mine })?;
                self.step = Step::Offer;
            }
            (Step::Answer, Message::Answer { proof, hello }) => {
                self.meeting.answered(party, proof, hello)?;
                self.offer(party, carrier)?;
                self.step = Step::Offer;
            }
            (Step::Offer, Message::Offer { proof, body }) => {
                self.meeting.check_proof(party, proof, body)?;
                let (identity, spec) = self.meeting.peer().cloned().expect("met before");
                let (dialled, decides) = (self.meeting.target.is_some(), party.decides(identity));
                if decides {
                    admit(identity, C::ASKS)?;
                }
                if self.kept.is_none() {
                    self.keep(party, carrier)?;
                }
                let ours = self.body(carrier);
                let kept = self.kept.take().expect("kept before");
                let from = self.stream.peer_addr().map_err(|e| format!("its address is not to be had ({e})"))?;
                let meeting = &self.meeting;
                let peer = carrier.connect(kept, Introduction { party, meeting, identity, spec: &spec, offer: body, ours: &ours, from })?;
                if decides {
                    admit(identity, C::resumes(&peer).is_some())?;
                }
                self.ready = Some(Box::new(peer));
                if !dialled {
                    // Only now: once the dialer has our offer, it may rely on our queue pairs.
                    self.send_offer(party, &ours)?;
                }
                match (dialled, decides) {
                    (true, true) => return self.commit(),
                    (true, false) => {
                        self.send(&Message::Ready)?;
                        self.step = Step::Commit;
                    }
                    (false, true) => self.step = Step::Ready,
                    (false, false) => self.step = Step::Commit,
                }
            }
            (Step::Ready, Message::Ready) => {
                let (identity, _) = self.meeting.peer().expect("met before");
                let resumes = self.ready.as_ref().is_some_and(|peer| C::resumes(peer).is_some());
                admit(*identity, resumes)?;
                return self.commit();
            }
            (Step::Commit, Message::Commit) => return Ok(Progress::Connected(self.ready.take().expect("connected before"))),
            (_, Message::Refuse { code, text }) => return Err(Refusal::heard(code, &text)),
            (step, message) => return Err(format!("it sent {} while {step:?} was expected", message.name()).into()),
        }
        Ok(Progress::Waiting)
    }

    fn commit(&mut self) -> Result<Progress<C::Peer>, Refusal> {
        self.send(&Message::Commit)?;
        Ok(Progress::Connected(self.ready.take().expect("connected before")))
    }

    /// Creates what is kept for the peer.
    fn keep(&mut self, party: &Party, carrier: &C) -> Result<(), Refusal> {
        let (identity, spec) = self.meeting.peer().expect("met before");
        self.kept = Some(carrier.keep(party.identity.kind, *identity, spec)?);
        Ok(())
    }

    fn body(&self, carrier: &C) -> Vec<u8> {
        let (identity, _) = self.meeting.peer().expect("met before");
        carrier.offer(self.kept.as_ref().expect("kept before"), identity.kind, self.number)
    }

    /// Creates what is kept for the peer, and tells the peer.
    fn offer(&mut self, party: &Party, carrier: &C) -> Result<(), Refusal> {
        self.keep(party, carrier)?;
        let body = self.body(carrier);
        self.send_offer(party, &body)
    }

    fn send_offer(&mut self, party: &Party, body: &[u8]) -> Result<(), Refusal> {
        let proof = self.meeting.prove(party, body);
        self.send(&Message::Offer { proof: &proof, body })
    }

    fn send(&mut self, message: &Message<'_>) -> Result<(), Refusal> {
        self.stream.send(&message.encode()).map_err(|e| Refusal::unsendable(message, &e))
    }
}

impl<C: Carrier> handshakes::Handshake for Handshake<C> {
    fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    fn turn_down(&mut self, refusal: &Refusal) {
        if !refusal.told {
            let _ = self.send(&Message::Refuse { code: refusal.code, text: refusal.text.clone() });
        }
    }
}
