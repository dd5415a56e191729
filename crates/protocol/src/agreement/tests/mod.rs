//! Exhaustive models of the primitives: the machines themselves, few processes, every order of events.

mod broadcast;
mod consensus;
mod explore;
