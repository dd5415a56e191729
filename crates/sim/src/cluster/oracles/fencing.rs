//! Fencing tokens grow from leader to leader: in the order of the log, the tokens under which acknowledged writes were proposed never decrease, even across a
//! loss of all power.

use std::collections::BTreeMap;

use martlet_protocol::basics::{LogIndex, ProcessId};

/// The token of each acknowledged write, by its place in the log.
#[derive(Debug, Default)]
pub struct Fencing {
    tokens: BTreeMap<LogIndex, (u64, ProcessId)>,
}

impl Fencing {
    /// `by` acknowledges the write that it has proposed under this token, at this index of the log.
    pub fn judge(&mut self, by: ProcessId, index: LogIndex, token: u64) -> Result<(), String> {
        let before = self.tokens.range(..index).next_back().filter(|(_, (earlier, _))| *earlier > token);
        let after = self.tokens.range(index..).next().filter(|(_, (later, _))| *later < token);
        if let Some((other, (of_other, who))) = before.or(after) {
            return Err(format!(
                "{by} acknowledges entry {index} under token {token}, and {who} acknowledged entry {other} under token {of_other}"
            ));
        }
        self.tokens.insert(index, (token, by));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_token_that_falls_is_found_in_whichever_order_it_is_heard_of() {
        let by = ProcessId { node: NodeId(1), incarnation: Incarnation(7) };
        let mut fencing = Fencing::default();
        for (index, token) in [(3, 5), (9, 7), (4, 5), (5, 7)] {
            assert_eq!(fencing.judge(by, LogIndex(index), token), Ok(()));
        }
        for (index, token) in [(10, 6), (2, 6), (4, 8)] {
            assert!(fencing.judge(by, LogIndex(index), token).is_err(), "entry {index} under {token}");
        }
    }
}
