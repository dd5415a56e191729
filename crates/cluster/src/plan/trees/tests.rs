//! Compares both searches with every possible set of trees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;
use crate::plan::fat_tree;

/// A network of links with costs: `(from, to, latest)`, both ways, hosts named `h...`.
fn network(links: &[(&str, &str, u64)], sender: &str, receivers: &[&str], trees: usize) -> (Topology, Vec<Cost>) {
    let mut names = BTreeSet::new();
    links.iter().for_each(|(a, b, _)| names.extend([*a, *b]));
    let mut text = String::new();
    for name in &names {
        text += &match name.starts_with('h') {
            true => format!("[[host]]\nname = \"{name}\"\n"),
            false => format!("[[switch]]\nname = \"{name}\"\nlatency_ns = 0\nqueue_bytes = 1000000\n"),
        };
    }
    for (a, b, _) in links {
        text += &format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\nmbit_per_s = 1000\n");
    }
    let receivers = receivers.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    text += &format!("[[request]]\nsender = \"{sender}\"\nreceivers = [{receivers}]\npayload_bytes = 0\nperiod_ns = 1\ntrees = {trees}\n");
    let topology = Topology::parse(Path::new("test"), &text).expect("a topology");
    let cost = links.iter().flat_map(|(_, _, latest)| [Cost { latest: *latest, others: 0 }; 2]).collect();
    (topology, cost)
}

/// Every tree along shortest paths: its arcs, and its cost. With `narrow`, only trees that pass each layer through one switch towards the same receivers.
fn every_tree(ways: &Ways<'_>, narrow: bool) -> Vec<(BTreeSet<usize>, u64)> {
    let mut paths: Vec<Vec<Vec<usize>>> = Vec::new();
    for bit in 0..ways.request.receivers.len() {
        let mut found = Vec::new();
        let mut open = vec![(ways.request.sender, Vec::new())];
        while let Some((node, path)) = open.pop() {
            if node == ways.request.receivers[bit] {
                found.push(path);
                continue;
            }
            for (arc, to) in ways.onward(node, 1 << bit) {
                open.push((to, [&path[..], &[arc]].concat()));
            }
        }
        paths.push(found);
    }
    let mut trees = vec![BTreeSet::new()];
    for found in &paths {
        trees =
            trees.iter().flat_map(|tree: &BTreeSet<usize>| found.iter().map(|path| tree.iter().chain(path).copied().collect())).collect();
    }
    let arc = |number: usize| &ways.topology.arcs[number];
    trees.retain(|tree| {
        let heads: BTreeSet<usize> = tree.iter().map(|&number| arc(number).to).collect();
        let classes: BTreeSet<(usize, u64)> = heads.iter().map(|&node| (ways.distance[node], ways.receivers[node])).collect();
        heads.len() == tree.len() && (!narrow || classes.len() == heads.len())
    });
    let late = |tree: &BTreeSet<usize>| {
        let mut at = BTreeMap::from([(ways.request.sender, 0)]);
        let mut order: Vec<usize> = tree.iter().copied().collect();
        order.sort_by_key(|&number| ways.distance[arc(number).from]);
        for number in order {
            at.insert(arc(number).to, at[&arc(number).from] + ways.cost[number].latest);
        }
        ways.request.receivers.iter().map(|receiver| at[receiver]).max().expect("receivers")
    };
    trees.into_iter().map(|tree| (tree.clone(), late(&tree) + tree.iter().map(|&number| ways.cost[number].others).sum::<u64>())).collect()
}

/// The least cost of `count` of these trees that share no switch.
fn least(ways: &Ways<'_>, trees: &[(BTreeSet<usize>, u64)], count: usize) -> Option<u64> {
    let inner = |tree: &BTreeSet<usize>| -> BTreeSet<usize> {
        tree.iter().map(|&arc| ways.topology.arcs[arc].to).filter(|&node| ways.bit(node) == 0).collect()
    };
    let trees: Vec<(BTreeSet<usize>, u64)> = trees.iter().map(|(tree, cost)| (inner(tree), *cost)).collect();
    fn go_on(trees: &[(BTreeSet<usize>, u64)], taken: &BTreeSet<usize>, count: usize) -> Option<u64> {
        if count == 0 {
            return Some(0);
        }
        let with = |(at, (inner, cost)): (usize, &(BTreeSet<usize>, u64))| {
            let rest = inner.is_disjoint(taken).then(|| go_on(&trees[at + 1..], &(taken | inner), count - 1)).flatten();
            rest.map(|rest| rest + cost)
        };
        trees.iter().enumerate().filter_map(with).min()
    }
    go_on(&trees, &BTreeSet::new(), count)
}

/// Checks that what was found are valid trees, and that they have the stated cost.
fn check(ways: &Ways<'_>, found: &[Tree], cost: u64, narrow: bool) {
    let all = every_tree(ways, narrow);
    let arcs: Vec<BTreeSet<usize>> = found.iter().map(|tree| tree.arcs.iter().copied().collect()).collect();
    let of: Vec<&(BTreeSet<usize>, u64)> =
        arcs.iter().map(|arcs| all.iter().find(|(tree, _)| tree == arcs).expect("one of all trees")).collect();
    assert_eq!(of.iter().map(|(_, cost)| cost).sum::<u64>(), cost);
    assert_eq!(least(ways, &of.into_iter().cloned().collect::<Vec<_>>(), found.len()), Some(cost), "they share no switch");
}

fn compare(topology: &Topology, cost: &[Cost], counts: std::ops::RangeInclusive<usize>) {
    for request in &topology.requests {
        let ways = Ways::new(topology, request, cost).expect("all are reached");
        for count in counts.clone() {
            if let Ok(found) = regular::find(&ways, count) {
                assert_eq!(found.as_ref().map(|(_, cost)| *cost), least(&ways, &every_tree(&ways, true), count), "regular, {count} trees");
                if let Some((trees, cost)) = &found {
                    check(&ways, trees, *cost, true);
                }
            }
            let found = exhaustive::find(&ways, count).expect("a small network");
            assert_eq!(found.as_ref().map(|(_, cost)| *cost), least(&ways, &every_tree(&ways, false), count), "exhaustive, {count} trees");
            if let Some((trees, cost)) = &found {
                check(&ways, trees, *cost, false);
            }
        }
    }
}

fn chance(topology: &Topology, seed: u64) -> Vec<Cost> {
    let mut state = seed;
    let mut draw = |below: u64| {
        // SplitMix64: the same in every run.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    };
    topology.arcs.iter().map(|_| Cost { latest: 1 + draw(20), others: draw(4) }).collect()
}

#[test]
fn the_best_trees_of_small_regular_networks_are_found() {
    for (height, hosts) in [(1, 2), (1, 4), (2, 2), (2, 3), (3, 2), (3, 3)] {
        let topology = Topology::parse(Path::new("test"), &fat_tree::file(height, hosts)).expect("a topology");
        for seed in 0..12 {
            let cost = chance(&topology, seed);
            let request = &topology.requests[0];
            assert_eq!(find(&topology, request, &cost).expect("two trees").search, Search::Regular);
            compare(&Topology { requests: vec![request.clone()], ..topology.clone() }, &cost, 1..=3);
        }
    }
}

/// Networks with three switches in each layer and some links missing, both regular and irregular ones.
#[test]
fn the_best_trees_of_small_irregular_networks_are_found() {
    let mut links = Vec::new();
    let below = ["a1", "a2", "a3"];
    for switch in below {
        links.push(("h1", switch, 1));
        for above in ["b1", "b2", "b3"] {
            links.push((switch, above, 1));
        }
    }
    for above in ["b1", "b2", "b3"] {
        links.extend([(above, "h2", 1), (above, "h3", 1)]);
    }
    let (whole, _) = network(&links, "h1", &["h2", "h3"], 2);
    let mut irregular = 0;
    for seed in 0..80 {
        let mut topology = whole.clone();
        let gone: Vec<u64> = chance(&whole, seed).iter().map(|cost| cost.latest).collect();
        for (at, (a, b, _)) in links.iter().enumerate() {
            if gone[2 * at] <= 3 {
                topology = topology.without(&format!("{a}:{b}")).expect("a link");
            }
        }
        let cost = chance(&topology, seed + 1000);
        match Ways::new(&topology, &topology.requests[0], &cost) {
            Err(_) => continue,
            Ok(ways) => irregular += u32::from(regular::find(&ways, 1) == Err(regular::Unfit::Irregular)),
        }
        compare(&topology, &cost, 1..=3);
    }
    assert!(irregular > 5, "{irregular} networks were irregular");
}

/// Below the sender's switches `s1` and `s2` are two classes: one whose trees can be (5, 5) or (3, 8) late, and one that makes the second tree 9 late in any
/// case. Taking the best of each class by itself, as the paper does, gives 5 + 9. The least is 3 + 9.
#[test]
fn trap_61_the_best_of_each_class_by_itself_is_not_the_best() {
    let links = [
        ("h1", "s1", 0),
        ("h1", "s2", 0),
        ("s1", "a1", 1),
        ("s1", "a2", 1),
        ("s1", "a3", 1),
        ("s2", "a1", 1),
        ("s2", "a2", 1),
        ("s2", "a3", 1),
        ("a1", "h2", 4),
        ("a2", "h2", 4),
        ("a3", "h2", 2),
        ("s1", "b1", 1),
        ("s2", "b2", 1),
        ("b1", "h3", 0),
        ("b2", "h3", 8),
    ];
    let (topology, mut cost) = network(&links, "h1", &["h2", "h3"], 2);
    // Through `a3` the first tree is early, but then the second is late.
    let of = |a: &str, b: &str| {
        let found = topology.arcs.iter().position(|arc| (topology.name(arc.from), topology.name(arc.to)) == (a, b));
        found.expect("a link")
    };
    for a in ["a1", "a2"] {
        cost[of("s2", a)].latest = 4;
    }
    cost[of("s2", "a3")].latest = 3;
    let request = &topology.requests[0];
    let alone = Request { receivers: request.receivers[..1].to_vec(), ..request.clone() };
    let alone = find(&topology, &alone, &cost).expect("two trees");
    assert_eq!(alone.cost, 10, "what is best for h2 by itself");
    let by_a3 = alone.trees.iter().any(|tree| tree.arcs.contains(&of("s2", "a3")));
    assert!(by_a3, "the second tree takes a3");
    let found = find(&topology, request, &cost).expect("two trees");
    assert_eq!((found.search, found.cost), (Search::Regular, 12));
    assert!(found.trees.iter().any(|tree| tree.arcs.contains(&of("s1", "a3"))), "the first tree takes a3");
}

#[test]
fn what_cannot_be_is_said_with_what_can() {
    let links = [("h1", "s1", 1), ("h1", "s2", 1), ("s1", "h2", 1), ("s2", "h2", 1), ("s2", "h3", 1), ("s3", "h4", 1)];
    let why = |receivers: &[&str], trees| {
        let (topology, cost) = network(&links, "h1", receivers, trees);
        find(&topology, &topology.requests[0], &cost).err().map(|why| match why {
            NotFound::Unreachable(node) => format!("no way to {}", topology.name(node)),
            NotFound::Fewer(most) => format!("at most {most}"),
            NotFound::TooMuch => "too much".into(),
        })
    };
    assert_eq!(why(&["h2"], 2), None);
    assert_eq!(why(&["h2"], 3), Some("at most 2".into()));
    assert_eq!(why(&["h2", "h3"], 2), Some("at most 1".into()));
    assert_eq!(why(&["h4"], 1), Some("no way to h4".into()));
}

#[test]
fn a_host_forwards_nothing() {
    let links = [("h1", "s1", 1), ("s1", "h2", 1), ("h2", "s2", 1), ("s2", "h3", 1)];
    let (topology, cost) = network(&links, "h1", &["h3"], 1);
    assert_eq!(find(&topology, &topology.requests[0], &cost).err(), Some(NotFound::Unreachable(topology.requests[0].receivers[0])));
}
