//! All processes that learn the view of a given number learn the same one, and a replica was a member before: the state had to be transferred to it (uKharon
//! section 5).

use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::{Roles, View};

use super::views::Views;

/// Judges a view that `by` has learned.
pub fn judge(views: &Views, by: ProcessId, view: &View) -> Result<(), String> {
    match views.get(view.number.0) {
        Some(known) if known == view => return Ok(()),
        Some(known) => {
            return Err(format!("{by} learned a view {} that is not the one that others did: {view:?} and {known:?}", view.number));
        }
        None => {}
    }
    // If the predecessor is not known yet, the step is checked when some process learns it.
    let Some(before) = views.get(view.number.0.saturating_sub(1)) else { return Ok(()) };
    match view.with_roles(Roles::REPLICA).find(|replica| before.member(replica.id).is_none()) {
        Some(replica) => Err(format!("view {} makes {} a replica that was no member before", view.number, replica.id)),
        None => Ok(()),
    }
}
