//! The messages between a program and its warden: each is one packet of a Unix socket, in little-endian numbers.
//!
//! A program numbers its requests as it likes, and the warden answers with the same number. Messages that the warden sends unasked have the number 0. If a
//! program's message cannot be decoded, the warden answers with what is wrong, and closes the connection.

use martlet_protocol::detector::wardens::Secret;

use crate::board::{Evidence, Slot, State};
use crate::canary::Canary;
use crate::{AppId, MAX_PIGGYBACK_BYTES, Resources};

/// The version of these messages.
pub const VERSION: u16 = 5;
/// The longest name of a program, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Why a message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("a message ends after {0} bytes, in the middle of a field")]
    Short(usize),
    /// It continues after its last field.
    #[error("a message has {0} bytes after its last field")]
    Long(usize),
    /// Its kind is unknown.
    #[error("a message is of kind {0}; allowed are those of version {VERSION}")]
    Kind(u8),
    /// A field has a value that is not allowed.
    #[error("a message's {field} is {value}; allowed are {allowed}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// What a program asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message: who connects, and which version it speaks. It carries the page on which the program's threads register their death words.
    Hello {
        /// The version.
        version: u16,
        /// The program's name, for people.
        name: String,
    },
    /// From now on the program is this application.
    Join {
        /// Which one.
        app: AppId,
        /// The number of its life: random, never 0.
        incarnation: u64,
        /// The secret that the warden reveals when this life has certainly failed, and not before.
        secret: Secret,
    },
    /// A thread has registered this word of the program's page as its death word. Like Rest, this has the number 0 and gets no answer.
    Act {
        /// Which word.
        word: u16,
    },
    /// The thread has given its word back.
    Rest {
        /// Which word.
        word: u16,
    },
    /// The application leaves, so that its end is no failure.
    Quit,
    /// Asks to be told when another application fails.
    Monitor {
        /// Which one.
        app: AppId,
        /// What is asked for.
        want: Resources,
        /// The incarnation whose end the program knows already; 0 for none.
        after: u64,
        /// The incarnation that the program has been told is presumed dead; 0 for none. Its certain end is still news.
        presumed: u64,
        /// The incarnation that the program saw alive under an earlier warden; 0 for none. In the first case the descriptor of its process comes along.
        known: u64,
    },
    /// Asks to be told when a process ends, which need not know about wardens; its descriptor comes along.
    MonitorProcess,
    /// Asks the warden to watch a process as this application; its descriptor comes along.
    Adopt {
        /// Which application.
        app: AppId,
    },
    /// Asks not to be told any more.
    Unmonitor {
        /// Which life.
        slot: Slot,
    },
    /// Sends a message to all programs that monitor this application.
    Piggyback {
        /// The message.
        bytes: Vec<u8>,
    },
    /// Asks what the warden knows. The answer is a part of it: as much as surely fits into a socket.
    Status {
        /// The slot of the board to begin at.
        from: u16,
    },
}

/// What a warden answers, and what it says unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answers Hello. The board comes along.
    Welcome {
        /// The warden's life.
        life: u64,
        /// The program's seat.
        seat: u8,
    },
    /// Done.
    Done,
    /// Refused, and why.
    Refused {
        /// Why.
        why: String,
    },
    /// Answers Monitor, MonitorProcess and Adopt. If the process is on this host, its descriptor comes along. If that process has brought a page of death
    /// words, a read-only descriptor of the page follows.
    Watching {
        /// Which application.
        app: AppId,
        /// Where it is on the board.
        slot: Slot,
        /// What is granted.
        granted: Resources,
    },
    /// Answers Piggyback: the message's number.
    Sent {
        /// Its number, from 1 on in each life.
        seq: u64,
    },
    /// Answers Status: one application.
    App(AppStatus),
    /// Unasked: the board has changed for this program.
    Look,
    /// Unasked: an application that this program monitors has sent a message.
    Piggybacked {
        /// Which application.
        app: AppId,
        /// The message's number.
        seq: u64,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Unasked: an application's timeout has changed.
    TimeoutChanged {
        /// Which application.
        app: AppId,
        /// The timeout.
        timeout_ns: u64,
    },
    /// Unasked: one more program monitors this application.
    MonitorRequested {
        /// The application that monitors it; 0 for a program that is not an application.
        by: u32,
        /// How large a message it asks for.
        pbsize: u32,
    },
    /// Unasked: the maximum size of this application's messages has changed.
    PbsizeChanged {
        /// The new maximum, in bytes.
        pbsize: u32,
    },
    /// Unasked: one of the paths to a host is lost, or is back.
    Redundancy {
        /// Which host.
        host: u16,
        /// Which path.
        path: u8,
        /// Whether it is lost.
        is_lost: bool,
    },
    /// Answers Status: another host.
    Host(HostStatus),
    /// Answers Status, after a part of the applications: there are more.
    More {
        /// The slot from which to continue.
        from: u16,
    },
}

/// What a warden knows of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostStatus {
    /// The host.
    pub host: u16,
    /// Whether its warden is silent, or has not been heard yet.
    pub is_silent: bool,
    /// Whether its warden has ended in order. Until the next one is heard, nothing is learned from there.
    pub has_left: bool,
    /// Which paths to it are lost.
    pub is_path_lost: [bool; 2],
    /// How long it may be silent.
    pub timeout_ns: u64,
    /// How many packets from its addresses did not authenticate: a warden there that has another key sends nothing else.
    pub unauthenticated: u64,
}

impl HostStatus {
    /// Whether its warden runs and is heard.
    pub fn is_heard(&self) -> bool {
        !self.is_silent && !self.has_left
    }
}

/// What a warden knows of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppStatus {
    /// The application.
    pub app: AppId,
    /// Its state.
    pub state: State,
    /// Why it has failed.
    pub evidence: Option<Evidence>,
    /// The number of its host; 0 is this one.
    pub host: u32,
    /// Its process on this host.
    pub pid: u32,
    /// Its user on this host.
    pub uid: u32,
    /// How many of its threads hold a death word.
    pub words: u16,
    /// How many programs monitor it.
    pub monitors: u16,
    /// The number of its life.
    pub incarnation: u64,
    /// When the warden learned its end; 0 until then.
    pub at_ns: u64,
    /// The name that it has given itself.
    pub name: String,
}

struct Out(Vec<u8>);

impl Out {
    fn new(kind: u8, number: u32) -> Out {
        let mut out = Vec::with_capacity(64);
        out.push(kind);
        Out(out).u32(number)
    }
    fn u8(mut self, value: u8) -> Out {
        self.0.push(value);
        self
    }
    fn u16(mut self, value: u16) -> Out {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u32(mut self, value: u32) -> Out {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Out {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn bytes(self, bytes: &[u8]) -> Out {
        let mut out = self.u16(bytes.len() as u16);
        out.0.extend(bytes);
        out
    }
    fn slot(self, slot: Slot) -> Out {
        self.u16(slot.index).u32(slot.generation)
    }
    fn resources(self, resources: Resources) -> Out {
        self.u32(resources.pbsize).u64(resources.timeout_ns)
    }
}

struct In<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> In<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed::Short(self.len))?;
        self.rest = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("just so many"))
    }
    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn bytes(&mut self, field: &'static str, most: usize, allowed: &'static str) -> Result<&'a [u8], Malformed> {
        let len = usize::from(self.u16()?);
        if len > most {
            return Err(Malformed::Field { field, value: len as u64, allowed });
        }
        self.take(len)
    }
    fn text(&mut self, field: &'static str, most: usize, allowed: &'static str) -> Result<String, Malformed> {
        let mut text = String::from_utf8_lossy(self.bytes(field, most, allowed)?).into_owned();
        // The characters that replace invalid bytes are longer than those bytes.
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Ok(text)
    }
    fn app(&mut self) -> Result<AppId, Malformed> {
        let number = self.u32()?;
        AppId::new(i64::from(number)).map_err(|_| Malformed::Field {
            field: "application",
            value: u64::from(number),
            allowed: "1 to 2147483647",
        })
    }
    fn slot(&mut self) -> Result<Slot, Malformed> {
        let (index, generation) = (self.u16()?, self.u32()?);
        if usize::from(index) >= crate::board::MAX_SLOTS {
            return Err(Malformed::Field { field: "slot", value: u64::from(index), allowed: "0 to 511" });
        }
        Ok(Slot { index, generation })
    }
    fn resources(&mut self) -> Result<Resources, Malformed> {
        Ok(Resources { pbsize: self.u32()?, timeout_ns: self.u64()? })
    }
    fn piggyback(&mut self) -> Result<Vec<u8>, Malformed> {
        Ok(self.bytes("piggyback's size", MAX_PIGGYBACK_BYTES as usize, "0 to 1418 bytes")?.to_vec())
    }
    fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.rest.is_empty() || Canary::MessageGoesOn.is_planted() { Ok(value) } else { Err(Malformed::Long(self.rest.len())) }
    }
}

impl Request {
    /// The encoded message.
    pub fn encode(&self, number: u32) -> Vec<u8> {
        match self {
            Request::Hello { version, name } => Out::new(1, number).u16(*version).bytes(name.as_bytes()),
            Request::Join { app, incarnation, secret } => {
                let mut out = Out::new(2, number).u32(app.get()).u64(*incarnation);
                out.0.extend(secret);
                out
            }
            Request::Act { word } => Out::new(3, number).u16(*word),
            Request::Rest { word } => Out::new(4, number).u16(*word),
            Request::Quit => Out::new(5, number),
            Request::Monitor { app, want, after, presumed, known } => {
                Out::new(6, number).u32(app.get()).resources(*want).u64(*after).u64(*presumed).u64(*known)
            }
            Request::MonitorProcess => Out::new(7, number),
            Request::Adopt { app } => Out::new(8, number).u32(app.get()),
            Request::Unmonitor { slot } => Out::new(9, number).slot(*slot),
            Request::Piggyback { bytes } => Out::new(10, number).bytes(bytes),
            Request::Status { from } => Out::new(11, number).u16(*from),
        }
        .0
    }

    /// Decodes a message: its number and the request.
    ///
    /// # Errors
    /// When it is not a valid request.
    pub fn decode(message: &[u8]) -> Result<(u32, Request), Malformed> {
        let mut from = In { rest: message, len: message.len() };
        let (kind, number) = (from.u8()?, from.u32()?);
        let request = match kind {
            1 => Request::Hello { version: from.u16()?, name: from.text("name's length", MAX_NAME_BYTES, "0 to 64 bytes")? },
            2 => {
                let (app, incarnation) = (from.app()?, from.u64()?);
                if incarnation == 0 {
                    return Err(Malformed::Field { field: "incarnation", value: 0, allowed: "all but 0" });
                }
                Request::Join { app, incarnation, secret: from.array()? }
            }
            3 => Request::Act { word: from.u16()? },
            4 => Request::Rest { word: from.u16()? },
            5 => Request::Quit,
            6 => Request::Monitor {
                app: from.app()?,
                want: from.resources()?,
                after: from.u64()?,
                presumed: from.u64()?,
                known: from.u64()?,
            },
            7 => Request::MonitorProcess,
            8 => Request::Adopt { app: from.app()? },
            9 => Request::Unmonitor { slot: from.slot()? },
            10 => Request::Piggyback { bytes: from.piggyback()? },
            11 => Request::Status { from: from.u16()? },
            kind => return Err(Malformed::Kind(kind)),
        };
        from.end((number, request))
    }
}

impl Answer {
    /// The encoded message.
    pub fn encode(&self, number: u32) -> Vec<u8> {
        match self {
            Answer::Welcome { life, seat } => Out::new(1, number).u64(*life).u8(*seat),
            Answer::Done => Out::new(2, number),
            Answer::Refused { why } => Out::new(3, number).bytes(&why.as_bytes()[..why.len().min(1024)]),
            Answer::Watching { app, slot, granted } => Out::new(4, number).u32(app.get()).slot(*slot).resources(*granted),
            Answer::Sent { seq } => Out::new(5, number).u64(*seq),
            Answer::App(app) => Out::new(6, number)
                .u32(app.app.get())
                .u8(app.state as u8)
                .u8(app.evidence.map_or(0, |evidence| evidence as u8))
                .u32(app.host)
                .u32(app.pid)
                .u32(app.uid)
                .u16(app.words)
                .u16(app.monitors)
                .u64(app.incarnation)
                .u64(app.at_ns)
                .bytes(app.name.as_bytes()),
            Answer::Look => Out::new(7, number),
            Answer::Piggybacked { app, seq, bytes } => Out::new(8, number).u32(app.get()).u64(*seq).bytes(bytes),
            Answer::TimeoutChanged { app, timeout_ns } => Out::new(9, number).u32(app.get()).u64(*timeout_ns),
            Answer::MonitorRequested { by, pbsize } => Out::new(10, number).u32(*by).u32(*pbsize),
            Answer::PbsizeChanged { pbsize } => Out::new(11, number).u32(*pbsize),
            Answer::More { from } => Out::new(14, number).u16(*from),
            Answer::Redundancy { host, path, is_lost } => Out::new(12, number).u16(*host).u8(*path).u8(u8::from(*is_lost)),
            Answer::Host(host) => {
                let [first, second] = host.is_path_lost.map(u8::from);
                let out = Out::new(13, number).u16(host.host).u8(u8::from(host.is_silent)).u8(u8::from(host.has_left));
                out.u8(first).u8(second).u64(host.timeout_ns).u64(host.unauthenticated)
            }
        }
        .0
    }

    /// Decodes a message: its number and the answer.
    ///
    /// # Errors
    /// When it is not a valid answer.
    pub fn decode(message: &[u8]) -> Result<(u32, Answer), Malformed> {
        let mut from = In { rest: message, len: message.len() };
        let (kind, number) = (from.u8()?, from.u32()?);
        let answer = match kind {
            1 => Answer::Welcome { life: from.u64()?, seat: from.u8()? },
            2 => Answer::Done,
            3 => Answer::Refused { why: from.text("reason's length", 1024, "0 to 1024 bytes")? },
            4 => Answer::Watching { app: from.app()?, slot: from.slot()?, granted: from.resources()? },
            5 => Answer::Sent { seq: from.u64()? },
            6 => Answer::App(AppStatus {
                app: from.app()?,
                state: State::of(from.u8()?)?,
                evidence: Evidence::of(from.u8()?),
                host: from.u32()?,
                pid: from.u32()?,
                uid: from.u32()?,
                words: from.u16()?,
                monitors: from.u16()?,
                incarnation: from.u64()?,
                at_ns: from.u64()?,
                name: from.text("name's length", MAX_NAME_BYTES, "0 to 64 bytes")?,
            }),
            7 => Answer::Look,
            8 => Answer::Piggybacked { app: from.app()?, seq: from.u64()?, bytes: from.piggyback()? },
            9 => Answer::TimeoutChanged { app: from.app()?, timeout_ns: from.u64()? },
            10 => Answer::MonitorRequested { by: from.u32()?, pbsize: from.u32()? },
            11 => Answer::PbsizeChanged { pbsize: from.u32()? },
            12 => Answer::Redundancy { host: from.u16()?, path: from.u8()?, is_lost: from.u8()? != 0 },
            14 => Answer::More { from: from.u16()? },
            13 => Answer::Host(HostStatus {
                host: from.u16()?,
                is_silent: from.u8()? != 0,
                has_left: from.u8()? != 0,
                is_path_lost: [from.u8()? != 0, from.u8()? != 0],
                timeout_ns: from.u64()?,
                unauthenticated: from.u64()?,
            }),
            kind => return Err(Malformed::Kind(kind)),
        };
        from.end((number, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> AppId {
        AppId::new(7).expect("a number")
    }

    fn requests() -> Vec<Request> {
        let slot = Slot { index: 511, generation: 3 };
        let want = Resources { pbsize: 100, timeout_ns: 5_000_000 };
        vec![
            Request::Hello { version: VERSION, name: "a program".into() },
            Request::Join { app: app(), incarnation: 9, secret: [3; 16] },
            Request::Act { word: 3 },
            Request::Rest { word: 3 },
            Request::Quit,
            Request::Monitor { app: app(), want, after: 5, presumed: 6, known: 7 },
            Request::MonitorProcess,
            Request::Adopt { app: app() },
            Request::Unmonitor { slot },
            Request::Piggyback { bytes: vec![1; 1418] },
            Request::Status { from: 64 },
        ]
    }

    fn answers() -> Vec<Answer> {
        let slot = Slot { index: 1, generation: u32::MAX };
        let status = AppStatus {
            app: app(),
            state: State::Failed,
            evidence: Some(Evidence::Words),
            host: 2,
            pid: 3,
            uid: 4,
            words: 5,
            monitors: 6,
            incarnation: 7,
            at_ns: 8,
            name: "nine".into(),
        };
        vec![
            Answer::Welcome { life: 5, seat: 255 },
            Answer::Done,
            Answer::Refused { why: "no".into() },
            Answer::Watching { app: app(), slot, granted: Resources { pbsize: 1, timeout_ns: 2 } },
            Answer::Sent { seq: 8 },
            Answer::App(status),
            Answer::Look,
            Answer::Piggybacked { app: app(), seq: 1, bytes: b"x".to_vec() },
            Answer::TimeoutChanged { app: app(), timeout_ns: 0 },
            Answer::MonitorRequested { by: 0, pbsize: 9 },
            Answer::PbsizeChanged { pbsize: 3 },
            Answer::Redundancy { host: 2, path: 1, is_lost: true },
            Answer::More { from: 9 },
            Answer::Host(HostStatus {
                host: 3,
                is_silent: false,
                has_left: true,
                is_path_lost: [false, true],
                timeout_ns: 5,
                unauthenticated: 9,
            }),
        ]
    }

    #[test]
    fn every_message_is_read_as_it_was_written_and_no_part_of_it_is() {
        for request in requests() {
            let message = request.encode(77);
            assert_eq!(Request::decode(&message), Ok((77, request)));
            (0..message.len()).for_each(|len| assert_eq!(Request::decode(&message[..len]), Err(Malformed::Short(len))));
            assert_eq!(Request::decode(&[message.as_slice(), &[0]].concat()), Err(Malformed::Long(1)));
        }
        for answer in answers() {
            let message = answer.encode(78);
            assert_eq!(Answer::decode(&message), Ok((78, answer)));
            (0..message.len()).for_each(|len| assert!(Answer::decode(&message[..len]).is_err()));
            assert_eq!(Answer::decode(&[message.as_slice(), &[0]].concat()), Err(Malformed::Long(1)));
        }
    }

    #[test]
    fn fields_that_say_what_they_cannot_are_named() {
        let zero = Request::Join { app: app(), incarnation: 0, secret: [3; 16] }.encode(1);
        assert_eq!(Request::decode(&zero).expect_err("none").to_string(), "a message's incarnation is 0; allowed are all but 0");
        let long = Request::Piggyback { bytes: vec![1; 1419] }.encode(1);
        let error = Request::decode(&long).expect_err("too long").to_string();
        assert_eq!(error, "a message's piggyback's size is 1419; allowed are 0 to 1418 bytes");
        assert_eq!(Request::decode(&[200, 0, 0, 0, 0]), Err(Malformed::Kind(200)));
        let none = Answer::App(AppStatus { state: State::Free, ..status() }).encode(1);
        assert!(Answer::decode(&none).is_ok(), "a free slot is a state");
    }

    /// The warden once repeated such a name in its status, which programs could then not decode.
    #[test]
    fn a_name_that_is_no_text_is_no_longer_than_a_name_may_be() {
        let hello = Out::new(1, 1).u16(VERSION).bytes(&[0xff; MAX_NAME_BYTES]).0;
        let (_, Request::Hello { name, .. }) = Request::decode(&hello).expect("as long as allowed") else { panic!("something else") };
        assert_eq!(name, "\u{fffd}".repeat(MAX_NAME_BYTES / 3));
        let answer = Answer::App(AppStatus { name, ..status() });
        assert_eq!(Answer::decode(&answer.encode(1)), Ok((1, answer)));
    }

    fn status() -> AppStatus {
        answers().into_iter().find_map(|answer| if let Answer::App(app) = answer { Some(app) } else { None }).expect("one of them")
    }
}
