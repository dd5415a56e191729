mod machine;
mod paper;
mod random;
mod traps;
mod world;
