//! `ofi`: one program with a subcommand for each task of an operator.

mod pages;

pub use pages::{commands, write_pages};

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{copy, doctor, efa_bench, exit, stats, top};

/// Tools for hosts and programs that use this library.
#[derive(Debug, Parser)]
#[command(name = "ofi", version)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks this host's settings for speed, and prints what to change, largest effect first
    Doctor(doctor::Options),
    /// Copies files and directories from another host: parallel streams, resumes after a cut, verifies the content
    Cp(copy::Options),
    /// Prints the statistics of the endpoints of this host's processes
    Stats(stats::Options),
    /// Shows the endpoints of this host's processes and their rates, refreshed continuously
    Top(top::Options),
    /// Measures between two instances with EFA devices, beside C's library, and writes a page of figures
    EfaBench(efa_bench::Options),
    /// Writes man pages and shell completions of all programs
    #[command(hide = true)]
    Pages(pages::Options),
    /// Reads a word of another process's memory: how `ofi doctor` tries single copies
    #[command(hide = true)]
    ReadMemory(doctor::ReadMemory),
}

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return exit::usage(&error),
    };
    let ended = match options.command {
        Command::Cp(options) => copy::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::EfaBench(options) => efa_bench::run(&options),
        Command::Stats(options) => stats::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Pages(options) => pages::write(&options).map(|()| ExitCode::SUCCESS),
        Command::ReadMemory(options) => options.run().map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|failure| exit::end("ofi", Err(failure)))
}
