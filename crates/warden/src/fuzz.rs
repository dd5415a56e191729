//! For the fuzz targets: what must hold for any bytes that come from programs, from wardens of other hosts, and from operators.

mod packets;

use std::collections::BTreeSet;
use std::path::Path;

use martlet_fabric::fuzz::Input;
use martlet_protocol::detector::wardens::{HostId, MAX_ENTRIES, Packet};

use crate::neighbours::Neighbours;
use crate::packet;
use crate::wire::{Answer, Malformed, Request};

/// Checks everything that a warden takes from outside. The first byte says what the rest is.
pub fn check(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    match choice % 5 {
        4 => crate::daemon::check_requests(bytes),
        3 => sealed(bytes),
        2 => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                neighbours(text);
            }
        }
        1 => packets::check(bytes),
        _ => message(bytes),
    }
}

/// A message between a program and its warden is refused, or it is exactly what encoding its meaning gives: no shorter message says the same, and no longer
/// one.
fn message(bytes: &[u8]) {
    let ends = |refused: fn(&[u8]) -> Option<Malformed>| {
        assert!(refused(&bytes[..bytes.len() - 1]).is_some(), "the last byte says nothing");
        assert_eq!(refused(&[bytes, &[0]].concat()), Some(Malformed::Long(1)));
    };
    if let Ok((number, request)) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode(number)), Ok((number, request)));
        ends(|bytes| Request::decode(bytes).err());
    }
    if let Ok((number, answer)) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode(number)), Ok((number, answer)));
        ends(|bytes| Answer::decode(bytes).err());
    }
}

/// A warden's file is refused by name. Or it says which hosts to hear, each once, and how long each may be silent: over any path, a heartbeat that is as late
/// as that path allows still comes in time.
fn neighbours(text: &str) {
    match Neighbours::parse(Path::new("warden.toml"), text) {
        Ok(neighbours) => {
            assert!(neighbours.timeout_ns >= neighbours.interval_ns && neighbours.interval_ns > 0);
            assert!(neighbours.hosts.iter().all(|peer| peer.host != neighbours.host && peer.addresses.len() == neighbours.listen.len()));
            let hosts: BTreeSet<HostId> = neighbours.hosts.iter().map(|peer| peer.host).collect();
            assert!(hosts.len() == neighbours.hosts.len() && !hosts.contains(&HostId(0)), "a host is heard twice, or has no number");
            let file: toml::Table = text.parse().expect("it was read");
            for path in file["path"].as_array().expect("it was read") {
                let [latency, jitter] = ["latency_us", "jitter_us"].map(|key| path[key].as_integer().expect("it was read") as u64 * 1_000);
                assert!(neighbours.timeout_ns >= neighbours.interval_ns + latency + 2 * jitter, "a heartbeat over {path} comes too late");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A packet's bytes are refused, or they are exactly what encoding their meaning gives, with nothing left over.
fn decoded(body: &[u8], from_life: u64) -> Option<Packet> {
    let packet = packet::decode(body, from_life)?;
    let again = packet::encode(&packet);
    assert!(packet.entries.len() <= MAX_ENTRIES && again.len() == body.len(), "bytes are left over, or there are too many");
    assert_eq!(packet::decode(&again, from_life).as_ref(), Some(&packet));
    Some(packet)
}

/// A packet opens if it was sealed for this host and for the path on which it came, and no bit of it has changed; nothing else opens. The receiver is made from
/// what the packet says in the clear, as the warden makes it.
fn sealed(bytes: &[u8]) {
    const KEY: &[u8] = b"the key of all wardens";
    const OWN: HostId = HostId(1);
    let opens = |bytes: &[u8], path: u8| {
        let head = packet::head(bytes)?;
        packet::Receiver::new(KEY, head.host, OWN, path, head.life).open(&mut bytes.to_vec()).ok()
    };
    assert_eq!(opens(bytes, 0), None, "nobody has sealed it");
    let mut input = Input(bytes);
    let [from, to, path, came_by] = [2, 1, 0, 0].map(|usual| usual ^ u8::from(input.u8() % 4 == 3));
    let (life, changed_at, change) = (input.number(), input.number() as usize, input.u8());
    let Some(packet) = decoded(input.0, life) else { return };
    let (from, to) = (HostId(u16::from(from)), HostId(u16::from(to)));
    let mut sealed = packet::Sender::new(KEY, from, to, path, life).seal(&packet);
    let at = changed_at % sealed.len();
    sealed[at] ^= change;
    let is_ours = to == OWN && path == came_by && change == 0;
    assert_eq!(opens(&sealed, came_by), is_ours.then_some(packet), "from {from:?} to {to:?}, over path {path}, by path {came_by}");
}

#[cfg(all(test, feature = "canaries"))]
mod tests {
    use std::panic::catch_unwind;
    use std::path::PathBuf;

    use martlet_fabric::fuzz::Mutations;
    use martlet_fabric::probe;
    use martlet_protocol::detector::wardens;

    use super::check;
    use crate::canary::Canary;

    fn seeds() -> Vec<Vec<u8>> {
        let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wardens");
        let mut paths: Vec<PathBuf> = std::fs::read_dir(corpus).expect("seeds").map(|entry| entry.expect("a seed").path()).collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
    }

    /// With no more inputs than the blind driver tries in a second.
    #[test]
    fn each_canary_is_found() {
        let canaries = wardens::Canary::ALL.iter().map(|canary| canary.name()).chain(Canary::ALL.iter().map(|canary| canary.name()));
        for canary in canaries {
            let mut mutations = Mutations::new(2048, seeds(), 1);
            probe::plant(Some(canary));
            let found = (0..20_000).find(|_| {
                let input = mutations.next_input();
                catch_unwind(|| check(&input)).is_err()
            });
            probe::plant(None);
            println!("{canary}: found by input {found:?}");
            assert!(found.is_some(), "no mutation of the seeds shows {canary}");
        }
    }
}
