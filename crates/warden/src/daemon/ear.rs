//! The ear: hears when the kernel's programs have made marks that the desk wants to hear of, and makes eye and desk look at them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use martlet_fabric::host::marks::Marker;
use rustix::event::{PollFd, PollFlags, poll};

use super::eye::Tasks;

pub(super) struct Ear {
    pub(super) marker: Arc<Marker>,
    pub(super) eye: Tasks,
    /// Becomes readable to wake the desk.
    pub(super) heard: Arc<OwnedFd>,
    /// Becomes readable when the warden ends.
    pub(super) over: Arc<OwnedFd>,
}

impl Ear {
    pub(super) fn run(self) {
        loop {
            let (bell, over) = (self.marker.bell(), self.over.as_fd());
            let mut fds = [PollFd::new(&bell, PollFlags::IN), PollFd::new(&over, PollFlags::IN)];
            if let Err(error) = poll(&mut fds, None)
                && error != rustix::io::Errno::INTR
            {
                // From then on marks are seen only when eye and desk wake for other reasons.
                tracing::warn!(%error, "cannot wait for the kernel's marks of deaths any more: deaths may be seen later. Restart the warden");
                return;
            }
            let [bell, over] = fds.map(|fd| fd.revents().contains(PollFlags::IN));
            if over {
                return;
            }
            if bell {
                self.marker.hush();
                self.eye.stir();
                // This fails only when the counter is full, and then the descriptor is readable anyway.
                let _ = rustix::io::write(&*self.heard, &1u64.to_ne_bytes());
            }
        }
    }
}
