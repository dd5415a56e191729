//! What processes say to each other before they share memory, the ring that their datagrams travel in, and packets to a multicast group.

pub(super) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    match choice % 4 {
        3 => martlet_fabric::shm::fuzz::mail_ring(bytes),
        2 => martlet_fabric::fuzz::group_packets(bytes),
        _ => martlet_fabric::fuzz::handshake(bytes),
    }
}
