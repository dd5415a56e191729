//! Every schedule of a change of leaders, at a small size. All three processes are production engines, on a fabric on which each operation takes effect, and
//! each completion arrives, at any moment that the contract allows. A process that is not scheduled is paused, so the old leader may be paused, and resume, at
//! any moment.

mod dare;
mod model;
mod mu;
mod world;
