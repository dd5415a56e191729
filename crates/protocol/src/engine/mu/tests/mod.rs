mod disk;
mod handover;
mod machine;
mod paper;
mod power;
mod random;
mod traps;
mod world;
