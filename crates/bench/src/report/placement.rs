//! Where a measurement ran. Figures without it mean little.

use martlet_node::sched;
use serde_json::{Map, Value, json};

/// What is known about the host and this build.
pub fn host() -> Map<String, Value> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = sched::allowed_cores().unwrap_or_default();
    let mut settings = Map::new();
    settings.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    settings.insert("build".into(), json!(if cfg!(debug_assertions) { "debug" } else { "release" }));
    settings.insert("kernel".into(), json!(kernel.trim()));
    settings.insert("cpu".into(), json!(cpu_model().unwrap_or_else(|| std::env::consts::ARCH.to_owned())));
    settings.insert("cores".into(), json!(cores));
    settings
}

/// One line of it, for people.
pub fn describe(settings: &Map<String, Value>) -> String {
    let shown: Vec<String> = settings
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key} {text}"),
            other => format!("{key} {other}"),
        })
        .collect();
    shown.join("; ")
}

fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The two cores that a measurement between two threads uses: the first two that we may use.
pub fn two_cores() -> Option<(u16, u16)> {
    match sched::allowed_cores().ok()?[..] {
        [a, b, ..] => Some((a, b)),
        _ => None,
    }
}
