//! The command as users run it.

mod bench;
mod command;
mod martlet;
