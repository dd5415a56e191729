//! Exhaustive models of the primitives: the real machines, few processes, every order of events.

mod broadcast;
mod consensus;
mod explore;
