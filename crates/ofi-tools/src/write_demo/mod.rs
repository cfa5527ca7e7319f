//! `fi_write_demo`: remote writes of random pages between two processes, with the messages of the C++ demo
//! `16_write_cpu`.
//! The reader announces its address and the memory that it offers, then requests pages ([`message`]). The writer fills
//! them ([`fill`]) and writes each to its place ([`job`]). The C++ demo takes the arrival of the last write for the
//! arrival of all, which is wrong on every network that reorders. Here either the last write waits for the completions
//! of all others, or every write carries data and the reader counts; both are correct for every provider.

#![forbid(unsafe_code)]

mod figures;
mod fill;
mod job;
mod ladder;
mod message;
mod nics;
mod options;
mod plot;
mod reader;
mod threads;
mod writer;

use std::process::ExitCode;

use crate::exit;
use crate::failure::Result;
pub(crate) use options::Options;

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    match Options::from_command_line() {
        Ok(options) => exit::end("fi_write_demo", run(&options)),
        Err(error) => exit::usage(&error),
    }
}

fn run(options: &Options) -> Result<()> {
    match &options.address {
        _ if options.ladder => ladder::run(options),
        Some(address) => reader::run(options, address),
        None => writer::run(options),
    }
}
