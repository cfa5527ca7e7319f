//! `ofi`: one program with a subcommand for each chore of an operator.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::doctor;
use crate::failure;

/// Looks after hosts and programs that use this library.
#[derive(Debug, Parser)]
#[command(name = "ofi", version)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what this host lacks for speed, and what to change, in order of effect
    Doctor(doctor::Options),
    /// Reads a word of another process's memory: how `ofi doctor` tries single copies
    #[command(hide = true)]
    ReadMemory(doctor::ReadMemory),
}

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return failure::usage(&error),
    };
    match options.command {
        Command::Doctor(options) => match doctor::run(&options) {
            Ok(code) => code,
            failed => failure::end("ofi", failed.map(|_| ())),
        },
        Command::ReadMemory(options) => failure::end("ofi", options.run()),
    }
}
