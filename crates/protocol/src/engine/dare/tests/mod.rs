//! Tests of the engine: the paper's rules by section, and what can go wrong with them. Schedules drawn from a seed are the simulator's.

mod election;
mod reconfiguration;
mod replication;
mod world;
mod zombies;
