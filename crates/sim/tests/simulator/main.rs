//! The simulator as others use it: its stories, its steps, and its checker beside another one.

mod every_step;
mod porcupine;
mod transcripts;
