//! Rules about manifests: which of our crates may use which, and that every dependency is named once, with its reason.

use std::fs;
use std::path::Path;

use toml::{Table, Value};

use super::Problem;

/// Which of our crates a crate may use (`ARCHITECTURE.md`). Tests of all may use the simulator's checkers.
const MAY_USE: [(&str, &[&str]); 16] = [
    ("martlet-fabric", &[]),
    ("martlet-settings", &[]),
    ("martlet-protocol", &["martlet-fabric"]),
    ("martlet-warden", &["martlet-settings", "martlet-protocol", "martlet-fabric"]),
    ("martlet-node", &["martlet-warden", "martlet-settings", "martlet-protocol", "martlet-fabric"]),
    ("martlet-kv", &["martlet-node", "martlet-protocol", "martlet-fabric"]),
    ("martlet-sim", &["martlet-protocol", "martlet-fabric"]),
    ("martlet-cluster", &["martlet-kv", "martlet-node", "martlet-settings", "martlet-protocol", "martlet-fabric"]),
    (
        "martlet-bench",
        &[
            "martlet-cluster",
            "martlet-exchange",
            "martlet-kv",
            "martlet-node",
            "martlet-warden",
            "martlet-sim",
            "martlet-protocol",
            "martlet-fabric",
        ],
    ),
    (
        "martlet-cli",
        &["martlet-bench", "martlet-cluster", "martlet-kv", "martlet-node", "martlet-warden", "martlet-protocol", "martlet-fabric"],
    ),
    ("martlet-preload", &["martlet-node", "martlet-protocol", "martlet-fabric"]),
    ("martlet", &["martlet-node", "martlet-warden", "martlet-protocol", "martlet-fabric"]),
    ("martlet-capi", &["martlet", "martlet-node", "martlet-warden", "martlet-protocol"]),
    ("martlet-exchange", &["martlet"]),
    (
        "martlet-fuzz",
        &["martlet-cluster", "martlet-exchange", "martlet-kv", "martlet-node", "martlet-warden", "martlet-protocol", "martlet-fabric"],
    ),
    ("xtask", &[]),
];

/// Features that put a simulator's probes into production crates, and the crates that may have these features. No crate may turn them on for others.
const PROBES: [&str; 2] = ["canaries", "marks"];
const MAY_BE_PROBED: [&str; 4] = ["martlet-fabric", "martlet-protocol", "martlet-sim", "martlet-warden"];

/// What tests of any crate may use besides that.
const TESTS_MAY_USE: &str = "martlet-sim";

/// A crate of the workspace.
pub struct Member {
    /// The path of its manifest, from the workspace's root.
    pub path: String,
    /// The manifest, parsed.
    pub manifest: Table,
}

impl Member {
    fn name(&self) -> &str {
        self.manifest.get("package").and_then(|p| p.get("name")).and_then(Value::as_str).unwrap_or("")
    }

    /// `(section, name, value)` of every dependency.
    fn dependencies(&self) -> impl Iterator<Item = (&'static str, &String, &Value)> {
        let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
        let targets = self.manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values).filter_map(Value::as_table);
        std::iter::once(&self.manifest).chain(targets).flat_map(move |table| {
            sections
                .into_iter()
                .filter_map(move |section| Some((section, table.get(section)?.as_table()?)))
                .flat_map(|(section, dependencies)| dependencies.iter().map(move |(name, value)| (section, name, value)))
        })
    }
}

/// Finds the members: every directory below `crates` and `examples` that contains a manifest, `fuzz` and `xtask`.
pub fn members(root: &Path) -> Result<Vec<Member>, String> {
    let mut dirs = Vec::new();
    for parent in ["crates", "examples"] {
        let entries = fs::read_dir(root.join(parent)).map_err(|error| format!("cannot list {parent}: {error}"))?;
        dirs.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    dirs.extend(["fuzz", "xtask"].map(|name| root.join(name)));
    dirs.sort();
    dirs.iter()
        .map(|dir| dir.join("Cargo.toml"))
        .filter(|path| path.exists())
        .map(|path| {
            let name = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            Ok(Member { manifest: parse(&name, &super::read(&path)?)?, path: name })
        })
        .collect()
}

fn parse(path: &str, text: &str) -> Result<Table, String> {
    text.parse().map_err(|error| format!("{path}: {error}"))
}

/// Checks that every dependency of the workspace is used, and that an external one is justified.
pub fn check_workspace(path: &str, text: &str, members: &[Member]) -> Result<Vec<Problem>, String> {
    let manifest = parse(path, text)?;
    let mut problems = Vec::new();
    let named = manifest.get("workspace").and_then(|w| w.get("dependencies")).and_then(Value::as_table);
    for (name, value) in named.into_iter().flatten() {
        problems.extend(turns_on_probes(path, name, value));
        let line = text.lines().position(|line| line.split(['=', '.', ' ']).next() == Some(name)).map_or(0, |at| at + 1);
        let ours = value.get("path").is_some();
        if !ours && !members.iter().any(|member| member.dependencies().any(|(_, used, _)| used == name)) {
            problems.push(Problem::new(path, line, format!("no crate uses `{name}`: remove it")));
        }
        let reason = line.checked_sub(1).and_then(|at| text.lines().nth(at)).is_some_and(|line| line.contains(" # "));
        if !ours && !reason {
            problems.push(Problem::new(path, line, format!("say in a comment on its line why `{name}` is worth its place")));
        }
    }
    Ok(problems)
}

/// A dependency that turns on probes would put them into every build of the workspace that includes it.
fn turns_on_probes(path: &str, used: &str, value: &Value) -> Option<Problem> {
    let features = value.get("features").and_then(Value::as_array)?;
    let probe = features.iter().filter_map(Value::as_str).find(|feature| PROBES.contains(feature))?;
    Some(Problem::new(
        path,
        0,
        format!("`{used}` with the feature `{probe}`: ask for it on the command line only, for `martlet-sim` alone"),
    ))
}

/// Checks that features with probes are only in the crates that have probes and in the simulator, and are never on by default.
fn probes_by_feature(member: &Member) -> Vec<Problem> {
    let features = member.manifest.get("features").and_then(Value::as_table);
    let holds_probe = |value: &str| PROBES.contains(&value.rsplit('/').next().unwrap_or(value));
    let mut problems = Vec::new();
    for (feature, turns_on) in features.into_iter().flatten() {
        let named = PROBES.contains(&feature.as_str());
        let turned_on = turns_on.as_array().into_iter().flatten().filter_map(Value::as_str).any(holds_probe);
        if (named && !MAY_BE_PROBED.contains(&member.name())) || (turned_on && !named) {
            let message =
                format!("the feature `{feature}` puts a simulator's probes where they do not belong: only {MAY_BE_PROBED:?} have them");
            problems.push(Problem::new(&member.path, 0, message));
        }
    }
    problems
}

/// Checks one crate's manifest.
pub fn check_member(member: &Member) -> Vec<Problem> {
    let mut problems = Vec::new();
    let name = member.name();
    let Some((_, allowed)) = MAY_USE.iter().find(|(of, _)| *of == name) else {
        return vec![Problem::new(
            &member.path,
            0,
            format!("`{name}` has no place in the order of crates: give it one in ARCHITECTURE.md and here"),
        )];
    };
    problems.extend(probes_by_feature(member));
    for (section, used, value) in member.dependencies() {
        problems.extend(turns_on_probes(&member.path, used, value));
        if (used == "martlet" || used.starts_with("martlet-"))
            && !allowed.contains(&used.as_str())
            // A crate's tests may depend on the crate itself, which is how they turn its features on.
            && !(section == "dev-dependencies" && (used == TESTS_MAY_USE || used == name))
        {
            let may = if allowed.is_empty() { "none of ours".into() } else { allowed.join(", ") };
            problems.push(Problem::new(&member.path, 0, format!("`{name}` must not use `{used}`; it may use {may}")));
        }
        if value.get("workspace").and_then(Value::as_bool) != Some(true) {
            problems.push(Problem::new(
                &member.path,
                0,
                format!("`{used}`: name its version in the workspace's manifest and write `{used}.workspace = true` here"),
            ));
        }
    }
    if member.manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool) != Some(true) {
        problems.push(Problem::new(&member.path, 0, "add `[lints] workspace = true`"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, rest: &str) -> Member {
        let text = format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}");
        Member { path: "Cargo.toml".into(), manifest: text.parse().expect("a manifest") }
    }

    #[test]
    fn dependencies_point_one_way() {
        let found = check_member(&member("martlet-fabric", "[dependencies]\nmartlet-node.workspace = true\n"));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("must not use `martlet-node`; it may use none of ours"), "{found:?}");
        assert!(check_member(&member("martlet-kv", "[dependencies]\nmartlet-node.workspace = true\n")).is_empty());
        let target = "[target.'cfg(loom)'.dependencies]\nmartlet-cli.workspace = true\n";
        assert_eq!(check_member(&member("martlet-fabric", target)).len(), 1);
    }

    #[test]
    fn tests_may_use_the_checkers() {
        assert!(check_member(&member("martlet-kv", "[dev-dependencies]\nmartlet-sim.workspace = true\n")).is_empty());
        assert_eq!(check_member(&member("martlet-kv", "[dependencies]\nmartlet-sim.workspace = true\n")).len(), 1);
    }

    #[test]
    fn tests_may_ask_for_features_of_their_own_crate() {
        let own = "martlet-fabric = { workspace = true, features = [\"conformance\"] }";
        assert_eq!(check_member(&member("martlet-fabric", &format!("[dev-dependencies]\n{own}\n"))), []);
        assert_eq!(check_member(&member("martlet-fabric", &format!("[dependencies]\n{own}\n"))).len(), 1);
    }

    #[test]
    fn nobody_turns_probes_on_for_others() {
        let canaries = "[features]\ncanaries = [\"martlet-fabric/canaries\"]\n";
        assert!(check_member(&member("martlet-protocol", canaries)).is_empty());
        assert_eq!(check_member(&member("martlet-node", canaries)).len(), 1);
        assert_eq!(check_member(&member("martlet-sim", "[features]\ndefault = [\"marks\"]\n")).len(), 1);
        assert_eq!(check_member(&member("martlet-kv", "[features]\ntest = [\"martlet-protocol/canaries\"]\n")).len(), 1);
        for section in ["dependencies", "dev-dependencies"] {
            let dependency = format!("[{section}]\nmartlet-fabric = {{ workspace = true, features = [\"sim\", \"marks\"] }}\n");
            assert_eq!(check_member(&member("martlet-protocol", &dependency)).len(), 1);
        }
        let root = "[workspace.dependencies]\nours = { path = \"ours\", features = [\"canaries\"] }\n";
        assert_eq!(check_workspace("Cargo.toml", root, &[]).expect("a manifest").len(), 1);
    }

    #[test]
    fn versions_stand_in_the_workspace() {
        let found = check_member(&member("martlet-kv", "[dependencies]\nserde = \"1\"\n"));
        assert!(found[0].message.contains("`serde.workspace = true`"), "{found:?}");
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert!(check_member(&member("martlet-utils", ""))[0].message.contains("no place in the order"));
    }

    #[test]
    fn every_dependency_is_used_and_argued_for() {
        let root =
            "[workspace.dependencies]\nserde = \"1\"\ntoml = \"1\" # config files\nunused = \"1\" # once\nours = { path = \"ours\" }\n";
        let users = [member("martlet-kv", "[dependencies]\nserde.workspace = true\ntoml.workspace = true\nours.workspace = true\n")];
        let found = check_workspace("Cargo.toml", root, &users).expect("a manifest");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "Cargo.toml:2: say in a comment on its line why `serde` is worth its place",
                "Cargo.toml:4: no crate uses `unused`: remove it",
            ]
        );
    }
}
