//! What processes say to each other before they share memory, and how it is cut out of a stream; the ring that their datagrams travel in; packets with parts of
//! these; and packets to a multicast group.

pub(super) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    match choice % 6 {
        5 => martlet_fabric::fuzz::stream(bytes),
        4 => martlet_fabric::fuzz::packets(bytes),
        3 => martlet_fabric::shm::fuzz::mail_ring(bytes),
        2 => martlet_fabric::fuzz::group_packets(bytes),
        _ => martlet_fabric::fuzz::handshake(bytes),
    }
}
