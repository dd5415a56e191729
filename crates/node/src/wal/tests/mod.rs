mod engine;
mod memory;

use std::path::Path;
use std::sync::mpsc::channel;

use super::disk::SystemDisk;
use super::format::{HEADER_BYTES, Owner, frame_bytes};
use super::{Directory, Log, Operation, Pace, Recovered, SLICE_BYTES, Snapshot, Style, Wal, WalError, recover};
use memory::{Fault, MemoryDisk};

const STYLE: Style = Style { owner: Owner { cluster: 0xc1, node: 3 }, segment_bytes: 300, chance: 77 };
const LIFE: u64 = 9;

fn dir() -> &'static Path {
    Path::new("/disk/life")
}

fn create(disk: &MemoryDisk) -> Log<MemoryDisk> {
    Log::create(disk.clone(), dir(), STYLE, LIFE).expect("a good disk")
}

fn reopen(disk: &MemoryDisk) -> Result<(Recovered, Log<MemoryDisk>), WalError> {
    recover(disk.clone(), dir(), STYLE, LIFE)
}

fn payload(n: u64) -> Vec<u8> {
    (0..n % 90).map(|byte| (byte + n) as u8).collect()
}

/// Writes a part at once.
fn add_part<D: super::disk::Disk>(log: &mut Log<D>, part: &[u8]) -> Result<(), WalError> {
    log.stage_part(part);
    while log.staged_bytes() > 0 {
        log.write_slice()?;
    }
    Ok(())
}

/// Repeats until the thread has everything.
fn hand_over(wal: &mut Wal) {
    while !wal.hand_over() {
        std::thread::yield_now();
    }
}

#[test]
fn what_was_appended_is_there_again_over_several_segments() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    for n in 0..40 {
        log.append(&payload(n)).expect("a good disk");
    }
    assert!(log.segment() > 3);
    let (recovered, log) = reopen(&disk).expect("nothing is wrong");
    assert_eq!(recovered.frames, (0..40).map(payload).collect::<Vec<_>>());
    assert!(recovered.torn.is_none() && recovered.snapshot.is_none());
    drop(log);
    let (again, mut log) = reopen(&disk).expect("nothing is wrong");
    assert_eq!(again.frames, recovered.frames);
    log.append(b"more").expect("a good disk");
    assert_eq!(reopen(&disk).expect("nothing is wrong").0.frames.len(), 41);
}

#[test]
fn a_snapshot_takes_the_place_of_what_precedes_it() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    (0..20).for_each(|n| log.append(&payload(n)).expect("a good disk"));
    let base = log.roll().expect("a good disk");
    log.begin_snapshot(base).expect("a good disk");
    log.append(b"meanwhile").expect("a good disk");
    add_part(&mut log, b"one").expect("a good disk");
    add_part(&mut log, &[7; 500]).expect("a good disk");
    let before = reopen(&disk).expect("an unfinished snapshot is nothing").0;
    assert_eq!((before.snapshot, before.frames.len()), (None, 21));

    // The recovery has removed the unfinished one. Once more, with a process that lives on.
    let (_, mut log) = reopen(&disk).expect("nothing is wrong");
    let base = log.roll().expect("a good disk");
    log.begin_snapshot(base).expect("a good disk");
    log.append(b"meanwhile").expect("a good disk");
    add_part(&mut log, b"one").expect("a good disk");
    add_part(&mut log, &[7; 500]).expect("a good disk");
    log.finish_snapshot(b"last words").expect("a good disk");
    assert!(disk.names().iter().all(|name| name.starts_with("snapshot") || *name >= super::log::segment_name(base)), "{:?}", disk.names());
    let after = reopen(&disk).expect("nothing is wrong").0;
    let snapshot = after.snapshot.expect("whole");
    assert_eq!(snapshot.parts, [b"one".to_vec(), vec![7; 500]]);
    assert_eq!((&snapshot.last[..], after.frames), (&b"last words"[..], vec![b"meanwhile".to_vec()]));
}

#[test]
fn a_loss_of_power_at_any_moment_costs_nothing_that_was_stable() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = MemoryDisk::default();
        let mut log = create(&disk);
        // What is stable: all frames, of which those from `cut` on are still needed.
        let (mut stable, mut cut, mut newest) = (Vec::new(), 0, None);
        let mut snapshots = 0u64;
        for round in 0..rng.u64(1..6) {
            // Somewhere in here the disk breaks, and everything ends.
            let at = disk.state().operations + rng.u64(1..60);
            let fault = if rng.bool() { Fault::Full } else { Fault::Broken };
            disk.state().fault = Some((at, fault));
            let mut open: Option<(usize, Vec<Vec<u8>>)> = None;
            let (failed, handed, finishing) = loop {
                let (mut handed, mut finishing) = (None, None);
                let frame = payload(rng.u64(..));
                let done = match rng.u32(..10) {
                    0 => log.roll().and_then(|base| {
                        open = None;
                        log.begin_snapshot(base)?;
                        open = Some((stable.len(), Vec::new()));
                        Ok(())
                    }),
                    1 | 2 => add_part(&mut log, &frame).map(|()| {
                        if let Some((_, parts)) = &mut open {
                            parts.push(frame);
                        }
                    }),
                    3 => {
                        snapshots += 1;
                        let last = snapshots.to_le_bytes().to_vec();
                        finishing = open.clone().map(|(at, parts)| (at, Snapshot { parts, last: last.clone() }));
                        let done = log.finish_snapshot(&last);
                        if done.is_ok() && open.take().is_some() {
                            (cut, newest) = finishing.take().map(|(at, whole)| (at, Some(whole))).expect("just begun");
                        }
                        done
                    }
                    _ => {
                        handed = Some(frame.clone());
                        log.append(&frame).map(|()| stable.push(frame))
                    }
                };
                if let Err(error) = done {
                    break (error, handed, finishing);
                }
            };
            assert!(matches!(failed, WalError::Disk { .. }), "seed {seed}: {failed}");
            let touched = disk.state().after_failure;
            assert!(matches!(log.append(b"no"), Err(WalError::Broken { .. })), "seed {seed}");
            assert!(matches!(log.roll(), Err(WalError::Broken { .. })), "seed {seed}");
            assert_eq!(disk.state().after_failure, touched, "seed {seed}: nothing is asked of a disk that has failed");
            drop(log);
            disk.lose_power(&mut rng);

            let (recovered, reopened) = reopen(&disk).unwrap_or_else(|error| panic!("seed {seed} round {round}: {error}"));
            log = reopened;
            // A snapshot whose end did not return may be there all the same, as a whole.
            if let Some((at, whole)) = finishing.filter(|(_, whole)| recovered.snapshot.as_ref() == Some(whole)) {
                (cut, newest) = (at, Some(whole));
            }
            assert_eq!(recovered.snapshot, newest, "seed {seed} round {round}");
            let needed = &stable[cut..];
            assert_eq!(&recovered.frames[..needed.len().min(recovered.frames.len())], needed, "seed {seed} round {round}");
            // The append that failed may have come through as well.
            let extra = &recovered.frames[needed.len()..];
            assert!(extra.is_empty() || Some(&extra[0]) == handed.as_ref() && extra.len() == 1, "seed {seed} round {round}");
            stable.extend(extra.iter().cloned());
        }
    }
}

#[test]
fn a_byte_that_changes_in_the_middle_is_named_and_one_at_the_end_is_a_torn_tail() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    (0..3).for_each(|_| log.append(&[5; 20]).expect("a good disk"));
    disk.alter("segment-0000000000000001", HEADER_BYTES + frame_bytes(20) + 3);
    let error = reopen(&disk).expect_err("corrupt");
    let expected = (HEADER_BYTES + frame_bytes(20)) as u64;
    assert!(matches!(&error, WalError::Corrupt { path, offset, .. } if path.ends_with("segment-0000000000000001") && *offset == expected));
    assert!(
        error.to_string().starts_with("/disk/life/segment-0000000000000001: corrupt at byte 104: a frame that does not check"),
        "{error}"
    );

    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    (0..3).for_each(|_| log.append(&[5; 20]).expect("a good disk"));
    let last = HEADER_BYTES + 2 * frame_bytes(20);
    disk.alter("segment-0000000000000001", last + 3);
    let (recovered, _) = reopen(&disk).expect("a torn tail is what a crash leaves");
    assert_eq!(recovered.frames.len(), 2);
    assert_eq!(recovered.torn, Some(("segment-0000000000000001".into(), last as u64)));
    assert_eq!(disk.len("segment-0000000000000001"), last, "cut off");
}

#[test]
fn the_end_of_a_segment_that_has_a_successor_was_stable() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    (0..20).for_each(|n| log.append(&payload(n)).expect("a good disk"));
    disk.alter("segment-0000000000000001", disk.len("segment-0000000000000001") - 9);
    assert!(matches!(reopen(&disk), Err(WalError::Corrupt { .. })));
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    (0..20).for_each(|n| log.append(&payload(n)).expect("a good disk"));
    super::disk::Disk::remove(&mut disk.clone(), &dir().join("segment-0000000000000002")).expect("a good disk");
    let error = reopen(&disk).expect_err("a hole");
    assert!(error.to_string().contains("segment-0000000000000002: corrupt at byte 0: it is missing"), "{error}");
}

#[test]
fn somebody_elses_directory_is_refused() {
    let disk = MemoryDisk::default();
    create(&disk).append(b"ours").expect("a good disk");
    let other = Style { owner: Owner { cluster: 0xc1, node: 4 }, ..STYLE };
    let error = recover(disk.clone(), dir(), other, LIFE).expect_err("node 3's");
    assert!(error.to_string().ends_with("it belongs to node 3 of cluster 00000000000000c1; this is node 4 of 00000000000000c1"), "{error}");
}

#[test]
fn a_file_of_another_build_is_named_as_one_and_kept_however_short_it_is() {
    for cut in [HEADER_BYTES / 2, HEADER_BYTES, usize::MAX] {
        let disk = MemoryDisk::default();
        create(&disk).append(b"ours").expect("a good disk");
        let name = "segment-0000000000000001";
        disk.rewrite(name, |bytes| {
            bytes[7] = b'9';
            bytes.truncate(cut);
        });
        let error = reopen(&disk).expect_err("format 9");
        assert!(
            error.to_string().starts_with("/disk/life/segment-0000000000000001: written in format 9, but this build reads 2 to 3: "),
            "{error}"
        );
        assert_eq!(disk.names(), [name]);
    }
}

#[test]
fn a_failed_sync_is_reported_and_never_asked_again() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    log.append(b"good").expect("a good disk");
    let operations = disk.state().operations;
    let syncs = disk.state().syncs;
    disk.state().fault = Some((operations + 2, Fault::Broken));
    let (told, news) = channel();
    let mut wal = Wal::start(log, dir(), Pace::unbounded(), move || told.send(()).expect("the test waits")).expect("a thread");
    assert_eq!(wal.append(b"lost"), 1);
    hand_over(&mut wal);
    news.recv().expect("told");
    assert!(wal.has_failed());
    disk.state().fault = None;
    assert_eq!((wal.stable(), wal.unstable_bytes()), (0, 4));
    wal.append(b"never written");
    assert_eq!(disk.state().syncs, syncs + 1);
    let error = wal.close().expect_err("the disk is broken");
    assert!(matches!(error, WalError::Disk { operation: Operation::Sync, .. }), "{error}");
    assert_eq!(disk.state().syncs, syncs + 1);
    assert_eq!(reopen(&disk).expect("what was stable is").0.frames, [b"good"]);
}

#[test]
fn a_full_disk_is_reported_with_its_file() {
    let disk = MemoryDisk::default();
    let log = create(&disk);
    let operations = disk.state().operations;
    disk.state().fault = Some((operations + 1, Fault::Full));
    let mut wal = Wal::start(log, dir(), Pace::unbounded(), || {}).expect("a thread");
    wal.append(&[1; 100]);
    let error = wal.close().expect_err("full");
    assert!(matches!(error, WalError::Disk { operation: Operation::Write, .. }), "{error}");
    assert!(error.to_string().starts_with("/disk/life/segment-0000000000000001: cannot write to it: "), "{error}");
}

/// A directory that is removed when the test ends.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("martlet-wal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a place for files");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_is_one_processs_at_a_time_and_knows_what_to_come_back_as() {
    let scratch = Scratch::new("lives");
    let directory = Directory::open(&scratch.0, STYLE).expect("ours");
    assert!(matches!(Directory::open(&scratch.0, STYLE), Err(WalError::InUse { .. })));
    assert!(directory.lives_to_recover().expect("readable").is_empty());

    let whole = |life: u64, state: &[u8]| {
        let log = directory.begin(life, 0).expect("a new life");
        let mut wal = Wal::start(log, &directory.life_path(life), Pace::unbounded(), || {}).expect("a thread");
        wal.begin_snapshot();
        wal.append(b"base");
        wal.add_part(&mut state.to_vec());
        wal.finish_snapshot(Vec::new());
        wal.append(b"entry");
        wal.close().expect("a good disk");
    };
    drop(directory.begin(4, 0).expect("a new life"));
    assert!(directory.lives_to_recover().expect("readable").is_empty(), "it was never whole");
    whole(5, b"five");
    whole(6, b"six");
    assert_eq!(directory.lives_to_recover().expect("readable"), [5, 6], "nobody has said that 6 was taken in");
    let next = |life| directory.next_return(life).expect("a good disk");
    let count = |life| {
        let count = next(life);
        directory.count_return(life, count).expect("a good disk");
        count
    };
    assert_eq!([5, 5, 5].map(next), [1, 1, 1], "nobody has heard of it yet");
    assert_eq!([5, 5, 6, 5].map(count), [1, 2, 1, 3], "each number once");
    assert_eq!([5, 6].map(next), [4, 2]);
    directory.keep_only(6).expect("a good disk");
    assert_eq!([5, 6].map(count), [1, 2], "6 goes on, and 5 is forgotten");
    assert_eq!((directory.lives().expect("readable"), directory.lives_to_recover().expect("readable")), (vec![6], vec![6]));
    let (recovered, _) = directory.recover(6).expect("whole");
    assert_eq!(recovered.snapshot.expect("whole").parts, [b"six"]);
    assert_eq!(recovered.frames.concat(), b"baseentry");
    drop(directory);
    Directory::open(&scratch.0, STYLE).expect("given up by the one before");
}

#[test]
fn appends_that_come_while_the_disk_is_busy_share_a_sync() {
    let disk = MemoryDisk::default();
    let log = create(&disk);
    let syncs = disk.state().syncs;
    let mut wal = Wal::start(log, dir(), Pace::unbounded(), || {}).expect("a thread");
    {
        // The thread cannot continue with the first.
        let held = disk.state();
        for n in 0..1000u64 {
            wal.append(&n.to_le_bytes());
        }
        drop(held);
    }
    wal.close().expect("a good disk");
    assert!(disk.state().syncs - syncs <= 3, "{} syncs for 1000 appends", disk.state().syncs - syncs);
    let frames = reopen(&disk).expect("nothing is wrong").0.frames;
    assert_eq!(frames.concat(), (0..1000u64).flat_map(u64::to_le_bytes).collect::<Vec<_>>());
}

#[test]
fn the_system_s_files_behave_as_the_log_expects() {
    let scratch = Scratch::new("system");
    let dir = scratch.0.join("life");
    let mut log = Log::create(SystemDisk, &dir, STYLE, LIFE).expect("a good disk");
    (0..30).for_each(|n| log.append(&payload(n)).expect("a good disk"));
    let base = log.roll().expect("a good disk");
    log.begin_snapshot(base).expect("a good disk");
    add_part(&mut log, b"state").expect("a good disk");
    log.append(b"entry").expect("a good disk");
    log.finish_snapshot(b"end").expect("a good disk");
    drop(log);
    let mut file = std::fs::OpenOptions::new().append(true).open(dir.join(super::log::segment_name(base))).expect("there");
    std::io::Write::write_all(&mut file, b"half a frame").expect("a good disk");
    let (recovered, _) = recover(SystemDisk, &dir, STYLE, LIFE).expect("a torn tail");
    assert!(recovered.torn.is_some());
    assert_eq!((recovered.snapshot.expect("whole").parts, recovered.frames), (vec![b"state".to_vec()], vec![b"entry".to_vec()]));
}

/// A log with a snapshot whose first slice is written, and whose second is due in a day or more.
fn paced(disk: &MemoryDisk) -> Wal {
    let log = create(disk);
    let mut wal = Wal::start(log, dir(), Pace::new(1), || {}).expect("a thread");
    wal.begin_snapshot();
    wal.append(b"base");
    (0..8).for_each(|_| wal.add_part(&mut vec![3; SLICE_BYTES / 2]));
    hand_over(&mut wal);
    while disk.state().pushed.is_empty() {
        std::thread::yield_now();
    }
    wal
}

#[test]
fn the_log_goes_on_while_a_snapshot_waits_until_it_may_be_written() {
    let disk = MemoryDisk::default();
    let mut wal = paced(&disk);
    let mut all = b"base".to_vec();
    for n in 0..50u8 {
        let ticket = wal.append(&[n]);
        all.push(n);
        hand_over(&mut wal);
        while wal.stable() < ticket {
            std::thread::yield_now();
        }
    }
    assert_eq!((disk.state().pushed.len(), wal.snapshots()), (1, 0), "no slice is due before tomorrow");
    assert!(wal.unwritten_parts() > 0, "so whoever takes the snapshot waits");
    assert_eq!(reopen(&disk.copy()).expect("nothing is wrong").0.frames.concat(), all);
    wal.close().expect("a good disk");
}

#[test]
fn what_found_the_thread_at_its_desk_wakes_it_also_when_a_part_brings_it() {
    let disk = MemoryDisk::default();
    let mut wal = paced(&disk);
    for n in 0..50u8 {
        let mut ticket = 0;
        wal.while_it_is_at_its_desk(|wal| ticket = wal.append(&[n]));
        // No slice is due before tomorrow, so a part alone does not wake the thread.
        wal.add_part(&mut Vec::new());
        hand_over(&mut wal);
        while wal.stable() < ticket {
            std::thread::yield_now();
        }
    }
    wal.close().expect("a good disk");
}

#[test]
fn a_stop_ends_a_paced_snapshot_at_once_and_without_the_rest_of_it() {
    let disk = MemoryDisk::default();
    let mut wal = paced(&disk);
    wal.append(b"last");
    wal.close().expect("a good disk");
    assert_eq!(disk.state().pushed.len(), 1, "nothing of it has been written any more");
    let recovered = reopen(&disk).expect("nothing is wrong").0;
    assert_eq!((recovered.snapshot, recovered.frames.concat()), (None, b"baselast".to_vec()));
}

#[test]
fn a_stop_finishes_a_snapshot_that_was_handed_over_whole() {
    let disk = MemoryDisk::default();
    let mut wal = paced(&disk);
    wal.finish_snapshot(b"end".to_vec());
    wal.close().expect("a good disk");
    let pushed = disk.state().pushed.clone();
    assert!(pushed.len() > 4 && pushed.iter().all(|bytes| *bytes <= SLICE_BYTES as u64), "{pushed:?}");
    let snapshot = reopen(&disk).expect("nothing is wrong").0.snapshot.expect("whole");
    assert_eq!((snapshot.parts.len(), &snapshot.last[..]), (8, &b"end"[..]));
    assert!(snapshot.parts.iter().all(|part| *part == [3; SLICE_BYTES / 2]));
}

#[test]
fn an_error_ends_a_paced_snapshot_at_once() {
    let disk = MemoryDisk::default();
    let mut wal = paced(&disk);
    let operations = disk.state().operations;
    disk.state().fault = Some((operations + 1, Fault::Broken));
    wal.append(b"lost");
    hand_over(&mut wal);
    while !wal.has_failed() {
        std::thread::yield_now();
    }
    let error = wal.close().expect_err("the disk is broken");
    assert!(matches!(error, WalError::Disk { operation: Operation::Write, .. }), "{error}");
    let state = disk.state();
    assert_eq!((state.pushed.len(), state.after_failure), (1, 0));
}

#[test]
fn parts_of_any_length_are_written_in_slices_and_are_the_same_afterwards() {
    let disk = MemoryDisk::default();
    let mut log = create(&disk);
    let base = log.roll().expect("a good disk");
    log.begin_snapshot(base).expect("a good disk");
    let mut rng = fastrand::Rng::with_seed(3);
    let parts: Vec<Vec<u8>> = (0..12).map(|n| vec![n; rng.usize(..3 * SLICE_BYTES)]).collect();
    for part in &parts {
        log.stage_part(part);
        // Not always as much as has come, so that something is left before the next one.
        if rng.bool() {
            log.write_slice().expect("a good disk");
        }
    }
    log.append(b"meanwhile").expect("a good disk");
    log.finish_snapshot(b"end").expect("a good disk");
    assert!(disk.state().pushed.iter().all(|bytes| *bytes <= SLICE_BYTES as u64));
    let recovered = reopen(&disk).expect("nothing is wrong").0;
    assert_eq!(recovered.snapshot, Some(Snapshot { parts, last: b"end".to_vec() }));
}
