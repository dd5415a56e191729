//! `fuzz-blind TARGET SECONDS [CHANCE]`: runs mutations of the target's seeds, unguided, for this many seconds. An input for which a property does not hold is
//! left in a file, whose name is printed.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use martlet_fabric::fuzz::Mutations;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("fuzz-blind: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let names: Vec<&str> = martlet_fuzz::TARGETS.iter().map(|target| target.name).collect();
    let [name, seconds, rest @ ..] = args else {
        return Err(format!("usage: fuzz-blind TARGET SECONDS [CHANCE]; targets are {}", names.join(", ")));
    };
    let target = martlet_fuzz::find(name).ok_or_else(|| format!("target {name:?}: allowed are {}", names.join(", ")))?;
    let seconds: u64 = seconds.parse().map_err(|_| format!("seconds {seconds:?}: allowed are whole numbers"))?;
    let chance: u64 = match rest {
        [] => u64::from(std::process::id()),
        [chance, ..] => chance.parse().map_err(|_| format!("chance {chance:?}: allowed are whole numbers"))?,
    };
    let corpus = target.corpus().map_err(|error| format!("cannot read {}: {error}", target.corpus_dir().display()))?;
    let mut mutations = Mutations::new(target.max_bytes, corpus.into_iter().map(|(_, seed)| seed).collect(), chance);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut inputs = 0u64;
    while Instant::now() < end {
        let input = mutations.next_input();
        inputs += 1;
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            let path = std::env::temp_dir().join(format!("{name}-blind-{chance}-{inputs}"));
            std::fs::write(&path, &input).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            return Err(format!("{name}: input {inputs} of chance {chance} breaks a property; it is kept in {}", path.display()));
        }
    }
    Ok(format!("{name}: {inputs} inputs without a guide, chance {chance}: every property holds"))
}
