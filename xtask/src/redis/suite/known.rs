//! The known differences, each with its reason: `known.toml`.

use serde::Deserialize;

/// The list itself.
const LIST: &str = include_str!("known.toml");

/// The list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    #[serde(default)]
    differs: Vec<Entry>,
}

/// Tests of a unit that have another outcome with replicas.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    unit: String,
    tests: Vec<String>,
    /// The reason, for readers.
    #[expect(dead_code, reason = "it is written for readers of the list, and has to be there")]
    why: String,
    /// They do not always differ.
    #[serde(default)]
    sometimes: bool,
    /// They differ only where leaders are killed.
    #[serde(default)]
    kills: bool,
    /// They are left out with replicas, because what they cannot undo would make later tests fail.
    #[serde(default)]
    skip: bool,
}

impl Known {
    /// Reads the list.
    ///
    /// # Errors
    /// Where it is malformed.
    pub fn read() -> Result<Known, String> {
        Known::parse(LIST).map_err(|why| format!("xtask/src/redis/suite/known.toml: {why}"))
    }

    fn parse(text: &str) -> Result<Known, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn entries(&self, unit: &str, kills: bool) -> impl Iterator<Item = &Entry> {
        self.differs.iter().filter(move |entry| entry.unit == unit && (kills || !entry.kills))
    }

    /// Whether a difference is listed.
    pub fn has(&self, unit: &str, test: &str, kills: bool) -> bool {
        self.entries(unit, kills).any(|entry| entry.tests.iter().any(|listed| listed == test))
    }

    /// Tests of a unit that are left out with replicas.
    pub fn skipped(&self, unit: &str, kills: bool) -> impl Iterator<Item = &str> {
        self.entries(unit, kills).filter(|entry| entry.skip).flat_map(|entry| &entry.tests).map(String::as_str)
    }

    /// The listed tests of a unit that do not differ, although they always should.
    pub fn gone<'a>(&'a self, unit: &str, differ: &[&str], kills: bool) -> Vec<&'a str> {
        let always = self.entries(unit, kills).filter(|entry| !entry.sometimes);
        always.flat_map(|entry| &entry.tests).map(String::as_str).filter(|test| !differ.contains(test)).collect()
    }

    /// Units that are listed but are not in the suite.
    pub fn strangers<'a>(&'a self, units: &[String]) -> Vec<&'a str> {
        self.differs.iter().map(|entry| &*entry.unit).filter(|unit| !units.iter().any(|known| known == unit)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_known_by_its_unit_its_test_and_whether_leaders_are_killed() {
        let known = Known::parse(
            "[[differs]]\nunit = \"unit/a\"\ntests = [\"x\", \"y\"]\nwhy = \"z\"\n\
             [[differs]]\nunit = \"unit/a\"\ntests = [\"v\"]\nwhy = \"z\"\nsometimes = true\n\
             [[differs]]\nunit = \"unit/a\"\ntests = [\"w\"]\nwhy = \"z\"\nkills = true\nskip = true\n",
        )
        .expect("a list");
        let has = |unit, test, kills| known.has(unit, test, kills);
        assert!(has("unit/a", "x", false) && has("unit/a", "x", true) && has("unit/a", "v", false) && has("unit/a", "w", true));
        assert!(!has("unit/b", "x", false) && !has("unit/a", "z", false) && !has("unit/a", "w", false));
        let skipped = |kills| known.skipped("unit/a", kills).collect::<Vec<_>>();
        assert_eq!((skipped(false), skipped(true)), (vec![], vec!["w"]));
        assert_eq!(known.gone("unit/a", &["y"], false), ["x"], "what differs at times need not");
        assert_eq!(known.gone("unit/a", &["y"], true), ["x", "w"]);
        assert_eq!(known.strangers(&["unit/b".into()]), ["unit/a"; 3]);
    }

    #[test]
    fn the_list_can_be_read_and_each_entry_has_a_reason() {
        Known::read().expect("a list");
        assert!(Known::parse("[[differs]]\nunit = \"unit/a\"\ntests = [\"x\"]\n").is_err_and(|why| why.contains("why")));
    }
}
