//! The program: its roles, and what they share.

mod lines;
mod list;
mod log;
mod mirror;
mod nmos;
mod remote;
mod serve;
mod stop;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::program;

/// Mirrors flows of one host into a domain of another, and keeps them across restarts of either side.
#[derive(Debug, Parser)]
#[command(name = "mxl-gateway", version)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Offer flows of a domain of this host
    Serve(serve::Options),
    /// Mirror flows of another host into a domain of this one
    Mirror(mirror::Options),
    /// List the flows that a host offers
    List(list::Options),
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    program::run("mxl-gateway", |options: &Options| match &options.role {
        Role::Serve(options) => serve::run(options),
        Role::Mirror(options) => mirror::run(options),
        Role::List(options) => list::run(options),
    })
}
