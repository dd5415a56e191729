//! Runs every target over its committed seeds, and over some mutations of them, so that what fuzzing has found stays found.

use martlet_fabric::fuzz::Mutations;
use martlet_fuzz::{TARGETS, Target};

fn seeds(target: &Target) -> Vec<(String, Vec<u8>)> {
    let seeds = target.corpus().unwrap_or_else(|error| panic!("{}: {error}", target.corpus_dir().display()));
    assert!(!seeds.is_empty(), "{} has no seed", target.name);
    seeds
}

#[test]
fn every_seed_keeps_the_properties() {
    for target in TARGETS {
        for (name, seed) in seeds(target) {
            assert!(seed.len() <= target.max_bytes.min(8 << 10), "{}/{name} has {} bytes: seeds are small", target.name, seed.len());
            println!("{}/{name}", target.name);
            (target.run)(&seed);
        }
    }
}

#[test]
fn mutations_of_the_seeds_keep_the_properties() {
    for target in TARGETS {
        let seeds = seeds(target).into_iter().map(|(_, seed)| seed).collect();
        let mut mutations = Mutations::new(target.max_bytes, seeds, 1);
        for _ in 0..2_000 {
            let input = mutations.next_input();
            let shown = ShownOnPanic(target.name, &input);
            (target.run)(&input);
            drop(shown);
        }
    }
}

/// Names the input when a property does not hold for it.
struct ShownOnPanic<'a>(&'static str, &'a [u8]);

impl Drop for ShownOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: \"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

#[test]
fn no_directory_of_seeds_is_without_a_target() {
    let corpus = TARGETS[0].corpus_dir();
    for entry in std::fs::read_dir(corpus.parent().expect("a directory above")).expect("the corpus") {
        let name = entry.expect("an entry").file_name();
        assert!(martlet_fuzz::find(&name.to_string_lossy()).is_some(), "{name:?} belongs to no target");
    }
}
