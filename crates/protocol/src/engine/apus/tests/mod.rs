//! Tests of the engine on the simulated fabric.

mod paper;
mod world;
