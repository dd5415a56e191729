//! For the fuzz targets: what must hold for any bytes, whether or not they open as a packet.

use super::mail::Assembly;
use super::offer::Offer;
use super::packet::{Head, LARGEST_PACKET, MAX_PACKET};
use super::requester::{Requester, Target, Work};
use super::responder::{Regions, Responder};
use super::seal::{Opener, Sealer, Secret};
use crate::contract::{MAX_DATAGRAM_BYTES, Memory, RegionName, Token};
use crate::primitive::{AtomicU64, Ordering};

struct Small {
    public: [AtomicU64; 16],
    lane: [AtomicU64; 16],
}

impl Regions for Small {
    fn public(&self, name: RegionName) -> Option<&Memory> {
        (name.0 == 1).then_some(&self.public)
    }

    fn lane(&self, name: RegionName) -> Option<(usize, &Memory)> {
        (name.0 == 1).then_some((0, &self.lane))
    }

    fn may_change_public(&self, _: RegionName) -> bool {
        false
    }
}

/// Offers have one encoding. A packet opens only if it was sealed for us. No body makes either half panic, lets a client change public memory, or
/// changes a lane that is not granted.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    match choice % 5 {
        0 => {
            if let Ok(offer) = Offer::decode(bytes) {
                // An IPv4 address has two forms, of which we write only one.
                assert_eq!(Offer::decode(&offer.encode()), Ok(offer), "an offer encoded and decoded again");
            }
        }
        1 => {
            let mut packet = bytes.to_vec();
            if let Some(head) = Head::decode(&packet) {
                assert!(packet.len() <= LARGEST_PACKET && packet.starts_with(&head.encode()), "a head has one encoding");
                assert!(Opener::new(Secret([9; 32])).open(head, &mut packet).is_err(), "nobody has sealed it");
            }
        }
        2 | 3 => {
            let words = || std::array::from_fn(|_| AtomicU64::new(7));
            let memory = Small { public: words(), lane: words() };
            let mut responder = Responder::new(1);
            if choice % 5 == 3 {
                responder.change(0, false);
            }
            let body = &bytes[..bytes.len().min(LARGEST_PACKET)];
            let first = responder.take(body, &memory, |grants| assert!(grants.iter().count() <= 32));
            let again = responder.take(body, &memory, |_| {});
            assert!(first.is_err() || again.is_ok(), "what is well-formed stays so");
            let same = |words: &[AtomicU64]| words.iter().all(|word| word.load(Ordering::Relaxed) == 7);
            assert!(same(&memory.public), "a client has changed public memory");
            assert!(choice % 5 == 2 || same(&memory.lane), "a lane has been changed by whom it was taken from");
            let mut answers = 0;
            responder.answer(&memory, &mut Vec::new(), Sealer::begin, |packet| {
                answers += 1;
                assert!(packet.len() + super::packet::TAG <= MAX_PACKET);
            });
            assert!(answers > 0);
        }
        _ => {
            let mut requester = Requester::new(LARGEST_PACKET);
            let target = Target { lane: false, region: RegionName(1), offset: 0, epoch: 0 };
            for token in 0..3 {
                requester.post(Token(token), Ok(target), Work::ReadWord, 8, &[]);
            }
            requester.send(1, std::iter::empty(), &mut Vec::new(), Sealer::begin, |_| {});
            let _ = requester.take(bytes, 2, |_| {}, |_| panic!("nothing was to be read into our memory"));
            let mut completed = 0;
            while requester.pop().is_some() {
                completed += 1;
            }
            assert!(completed <= 3);
            if let Ok(Some(datagram)) = Assembly::default().take(bytes) {
                assert!(datagram.len() <= MAX_DATAGRAM_BYTES);
            }
        }
    }
}
