//! Checks that encodings are what they were: compares fixed samples of each with the digests that `crates/protocol/encodings.txt` holds for their version.
//!
//! Two builds that claim the same version read each other's bytes. So what a sample looks like may change only with the version that it is pinned to. A sample
//! that is pinned to several versions may change only with all of them: an effect, for instance, is in the log of other nodes and on disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use martlet_node::wal::format::FileKind;
use martlet_protocol::version;
use sha2::{Digest as _, Sha256};

/// Encodings that share a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's name in the file.
    pub name: &'static str,
    /// The source that defines its version.
    pub stands_in: &'static str,
    /// The version of this build.
    pub version: u32,
    /// For each sample, by name, its length in bytes and its digest.
    pub samples: BTreeMap<String, String>,
}

/// The file of digests.
pub fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/protocol/encodings.txt")
}

/// The encodings of this build.
pub fn groups() -> Vec<Group> {
    let effects = || martlet_kv::samples::effects().into_iter().chain(martlet_node::samples::entries());
    let parts = || martlet_kv::samples::parts().into_iter().chain(martlet_node::samples::parts());
    let (segment, of_segment) = martlet_node::samples::file(FileKind::Segment);
    let (snapshot, of_snapshot) = martlet_node::samples::file(FileKind::Snapshot);
    let of_protocol = martlet_protocol::samples::all();
    // What the engine takes into its log goes to disk unchanged.
    let on_disk = |name: &str| name.starts_with("mu/journal") || name.starts_with("mu/a record") || name == "mu/group";
    let journal: Vec<_> = of_protocol.iter().filter(|(name, _)| on_disk(name)).cloned().collect();
    let of_protocol = of_protocol.into_iter().filter(|(name, _)| !name.starts_with("mu/journal"));
    let of_protocol = of_protocol.chain(effects()).chain(parts()).chain(martlet_kv::samples::lane_records());
    let wire = "crates/fabric/src/meeting/wire.rs, VERSION";
    let formats = "crates/node/src/wal/format.rs, FileKind::formats";
    vec![
        Group::new("handshake", wire, martlet_fabric::samples::VERSION, martlet_fabric::samples::all()),
        Group::new(
            "protocol",
            "crates/protocol/src/version.rs, VERSION",
            version::VERSION,
            of_protocol.chain(martlet_node::samples::counters()),
        ),
        Group::new("segment", formats, u32::from(segment - b'0'), of_segment.into_iter().chain(journal).chain(effects())),
        Group::new("snapshot", formats, u32::from(snapshot - b'0'), of_snapshot.into_iter().chain(parts())),
    ]
}

impl Group {
    fn new(name: &'static str, stands_in: &'static str, version: u32, samples: impl IntoIterator<Item = (String, Vec<u8>)>) -> Group {
        let mut digests = BTreeMap::new();
        for (name, bytes) in samples {
            let digest = Sha256::digest(&bytes);
            let hex = digest[..16].iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            let twice = digests.insert(name.clone(), format!("{} {hex}", bytes.len()));
            assert!(twice.is_none(), "there are two samples {name:?}");
        }
        Group { name, stands_in, version, samples: digests }
    }

    /// What the file records of it.
    fn written(&self, file: &str) -> Option<(u32, BTreeMap<String, String>)> {
        let mut lines = file.lines().skip_while(|line| line.strip_prefix('[').and_then(|line| line.split(' ').next()) != Some(self.name));
        let version = lines.next()?.trim_end_matches(']').split(' ').nth(1)?.parse().ok()?;
        let samples = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(": "));
        Some((version, samples.map(|(name, digest)| (name.to_owned(), digest.to_owned())).collect()))
    }

    /// What is wrong with it, given the file's contents. Empty if nothing is.
    pub fn problems(&self, file: &str) -> Vec<String> {
        let Group { name: group, version, stands_in, samples } = self;
        let record = "record them: cargo xtask encodings --record";
        let Some((written, known)) = self.written(file) else {
            return vec![format!("{group}: nothing is recorded of its encodings; {record}")];
        };
        if *version < written {
            return vec![format!(
                "{group}: the version is {version}, but encodings of version {written} are recorded: versions never fall ({stands_in})"
            )];
        }
        if *version > written {
            return vec![format!("{group}: encodings of version {written} are recorded, and the version is {version}; {record}")];
        }
        let mut problems = Vec::new();
        for (name, digest) in &known {
            match samples.get(name) {
                Some(now) if now == digest => {}
                Some(now) => problems.push(format!(
                    "{group}: the encoding of {name:?} has changed (bytes and digest were {digest}, and are {now}), and the version is {version} still. \
                     Builds that run would misread it: leave it as it is and write what is new under another kind, at a new feature level; or raise the \
                     version ({stands_in}) and record the encodings: cargo xtask encodings --record"
                )),
                None => problems.push(format!(
                    "{group}: there is no sample {name:?} any more; raise the version ({stands_in}), or bring it back"
                )),
            }
        }
        let new: Vec<&String> = samples.keys().filter(|name| !known.contains_key(*name)).collect();
        if !new.is_empty() {
            problems.push(format!("{group}: nothing is recorded of {new:?}; {record}"));
        }
        problems
    }

    /// Checks that the file may be rewritten with this group: nothing that is recorded under its version changes.
    fn may_record(&self, file: &str) -> Result<(), String> {
        let Some((written, known)) = self.written(file) else { return Ok(()) };
        if self.version > written {
            return Ok(());
        }
        let changed = known.iter().find(|(name, digest)| self.samples.get(*name) != Some(digest));
        match changed {
            _ if self.version < written => Err(format!("{}: the version fell from {written} to {}", self.name, self.version)),
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "{}: {name:?} is recorded under version {written} and has changed; that is not written over: raise the version ({})",
                self.name, self.stands_in
            )),
        }
    }
}

/// What is wrong with these encodings, given the file's contents. Empty if nothing is.
pub fn problems(groups: &[Group], file: &str) -> Vec<String> {
    groups.iter().flat_map(|group| group.problems(file)).collect()
}

/// The file's new contents for these encodings, given its present ones.
///
/// # Errors
/// When an encoding has changed and its version has not: what is recorded under a version stays.
pub fn record(groups: &[Group], file: &str) -> Result<String, String> {
    groups.iter().try_for_each(|group| group.may_record(file))?;
    let mut out = String::from(
        "# Written by `cargo xtask encodings --record`; not to be written by hand. Of each sample of an encoding: its name, its bytes, and the beginning of their\n\
         # SHA-256. What stands here under a version is what builds of that version read and write; see crates/protocol/src/version.rs.\n",
    );
    for Group { name, version, samples, .. } in groups {
        let _ = writeln!(out, "\n[{name} {version}]");
        for (sample, digest) in samples {
            let _ = writeln!(out, "{sample}: {digest}");
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: u32, samples: &[(&str, &[u8])]) -> Group {
        Group::new("sample", "a file", version, samples.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())))
    }

    #[test]
    fn an_encoding_that_changes_without_its_version_is_found_and_not_recorded() {
        let before = group(3, &[("a", b"1"), ("b", b"2")]);
        let file = record(std::slice::from_ref(&before), "").expect("nothing was recorded");
        assert_eq!(before.problems(&file), Vec::<String>::new());
        assert_eq!(record(std::slice::from_ref(&before), &file).as_ref(), Ok(&file));

        let changed = group(3, &[("a", b"1"), ("b", b"3")]);
        let problems = changed.problems(&file);
        assert!(problems.len() == 1 && problems[0].contains("the encoding of \"b\" has changed"), "{problems:?}");
        let why = record(&[changed], &file).expect_err("recorded");
        assert!(why.contains("\"b\" is recorded under version 3 and has changed"), "{why}");
        let gone = group(3, &[("a", b"1")]);
        assert!(gone.problems(&file)[0].contains("no sample \"b\" any more"));
        assert!(record(&[gone], &file).is_err());
    }

    #[test]
    fn with_a_new_version_encodings_change_and_without_one_more_come() {
        let file = record(&[group(3, &[("a", b"1"), ("b", b"2")])], "").expect("nothing was recorded");
        let next = group(4, &[("a", b"1"), ("b", b"3")]);
        assert!(next.problems(&file)[0].contains("encodings of version 3 are recorded, and the version is 4"));
        let file_of_next = record(std::slice::from_ref(&next), &file).expect("a new version");
        assert_eq!(next.problems(&file_of_next), Vec::<String>::new());
        assert!(group(3, &[("a", b"1"), ("b", b"2")]).problems(&file_of_next)[0].contains("versions never fall"));

        let more = group(3, &[("a", b"1"), ("b", b"2"), ("c", b"")]);
        assert!(more.problems(&file)[0].contains("nothing is recorded of [\"c\"]"));
        let file = record(std::slice::from_ref(&more), &file).expect("nothing that was recorded changes");
        assert_eq!(more.problems(&file), Vec::<String>::new());
    }
}
