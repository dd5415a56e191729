use std::fs::File;

use super::*;

fn ledger() -> (Ledger, Scratch) {
    let mut ledger = Ledger::create().expect("memory");
    let scratch = ledger.scratch();
    (ledger, scratch)
}

fn remains(ledger: &Ledger) -> Remains {
    Remains::read(own_file(ledger).expect("a descriptor")).expect("a ledger")
}

fn settled(input: u64, output: u64) -> Settled {
    Settled { input, output, sent: output }
}

fn read(scratch: &mut Scratch, line: &mut Line, bytes: &[u8]) {
    scratch.of(line)[..bytes.len()].copy_from_slice(bytes);
    assert!(line.receive(bytes));
}

#[test]
fn what_is_not_settled_is_executed_again_and_what_is_settled_is_sent() {
    let (mut ledger, mut scratch) = ledger();
    let mut line = ledger.begin(7, Settled::default(), 0, b"new").expect("a slot");
    assert!(!remains(&ledger).has(7), "it is shown when all of it is there");
    Ledger::show(&line);
    read(&mut scratch, &mut line, b"SET a 1\nGET a\n");
    assert!(line.produce(b"+OK\n") && line.produce(b"1\n"));
    let left = |read, written, mark| remains(&ledger).of(7, (read, written), mark).expect("whole");
    let all = left(14, 0, None);
    assert_eq!((&all.input[..], &all.output[..], &all.state[..]), (&b"SET a 1\nGET a\n"[..], &b""[..], &b"new"[..]), "nothing is settled");
    let marked = left(14, 0, Some((8, 4)));
    assert_eq!((&marked.input[..], &marked.output[..]), (&b"GET a\n"[..], &b"+OK\n"[..]), "the change is in the log");
    line.settle(settled(14, 6));
    let left = |read, written, mark| remains(&ledger).of(7, (read, written), mark);
    let sent = left(14, 5, Some((8, 4))).expect("whole");
    assert_eq!((&sent.input[..], &sent.output[..], sent.settled), (&b""[..], &b"\n"[..], settled(14, 6)));
    assert!(left(14, 7, None).is_err(), "more than was to be sent");
    assert!(left(15, 6, None).is_err(), "a byte that nobody has");
    ledger.end(line);
    assert!(!remains(&ledger).has(7));
}

#[test]
fn what_was_read_and_not_noted_is_in_the_scratch() {
    let (mut ledger, mut scratch) = ledger();
    let mut line = ledger.begin(7, Settled::default(), 0, b"").expect("a slot");
    Ledger::show(&line);
    read(&mut scratch, &mut line, b"one ");
    scratch.of(&line)[..4].copy_from_slice(b"two ");
    let left = remains(&ledger).of(7, (8, 0), None).expect("whole");
    assert_eq!(left.input, b"one two ");
    let other = ledger.begin(8, Settled::default(), 0, b"").expect("a slot");
    scratch.of(&other);
    assert!(remains(&ledger).of(7, (8, 0), None).is_err(), "another one's bytes are there");
}

#[test]
fn long_streams_are_kept_whole_and_their_memory_is_given_back() {
    let (mut ledger, _scratch) = ledger();
    let start = Settled { input: 0, output: 4000, sent: 4000 };
    let mut line = ledger.begin(7, start, 4000, b"").expect("a slot");
    Ledger::show(&line);
    let bytes: Vec<u8> = (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut produced = 0;
    for part in [100, 3_000, 5_000, 2_000_000, 4_000_000] {
        assert!(line.produce(&bytes[produced..produced + part]));
        produced += part;
        let end = 4000 + produced as u64;
        line.settle(settled(0, end));
        for from in [0, produced / 2, produced - 1] {
            let left = remains(&ledger).of(7, (0, 4000 + from as u64), None).expect("whole");
            assert!(left.output == bytes[from..produced], "{part} from {from}");
        }
    }
    let held = |ledger: &Ledger| std::os::unix::fs::MetadataExt::blocks(&ledger.file.metadata().expect("a file")) * 512;
    let before = held(&ledger);
    line.written(4000 + 5_000_000);
    let after = held(&ledger);
    assert!(after + 4_000_000 < before, "{after} of {before}");
    let left = remains(&ledger).of(7, (0, 4000 + 5_000_000), None).expect("whole");
    assert!(left.output == bytes[5_000_000..produced]);
    line.written(4000 + produced as u64);
    assert!(held(&ledger) < 1 << 20, "{}", held(&ledger));
    assert!(line.produce(b"short"));
    line.settle(settled(0, line.produced()));
    assert_eq!(remains(&ledger).of(7, (0, 4000 + produced as u64), None).expect("whole").output, b"short");
}

#[test]
fn the_state_is_that_of_the_settled_place() {
    let (mut ledger, mut scratch) = ledger();
    let mut line = ledger.begin(7, Settled::default(), 0, b"new").expect("a slot");
    Ledger::show(&line);
    read(&mut scratch, &mut line, b"HELLO 3\nAUTH x\n");
    assert!(line.may_change());
    line.change(8, b"three");
    assert!(!line.may_change(), "two are needed");
    let state = |mark| remains(&ledger).of(7, (15, 0), mark).expect("whole").state;
    assert_eq!((state(None), state(Some((8, 0)))), (b"new".to_vec(), b"three".to_vec()));
    line.settle(settled(8, 0));
    assert!(line.may_change());
    line.change(15, b"known");
    let state = |mark| remains(&ledger).of(7, (15, 0), mark).expect("whole").state;
    assert_eq!((state(None), state(Some((15, 0)))), (b"three".to_vec(), b"known".to_vec()));
}

#[test]
fn what_is_no_ledger_is_refused() {
    let file = File::open("/proc/self/exe").expect("this program");
    assert!(Remains::read(file.into()).is_err());
}
