//! What must hold for any bytes that come from programs, from wardens of other hosts, and from operators, for the fuzz targets.

use std::collections::BTreeSet;
use std::path::Path;

use martlet_protocol::basics::Time;
use martlet_protocol::detector::wardens::{Certainty, Config, Event, HostId, Output, Wardens};

use crate::neighbours::Neighbours;
use crate::packet;
use crate::wire::{Answer, Request};

/// A message between a program and its warden is refused, or read as it would be written.
pub fn message(bytes: &[u8]) {
    if let Ok((number, request)) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode(number)), Ok((number, request)));
    }
    if let Ok((number, answer)) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode(number)), Ok((number, answer)));
    }
}

/// A warden's file is refused by name, or says which hosts to hear and for how long each may be silent.
pub fn neighbours(text: &str) {
    match Neighbours::parse(Path::new("warden.toml"), text) {
        Ok(neighbours) => {
            assert!(neighbours.timeout_ns >= neighbours.interval_ns && neighbours.interval_ns > 0);
            assert!(neighbours.hosts.iter().all(|peer| peer.host != neighbours.host && peer.addresses.len() == neighbours.listen.len()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Whatever another warden says, this one believes no certain failure without the secret whose digest that one has told, and what it says itself can be read.
pub fn packets(mut bytes: &[u8]) {
    let other = HostId(2);
    let config = Config { life: 9, interval_ns: 1_000_000, paths: 2, digest: crate::digest };
    let (mut now, mut challenge, mut said) = (Time(0), 0, BTreeSet::new());
    let mut wardens = Wardens::new(now, config, &[(other, 3_000_000)]);
    while let Some((&how, rest)) = bytes.split_first() {
        let _ = packet::head(rest);
        let (body, rest) = rest.split_at(packet::body_len(rest).min(rest.len()));
        bytes = rest;
        now = now.after(u64::from(how >> 4) * 250_000);
        if let Some(mut packet) = packet::decode(body, 1 + u64::from(how & 3)) {
            assert_eq!(packet::decode(&packet::encode(&packet), packet.from_life).as_ref(), Some(&packet));
            if how & 4 == 0 {
                packet.repeats = challenge;
            }
            said.extend(packet.entries.iter().map(|entry| (entry.life, entry.digest)));
            let _ = wardens.handle(now, other, how >> 3 & 1, &packet);
        }
        wardens.poll(now);
        while let Some(output) = wardens.take_output() {
            match output {
                Output::Send(to, packet) => {
                    assert_eq!(to, other);
                    assert_eq!(packet::decode(&packet::encode(&packet), packet.from_life).as_ref(), Some(&packet));
                    challenge = packet.challenge;
                }
                Output::Told(Event::Failed(_, life, Certainty::Certified(secret))) => {
                    assert!(said.contains(&(life, crate::digest(&secret))), "{life:?} has failed by a secret of nobody's");
                }
                Output::Told(_) => {}
            }
        }
    }
}
