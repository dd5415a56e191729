//! What processes say to each other before they share memory, and the ring that their datagrams travel in.

pub(super) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    if choice % 4 == 3 { martlet_fabric::shm::fuzz::mail_ring(bytes) } else { martlet_fabric::fuzz::handshake(bytes) }
}
