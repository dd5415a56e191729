//! What an embedded replica receives: entries of the log, and parts of its state.

pub(super) fn run(data: &[u8]) {
    martlet_node::fuzz::embedded(data);
}
