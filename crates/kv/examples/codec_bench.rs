//! What parsing costs: our request parser beside `redis-protocol` 6, on pipelined SETs as `redis-benchmark -P 16` sends them.
//!
//! `cargo run --release -p martlet-kv --example codec_bench` prints nanoseconds a command, the best of several rounds: other work on the
//! machine only ever adds to it.

use std::hint::black_box;
use std::time::Instant;

use martlet_kv::resp::{Limits, RequestParser};
use redis_protocol::resp2::decode::{decode, decode_range};

const PIPELINED: usize = 16;
const ROUNDS: usize = 200;
const PASSES: usize = 500;

/// The best round's nanoseconds a command of `pass`, which parses the whole pipeline and says how many commands it saw.
fn measure(mut pass: impl FnMut() -> usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut commands = 0;
        for _ in 0..PASSES {
            commands += pass();
        }
        assert_eq!(commands, PASSES * PIPELINED);
        best = best.min(start.elapsed().as_nanos() as f64 / commands as f64);
    }
    best
}

fn main() {
    for value_bytes in [3, 64, 1024] {
        let value = "x".repeat(value_bytes);
        let one = format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n${value_bytes}\r\n{value}\r\n");
        let input = one.repeat(PIPELINED).into_bytes();
        let limits = Limits::default();
        let mut parser = RequestParser::new();
        let ours = measure(|| {
            let (mut rest, mut commands) = (&input[..], 0);
            while let Ok(Some(n)) = parser.parse(black_box(rest), &limits, true) {
                let args = parser.args(rest);
                black_box((args.at(0), args.at(1), args.at(2)));
                rest = &rest[n..];
                commands += 1;
                if rest.is_empty() {
                    break;
                }
            }
            commands
        });
        let ranges = measure(|| {
            let (mut rest, mut commands) = (&input[..], 0);
            while let Ok(Some((frame, n))) = decode_range(black_box(rest)) {
                black_box(&frame);
                rest = &rest[n..];
                commands += 1;
                if rest.is_empty() {
                    break;
                }
            }
            commands
        });
        let owned = measure(|| {
            let (mut rest, mut commands) = (&input[..], 0);
            while let Ok(Some((frame, n))) = decode(black_box(rest)) {
                black_box(&frame);
                rest = &rest[n..];
                commands += 1;
                if rest.is_empty() {
                    break;
                }
            }
            commands
        });
        println!(
            "SET of {value_bytes:>4} bytes: ours {ours:6.1} ns/command, redis-protocol {ranges:6.1} (ranges), {owned:6.1} (owned frames)"
        );
    }
}
