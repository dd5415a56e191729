mod disk;
mod machine;
mod paper;
mod power;
mod random;
mod traps;
mod world;
