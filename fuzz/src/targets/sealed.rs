//! Packets between ordinary hosts: closed ones that nobody has sealed, the bodies of those that open, and the offers by which keys are agreed on.

pub(super) fn run(data: &[u8]) {
    martlet_fabric::fuzz::sealed_packets(data);
}
