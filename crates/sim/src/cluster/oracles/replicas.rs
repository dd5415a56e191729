//! Replicas are equal when all is quiet: they have applied the same entries, and hold the same state.

use martlet_protocol::basics::LogIndex;

/// Whether all of them have applied the log up to the same entry, and hold states with the same digest.
pub fn are_equal(mut replicas: impl Iterator<Item = (LogIndex, u64)>) -> bool {
    let first = replicas.next();
    replicas.all(|state| Some(state) == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_lags_or_holds_something_else_is_not_equal() {
        let equal = |states: &[(u64, u64)]| are_equal(states.iter().map(|(applied, digest)| (LogIndex(*applied), *digest)));
        assert!(equal(&[(3, 7), (3, 7), (3, 7)]));
        assert!(!equal(&[(3, 7), (3, 7), (2, 7)]));
        assert!(!equal(&[(3, 7), (3, 8), (3, 7)]));
    }
}
