//! What a disk returns. Frames that were written by the rules come out whole and in order. Wherever the file is cut, altered or continued, no frame comes out
//! that was not written. What follows a frame that does not check decides whether that frame is a torn tail.

use martlet_fabric::fuzz::Input;
use martlet_node::wal::format::{FRAME_HEAD_BYTES, FileKind, Frames, HEADER_BYTES, Header, Owner, Tail, encode_frame, frame_bytes};

pub(super) fn run(data: &[u8]) {
    as_a_file(data);
    written_and_damaged(data);
}

/// Takes the bytes as a file.
fn as_a_file(data: &[u8]) {
    let Some(header) = Header::decode(data) else { return };
    let encoded = header.encode();
    // An earlier format differs in its digit, and in the checksum for it.
    let same = if data[7] == encoded[7] { 0..HEADER_BYTES } else { 8..56 };
    assert_eq!(encoded[same.clone()], data[same], "one encoding for each header");
    assert_eq!(FileKind::of_another_build(data), None, "it is read, so this build knows it");
    let mut frames = Frames::new(&header, data);
    let (mut again, mut number) = (data[..HEADER_BYTES].to_vec(), header.first);
    for payload in frames.by_ref() {
        encode_frame(header.salt, number, payload, &mut again);
        number = number.wrapping_add(1);
    }
    assert_eq!((frames.next_number(), frames.offset()), (number, again.len()));
    assert_eq!(again, data[..again.len()], "one encoding for each frame");
    match frames.tail() {
        Tail::Clean => assert_eq!(again.len(), data.len()),
        Tail::Torn(at) | Tail::Corrupt(at) => assert_eq!(at, again.len()),
    }
}

/// Takes from the bytes what is written, and what happens to it.
fn written_and_damaged(data: &[u8]) {
    let mut input = Input(data);
    let kind = if input.u8() % 2 == 0 { FileKind::Segment } else { FileKind::Snapshot };
    let owner = Owner { cluster: input.u64(), node: u16::from(input.u8()) };
    let header = Header { kind, owner, life: input.u64(), segment: input.u64(), first: input.number() % (1 << 62), salt: input.u64() };
    let (mut file, mut payloads, mut ends) = (header.encode().to_vec(), Vec::new(), vec![HEADER_BYTES]);
    for _ in 0..input.u8() % 6 {
        let payload = {
            let len = usize::from(input.u8());
            input.bytes(len).to_vec()
        };
        encode_frame(header.salt, header.first + payloads.len() as u64, &payload, &mut file);
        assert_eq!(file.len(), ends[payloads.len()] + frame_bytes(payload.len()));
        ends.push(file.len());
        payloads.push(payload);
    }
    let whole = file.len();
    let at = HEADER_BYTES + input.number() as usize % (whole - HEADER_BYTES + 1);
    let n = ends.iter().rposition(|end| *end <= at).expect("the header's end");
    let expected = match input.u8() % 3 {
        // Cut: the frames before the cut remain, and the rest of the next one is torn.
        0 => {
            file.truncate(at);
            if ends[n] == at { Tail::Clean } else { Tail::Torn(ends[n]) }
        }
        // Altered: corrupt if a frame follows it.
        1 if at < whole => {
            file[at] ^= input.u8() | 1;
            if n + 1 < payloads.len() { Tail::Corrupt(ends[n]) } else { Tail::Torn(ends[n]) }
        }
        // Continued with something else. A client cannot make a frame of it, as it does not know the salt.
        _ => {
            let mut more = input.bytes(64).to_vec();
            more.truncate(FRAME_HEAD_BYTES - 1);
            file.extend_from_slice(&more);
            if more.is_empty() { Tail::Clean } else { Tail::Torn(whole) }
        }
    };
    let decoded = Header::decode(&file);
    assert_eq!(decoded, Some(header));
    let mut frames = Frames::new(&header, &file);
    let found: Vec<&[u8]> = frames.by_ref().collect();
    let left = match expected {
        Tail::Clean if file.len() < whole => n,
        Tail::Clean => payloads.len(),
        Tail::Torn(at) | Tail::Corrupt(at) => ends.iter().position(|end| *end == at).expect("the end of a frame"),
    };
    assert_eq!(found, payloads[..left]);
    assert_eq!(frames.tail(), expected);
}
