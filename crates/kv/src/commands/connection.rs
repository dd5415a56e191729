//! Commands about the connection itself.

use super::client::ReplyMode;
use super::context::Ctx;
use super::errors;
use crate::resp::{Args, Protocol, Reply, parse_i64};

/// The version that we report to clients that ask for Redis's: the one whose behaviour this store follows.
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
    ctx.shared.clients.unwatch(ctx.slot, &ctx.shared.pulse);
    let client = ctx.client();
    client.transaction = None;
    client.protocol = Protocol::Resp2;
    client.authenticated = !needs_password;
    client.name.clear();
    if client.reply_mode == ReplyMode::Off {
        client.reply_mode = ReplyMode::On;
    }
    client.no_evict = false;
    client.readonly = false;
    client.wants_quorum = None;
    reply.set_protocol(Protocol::Resp2);
    reply.simple("RESET");
}

/// READ QUORUM and READ LEASE: what replies about keys wait for on this connection from here on.
pub(super) fn read(ctx: &mut Ctx<'_>, args: Args<'_>, reply: &mut Reply<'_>) {
    let by_quorum = args.is(1, "QUORUM");
    if !by_quorum && !args.is(1, "LEASE") {
        return reply.error("ERR READ takes QUORUM or LEASE");
    }
    ctx.client().wants_quorum = Some(by_quorum);
    reply.ok();
}

/// Compares two passwords without revealing, by the time it takes, where they differ.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    // The length of the right password need not stay secret; its bytes must.
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

pub(super) fn valid_name(name: &[u8]) -> bool {
    name.iter().all(|c| (b'!'..=b'~').contains(c))
}

pub(super) const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

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
            return reply.error(&errors::quoting("ERR Syntax error in HELLO option '", args.at(i), "'"));
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
