//! Checks that every dependency's licence is one of those that `deny.toml` allows. cargo-deny does this and more, but this part needs nothing installed.

use std::path::Path;

use serde_json::Value;

use super::Problem;

/// Checks the licences of all dependencies, as cargo knows them.
pub fn check(root: &Path) -> Result<Vec<Problem>, String> {
    let allowed = allowed(&super::read(&root.join("deny.toml"))?)?;
    let output = crate::ci::cargo(root)
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(judge(&metadata, &allowed))
}

/// What `deny.toml` allows: for all crates, and beyond that for single ones.
struct Allowed {
    everybody: Vec<String>,
    exceptions: Vec<(String, Vec<String>)>,
}

impl Allowed {
    /// The licences that the crate of that name may have.
    fn of(&self, name: &str) -> Vec<String> {
        let own = self.exceptions.iter().filter(|(of, _)| of == name).flat_map(|(_, allowed)| allowed);
        self.everybody.iter().chain(own).cloned().collect()
    }
}

fn allowed(deny: &str) -> Result<Allowed, String> {
    let deny: toml::Table = deny.parse().map_err(|error| format!("deny.toml: {error}"))?;
    let licences = deny.get("licenses");
    let texts = |list: &[toml::Value]| list.iter().filter_map(|licence| licence.as_str().map(str::to_owned)).collect();
    let list = licences.and_then(|l| l.get("allow")).and_then(toml::Value::as_array);
    let list = list.ok_or("deny.toml: `licenses.allow` is missing; it lists the licences that a dependency may have")?;
    let exceptions = licences.and_then(|l| l.get("exceptions")).and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let exceptions = exceptions.iter().filter_map(|exception| {
        let name = exception.get("crate")?.as_str()?;
        Some((name.to_owned(), texts(exception.get("allow")?.as_array()?)))
    });
    Ok(Allowed { everybody: texts(list), exceptions: exceptions.collect() })
}

fn judge(metadata: &Value, allowed: &Allowed) -> Vec<Problem> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    packages
        .iter()
        .filter_map(|package| {
            let name = format!("{} {}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"));
            let licence = package["license"].as_str().unwrap_or("");
            let allowed = allowed.of(package["name"].as_str().unwrap_or(""));
            let problem = match permits(licence, &allowed) {
                _ if licence.is_empty() => format!("{name} names no licence"),
                Some(true) => return None,
                Some(false) => format!("{name} is under `{licence}`; deny.toml allows {}", allowed.join(", ")),
                None => format!("{name}: cannot read the licence `{licence}`"),
            };
            Some(Problem::new("Cargo.lock", 0, problem))
        })
        .collect()
}

/// Whether an SPDX expression can be satisfied with the allowed licences. `None` when it cannot be read.
fn permits(expression: &str, allowed: &[String]) -> Option<bool> {
    // `A/B` is how cargo once spelt `A OR B`.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let verdict = any(&tokens, &mut at, allowed)?;
    (at == tokens.len()).then_some(verdict)
}

fn any(tokens: &[&str], at: &mut usize, allowed: &[String]) -> Option<bool> {
    let mut verdict = all(tokens, at, allowed)?;
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        verdict |= all(tokens, at, allowed)?;
    }
    Some(verdict)
}

fn all(tokens: &[&str], at: &mut usize, allowed: &[String]) -> Option<bool> {
    let mut verdict = one(tokens, at, allowed)?;
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        verdict &= one(tokens, at, allowed)?;
    }
    Some(verdict)
}

fn one(tokens: &[&str], at: &mut usize, allowed: &[String]) -> Option<bool> {
    let token = *tokens.get(*at)?;
    *at += 1;
    if token == "(" {
        let verdict = any(tokens, at, allowed)?;
        let closed = tokens.get(*at) == Some(&")");
        *at += 1;
        return closed.then_some(verdict);
    }
    if matches!(token, ")" | "AND" | "OR" | "WITH") {
        return None;
    }
    let mut licence = token.to_owned();
    if tokens.get(*at) == Some(&"WITH") {
        licence = format!("{token} WITH {}", tokens.get(*at + 1)?);
        *at += 2;
    }
    Some(allowed.contains(&licence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Allowed {
        let text = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\", \"Apache-2.0 WITH LLVM-exception\", \"Unicode-3.0\"]\n\
            exceptions = [{ crate = \"odd\", allow = [\"NCSA\"] }]";
        allowed(text).expect("a list")
    }

    #[test]
    fn expressions_are_understood() {
        let permits = |expression: &str| permits(expression, &list().everybody);
        assert_eq!(permits("MIT"), Some(true));
        assert_eq!(permits("GPL-3.0"), Some(false));
        assert_eq!(permits("GPL-3.0 OR MIT"), Some(true));
        assert_eq!(permits("MIT/Apache-2.0"), Some(true));
        assert_eq!(permits("(MIT OR Apache-2.0) AND Unicode-3.0"), Some(true));
        assert_eq!(permits("(MIT OR Apache-2.0) AND GPL-3.0"), Some(false));
        assert_eq!(permits("Apache-2.0 WITH LLVM-exception OR GPL-3.0"), Some(true));
        assert_eq!(permits("MIT AND"), None);
        assert_eq!(permits("(MIT"), None);
    }

    #[test]
    fn a_dependency_without_an_allowed_licence_is_named() {
        let metadata = serde_json::json!({"packages": [
            {"name": "good", "version": "1.0.0", "license": "MIT"},
            {"name": "odd", "version": "1.0.0", "license": "MIT AND NCSA"},
            {"name": "even", "version": "1.0.0", "license": "MIT AND NCSA"},
            {"name": "bad", "version": "2.0.0", "license": "AGPL-3.0"},
            {"name": "silent", "version": "3.0.0", "license": null},
        ]});
        let found: Vec<String> = judge(&metadata, &list()).into_iter().map(|p| p.message).collect();
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with("even 1.0.0 is under `MIT AND NCSA`"), "an exception is for one crate: {found:?}");
        assert!(found[1].starts_with("bad 2.0.0 is under `AGPL-3.0`"), "{found:?}");
        assert_eq!(found[2], "silent 3.0.0 names no licence");
    }
}
