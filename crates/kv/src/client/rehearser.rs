//! A client that takes part in rehearsals of a failover.

use martlet_fabric::Fabric;
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::Sizes;
use martlet_protocol::replica::MadeUpClient;

use super::{Client, ClientConfig};

/// Its request: a write of a common size, always to the same key.
const REQUEST: [&[u8]; 3] = [b"SET", b"rehearsal", &[b'v'; 64]];

/// A client whose requests serve only the rehearsal.
#[derive(Debug)]
pub(crate) struct Rehearser<F>(Client<F>);

impl<F: Fabric> Rehearser<F> {
    pub(crate) fn new(endpoint: F, sizes: Sizes) -> Rehearser<F> {
        // It is alone on its fabric, so its name need not be secret.
        Rehearser(Client::new(endpoint, ClientConfig { sizes, ..ClientConfig::new(1) }))
    }
}

impl<F: Fabric> MadeUpClient for Rehearser<F> {
    fn ask(&mut self) {
        if self.0.outstanding() == 0 {
            let posted = self.0.post(&REQUEST);
            martlet_fabric::invariant!(posted.is_ok(), "a short request of a client without others: {posted:?}");
        }
    }

    fn poll(&mut self, now: Time) -> bool {
        self.0.poll(now).is_some()
    }
}
