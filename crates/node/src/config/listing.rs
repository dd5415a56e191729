//! Changes to the list of nodes in a cluster's file. They leave everything else as its author wrote it, including comments.

use serde::{Deserialize, Serialize};

use super::{ClusterConfig, ListConfig, NodeEntry, RecoveryConfig};

/// A part of a cluster's file that lists nodes, and nothing else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    node: Vec<NodeEntry>,
}

impl ClusterConfig {
    /// The text of that file with this node at the end of its list, or in place of the node with its number if there is one.
    ///
    /// # Errors
    /// What is wrong with the text, in words. Whether the cluster is then valid is not checked.
    pub fn list(text: &str, entry: &NodeEntry) -> Result<String, String> {
        let rest = match ClusterConfig::from_toml(text)?.nodes.iter().any(|node| node.number == entry.number) {
            true => ClusterConfig::unlist(text, entry.number)?,
            false => text.to_owned(),
        };
        let mut wanted = ClusterConfig::from_toml(text)?;
        wanted.nodes.retain(|node| node.number != entry.number);
        wanted.nodes.push(entry.clone());
        let listed = toml::to_string(&Listing { node: vec![entry.clone()] }).map_err(|error| error.to_string())?;
        let changed = format!("{}\n\n{listed}", rest.trim_end());
        Ok(if ClusterConfig::from_toml(&changed).is_ok_and(|config| config == wanted) { changed } else { wanted.to_toml() })
    }

    /// The text of that file without the node of this number.
    ///
    /// # Errors
    /// What is wrong with the text, in words. Whether the cluster is then valid is not checked.
    pub fn unlist(text: &str, number: u16) -> Result<String, String> {
        let mut wanted = ClusterConfig::from_toml(text)?;
        wanted.nodes.retain(|node| node.number != number);
        let changed =
            cut(text, |table| toml::from_str::<Listing>(table).is_ok_and(|listing| listing.node.iter().any(|node| node.number == number)));
        Ok(if ClusterConfig::from_toml(&changed).is_ok_and(|config| config == wanted) { changed } else { wanted.to_toml() })
    }
}

impl ClusterConfig {
    /// The text of that file for a cluster that is founded again.
    ///
    /// # Errors
    /// What is wrong with the text, in words. Whether the cluster is then valid is not checked.
    pub fn founded_again(text: &str, recovery: &RecoveryConfig) -> Result<String, String> {
        let mut wanted = ClusterConfig::from_toml(text)?;
        wanted.recovery = Some(recovery.clone());
        let rest = cut(text, |table| toml::from_str::<Founding>(table).is_ok());
        let written = toml::to_string(&Founding { recovery: recovery.clone() }).map_err(|error| error.to_string())?;
        let changed = format!("{}\n\n{written}", rest.trim_end());
        Ok(if ClusterConfig::from_toml(&changed).is_ok_and(|config| config == wanted) { changed } else { wanted.to_toml() })
    }
}

impl ClusterConfig {
    /// The text of that file with another version of the list.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn of_list(text: &str, list: ListConfig) -> Result<String, String> {
        let mut wanted = ClusterConfig::from_toml(text)?;
        wanted.list = list;
        let rest = cut(text, |table| toml::from_str::<Numbered>(table).is_ok());
        let written = toml::to_string(&Numbered { list }).map_err(|error| error.to_string())?;
        let changed = format!("{}\n\n{written}", rest.trim_end());
        Ok(if ClusterConfig::from_toml(&changed).is_ok_and(|config| config == wanted) { changed } else { wanted.to_toml() })
    }
}

/// A part of a cluster's file that says which version of the list of nodes it has, and nothing else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbered {
    list: ListConfig,
}

/// A part of a cluster's file that says how it was last founded again, and nothing else.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Founding {
    recovery: RecoveryConfig,
}

/// The text without those tables, as far as they are written in the usual form: each from its heading to the next heading, or to a comment about that.
fn cut(text: &str, is_it: impl Fn(&str) -> bool) -> String {
    let is_heading = |line: &str| line.trim_start().starts_with('[');
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    while at < lines.len() {
        let mut end = at + 1;
        while end < lines.len() && !is_heading(lines[end]) {
            end += 1;
        }
        // A comment right above the next heading belongs to that heading.
        while end < lines.len() && end > at + 1 && lines[end - 1].trim_start().starts_with('#') {
            end -= 1;
        }
        let table = lines[at..end].concat();
        if !is_it(&table) {
            kept.push_str(&table);
        }
        at = end;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Ours.
name = \"shop\" # not a shop
key = \"k\"

[detector]
cap = 7

# The first.
[[node]]
number = 0

# The second, in another rack.
[[node]]
number = 1
roles = [
  \"coordinator\", # and nothing else
]

[sizes]
log_ring_bytes = 65536
";

    #[test]
    fn a_node_is_listed_and_unlisted_and_the_rest_stays_as_it_was_written() {
        let entry = NodeEntry { redis: "127.0.0.1:7713".into(), ..NodeEntry::new(2) };
        let three = ClusterConfig::list(TEXT, &entry).expect("a good file");
        assert!(
            three.starts_with(TEXT)
                && three.ends_with("[[node]]\nnumber = 2\nredis = \"127.0.0.1:7713\"\nroles = [\"coordinator\", \"replica\"]\n"),
            "{three}"
        );
        let moved = ClusterConfig::list(&three, &NodeEntry { redis: "127.0.0.1:9999".into(), ..entry.clone() }).expect("a good file");
        assert_eq!(moved, three.replace("7713", "9999"), "in its own place");
        assert_eq!(ClusterConfig::unlist(&three, 2).expect("a good file").trim_end(), TEXT.trim_end());
        let without = ClusterConfig::unlist(TEXT, 0).expect("a good file");
        assert!(without.contains("# not a shop") && without.contains("another rack") && without.contains("[sizes]"), "{without}");
        let numbers =
            |text: &str| ClusterConfig::from_toml(text).expect("a good file").nodes.iter().map(|node| node.number).collect::<Vec<_>>();
        assert_eq!(numbers(&without), [1]);
        let without = ClusterConfig::unlist(TEXT, 1).expect("a good file");
        assert_eq!(
            (numbers(&without), ClusterConfig::from_toml(&without).expect("good").sizes),
            (vec![0], ClusterConfig::from_toml(TEXT).expect("good").sizes)
        );
        assert_eq!(ClusterConfig::unlist(TEXT, 9).expect("a good file"), TEXT, "nothing is to be done");
    }

    #[test]
    fn a_list_is_numbered_anew_and_the_rest_stays_as_it_was_written() {
        let [one, two] = [1, 2].map(|change| ListConfig { reign: 3, change });
        let once = ClusterConfig::of_list(TEXT, one).expect("a good file");
        assert!(once.starts_with(TEXT) && once.ends_with("[list]\nreign = 3\nchange = 1\n"), "{once}");
        assert_eq!(ClusterConfig::of_list(&once, two).expect("a good file"), once.replace("change = 1", "change = 2"));
        assert_eq!(ClusterConfig::from_toml(&once).expect("good").list, one);
    }

    #[test]
    fn a_cluster_is_founded_again_and_again_and_the_rest_stays_as_it_was_written() {
        let once = ClusterConfig::founded_again(TEXT, &RecoveryConfig { generation: 1, from: 1 }).expect("a good file");
        assert!(once.starts_with(TEXT) && once.ends_with("[recovery]\ngeneration = 1\nfrom = 1\n"), "{once}");
        let twice = ClusterConfig::founded_again(&once, &RecoveryConfig { generation: 2, from: 0 }).expect("a good file");
        assert_eq!(twice, once.replace("generation = 1\nfrom = 1", "generation = 2\nfrom = 0"));
        let more = ClusterConfig::list(&twice, &NodeEntry::new(2)).expect("a good file");
        assert_eq!(ClusterConfig::from_toml(&more).expect("good").recovery, Some(RecoveryConfig { generation: 2, from: 0 }));
    }

    #[test]
    fn a_list_in_another_form_is_written_anew() {
        let text = "name = \"shop\"\nkey = \"k\"\nnode = [{ number = 0 }, { number = 4 }]\n";
        for (changed, numbers) in
            [(ClusterConfig::list(text, &NodeEntry::new(1)), vec![0, 4, 1]), (ClusterConfig::unlist(text, 0), vec![4])]
        {
            let config = ClusterConfig::from_toml(&changed.expect("a good file")).expect("a good file");
            assert_eq!(config.nodes.iter().map(|node| node.number).collect::<Vec<_>>(), numbers);
            assert_eq!(config.name, "shop");
        }
        assert!(ClusterConfig::unlist("name = 7", 0).is_err_and(|error| error.contains("name")));
    }
}
