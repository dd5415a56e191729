//! CLIENT: what the server keeps about connections.

use std::collections::BTreeSet;

use super::client::{Client, ReplyMode};
use super::connection::{BAD_NAME, valid_name};
use super::context::Ctx;
use super::errors;
use super::server::write_help;
use crate::resp::{Args, Reply, parse_i64};

pub(super) fn id(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    reply.int(ctx.client().id as i64);
}

pub(super) fn get_name(ctx: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    match ctx.client().name.as_str() {
        "" => reply.null(),
        name => reply.bulk(name.as_bytes()),
    }
}

pub(super) fn set_name(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if !valid_name(args.at(2)) {
        return reply.error(BAD_NAME);
    }
    ctx.client().name = String::from_utf8_lossy(args.at(2)).into_owned();
    reply.ok();
}

pub(super) fn info(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let now_ms = ctx.now_ms();
    let mut text = String::new();
    let client = ctx.client();
    client.argument_bytes = args.total_bytes();
    client.describe(now_ms, &mut text);
    client.argument_bytes = 0;
    text.push('\n');
    reply.verbatim(&text);
}

/// Whether the argument is `ON`, otherwise `OFF`; if it is neither, an error has been written.
fn switch(args: Args<'_>, reply: &mut Reply<'_>) -> Option<bool> {
    let on = args.is(2, "ON");
    if on || args.is(2, "OFF") {
        reply.ok();
        return Some(on);
    }
    reply.error(errors::SYNTAX);
    None
}

pub(super) fn no_evict(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    if let Some(on) = switch(args, reply) {
        ctx.client().no_evict = on;
    }
}

pub(super) fn no_touch(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let _ = switch(args, reply);
}

/// No command waits for another client here, so there is nobody to wake, whichever id is named.
pub(super) fn unblock(_: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    match args.len() {
        3 => {}
        4 if args.is(3, "TIMEOUT") || args.is(3, "ERROR") => {}
        4 => return reply.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        _ => return reply.error(errors::SYNTAX),
    }
    match parse_i64(args.at(2)) {
        Some(_) => reply.int(0),
        None => reply.error(errors::NOT_AN_INTEGER),
    }
}

pub(super) fn list(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut wanted = None;
    let mut ids = BTreeSet::new();
    if args.len() == 4 && args.is(2, "TYPE") {
        match is_type_of_ours(args.at(3)) {
            Ok(ours) => wanted = Some(ours),
            Err(error) => return reply.error(&error),
        }
    } else if args.len() > 3 && args.is(2, "ID") {
        for id in args.from(3) {
            match parse_i64(id) {
                Some(id) if id > 0 => _ = ids.insert(id as u64),
                _ => return reply.error("ERR Invalid client ID"),
            }
        }
    } else if args.len() != 2 {
        return reply.error(errors::SYNTAX);
    }
    let mut text = String::new();
    ctx.client().argument_bytes = args.total_bytes();
    let now_ms = ctx.now_ms();
    let room = ctx.shared.reply_end.saturating_sub(reply.position());
    for client in ctx.shared.clients.iter() {
        ctx.shared.pulse.stepped();
        if text.len() > room {
            return reply.error(errors::REPLY_TOO_LONG);
        }
        if wanted != Some(false) && !client.stateless && (ids.is_empty() || ids.contains(&client.id)) {
            let before = text.len();
            client.describe(now_ms, &mut text);
            ctx.shared.pulse.worked(text.len() - before);
            text.push('\n');
        }
    }
    ctx.client().argument_bytes = 0;
    reply.verbatim(&text);
}

/// Whether clients of that type exist here, where every client is a normal one.
fn is_type_of_ours(name: &[u8]) -> Result<bool, Vec<u8>> {
    match name.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err(errors::quoting("ERR Unknown client type '", name, "'")),
    }
}

/// The work of looking at one client, in bytes copied.
const CLIENT_BYTES: usize = 64;

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
    fn parse(args: Args<'a>) -> Result<Doomed<'a>, Vec<u8>> {
        if args.len() == 3 {
            return Ok(Doomed { address: Some(args.at(2)), ..Doomed::default() });
        }
        let mut doomed = Doomed { but_me: true, ..Doomed::default() };
        for i in (2..args.len()).step_by(2) {
            let Some(value) = args.get(i + 1) else { return Err(errors::SYNTAX.into()) };
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
                    return Err(errors::quoting("ERR No such user '", value, "'"));
                }
            } else if args.is(i, "SKIPME") && (args.is(i + 1, "YES") || args.is(i + 1, "NO")) {
                doomed.but_me = args.is(i + 1, "YES");
            } else {
                return Err(errors::SYNTAX.into());
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

pub(super) fn kill(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let doomed = match Doomed::parse(args) {
        Ok(doomed) => doomed,
        Err(error) => return reply.error(&error),
    };
    let me = ctx.client().id;
    let mut killed = 0;
    let pulse = &ctx.shared.pulse;
    let is_doomed = |client: &&mut Client| {
        pulse.worked(CLIENT_BYTES);
        doomed.is(client, me)
    };
    for client in ctx.shared.clients.iter_mut().filter(is_doomed) {
        killed += 1;
        if client.id == me {
            // It is closed after it has got the reply.
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

const HELP: &[(&str, &str)] = &[
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
    ("UNBLOCK <id> [TIMEOUT | ERROR]", "Ends another connection's waiting: none ever waits."),
];

pub(super) fn help(_: &mut Ctx<'_>, _: Args<'_>, reply: &mut Reply<'_>) {
    write_help("CLIENT", HELP, reply);
}

pub(super) fn set_info(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let what = if args.is(2, "LIB-NAME") {
        "lib-name"
    } else if args.is(2, "LIB-VER") {
        "lib-ver"
    } else {
        return reply.error(&errors::quoting("ERR Unrecognized option '", args.at(2), "'"));
    };
    if !valid_name(args.at(3)) {
        return reply.error(&format!("ERR {what} cannot contain spaces, newlines or special characters."));
    }
    let value = String::from_utf8_lossy(args.at(3)).into_owned();
    let client = ctx.client();
    *(if what == "lib-name" { &mut client.library } else { &mut client.library_version }) = value;
    reply.ok();
}

pub(super) fn reply(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
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
