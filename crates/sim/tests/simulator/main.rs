//! The simulator as it is used from outside: its stories, its steps, and its checker compared with another one.

mod every_step;
mod porcupine;
mod transcripts;
