//! Limits how far the name of an engine or a fabric reaches. Code asks a kind for a property (`engine::Traits`, `fabric::Traits`), so that a new kind is a
//! folder of its own and a few lines elsewhere: where kinds are turned into types, and where a crate has something to say for each of them.

use std::collections::BTreeMap;

use super::Problem;
use super::lexer;

/// An engine or a fabric.
struct Subject {
    /// Its name in configurations.
    name: &'static str,
    /// Its module.
    module: &'static str,
    /// The beginning of its types' names. Engines have one type, fabrics several.
    types: &'static str,
    /// The file that lists it with others of its kind, where the answer to a complaint begins.
    registry: &'static str,
    /// How many files may contain its name.
    at_most: usize,
}

/// How many files outside a subject's own folder may contain its name.
const AT_MOST: usize = 6;

const SUBJECTS: [Subject; 9] = [
    Subject { name: "primary-backup", module: "primary_backup", types: "PrimaryBackup", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "mu", module: "mu", types: "Mu", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "dare", module: "dare", types: "Dare", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "apus", module: "apus", types: "Apus", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "hsuc", module: "hsuc", types: "Hsuc", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "huc", module: "huc", types: "Huc", registry: ENGINES, at_most: AT_MOST },
    Subject { name: "shm", module: "shm", types: "Shm", registry: FABRICS, at_most: AT_MOST },
    Subject { name: "ethernet", module: "ethernet", types: "Ethernet", registry: FABRICS, at_most: AT_MOST },
    Subject { name: "verbs", module: "verbs", types: "Verbs", registry: FABRICS, at_most: AT_MOST },
];

const ENGINES: &str = "crates/protocol/src/engine/registry.rs";
const FABRICS: &str = "crates/fabric/src/kind.rs";

/// Whether code may name any engine or fabric: tests, and what only tests use.
fn is_test(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts.contains(&"tests")
        || matches!(parts.last(), Some(&"tests.rs" | &"fuzz.rs"))
        // Scripted lives, and the lives that expose planted bugs.
        || path.starts_with("crates/sim/src/cluster/scenarios/")
        || path.starts_with("crates/sim/src/canaries/")
}

impl Subject {
    /// Whether a file belongs to it: the file is in a folder of its name, or has its name.
    fn owns(&self, path: &str) -> bool {
        let file = format!("{}.rs", self.module);
        path.split('/').any(|part| part == self.module || part == file)
    }

    /// Whether a word of code is its name, or the name of one of its types.
    fn is_named_by(&self, word: &str) -> bool {
        if word == self.module || word == self.types {
            return true;
        }
        // `Multicast` is not a type of `mu`: an engine's other types are reached by way of its module.
        self.registry == FABRICS && word.strip_prefix(self.types).is_some_and(|rest| rest.starts_with(char::is_uppercase))
    }

    fn is_named_in(&self, code: &str) -> bool {
        code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| self.is_named_by(word))
    }
}

/// The files that name each subject.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<&'static str, Vec<String>>);

impl Names {
    /// Looks at one file. `path` is relative to the workspace's root.
    pub fn note(&mut self, path: &str, text: &str) {
        let parts: Vec<&str> = path.split('/').collect();
        let is_product = matches!(parts.as_slice(), ["crates" | "examples", _, "src", ..]) && path.ends_with(".rs");
        if !is_product || is_test(path) {
            return;
        }
        let lines = lexer::lines(text);
        for subject in SUBJECTS.iter().filter(|subject| !subject.owns(path)) {
            if lines.iter().any(|line| !line.test && subject.is_named_in(&line.code)) {
                self.0.entry(subject.name).or_default().push(path.into());
            }
        }
    }

    /// The subjects that are named too often.
    pub fn problems(&self) -> Vec<Problem> {
        let none = Vec::new();
        let complain = |subject: &Subject| {
            let files = self.0.get(subject.name).unwrap_or(&none);
            (files.len() > subject.at_most).then(|| {
                let message = format!(
                    "{} files outside its folder name `{}`; at most {}: ask the kind for a property. They are {}",
                    files.len(),
                    subject.name,
                    subject.at_most,
                    files.join(", ")
                );
                Problem::new(subject.registry, 0, message)
            })
        };
        SUBJECTS.iter().filter_map(complain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[(&str, &str)], name: &str) -> Vec<String> {
        let mut names = Names::default();
        files.iter().for_each(|(path, text)| names.note(path, text));
        names.0.remove(name).unwrap_or_default()
    }

    #[test]
    fn a_name_counts_in_code_outside_its_folder_once_a_file() {
        let files = [
            ("crates/cli/src/a.rs", "use martlet_protocol::engine::Mu;\nlet kind = EngineKind::Mu;"),
            ("crates/cli/src/b.rs", "use martlet_protocol::engine::mu::Config;"),
            ("examples/exchange/src/c.rs", "fn run(engine: Mu) {}"),
            ("crates/protocol/src/engine/mu/log.rs", "pub struct Mu;"),
            ("crates/node/src/backend/mu.rs", "use mu::Config;"),
        ];
        assert_eq!(counted(&files, "mu"), ["crates/cli/src/a.rs", "crates/cli/src/b.rs", "examples/exchange/src/c.rs"]);
    }

    #[test]
    fn comments_texts_tests_and_longer_words_do_not_count() {
        let files = [
            ("crates/cli/src/a.rs", "/// With `mu`, as Mu's paper says.\nfn f() { say(\"mu\"); }"),
            (
                "crates/cli/src/b.rs",
                "#[cfg(test)]\nmod tests {\n    use engine::Mu;\n}\nfn f(at: Multicast, canary: MuPresumed, mut mutable: u8) {}",
            ),
            ("crates/cli/tests/it/c.rs", "use engine::Mu;"),
            ("crates/node/src/config/tests.rs", "use engine::Mu;"),
            ("crates/sim/src/cluster/scenarios/mod.rs", "use engine::Mu;"),
            ("xtask/src/vm.rs", "let mu = 1;"),
            ("docs/mu.md", "mu"),
        ];
        assert_eq!(counted(&files, "mu"), [""; 0]);
    }

    #[test]
    fn every_type_of_a_fabric_counts() {
        let files = [
            ("crates/cli/src/a.rs", "let config = VerbsConfig::default();"),
            ("crates/cli/src/b.rs", "cluster.verbs.nap_us"),
            ("crates/cli/src/c.rs", "FabricKind::Shm"),
        ];
        assert_eq!(counted(&files, "verbs"), ["crates/cli/src/a.rs", "crates/cli/src/b.rs"]);
        assert_eq!(counted(&files, "shm"), ["crates/cli/src/c.rs"]);
    }

    #[test]
    fn one_file_more_than_is_allowed_is_a_problem_that_lists_them_all() {
        let mut names = Names::default();
        for file in 0..AT_MOST {
            names.note(&format!("crates/cli/src/f{file}.rs"), "EngineKind::Mu");
        }
        assert_eq!(names.problems(), []);
        names.note("crates/bench/src/more.rs", "EngineKind::Mu");
        let problems = names.problems();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, ENGINES);
        assert!(problems[0].message.starts_with("7 files outside its folder name `mu`; at most 6"), "{}", problems[0].message);
        assert!(problems[0].message.contains("crates/cli/src/f0.rs, ") && problems[0].message.ends_with("crates/bench/src/more.rs"));
    }
}
