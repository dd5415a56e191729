//! The Redis protocol: requests as servers read them, replies as our client reads them.

use martlet_kv::client::Value;
use martlet_kv::resp::{Limits, Protocol, ProtocolError, Reply, RequestParser};

/// So small that inputs of a few hundred bytes reach every limit.
const LIMITS: Limits = Limits { max_bulk_bytes: 1024, max_args: 64, max_inline_bytes: 64, max_request_bytes: 1536 };

pub(super) fn run(data: &[u8]) {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let authenticated = cut & 1 == 0;
    let step = usize::from(cut >> 1) % 16 + 1;
    let whole = requests(bytes, bytes.len(), authenticated);
    let cut = requests(bytes, step, authenticated);
    assert_eq!(whole.0, cut.0, "the same requests however they arrive");
    // A reader that sees the end of an endless line sooner may complain sooner, but either both complain or neither does.
    assert_eq!(whole.1.is_some(), cut.1.is_some(), "{:?} whole, {:?} cut", whole.1, cut.1);
    for request in &whole.0 {
        again(request);
    }
    if let Some(value) = Value::parse(bytes) {
        if is_ours(&value) {
            let mut out = Vec::new();
            write(&value, &mut Reply::new(&mut out, Protocol::Resp3));
            assert_eq!(Value::parse(&out).as_ref(), Some(&value), "a reply written and read again");
        }
        assert!(count(&value) <= bytes.len(), "no more parts than bytes");
    }
}

type Request = Vec<Vec<u8>>;

/// All requests at the start of `bytes`, which arrive `step` at a time, and the mistake that ended them, as a connection reads them.
fn requests(bytes: &[u8], step: usize, authenticated: bool) -> (Vec<Request>, Option<ProtocolError>) {
    let mut parser = RequestParser::new();
    let (mut found, mut input, mut arrived) = (Vec::new(), Vec::new(), 0);
    loop {
        loop {
            match parser.parse(&input, &LIMITS, authenticated) {
                Ok(Some(taken)) => {
                    assert!(taken > 0 && taken <= input.len(), "took {taken} of {}", input.len());
                    let args = parser.args(&input);
                    assert!(args.total_bytes() <= taken, "arguments are no longer than their request");
                    found.push(args.from(0).map(<[u8]>::to_vec).collect());
                    input.drain(..taken);
                    parser.shrink();
                }
                Ok(None) => {
                    assert!(parser.wants() <= LIMITS.max_request_bytes, "makes room for {}", parser.wants());
                    break;
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("Protocol error"));
                    return (found, Some(error));
                }
            }
        }
        if arrived == bytes.len() {
            return (found, None);
        }
        let next = (arrived + step.max(1)).min(bytes.len());
        input.extend_from_slice(&bytes[arrived..next]);
        arrived = next;
    }
}

/// Checks that a request that is written as clients write it is read as the same request.
fn again(request: &Request) {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Protocol::Resp2);
    reply.array(request.len());
    request.iter().for_each(|arg| reply.bulk(arg));
    let limits = Limits { max_inline_bytes: 1 << 16, ..LIMITS };
    let mut parser = RequestParser::new();
    match parser.parse(&out, &limits, true) {
        Ok(taken) => {
            assert_eq!(taken, Some(out.len()));
            assert_eq!(&parser.args(&out).from(0).map(<[u8]>::to_vec).collect::<Vec<_>>(), request);
        }
        // An inline command may have more words than is allowed here, and a request's header takes up part of its length.
        Err(error) => assert!(matches!(error, ProtocolError::Count | ProtocolError::RequestTooLong(_)), "{error}"),
    }
}

fn write(value: &Value<'_>, reply: &mut Reply<'_>) {
    match value {
        Value::Null => reply.null(),
        Value::Simple(text) => reply.simple(std::str::from_utf8(text).expect("checked")),
        Value::Error(text) => reply.error(text),
        Value::Int(n) => reply.int(*n),
        Value::Bulk(bytes) => reply.bulk(bytes),
        Value::List(parts) => {
            reply.array(parts.len());
            parts.iter().for_each(|part| write(part, reply));
        }
    }
}

/// Whether one of our servers would write it so: UTF-8 in short texts, no line break in errors.
fn is_ours(value: &Value<'_>) -> bool {
    match value {
        Value::Simple(text) => std::str::from_utf8(text).is_ok(),
        Value::Error(text) => !text.contains(&b'\r'),
        Value::List(parts) => parts.iter().all(is_ours),
        Value::Null | Value::Int(_) | Value::Bulk(_) => true,
    }
}

fn count(value: &Value<'_>) -> usize {
    match value {
        Value::List(parts) => 1 + parts.iter().map(count).sum::<usize>(),
        _ => 1,
    }
}
