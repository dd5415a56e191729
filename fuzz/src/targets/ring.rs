//! A lane whose writer breaks every rule. Records that are written by the rules come out whole and in order. Whatever else is written there, the reader takes
//! nothing longer than the ring, never loops without progress, and never goes beyond what the lane can hold.

use martlet_fabric::fuzz::Input;
use std::collections::VecDeque;

use martlet_fabric::primitive::Ordering;
use martlet_fabric::ring::{HEADER_BYTES, Reader, Record, Writer, lane_bytes, max_payload, record_bytes};
use martlet_fabric::{Fabric, LocalRegion, PeerId, Region, RegionName, Remote, Token};

use super::memory::OwnMemory;

const CAPACITY: usize = 256;
const LANE: LocalRegion = LocalRegion::Lane { writer: PeerId(1), name: RegionName(1) };

pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut fabric = OwnMemory::default();
    fabric.written = Some(LANE);
    fabric.add(LANE, lane_bytes(CAPACITY));
    let at = Remote { peer: PeerId(1), region: Region::Lane(RegionName(1)), offset: 0 };
    let (mut writer, mut reader) = (Writer::new(at, CAPACITY), Reader::new());
    let (mut record, mut got, mut on_the_way) = (Record::default(), Vec::new(), VecDeque::new());
    let mut hostile = false;
    while !input.is_empty() {
        match input.u8() % 8 {
            0 | 1 => {
                let len = usize::from(input.u8()) % (max_payload(CAPACITY) + 1);
                let payload = input.bytes(len).to_vec();
                record.fill(|out| out.extend_from_slice(&payload));
                let fits = writer.fits(payload.len());
                assert_eq!(writer.push(&mut fabric, &mut record, Token(0)).is_some(), fits);
                if fits {
                    on_the_way.push_back(payload);
                }
            }
            2..=4 => {
                let memory = fabric.memory(LANE).expect("our lane");
                let (before, announced) = (reader.position(), reader.maybe(memory));
                if reader.next(memory, &mut got) {
                    assert!(announced, "taken without having been announced");
                    assert!(got.len() <= CAPACITY && reader.position() >= before + record_bytes(got.len()) as u64);
                    let expected = on_the_way.pop_front();
                    assert!(hostile || expected.as_ref() == Some(&got), "{got:?} where {expected:?} was written");
                } else {
                    assert!(hostile || on_the_way.is_empty(), "what was written is not there");
                }
                assert!(reader.position().is_multiple_of(16));
            }
            5 => {
                reader.publish(fabric.memory(LANE).expect("our lane"));
                assert_eq!(reader.unpublished(), 0);
            }
            6 => {
                // The reader may break the rules instead: what it says it has consumed is an input, too.
                let (known, tail) = (writer.tail() - writer.outstanding(), writer.tail());
                let word = fabric.memory(LANE).expect("our lane")[0].load(Ordering::Relaxed);
                assert_eq!(writer.note_consumed(word), (known..=tail).contains(&word));
                assert!(writer.outstanding() <= CAPACITY as u64);
            }
            _ => {
                hostile = true;
                let (at, near) = (usize::from(input.u8()), input.u8());
                let position = reader.position();
                let next = (HEADER_BYTES + (position % CAPACITY as u64) as usize) / 8;
                // Besides any word anywhere: a head of any length that claims the place at which the reader looks.
                let (at, word) = match near % 3 {
                    0 => (at, input.u64()),
                    1 => (next, input.number() & 0xffff_ffff | ((position / 16) & 0x7fff_ffff | 0x8000_0000) << 32),
                    _ => (next + 1, input.u64()),
                };
                fabric.scribble(LANE, at, word);
            }
        }
    }
}
