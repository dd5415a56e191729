//! Packets between ordinary hosts: sealed ones that do not open, the bodies of those that do, and the offers by which keys are agreed on.

pub(super) fn run(data: &[u8]) {
    martlet_fabric::fuzz::sealed_packets(data);
}
