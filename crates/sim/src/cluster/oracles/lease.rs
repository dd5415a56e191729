//! No lease outlives its view. A lease is granted only while the next slot is empty at a majority. So once the next view is decided, the leases on the previous
//! one end within the longest length that a lease can have (uKharon section 6.1, Algorithm 6).

use martlet_protocol::basics::{ProcessId, ViewNumber};

use super::views::Views;

/// The oracle. It knows the true time; holders subtract the possible error of their clocks.
#[derive(Debug, Default)]
pub struct LeaseWithinView;

impl LeaseWithinView {
    /// `holder` could act in `view` at the true time `at_ns`.
    pub fn judge(&self, views: &Views, at_ns: u64, holder: ProcessId, view: ViewNumber) -> Result<(), String> {
        // The first successor that does more than change the length of the same leases.
        let mut next = view.next();
        let successor = loop {
            match views.get(next.0) {
                None => return Ok(()),
                Some(successor) if successor.compatible => next = next.next(),
                Some(successor) => break successor,
            }
        };
        let since = views.known_since(successor.number.0).expect("a known view");
        if at_ns > since + successor.fence_ns {
            return Err(format!(
                "{holder} holds a lease on view {view}, whose successor {} has been known for {} ns; the longest lease on it lasts {} ns",
                successor.number,
                at_ns - since,
                successor.fence_ns
            ));
        }
        Ok(())
    }
}
