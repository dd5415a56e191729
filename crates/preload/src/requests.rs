//! Requests that a server is not given, because it would do something that is not captured. The client is told so instead.
//!
//! `martlet run` refuses, before a server starts, settings that the server must not have; but most servers can be told to change their settings while they
//! serve. So `martlet run` says which requests are refused, and this module finds them in what the log has of a connection, by the protocol of Redis. What it
//! finds is the same at every replica, and so is what each server is given: in place of such a request an unknown one, whose name says what was refused, and
//! why. The answer is the server's own, in order among the others, also within a transaction.
//!
//! This module also notes whether a connection has asked for what replicas [word](crate::wording) differently.

use std::sync::OnceLock;

use crate::wording;

/// The longest line, and the longest request, that is looked at, in bytes. The server refuses anything longer itself, or it is not a request that matters here.
const MOST_BYTES: usize = 64 << 10;
/// The longest name of a command that is looked at, in bytes.
const NAME_BYTES: usize = 16;

/// A kind of request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    /// Its first words, in lower case.
    words: Vec<String>,
    /// What may follow these words and is not refused.
    harmless: Vec<String>,
    /// Why anything else must not follow.
    why: String,
}

static REFUSALS: OnceLock<Vec<Refusal>> = OnceLock::new();

/// Refuses these requests from here on. Each line has the first words, what may follow them (several with | between them), and why anything else must not, with
/// tabs between the three.
///
/// # Errors
/// When a line has another form.
pub fn refuse(text: &str) -> Result<(), String> {
    let refusals: Option<Vec<Refusal>> = text.lines().map(parse).collect();
    let refusals = refusals.ok_or_else(|| format!("{text:?} does not say what is refused"))?;
    REFUSALS.set(refusals).map_err(|_| "it was said before what is refused".to_owned())
}

fn parse(line: &str) -> Option<Refusal> {
    let [words, harmless, why]: [&str; 3] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let words: Vec<String> = words.split(' ').map(str::to_ascii_lowercase).collect();
    let harmless = harmless.split('|').filter(|text| !text.is_empty()).map(str::to_owned).collect();
    (words[0].len() <= NAME_BYTES).then(|| Refusal { words, harmless, why: why.to_owned() })
}

/// Which requests matter.
#[derive(Clone, Copy, Debug, Default)]
struct Watched<'w> {
    refusals: &'w [Refusal],
    /// Names of the requests whose answers replicas word differently, in lower case.
    asking: &'w [String],
}

impl Watched<'_> {
    fn is_refused(&self, name: &[u8]) -> bool {
        self.refusals.iter().any(|refusal| refusal.words[0].as_bytes().eq_ignore_ascii_case(name))
    }

    fn asks(&self, name: &[u8]) -> bool {
        self.asking.iter().any(|asking| asking.as_bytes().eq_ignore_ascii_case(name))
    }
}

/// What has been read of a connection's requests.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The start of a request, or of a part of one, that is too short to decide on.
    held: Vec<u8>,
    /// Bytes that are still to come and are passed on as they are.
    passes: usize,
    /// Arguments that are still to come, of a request that is passed on.
    arguments: usize,
    /// What came is not a request, and the server will end the connection.
    is_lost: bool,
    /// The client has sent a request whose answer replicas word differently, or may have.
    has_asked: bool,
}

/// What is to be done with the next bytes.
enum Step {
    /// So many are passed on; some of them may be still to come.
    Pass(usize),
    /// So many are a request that is refused, and this is given in its place.
    Refuse(usize, Vec<u8>),
    /// They are too few to decide.
    Hold,
    /// They are not a request.
    Lose,
}

/// A piece of a request: its content, and how many bytes it takes.
enum Piece<T> {
    Whole(T, usize),
    Part,
    None,
}

impl Requests {
    /// Passes on what comes, except what is refused.
    pub fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let watched = Watched { refusals: REFUSALS.get().map_or(&[], Vec::as_slice), asking: wording::asking() };
        if self.is_lost || watched.refusals.is_empty() && watched.asking.is_empty() {
            return out.extend_from_slice(bytes);
        }
        self.pass_by(watched, bytes, out);
    }

    /// Whether an answer that this connection is sent from now on may be worded differently by replicas.
    pub fn has_asked(&self) -> bool {
        self.has_asked
    }

    fn pass_by(&mut self, watched: Watched<'_>, bytes: &[u8], out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        let joined = if held.is_empty() { None } else { Some([&held[..], bytes].concat()) };
        let bytes = joined.as_deref().unwrap_or(bytes);
        // Up to `at` the bytes are understood, and up to `passed` they are in `out`.
        let (mut at, mut passed) = (std::mem::take(&mut self.passes), 0);
        while at < bytes.len() {
            match self.step(watched, &bytes[at..]) {
                Step::Pass(len) => at += len,
                Step::Refuse(len, instead) => {
                    out.extend_from_slice(&bytes[passed..at]);
                    out.extend_from_slice(&instead);
                    at += len;
                    passed = at;
                }
                Step::Hold => {
                    self.held = bytes[at..].to_vec();
                    break;
                }
                Step::Lose => {
                    (self.is_lost, self.has_asked) = (true, true);
                    at = bytes.len();
                }
            }
        }
        let end = at.min(bytes.len());
        self.passes = at - end;
        out.extend_from_slice(&bytes[passed..end]);
    }

    fn step(&mut self, watched: Watched<'_>, bytes: &[u8]) -> Step {
        if self.arguments > 0 {
            return match header(bytes, b'$') {
                Piece::Whole(len, header) => {
                    self.arguments -= 1;
                    Step::Pass(header + len + 2)
                }
                Piece::Part => Step::Hold,
                Piece::None => Step::Lose,
            };
        }
        if bytes[0] != b'*' {
            return self.line(watched, bytes);
        }
        let (count, mut at) = match header(bytes, b'*') {
            Piece::Whole(count, len) => (count, len),
            Piece::Part => return Step::Hold,
            Piece::None => return Step::Lose,
        };
        let mut words: Vec<&[u8]> = Vec::new();
        while words.len() < count {
            match argument(&bytes[at..]) {
                Piece::Whole(word, len) => {
                    at += len;
                    words.push(word);
                }
                Piece::Part if words.is_empty() && !is_long(&bytes[at..]) => return Step::Hold,
                Piece::Part if !words.is_empty() && bytes.len() <= MOST_BYTES => return Step::Hold,
                Piece::Part => break,
                Piece::None => return Step::Lose,
            }
            if !watched.is_refused(words[0]) {
                break;
            }
        }
        self.arguments = count - words.len();
        self.has_asked |= words.first().is_some_and(|name| watched.asks(name));
        match why_not(watched.refusals, &words) {
            Some(why) if self.arguments == 0 => Step::Refuse(at, instead(&words, why)),
            _ => Step::Pass(at),
        }
    }

    /// A request that is a line of words.
    fn line(&mut self, watched: Watched<'_>, bytes: &[u8]) -> Step {
        let Some(end) = bytes.iter().take(MOST_BYTES).position(|byte| *byte == b'\n') else {
            return if bytes.len() < MOST_BYTES { Step::Hold } else { Step::Lose };
        };
        let words = bytes[..end].split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let words: Vec<&[u8]> = words.map(unquoted).collect();
        self.has_asked |= words.first().is_some_and(|name| watched.asks(name));
        match why_not(watched.refusals, &words) {
            Some(why) => Step::Refuse(end + 1, instead(&words, why)),
            None => Step::Pass(end + 1),
        }
    }
}

/// A line that holds a number: how many arguments follow, or how many bytes an argument has.
fn header(bytes: &[u8], mark: u8) -> Piece<usize> {
    match bytes.first() {
        None => return Piece::Part,
        Some(first) if *first != mark => return Piece::None,
        Some(_) => {}
    }
    let Some(end) = bytes.iter().take(MOST_BYTES).position(|byte| *byte == b'\r') else {
        return if bytes.len() < MOST_BYTES { Piece::Part } else { Piece::None };
    };
    if bytes.len() < end + 2 {
        return Piece::Part;
    }
    match std::str::from_utf8(&bytes[1..end]).ok().and_then(|number| number.parse::<i32>().ok()) {
        // No arguments: the next request follows.
        Some(number) if number >= 0 || mark == b'*' => Piece::Whole(number.max(0) as usize, end + 2),
        _ => Piece::None,
    }
}

/// An argument.
fn argument(bytes: &[u8]) -> Piece<&[u8]> {
    match header(bytes, b'$') {
        Piece::Whole(len, header) if bytes.len() >= header + len + 2 => Piece::Whole(&bytes[header..header + len], header + len + 2),
        Piece::Whole(..) | Piece::Part => Piece::Part,
        Piece::None => Piece::None,
    }
}

/// Whether the argument that begins there is longer than any name that is looked at.
fn is_long(bytes: &[u8]) -> bool {
    matches!(header(bytes, b'$'), Piece::Whole(len, _) if len > NAME_BYTES)
}

fn unquoted(word: &[u8]) -> &[u8] {
    match word {
        [b'"', word @ .., b'"'] | [b'\'', word @ .., b'\''] => word,
        word => word,
    }
}

/// Why a request of these words is refused, if it is.
fn why_not<'r>(refusals: &'r [Refusal], words: &[&[u8]]) -> Option<&'r str> {
    let is = |words: &[&[u8]], known: &[String]| {
        words.len() >= known.len() && words.iter().zip(known).all(|(word, known)| word.eq_ignore_ascii_case(known.as_bytes()))
    };
    let by = |words: &[&[u8]], known: &[String], refusal: &Refusal| {
        is(words, known) && {
            let rest = words[known.len()..].join(&b' ');
            !refusal.harmless.iter().any(|harmless| harmless.as_bytes().eq_ignore_ascii_case(&rest))
        }
    };
    let refused = |refusal: &&Refusal| match &refusal.words[..] {
        // The request may set several at once.
        [config, set, setting @ ..] if config == "config" && set == "set" => {
            is(words, &refusal.words[..2]) && words[2..].chunks_exact(2).any(|pair| by(pair, setting, refusal))
        }
        known => by(words, known, refusal),
    };
    refusals.iter().find(refused).map(|refusal| &refusal.why[..])
}

/// A request that no server knows: its name is the request that is refused, and its argument is the reason.
fn instead(words: &[&[u8]], why: &str) -> Vec<u8> {
    let name = [&words.join(&b' ')[..], b" (refused by martlet run)"].concat();
    let mut request = b"*2\r\n".to_vec();
    for part in [&name[..], why.as_bytes()] {
        request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        request.extend_from_slice(part);
        request.extend_from_slice(b"\r\n");
    }
    request
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusals() -> Vec<Refusal> {
        let text = "config set maxmemory-policy\tnoeviction\tthey differ\nreplicaof\tno one\tit connects\nsync\t\tit is sent data";
        text.lines().map(|line| parse(line).expect("it is one")).collect()
    }

    fn request(words: &[&str]) -> Vec<u8> {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
    }

    /// What is passed on of this, given in pieces of so many bytes.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut requests, mut out) = (Requests::default(), Vec::new());
        bytes.chunks(piece).for_each(|part| requests.pass_by(Watched { refusals: &refusals(), asking: &[] }, part, &mut out));
        out
    }

    #[test]
    fn what_is_refused_is_replaced_and_nothing_else_however_it_comes() {
        let long = "x".repeat(3 * MOST_BYTES);
        // What looks like a request within a value is not one.
        let inner = String::from_utf8(request(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])).expect("text");
        let harmless = [
            &["SET", "key", &long][..],
            &["SET", "key", &inner],
            &["CONFIG", "GET", "maxmemory-policy"],
            &["config", "set", "maxmemory-policy", "NoEviction"],
            &["CONFIG", "SET", "maxmemory", "1gb"],
            &["CONFIG", "SET", "hz", &long],
            &["REPLICAOF", "NO", "ONE"],
            &["a-command-with-a-name-that-is-rather-long"],
            &["PING"],
            &[""],
        ];
        let refused = [
            (&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"][..], "they differ"),
            (&["config", "SET", "hz", "11", "MaxMemory-Policy", "volatile-ttl", "port", "1"], "they differ"),
            (&["ReplicaOf", "host", "6379"], "it connects"),
            (&["SYNC"], "it is sent data"),
        ];
        let (mut all, mut expected) = (b"PING\r\n*0\r\n*-1\r\n\r\n".to_vec(), b"PING\r\n*0\r\n*-1\r\n\r\n".to_vec());
        for words in harmless {
            all.extend(request(words));
            expected.extend(request(words));
            for (words, why) in refused {
                all.extend(request(words));
                let name = format!("{} (refused by martlet run)", words.join(" "));
                expected.extend(request(&[&name, why]));
            }
        }
        for piece in [1, 2, 3, 7, 100] {
            let short = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&long, "short").replace("$196608", "$5").into_bytes();
            assert!(passed(&short(&all), piece) == short(&expected), "in pieces of {piece}");
        }
        for piece in [1_000, 4096, all.len()] {
            assert!(passed(&all, piece) == expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn only_one_that_asks_for_what_is_worded_differently_has_asked_for_it() {
        let asking = ["info".to_owned(), "eval".to_owned()];
        let has_asked = |bytes: &[u8], piece: usize| {
            let (mut requests, mut out) = (Requests::default(), Vec::new());
            let watched = Watched { refusals: &refusals(), asking: &asking };
            bytes.chunks(piece).for_each(|part| requests.pass_by(watched, part, &mut out));
            assert_eq!(out, bytes);
            requests.has_asked()
        };
        let inner = String::from_utf8(request(&["INFO"])).expect("text");
        let stored =
            [&request(&["SET", "info", &inner])[..], &request(&["GET", "info"]), b"PING info\r\n", &request(&["informal"])].concat();
        for piece in [1, 2, 5, 1_000] {
            assert!(!has_asked(&stored, piece), "in pieces of {piece}");
            for asks in [&request(&["InFo", "memory"])[..], &request(&["eval", &"x".repeat(2 * MOST_BYTES), "0"]), b"info\r\n"] {
                assert!(has_asked(&[&stored, asks, &stored].concat(), piece), "in pieces of {piece}");
            }
            assert!(has_asked(b"*x\r\n", piece), "it is not understood");
        }
    }

    #[test]
    fn a_line_of_words_is_a_request() {
        let lines = b"config set maxmemory-policy noeviction\r\nSET a \"sync\"\r\n";
        assert_eq!(passed(lines, 5), lines);
        assert_eq!(
            passed(b"replicaof host  \"6379\"\r\nPING\n", 4),
            [&request(&["replicaof host 6379 (refused by martlet run)", "it connects"])[..], b"PING\n"].concat()
        );
    }

    #[test]
    fn what_is_no_request_is_passed_on_as_it_is() {
        for nonsense in [&b"*1\r\n+5\r\nabc"[..], b"*x\r\n*1\r\n$4\r\nSYNC\r\n", b"*1\r\n$-5\r\n"] {
            assert_eq!(passed(nonsense, nonsense.len()), nonsense);
        }
    }

    proptest! {
        /// Nothing that comes gets lost, and where it is cut changes nothing.
        #[test]
        fn where_nothing_is_refused_all_is_passed_on_or_held(bytes in "[*$0-3\r\nSYNC ]{0,60}", cut in 0..60_usize) {
            let bytes = bytes.as_bytes();
            let (first, rest) = bytes.split_at(cut.min(bytes.len()));
            let (mut requests, mut out) = (Requests::default(), Vec::new());
            requests.pass_by(Watched::default(), first, &mut out);
            requests.pass_by(Watched::default(), rest, &mut out);
            out.extend_from_slice(&requests.held);
            prop_assert_eq!(&out, &bytes);
        }
    }

    #[test]
    fn what_is_refused_is_said_in_lines() {
        assert_eq!(parse("sync\t"), None);
        assert_eq!(parse("a-name-that-is-far-too-long\t\twhy"), None);
        let refusal = Refusal { words: vec!["module".into(), "load".into()], harmless: vec![], why: "why".into() };
        assert_eq!(parse("MODULE LOAD\t\twhy"), Some(refusal));
    }
}
