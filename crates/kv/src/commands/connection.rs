//! Commands on the connection itself.

use super::client::{Client, ReplyMode};
use super::context::Ctx;
use super::errors;
use super::server::help;
use crate::resp::{Args, Protocol, Reply, parse_i64};

/// What we say we are to clients that ask for Redis's version: the one whose behaviour this store follows.
pub(super) const REDIS_VERSION: &str = "7.0.15";

pub(super) fn ping(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    match args.len() {
        1 => reply.simple("PONG"),
        2 => reply.bulk(args.at(1)),
        _ => reply.error("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(super) fn echo(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    reply.bulk(args.at(1));
}

pub(super) fn quit(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    ctx.client().quit = true;
    reply.ok();
}

pub(super) fn select(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    match parse_i64(args.at(1)) {
        None => reply.error(errors::NOT_AN_INTEGER),
        Some(0) => reply.ok(),
        Some(_) => reply.error("ERR DB index is out of range"),
    }
}

pub(super) fn reset(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    let needs_password = ctx.env().config.password.is_some();
    ctx.shared.clients.unwatch(ctx.slot);
    let client = ctx.client();
    client.transaction = None;
    client.protocol = Protocol::Resp2;
    client.authenticated = !needs_password;
    client.name.clear();
    if client.reply_mode == ReplyMode::Off {
        client.reply_mode = ReplyMode::On;
    }
    client.no_evict = false;
    reply.set_protocol(Protocol::Resp2);
    reply.simple("RESET");
}

/// Compares without telling, by the time it takes, where two passwords differ.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    // The length of the right one is no secret worth keeping; its bytes are.
    let mut difference = u8::from(a.len() != b.len());
    for (i, byte) in b.iter().enumerate() {
        difference |= byte ^ a.get(i).copied().unwrap_or(!*byte);
    }
    std::hint::black_box(difference) == 0
}

/// Whether user and password are right. There is one user, `default`.
fn authenticate(ctx: &mut Ctx<'_>, user: &[u8], password: &[u8]) -> bool {
    let right = match &ctx.env().config.password {
        Some(secret) => same_secret(password, secret.as_bytes()) & (user == b"default"),
        None => user == b"default",
    };
    if right {
        ctx.client().authenticated = true;
    }
    right
}

const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(super) fn auth(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let (user, password) = match args.len() {
        2 if ctx.env().config.password.is_none() => {
            return reply.error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            );
        }
        2 => (&b"default"[..], args.at(1)),
        3 => (args.at(1), args.at(2)),
        _ => return reply.error(errors::SYNTAX),
    };
    if authenticate(ctx, user, password) { reply.ok() } else { reply.error(WRONGPASS) }
}

fn valid_name(name: &[u8]) -> bool {
    name.iter().all(|c| (b'!'..=b'~').contains(c))
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

pub(super) fn hello(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut protocol = ctx.client().protocol;
    if let Some(version) = args.get(1) {
        protocol = match parse_i64(version) {
            None => return reply.error("ERR Protocol version is not an integer or out of range"),
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return reply.error("NOPROTO unsupported protocol version"),
        };
    }
    let (mut name, mut credentials) = (None, None);
    let mut i = 2;
    while i < args.len() {
        let more = args.len() - 1 - i;
        if args.is(i, "AUTH") && more >= 2 {
            credentials = Some((args.at(i + 1), args.at(i + 2)));
            i += 3;
        } else if args.is(i, "SETNAME") && more >= 1 {
            name = Some(args.at(i + 1));
            if !valid_name(args.at(i + 1)) {
                return reply.error(BAD_NAME);
            }
            i += 2;
        } else {
            return reply.error(&format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(args.at(i))));
        }
    }
    if let Some((user, password)) = credentials
        && !authenticate(ctx, user, password)
    {
        return reply.error(WRONGPASS);
    }
    if !ctx.client().authenticated {
        return reply.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be \
             used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    if let Some(name) = name {
        ctx.client().name = String::from_utf8_lossy(name).into_owned();
    }
    ctx.client().protocol = protocol;
    reply.set_protocol(protocol);
    let id = ctx.client().id;
    let env = ctx.env();
    reply.map(7);
    reply.bulk(b"server");
    reply.bulk(b"redis");
    reply.bulk(b"version");
    reply.bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto");
    reply.int(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.int(id as i64);
    reply.bulk(b"mode");
    reply.bulk(if env.config.cluster_mode { b"cluster" } else { b"standalone" });
    reply.bulk(b"role");
    reply.bulk(if env.is_primary { b"master" } else { b"replica" });
    reply.bulk(b"modules");
    reply.array(0);
}

pub(super) fn client(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let sub = args.at(1).to_ascii_lowercase();
    let arity = |n: usize| args.len() == n;
    let right = match &sub[..] {
        b"id" | b"getname" | b"info" => arity(2),
        b"setname" | b"no-evict" | b"no-touch" | b"reply" => arity(3),
        b"setinfo" => arity(4),
        b"list" => true,
        b"kill" => args.len() >= 3,
        b"help" => return help("CLIENT", CLIENT_HELP, reply),
        _ => {
            let name = String::from_utf8_lossy(args.at(1));
            return reply.error(&format!("ERR unknown subcommand '{:.128}'. Try CLIENT HELP.", name));
        }
    };
    if !right {
        let name = String::from_utf8_lossy(&sub);
        return reply.error(&format!("ERR wrong number of arguments for 'client|{name}' command"));
    }
    let now_ms = ctx.now_ms;
    match &sub[..] {
        b"id" => reply.int(ctx.client().id as i64),
        b"getname" => match ctx.client().name.as_str() {
            "" => reply.null(),
            name => reply.bulk(name.as_bytes()),
        },
        b"info" => {
            let mut text = String::new();
            ctx.client().describe(now_ms, &mut text);
            text.push('\n');
            reply.verbatim(&text);
        }
        b"list" => list(ctx, args, reply),
        b"kill" => kill(ctx, args, reply),
        b"setname" if valid_name(args.at(2)) => {
            ctx.client().name = String::from_utf8_lossy(args.at(2)).into_owned();
            reply.ok();
        }
        b"setname" => reply.error(BAD_NAME),
        b"no-evict" | b"no-touch" => {
            let on = args.is(2, "ON");
            if !on && !args.is(2, "OFF") {
                return reply.error(errors::SYNTAX);
            }
            if sub == b"no-evict" {
                ctx.client().no_evict = on;
            }
            reply.ok();
        }
        b"setinfo" => set_info(ctx, args, reply),
        _ => reply_mode(ctx, args, reply),
    }
}

fn list(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut wanted = None;
    let mut ids = Vec::new();
    if args.len() == 4 && args.is(2, "TYPE") {
        match is_type_of_ours(args.at(3)) {
            Ok(ours) => wanted = Some(ours),
            Err(error) => return reply.error(&error),
        }
    } else if args.len() > 3 && args.is(2, "ID") {
        for id in args.from(3) {
            match parse_i64(id) {
                Some(id) if id > 0 => ids.push(id as u64),
                _ => return reply.error("ERR Invalid client ID"),
            }
        }
    } else if args.len() != 2 {
        return reply.error(errors::SYNTAX);
    }
    let mut text = String::new();
    for client in ctx.shared.clients.iter() {
        if wanted != Some(false) && !client.stateless && (ids.is_empty() || ids.contains(&client.id)) {
            client.describe(ctx.now_ms, &mut text);
            text.push('\n');
        }
    }
    reply.verbatim(&text);
}

/// Whether clients of that type are to be found here, where every client is a normal one.
fn is_type_of_ours(name: &[u8]) -> Result<bool, String> {
    match name.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(name))),
    }
}

/// Which clients CLIENT KILL ends.
#[derive(Default)]
struct Doomed<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local_address: Option<&'a [u8]>,
    of_another_type: bool,
    but_me: bool,
}

impl<'a> Doomed<'a> {
    fn parse(args: Args<'a>) -> Result<Doomed<'a>, String> {
        if args.len() == 3 {
            return Ok(Doomed { address: Some(args.at(2)), ..Doomed::default() });
        }
        let mut doomed = Doomed { but_me: true, ..Doomed::default() };
        for i in (2..args.len()).step_by(2) {
            let Some(value) = args.get(i + 1) else { return Err(errors::SYNTAX.to_owned()) };
            if args.is(i, "ID") {
                let id = parse_i64(value).filter(|id| *id > 0).ok_or("ERR client-id should be greater than 0")?;
                doomed.id = Some(id as u64);
            } else if args.is(i, "ADDR") {
                doomed.address = Some(value);
            } else if args.is(i, "LADDR") {
                doomed.local_address = Some(value);
            } else if args.is(i, "TYPE") {
                doomed.of_another_type = !is_type_of_ours(value)?;
            } else if args.is(i, "USER") {
                if value != b"default" {
                    return Err(format!("ERR No such user '{}'", String::from_utf8_lossy(value)));
                }
            } else if args.is(i, "SKIPME") && (args.is(i + 1, "YES") || args.is(i + 1, "NO")) {
                doomed.but_me = args.is(i + 1, "YES");
            } else {
                return Err(errors::SYNTAX.to_owned());
            }
        }
        Ok(doomed)
    }

    fn is(&self, client: &Client, me: u64) -> bool {
        let spared = client.stateless || self.of_another_type || self.but_me && client.id == me;
        !spared
            && self.id.is_none_or(|id| id == client.id)
            && self.address.is_none_or(|address| address == client.address.as_bytes())
            && self.local_address.is_none_or(|address| address == client.local_address.as_bytes())
    }
}

fn kill(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let doomed = match Doomed::parse(args) {
        Ok(doomed) => doomed,
        Err(error) => return reply.error(&error),
    };
    let me = ctx.client().id;
    let mut killed = 0;
    for client in ctx.shared.clients.iter_mut().filter(|client| doomed.is(client, me)) {
        killed += 1;
        if client.id == me {
            // After it has been told.
            client.quit = true;
        } else {
            client.killed = true;
            ctx.shared.killed = true;
        }
    }
    match args.len() {
        3 if killed == 0 => reply.error("ERR No such client"),
        3 => reply.ok(),
        _ => reply.int(killed),
    }
}

const CLIENT_HELP: &[(&str, &str)] = &[
    ("GETNAME", "The name of this connection."),
    ("ID", "The id of this connection."),
    ("INFO", "What is known of this connection."),
    ("KILL <ip:port>", "Closes a connection."),
    (
        "KILL <option> <value> [<option> <value> ...]",
        "Closes connections: ADDR and LADDR <ip:port>, ID <id>, TYPE <type>, USER <name>, SKIPME (YES|NO).",
    ),
    ("LIST [TYPE <type> | ID <id> [<id> ...]]", "What is known of connections, a line each."),
    ("NO-EVICT (ON|OFF)", "Accepted, and without effect: nobody is evicted."),
    ("NO-TOUCH (ON|OFF)", "Accepted, and without effect: when keys were last used is not kept."),
    ("REPLY (ON|OFF|SKIP)", "Whether this connection gets replies."),
    ("SETINFO (LIB-NAME|LIB-VER) <value>", "Names the library that the client uses."),
    ("SETNAME <name>", "Names this connection."),
];

fn set_info(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let what = if args.is(2, "LIB-NAME") {
        "lib-name"
    } else if args.is(2, "LIB-VER") {
        "lib-ver"
    } else {
        return reply.error(&format!("ERR Unrecognized option '{}'", String::from_utf8_lossy(args.at(2))));
    };
    if !valid_name(args.at(3)) {
        return reply.error(&format!("ERR {what} cannot contain spaces, newlines or special characters."));
    }
    let value = String::from_utf8_lossy(args.at(3)).into_owned();
    let client = ctx.client();
    *(if what == "lib-name" { &mut client.library } else { &mut client.library_version }) = value;
    reply.ok();
}

fn reply_mode(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if args.is(2, "ON") {
        ctx.client().reply_mode = ReplyMode::On;
        reply.ok();
    } else if args.is(2, "OFF") {
        ctx.client().reply_mode = ReplyMode::Off;
    } else if args.is(2, "SKIP") {
        let client = ctx.client();
        if client.reply_mode != ReplyMode::Off {
            client.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        reply.error(errors::SYNTAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same_secret(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secret1", b"Secret", b"secreT"] {
            assert!(!same_secret(wrong, b"secret"));
        }
    }
}
