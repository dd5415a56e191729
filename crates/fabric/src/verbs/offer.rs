//! The body of an offer: queue pairs and keys. The proof that comes with it covers it, so it can be believed as far as the peer can.

use super::memory::Registered;
use super::queue::Address;
use crate::meeting::regions::MAX_REGIONS;

/// A peer's registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) address: u64,
    pub(super) rkey: u32,
}

impl Key {
    pub(super) fn of(registered: &Registered) -> Key {
        Key { address: registered.address, rkey: registered.rkey }
    }
}

/// What a process tells a peer about what it keeps for that peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The number with which the peer marks its datagrams to us.
    pub(super) number: u32,
    pub(super) address: Address,
    /// How many READs we answer at once on one queue pair.
    pub(super) reads: u8,
    /// The queue pair for datagrams, and its key.
    pub(super) mail: (u32, u32),
    pub(super) background: u32,
    /// Queue pairs on which we write the peer's lanes, and on which it writes ours.
    pub(super) writers: Vec<u32>,
    pub(super) answerers: Vec<u32>,
    pub(super) public: Key,
    pub(super) lanes_written: Key,
    pub(super) lanes_read: Key,
    pub(super) grants: Key,
    pub(super) notices: Key,
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut number = |n: u32| out.extend_from_slice(&n.to_le_bytes());
        for n in
            [self.number, self.address.lid.into(), self.address.mtu.into(), self.reads.into(), self.mail.0, self.mail.1, self.background]
        {
            number(n);
        }
        for list in [&self.writers, &self.answerers] {
            number(list.len() as u32);
            list.iter().for_each(|n| number(*n));
        }
        // The address of a port is in network order in memory.
        out.extend_from_slice(&self.address.gid[0].to_ne_bytes());
        out.extend_from_slice(&self.address.gid[1].to_ne_bytes());
        for key in [self.public, self.lanes_written, self.lanes_read, self.grants, self.notices] {
            out.extend_from_slice(&key.address.to_le_bytes());
            out.extend_from_slice(&key.rkey.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Offer, String> {
        let mut rest = bytes;
        let mut number = || take::<4>(&mut rest).map(u32::from_le_bytes);
        let [own, lid, mtu, reads, mail, mail_key, background] =
            [number()?, number()?, number()?, number()?, number()?, number()?, number()?];
        let mut list = || -> Result<Vec<u32>, String> {
            let count = number()?;
            if count as usize > MAX_REGIONS {
                return Err(format!("its offer has {count} queue pairs for lanes, at most {MAX_REGIONS} are allowed"));
            }
            (0..count).map(|_| number()).collect()
        };
        let (writers, answerers) = (list()?, list()?);
        let gid = [u64::from_ne_bytes(take(&mut rest)?), u64::from_ne_bytes(take(&mut rest)?)];
        let mut key =
            || Ok::<Key, String>(Key { address: u64::from_le_bytes(take(&mut rest)?), rkey: u32::from_le_bytes(take(&mut rest)?) });
        let (public, lanes_written, lanes_read, grants, notices) = (key()?, key()?, key()?, key()?, key()?);
        if !rest.is_empty() {
            return Err(format!("{} bytes follow its offer", rest.len()));
        }
        let small = |what: &str, n: u32, most: u32| match u8::try_from(n) {
            Ok(n) if n >= 1 && u32::from(n) <= most => Ok(n),
            _ => Err(format!("its offer's {what} is {n}; allowed are 1 to {most}")),
        };
        Ok(Offer {
            number: own,
            address: Address {
                gid,
                lid: u16::try_from(lid).map_err(|_| format!("its offer's port is {lid}; allowed are 0 to 65535"))?,
                mtu: small("packet size", mtu, 5)?,
            },
            reads: small("limit on reads", reads, 16)?,
            mail: (mail, mail_key),
            background,
            writers,
            answerers,
            public,
            lanes_written,
            lanes_read,
            grants,
            notices,
        })
    }
}

/// For the fuzz targets: what is accepted has one encoding.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(offer) = Offer::decode(bytes) {
        assert_eq!(offer.encode(), bytes, "an offer has one encoding");
    }
}

/// An offer for the samples of encodings.
#[cfg(feature = "fuzzing")]
pub(super) fn sample() -> Vec<u8> {
    let key = |n: u64| Key { address: n << 40 | 7, rkey: n as u32 };
    let offer = Offer {
        number: 9,
        address: Address { gid: [1, 2], lid: 3, mtu: 5 },
        reads: 16,
        mail: (17, 0x8000_0001),
        background: 18,
        writers: vec![19, 20],
        answerers: vec![21],
        public: key(1),
        lanes_written: key(2),
        lanes_read: key(3),
        grants: key(4),
        notices: key(5),
    };
    offer.encode()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or("its offer ends too early")?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_the_wire_and_bad_ones_are_named() {
        let key = |n: u64| Key { address: n << 40 | 7, rkey: n as u32 };
        let offer = Offer {
            number: 9,
            address: Address { gid: [1, 2], lid: 3, mtu: 5 },
            reads: 16,
            mail: (17, 0x8000_0001),
            background: 18,
            writers: vec![19, 20],
            answerers: vec![21],
            public: key(1),
            lanes_written: key(2),
            lanes_read: key(3),
            grants: key(4),
            notices: key(5),
        };
        let encoded = offer.encode();
        assert_eq!(Offer::decode(&encoded), Ok(offer.clone()));
        for cut in 0..encoded.len() {
            assert!(Offer::decode(&encoded[..cut]).is_err(), "cut at {cut}");
        }
        check(&encoded);
        let mut longer = encoded.clone();
        longer.push(0);
        assert!(Offer::decode(&longer).expect_err("longer").contains("1 bytes follow"));
        let huge = Offer { writers: vec![0; 33], ..offer.clone() }.encode();
        assert!(Offer::decode(&huge).expect_err("huge").contains("33 queue pairs"));
        let big = Offer { address: Address { mtu: 6, ..offer.address }, ..offer }.encode();
        assert!(Offer::decode(&big).expect_err("big").contains("packet size is 6; allowed are 1 to 5"));
    }
}
