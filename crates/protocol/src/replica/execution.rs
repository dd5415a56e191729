//! When the machine of a leader executes a command.

use std::fmt;
use std::str::FromStr;

/// When the machine of a leader executes a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// Before it is proposed, by the application, which then proposes the effects. A leader that loses entries that its machine shows discards the machine and
    /// is taught again.
    #[default]
    Speculative,
    /// Once it is committed: [`StateMachine::apply`](super::StateMachine::apply) runs on the leader as on its followers. Nothing ever has to be undone, so a
    /// deposed leader continues as a follower with the state that it has.
    Committed,
}

impl Execution {
    /// Both.
    pub const ALL: [Execution; 2] = [Execution::Speculative, Execution::Committed];

    /// Its name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Execution::Speculative => "speculative",
            Execution::Committed => "committed",
        }
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Execution {
    type Err = String;

    fn from_str(name: &str) -> Result<Execution, String> {
        let found = Execution::ALL.into_iter().find(|execution| execution.name() == name);
        found.ok_or_else(|| format!("execution is {name:?}; allowed are {}", Execution::ALL.map(Execution::name).join(", ")))
    }
}
