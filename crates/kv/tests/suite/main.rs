//! The store from outside.

mod redis;
mod side_by_side;
