//! A cluster under lasting observation: its nodes, their rates, and who took over from whom.

pub mod failovers;
pub mod holders;
pub mod holding;
pub mod known;
pub mod lookout;
