//! Commands of Redis clients, executed on a primary's state. Each is answered by exactly one well-formed reply, in both protocols. A backup that applies the
//! effects ends with the same state, and so does a learner that receives the state.

use martlet_fabric::fuzz::Input;
use martlet_kv::KvConfig;
use martlet_kv::client::Value;
use martlet_kv::commands::client::ReplyMode;
use martlet_kv::commands::{Client, Clock, Ctx, Shared, execute};
use martlet_kv::resp::{Args, Limits, Protocol, RequestParser, parse_i64};
use martlet_kv::store::KvMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::StateMachine;

const LIMITS: Limits = Limits { max_bulk_bytes: 1024, max_args: 64, max_inline_bytes: 1024, max_request_bytes: 2048 };
/// The longest value that SETRANGE may make here. It could make one of half a gigabyte, which takes the time of thousands of inputs.
const LONGEST_VALUE: i64 = 1 << 16;

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.u8();
    let config = KvConfig { limits: LIMITS, password: (choice & 1 != 0).then(|| "pw".to_owned()), ..KvConfig::default() };
    let start_ms = 1_700_000_000_000;
    let mut shared = Shared::new(config, start_ms, 7);
    shared.env.is_primary = choice & 2 == 0;
    shared.env.config.cluster_mode = choice & 4 != 0;
    let clients = [0, 1].map(|_| {
        let mut client = Client::new("127.0.0.1:1".into(), "127.0.0.1:2".into(), choice & 1 == 0, start_ms);
        client.stateless = choice & 8 != 0;
        client.protocol = if choice & 16 == 0 { Protocol::Resp2 } else { Protocol::Resp3 };
        shared.clients.add(client)
    });
    let (mut primary, mut backup) = (KvMachine::new(), KvMachine::new());
    let mut parser = RequestParser::new();
    let (mut now_ms, mut index, mut rest) = (start_ms, LogIndex(0), input.0);
    let mut turn = 0usize;
    while let Ok(Some(taken)) = parser.parse(rest, &LIMITS, true) {
        let args = parser.args(rest);
        if args.is_empty() || !is_quick(args) {
            rest = &rest[taken..];
            continue;
        }
        // Two clients take turns, and time passes: watches break, keys expire.
        turn += 1;
        now_ms += turn as u64 % 3;
        let slot = clients[turn % 2];
        let silent = shared.clients.get_mut(slot).reply_mode != ReplyMode::On || args.is(0, "client") && args.is(1, "reply");
        let mut out = Vec::new();
        execute(&mut Ctx { machine: &mut primary, shared: &mut shared, slot, clock: &mut Clock::standing_at_ms(now_ms) }, args, &mut out);
        let value = Value::parse(&out);
        assert!(value.is_some() || silent && out.is_empty(), "{:?} is answered by \"{}\"", words(args), out.escape_ascii());
        if !shared.effects.is_empty() {
            index = index.next();
            assert!(shared.env.is_primary, "{:?} has effects where nobody leads", words(args));
            backup.apply(index, shared.effects.bytes());
            shared.effects.clear();
        }
        rest = &rest[taken..];
    }
    assert_eq!(primary.digest(), backup.digest(), "the backup holds what the primary holds");
    let mut learner = KvMachine::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let mut part = Vec::new();
        cursor = primary.transfer(at, 64, &mut part);
        learner.install(&part).expect("a part");
    }
    assert_eq!(primary.digest(), learner.digest(), "the learner holds what the primary holds");
}

fn words(args: Args<'_>) -> Vec<String> {
    args.from(0).map(|arg| arg.escape_ascii().to_string()).collect()
}

fn is_quick(args: Args<'_>) -> bool {
    let offset = args.get(2).and_then(parse_i64).unwrap_or(0);
    !(args.is(0, "setrange") && offset > LONGEST_VALUE)
}
