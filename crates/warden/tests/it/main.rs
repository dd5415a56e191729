//! Wardens and programs as real processes: killed, stopped, ending, and replaced by others.

mod child;
mod ends;
mod hosts;
mod refusals;
mod restart;
mod storm;
mod traffic;
mod world;
