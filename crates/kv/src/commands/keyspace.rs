//! Commands on keys, whatever they hold.

use super::context::Ctx;
use super::errors;
use super::glob::Pattern;
use crate::resp::{Args, Reply, parse_i64};
use crate::store::Entry;

pub(super) fn del(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut removed = 0;
    for key in args.from(1) {
        let k = ctx.key(key);
        // A key that was due is already gone, and is not counted.
        if ctx.live(k).is_some() {
            removed += i64::from(ctx.delete(k));
        }
    }
    reply.int(removed);
}

pub(super) fn exists(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut there = 0;
    for key in args.from(1) {
        let k = ctx.key(key);
        there += i64::from(ctx.look_up(k).is_some());
    }
    reply.int(there);
}

pub(super) fn type_of(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let k = ctx.key(args.at(1));
    reply.simple(if ctx.look_up(k).is_some() { "string" } else { "none" });
}

pub(super) fn rename(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    rename_generic(ctx, args, false, reply);
}

pub(super) fn renamenx(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    rename_generic(ctx, args, true, reply);
}

fn rename_generic(ctx: &mut Ctx<'_>, args: Args<'_>, only_free: bool, reply: &mut Reply<'_>) {
    let (from, to) = (ctx.key(args.at(1)), ctx.key(args.at(2)));
    let Some(copied) = ctx.live(from).map(|entry| entry.value().len()) else { return reply.error(errors::NO_SUCH_KEY) };
    if only_free && ctx.live(to).is_some() {
        return reply.int(0);
    }
    if from.key != to.key {
        if copied > ctx.shared.spare {
            let used = ctx.shared.limit - ctx.shared.spare;
            return reply.error(&errors::too_large(used + copied, ctx.shared.limit));
        }
        ctx.shared.spare -= copied;
        if let Some(entry) = ctx.take(from) {
            ctx.put(to, entry.value(), entry.expiry());
        }
    }
    if only_free { reply.int(1) } else { reply.ok() }
}

pub(super) fn dbsize(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.count(ctx.machine.len());
}

pub(super) fn flush(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    // A client here cannot see when the memory is given back, so SYNC and ASYNC are the same.
    if args.len() > 2 || (args.len() == 2 && !args.is(1, "SYNC") && !args.is(1, "ASYNC")) {
        return reply.error(errors::SYNTAX);
    }
    ctx.flush();
    reply.ok();
}

pub(super) fn is_live(entry: &Entry, now_ms: u64) -> bool {
    entry.expiry().is_none_or(|at| at > now_ms)
}

/// The most keys that `KEYS` and similar commands go through, counting all of them and all `SCAN`s of a transaction together. They finish in one turn, since a
/// reply is a snapshot of one moment, and all other clients wait meanwhile.
const KEYS_MOST: usize = 100_000;
/// After this many comparisons with a pattern a `SCAN` stops, and the client continues with the next one.
const SCAN_COMPARISONS: usize = 1 << 20;
/// The most entries that one `SCAN` visits, whatever its COUNT.
const SCAN_MOST: usize = 1_000;
/// After this many bytes of keys a `SCAN` stops, and the client continues with the next one.
const SCAN_BYTES: usize = 1 << 20;
/// How many due keys `RANDOMKEY` deletes on its way.
const RANDOM_MOST: usize = 64;

/// Why a command may not go through so many keys in one turn, if there are too many. If there are not, counts them towards the limit.
pub(super) fn too_many(ctx: &mut Ctx<'_>, command: &str, keys: usize) -> Option<String> {
    let visited = ctx.shared.visited + keys;
    if visited > KEYS_MOST {
        return Some(format!("ERR {command} would look at {visited} keys in one turn, but at most {KEYS_MOST} are allowed: use SCAN"));
    }
    ctx.shared.visited = visited;
    None
}

pub(super) fn keys(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let (now_ms, len) = (ctx.now_ms(), ctx.machine.len());
    if let Some(error) = too_many(ctx, "KEYS", len) {
        return reply.error(&error);
    }
    let pulse = &ctx.shared.pulse;
    let mut pattern = Pattern::new(args.at(1), pulse);
    let matches = |entry: &&Entry| {
        pulse.stepped();
        is_live(entry, now_ms) && pattern.matches(entry.key())
    };
    let found: Vec<&Entry> = ctx.machine.iter().filter(matches).collect();
    if let Some(error) = pattern.exhausted() {
        return reply.error(&error);
    }
    let bytes: usize = found.iter().map(|entry| entry.key().len()).sum();
    if bytes > ctx.shared.reply_end.saturating_sub(reply.position()) {
        return reply.error(errors::REPLY_TOO_LONG);
    }
    reply.array(found.len());
    for entry in found {
        pulse.stepped();
        reply.long_bulk(entry.key(), pulse);
    }
}

/// Reads a cursor as C's `strtoul` does, which Redis uses: with or without a sign, empty text as 0, and up to a zero byte. A cursor beyond our last position is
/// at the end.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = memchr::memchr(0, text).map_or(text, |end| &text[..end]);
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let only_digits = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit))?;
    let n = only_digits.parse::<u64>().ok()?;
    Some(if negative { n.wrapping_neg() } else { n })
}

pub(super) fn scan(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let now_ms = ctx.now_ms();
    let Some(cursor) = parse_cursor(args.at(1)) else { return reply.error("ERR invalid cursor") };
    let (mut pattern, mut count, mut strings) = (None, 10usize, true);
    let mut i = 2;
    while i < args.len() {
        let Some(value) = args.get(i + 1) else { return reply.error(errors::SYNTAX) };
        if args.is(i, "COUNT") {
            match parse_i64(value) {
                None => return reply.error(errors::NOT_AN_INTEGER),
                Some(n) if n < 1 => return reply.error(errors::SYNTAX),
                Some(n) => count = (n as usize).min(SCAN_MOST),
            }
        } else if args.is(i, "MATCH") {
            pattern = Some(value).filter(|p| *p != b"*").map(|p| Pattern::new(p, &ctx.shared.pulse));
        } else if args.is(i, "TYPE") {
            strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return reply.error(errors::SYNTAX);
        }
        i += 2;
    }
    let most = KEYS_MOST.saturating_sub(ctx.shared.visited).min(count);
    if most == 0 {
        return reply.error(&format!("ERR the SCANs of a transaction may look at up to {KEYS_MOST} keys: send them outside of it"));
    }
    let pulse = &ctx.shared.pulse;
    let (mut seen, mut bytes, mut found) = (0, 0, Vec::new());
    let next = (cursor >> crate::store::hash::POSITION_BITS == 0)
        .then(|| {
            ctx.machine.walk(cursor, |_, entry| {
                seen += 1;
                pulse.stepped();
                if strings && is_live(entry, now_ms) && pattern.as_mut().is_none_or(|p| p.matches(entry.key())) {
                    found.push(entry);
                    bytes += entry.key().len();
                }
                seen < most && bytes < SCAN_BYTES && pattern.as_ref().is_none_or(|p| p.used() < SCAN_COMPARISONS)
            })
        })
        .flatten();
    // It may pass a thousand buckets that hold no key.
    ctx.shared.visited += seen.max(SCAN_MOST / 10);
    if let Some(error) = pattern.as_ref().and_then(Pattern::exhausted) {
        return reply.error(&error);
    }
    if bytes > ctx.shared.reply_end.saturating_sub(reply.position()) {
        return reply.error(errors::REPLY_TOO_LONG);
    }
    reply.array(2);
    reply.bulk(itoa::Buffer::new().format(next.unwrap_or(0)).as_bytes());
    reply.array(found.len());
    for entry in found {
        reply.bulk(entry.key());
    }
}

pub(super) fn randomkey(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    // Each key that is due is deleted on the way. Where there are this many, all others are taken to be due, too.
    for _ in 0..RANDOM_MOST {
        let chance = ctx.shared.random.u64(..);
        let Some(key) = ctx.machine.any(chance).map(|e| e.key().to_vec()) else { return reply.null() };
        let k = ctx.key(&key);
        if ctx.live(k).is_some() {
            return reply.bulk(&key);
        }
    }
    reply.null();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Client, Clock, Shared, execute};
    use crate::config::KvConfig;
    use crate::resp::Span;
    use crate::store::KvMachine;

    /// A server alone, with a given number of keys, each of which expires at `expiry`.
    struct Alone {
        machine: KvMachine,
        shared: Shared,
    }

    impl Alone {
        fn with_keys(keys: usize, expiry: Option<u64>) -> Alone {
            let mut machine = KvMachine::new();
            (0..keys).for_each(|i| machine.put(machine.keyed(&i.to_le_bytes()), b"v", expiry));
            Alone { machine, shared: Shared::new(KvConfig::default(), 0, 1) }
        }

        fn ask(&mut self, words: &[&str]) -> String {
            let slot = self.shared.clients.add(Client::new(String::new(), String::new(), true, 0));
            self.shared.env.is_primary = true;
            let (mut bytes, mut spans, mut out) = (Vec::new(), Vec::new(), Vec::new());
            for word in words {
                spans.push(Span::new(bytes.len(), word.len()));
                bytes.extend_from_slice(word.as_bytes());
            }
            let mut ctx = Ctx { machine: &mut self.machine, shared: &mut self.shared, slot, clock: &mut Clock::standing_at_ms(10) };
            execute(&mut ctx, Args::new(&bytes, &spans), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        }
    }

    #[test]
    fn keys_refuses_what_would_take_longer_than_a_turn_may() {
        let mut server = Alone::with_keys(KEYS_MOST, None);
        assert!(server.ask(&["KEYS", "*"]).starts_with("*100000\r\n"));
        server.machine.put(server.machine.keyed(b"one more"), b"v", None);
        server.shared.env.config.cluster_mode = true;
        for (request, name) in [
            (&["KEYS", "one*"][..], "KEYS"),
            (&["CLUSTER", "COUNTKEYSINSLOT", "1"], "CLUSTER COUNTKEYSINSLOT"),
            (&["CLUSTER", "GETKEYSINSLOT", "1", "10"], "CLUSTER GETKEYSINSLOT"),
        ] {
            let most = "keys in one turn, but at most 100000 are allowed: use SCAN";
            assert_eq!(server.ask(request), format!("-ERR {name} would look at 100001 {most}\r\n"));
        }
    }

    #[test]
    fn scan_visits_a_thousand_at_most_and_all_in_the_end() {
        let mut server = Alone::with_keys(20_000, None);
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        loop {
            let reply = server.ask(&["SCAN", &cursor, "COUNT", "1000000"]);
            let mut lines = reply.split("\r\n").skip(2);
            cursor = lines.next().expect("a cursor").to_owned();
            let n: usize = lines.next().and_then(|l| l[1..].parse().ok()).expect("a count");
            // Entries that share a position are visited together, but there are never many.
            assert!(n <= SCAN_MOST + 2, "{n} at once");
            found += n;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, 20_000);
    }

    #[test]
    fn randomkey_deletes_a_bounded_number_of_keys_that_are_due() {
        let mut server = Alone::with_keys(1_000, Some(5));
        assert_eq!(server.ask(&["RANDOMKEY"]), "$-1\r\n");
        assert_eq!(server.machine.len(), 1_000 - RANDOM_MOST);
    }
}
