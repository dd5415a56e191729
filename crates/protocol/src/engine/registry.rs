//! The engines, by name, and their properties. Code outside an engine's folder asks for a property, not for a name, so that a new engine takes only a line here
//! and its [`Traits`].

use std::fmt;
use std::str::FromStr;

use super::{Apus, Dare, Engine, Hsuc, Huc, Mu, PrimaryBackup};
use crate::membership::Authority;

/// What decides which replica leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The view: its primary leads, under a lease.
    Views,
    /// An election among the replicas, which needs a majority of them.
    Election,
}

/// How many replicas hold an entry before it counts as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitRule {
    /// Every replica of the view: all but one may die, one after the other.
    EveryReplica,
    /// A majority of the group: a minority may fail at any moment.
    Majority,
}

/// The properties of an engine that code outside its folder has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Its name in configurations and on command lines.
    pub name: &'static str,
    /// What decides which of its replicas leads.
    pub leadership: Leadership,
    /// How many replicas hold a committed entry.
    pub commit: CommitRule,
    /// Whether it can keep its log on disks: durability `async` and `sync`.
    pub has_journal: bool,
    /// Whether a leader can hand leadership over to a named replica without leaving.
    pub hands_over_by_name: bool,
    /// Whether an operator can say how many places its group has, filled or not.
    pub has_places: bool,
    /// Whether a leader may count what it writes into the memory of dead processes.
    pub counts_zombies: bool,
    /// Whether a leader can execute on commit: [`Execution::Committed`](crate::replica::Execution::Committed).
    pub executes_on_commit: bool,
    /// Whether the replica with the lowest id leads whenever it can, so that a former leader that comes back leads again.
    pub prefers_lowest: bool,
}

impl Traits {
    /// Whether its replicas elect their leader themselves.
    pub const fn elects(&self) -> bool {
        matches!(self.leadership, Leadership::Election)
    }

    /// Whether a majority of a group commits.
    pub const fn commits_by_majority(&self) -> bool {
        matches!(self.commit, CommitRule::Majority)
    }

    /// How binding views are for it.
    pub const fn authority(&self) -> Authority {
        match self.leadership {
            Leadership::Views => Authority::Views,
            Leadership::Election => Authority::Engine,
        }
    }
}

/// Names all engines once: the kinds, their order, and what [`with_engine!`](crate::with_engine) dispatches to.
macro_rules! engines {
    ($($(#[$about:meta])* $kind:ident,)+) => {
        /// A replication engine, by name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub enum EngineKind {
            $($(#[$about])* $kind,)+
        }

        impl EngineKind {
            /// All of them.
            pub const ALL: [EngineKind; [$(EngineKind::$kind),+].len()] = [$(EngineKind::$kind),+];

            /// What it is like.
            pub const fn traits(self) -> Traits {
                match self {
                    $(EngineKind::$kind => $kind::TRAITS,)+
                }
            }
        }
    };
}

engines! {
    /// Views and leases say which replica acts; all but one replica may fail, one after the other.
    #[default]
    PrimaryBackup,
    /// A majority's permission says which replica acts; a minority may fail.
    Mu,
    /// A majority's votes say which replica acts in a term; a minority may fail.
    Dare,
    /// A majority's acknowledgements, kept before they are given, say what is committed; a minority may fail.
    Apus,
    /// Views and leases say which replica acts, every replica acknowledges what is committed; all but one may fail.
    Hsuc,
    /// Views and leases say which replica acts, what stands in every replica's memory is committed; all but one may fail.
    Huc,
}

/// Runs an expression with `$engine` standing for the type of the engine `$kind`: the one place where a name in a configuration becomes a type.
#[macro_export]
macro_rules! with_engine {
    ($kind:expr, $engine:ident => $body:expr) => {
        match $kind {
            $crate::engine::EngineKind::PrimaryBackup => {
                type $engine = $crate::engine::PrimaryBackup;
                $body
            }
            $crate::engine::EngineKind::Mu => {
                type $engine = $crate::engine::Mu;
                $body
            }
            $crate::engine::EngineKind::Dare => {
                type $engine = $crate::engine::Dare;
                $body
            }
            $crate::engine::EngineKind::Apus => {
                type $engine = $crate::engine::Apus;
                $body
            }
            $crate::engine::EngineKind::Hsuc => {
                type $engine = $crate::engine::Hsuc;
                $body
            }
            $crate::engine::EngineKind::Huc => {
                type $engine = $crate::engine::Huc;
                $body
            }
        }
    };
}

impl EngineKind {
    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        self.traits().name
    }

    /// The first engine with a property.
    ///
    /// # Panics
    /// When there is none.
    pub fn first_with(property: impl Fn(&Traits) -> bool) -> EngineKind {
        EngineKind::ALL.into_iter().find(|kind| property(&kind.traits())).expect("an engine with that property")
    }

    /// The names of all engines with a property, as a message lists them.
    pub fn names_with(property: impl Fn(&Traits) -> bool) -> String {
        let kinds = EngineKind::ALL.into_iter().filter(|kind| property(&kind.traits()));
        kinds.map(EngineKind::name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(name: &str) -> Result<EngineKind, String> {
        EngineKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = EngineKind::names_with(|_| true);
            format!("the engine is {name:?}; allowed are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_found_by_its_name_and_dispatched_to_itself() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(with_engine!(kind, E => E::TRAITS), kind.traits());
        }
        assert_eq!(
            "paxos".parse::<EngineKind>(),
            Err("the engine is \"paxos\"; allowed are primary-backup, mu, dare, apus, hsuc, huc".to_owned())
        );
    }
}
