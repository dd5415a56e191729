//! Rules about the sources that no compiler checks. Each complaint names the file, the line and what to do instead.

mod crates;
mod lexer;
mod licences;
mod names;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Something that a rule objects to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file's path, from the workspace's root.
    pub path: String,
    /// The line, counted from 1; 0 stands for the whole file.
    pub line: usize,
    /// What is wrong, and what to do instead.
    pub message: String,
}

impl Problem {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Problem {
        Problem { path: path.into(), line, message: message.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks the workspace and prints what is wrong with it.
pub fn run(root: &Path) -> ExitCode {
    match check(root) {
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
        Ok((files, mut problems)) => {
            problems.sort();
            for problem in &problems {
                println!("{problem}");
            }
            if problems.is_empty() {
                println!("tidy: {files} files, nothing to complain about");
                ExitCode::SUCCESS
            } else {
                println!("tidy: {} problem(s) in {files} files", problems.len());
                ExitCode::FAILURE
            }
        }
    }
}

fn check(root: &Path) -> Result<(usize, Vec<Problem>), String> {
    let mut problems = Vec::new();
    let manifest = read(&root.join("Cargo.toml"))?;
    let members = crates::members(root)?;
    problems.extend(crates::check_workspace("Cargo.toml", &manifest, &members)?);
    for member in &members {
        problems.extend(crates::check_member(member));
    }
    let mut paths = Vec::new();
    for top in ["crates", "examples", "fuzz", "xtask", "docs"] {
        collect(&root.join(top), &mut paths)?;
    }
    paths.extend(["ARCHITECTURE.md", "README.md", "CHANGELOG.md"].map(|name| root.join(name)).into_iter().filter(|path| path.exists()));
    let mut names = names::Names::default();
    for path in &paths {
        let name = path.strip_prefix(root).expect("collected below the root").to_string_lossy().into_owned();
        let text = read(path)?;
        problems.extend(sources::check(&name, &text));
        names.note(&name, &text);
    }
    problems.extend(names.problems());
    problems.extend(licences::check(root)?);
    Ok((paths.len(), problems))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// The hand-written texts below `dir`.
fn collect(dir: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    if !dir.exists() {
        return Ok(());
    }
    let entries = fs::read_dir(dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| format!("cannot list {}: {error}", dir.display()))?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name == "target") {
                continue;
            }
            collect(&path, into)?;
        } else if path.extension().is_some_and(|ext| ext == "rs" || ext == "toml" || ext == "md") {
            into.push(path);
        }
    }
    Ok(())
}
