//! Splits datagrams into parts, and joins parts into datagrams.

use super::packet::{Bytes, MAX_DATAGRAM_PART};
use crate::contract::MAX_DATAGRAM_BYTES;

/// How many datagrams of one sender may be incomplete at a time. A newer one replaces the oldest.
const AT_A_TIME: usize = 4;

/// The most parts that a datagram can have.
const MAX_PARTS: usize = MAX_DATAGRAM_BYTES.div_ceil(MAX_DATAGRAM_PART);

/// The bodies of the packets that carry a datagram: `emit` gets the header of each, and its bytes.
pub(super) fn parts(number: u32, datagram: &[u8], mut emit: impl FnMut([u8; 6], &[u8])) {
    let count = datagram.len().div_ceil(MAX_DATAGRAM_PART).max(1);
    for part in 0..count {
        let [a, b, c, d] = number.to_le_bytes();
        let end = datagram.len().min((part + 1) * MAX_DATAGRAM_PART);
        emit([a, b, c, d, part as u8, count as u8], &datagram[part * MAX_DATAGRAM_PART..end]);
    }
}

/// A datagram of which some parts have arrived.
#[derive(Debug, Default)]
struct Incomplete {
    number: u32,
    count: usize,
    parts: [Option<Vec<u8>>; MAX_PARTS],
}

/// What has arrived of one sender's datagrams.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    incomplete: Vec<Incomplete>,
}

impl Assembly {
    /// Takes the body of a packet. Returns the datagram once it is complete, and `Err` for a body that no process of ours sends.
    pub(super) fn take(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, ()> {
        let mut bytes = Bytes(body);
        let (Some(number), Some(part), Some(count)) = (bytes.u32(), bytes.u8(), bytes.u8()) else { return Err(()) };
        let (part, count) = (usize::from(part), usize::from(count));
        let last = part + 1 == count;
        if part >= count || count > MAX_PARTS || bytes.0.len() > MAX_DATAGRAM_PART || (!last && bytes.0.len() != MAX_DATAGRAM_PART) {
            return Err(());
        }
        if part * MAX_DATAGRAM_PART + bytes.0.len() > MAX_DATAGRAM_BYTES {
            return Err(());
        }
        if count == 1 {
            return Ok(Some(bytes.0.to_vec()));
        }
        let at = match self.incomplete.iter().position(|of| of.number == number && of.count == count) {
            Some(at) => at,
            None => {
                if self.incomplete.len() == AT_A_TIME {
                    self.incomplete.remove(0);
                }
                self.incomplete.push(Incomplete { number, count, ..Incomplete::default() });
                self.incomplete.len() - 1
            }
        };
        self.incomplete[at].parts[part] = Some(bytes.0.to_vec());
        if self.incomplete[at].parts[..count].iter().any(Option::is_none) {
            return Ok(None);
        }
        Ok(Some(self.incomplete.remove(at).parts.into_iter().flatten().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(number: u32, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        parts(number, datagram, |head, bytes| bodies.push([&head[..], bytes].concat()));
        bodies
    }

    #[test]
    fn datagrams_of_any_length_come_out_as_they_went_in_whatever_the_order() {
        for len in [0, 1, MAX_DATAGRAM_PART, MAX_DATAGRAM_PART + 1, MAX_DATAGRAM_BYTES] {
            let datagram: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut assembly = Assembly::default();
            let bodies = bodies(9, &datagram);
            let whole: Vec<_> = bodies.iter().rev().filter_map(|body| assembly.take(body).expect("well-formed")).collect();
            assert_eq!(whole, [datagram], "{len}");
            assert!(assembly.incomplete.is_empty());
        }
    }

    #[test]
    fn what_is_never_complete_makes_room() {
        let mut assembly = Assembly::default();
        let long = vec![7; MAX_DATAGRAM_BYTES];
        for number in 0..100 {
            assert_eq!(assembly.take(&bodies(number, &long)[0]), Ok(None));
            assert!(assembly.incomplete.len() <= AT_A_TIME);
        }
        let last: Vec<_> = bodies(99, &long)[1..].iter().filter_map(|body| assembly.take(body).expect("well-formed")).collect();
        assert_eq!(last, [long]);
    }

    #[test]
    fn what_no_sender_makes_is_refused() {
        let mut assembly = Assembly::default();
        for body in [&[][..], &[1, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 1], &[1, 0, 0, 0, 0, 200], &[1, 0, 0, 0, 0, 2, 9]] {
            assert_eq!(assembly.take(body), Err(()), "{body:?}");
        }
        let mut longest = bodies(1, &vec![0; MAX_DATAGRAM_BYTES]).pop().expect("parts");
        longest.push(0);
        assert_eq!(assembly.take(&longest), Err(()), "longer than any datagram");
    }
}
