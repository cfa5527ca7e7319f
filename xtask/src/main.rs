//! `cargo xtask`: the chores of this repository. CI (`.ci/run`) calls the same commands.
//!
//! A command exits with 0 if everything passed, 1 if something failed, and 77 if nothing failed but something could not
//! run on this machine. Each such thing is printed as a line `NOT RUN: what: why`.

mod book;
mod capi;
mod checks;
mod chores;
mod commands;
mod conformance;
mod datagrams;
mod deb;
mod docs;
mod efa;
mod features;
mod filters;
mod hygiene;
mod install;
mod installed;
mod layouts;
mod links;
mod long;
mod mpi;
mod mxl;
mod nightly;
mod nixl;
mod nixl_plugin;
mod nmos;
mod patience;
mod plugins;
mod report;
mod settings;
mod speed;
mod step;
mod stock;
mod suite;
mod tcp;
mod trixie;
mod vm;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::step::{Outcome, Report};

/// The chores of this repository.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything that must pass before a commit: format, lints, tests, doc tests, generated documents.
    Test,
    /// Writes the generated documents.
    Docs {
        /// Write nothing; fail if one of them is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Builds the book from docs/ into target/book (mdBook).
    Book,
    /// Writes docs/conformance.md, a page of the book alone: libfabric's rules, each with the tests that check it.
    Conformance {
        /// Write nothing; fail if a rule names a test that does not exist, or has none.
        #[arg(long)]
        check: bool,
    },
    /// Measures this stack beside libfabric and UCX. Arguments go to `ofi-benches`.
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measures beside libfabric and UCX, and writes a page with plots.
    Report(report::Options),
    /// Counts the instructions of the hot paths against docs/hot-path.md.
    Budgets {
        /// Write the measured counts into the table.
        #[arg(long)]
        write: bool,
        /// Only build them.
        #[arg(long)]
        no_run: bool,
    },
    /// Checks the rings with loom: every interleaving of small cases.
    Loom,
    /// Runs the tests of unsafe code under AddressSanitizer.
    Asan {
        /// Only build them.
        #[arg(long)]
        no_run: bool,
    },
    /// Runs every fuzz target for a short time.
    Fuzz(nightly::Fuzz),
    /// Runs mixed operations in eight processes; checks every byte, and that memory use stays flat.
    Soak {
        /// For how long.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Runs the wire protocol in the simulated network: every property on many seeds, and a day of virtual time.
    Simulate {
        /// Cases of each property.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
        /// Hours of virtual time.
        #[arg(long, default_value_t = 24)]
        hours: u64,
    },
    /// Kills peers under load at random times (`kill -9`).
    Kills {
        /// How many.
        #[arg(long, default_value_t = 1_000)]
        count: u64,
    },
    /// Links libfabric.so.1, and prints its path.
    Capi {
        /// A debug build, which takes less time.
        #[arg(long)]
        debug: bool,
        /// Run C programs on it: those of tests/capi, and libfabric's own.
        #[arg(long)]
        test: bool,
    },
    /// Runs C programs over provider `tcp` of C's libfabric (Debian's 1.17 and 2.x) against ours, each as the server.
    Tcp,
    /// Builds a Debian package of libfabric.so.1 and the tools, under target/deb.
    Deb {
        /// A debug build, which takes less time.
        #[arg(long)]
        debug: bool,
    },
    /// Builds the wheel ofi-nixl, which brings NIXL our backend and libfabric.so.1, under target/wheel.
    Wheel,
    /// Installs libfabric.so.1, the media layer's libraries, NIXL's plug-in and all programs, or the parts that
    /// switches name.
    Install(install::Options),
    /// Installs into an empty prefix, and uses nothing else: C's programs, NIXL, media and our programs on it.
    Installed(installed::Options),
    /// Runs NVIDIA's NIXL, from its wheel, on libfabric.so.1: two processes that break their threading level; and on
    /// libplugin_OFI.so.
    Nixl {
        /// The processes that break their threading level with blocks of 4 KiB, 64 KiB, 1 MiB and 4 MiB, this many
        /// runs each, and every way of driving libplugin_OFI.so with more rounds.
        #[arg(long)]
        runs: Option<usize>,
        /// Measures NIXL's own backends and OFI by turns instead, and prints tables: some 20 minutes.
        #[arg(long)]
        speed: bool,
    },
    /// Runs MPICH, Open MPI and Intel MPI, from their wheels, on libfabric.so.1: two ranks over each provider, and one
    /// rank beside one of C's libfabric over tcp.
    Mpi {
        /// The tests of mpi4py instead, with 1 to 3 ranks. They take an hour or more.
        #[arg(long)]
        suite: bool,
    },
    /// Runs the NMOS Node of the media layer in a registry that others wrote, from npm.
    Nmos,
    /// Runs the checks that are too long for CI: many seeds, kills, a soak and long fuzzing. Writes target/nightly.md.
    Nightly(long::Options),
    /// Checks the workspace as a whole: the promised compiler, the error off Linux, the licences and sources of
    /// dependencies (cargo-deny), unused ones (cargo-machete). Fetches both programs under target/ if they are missing.
    Hygiene,
    /// Compiles for aarch64.
    Aarch64,
    /// Runs a command as root on a kernel with soft-RoCE, in a virtual machine over this host's files.
    Vm(vm::Options),
    /// Runs the tests that need an RDMA device, in that machine.
    Rdma,
    /// Runs a command on an emulated EFA device; such commands reach each other.
    Efa(efa::Options),
    /// Measures on two EFA instances, beside C's libfabric, and writes a page to send back: run it on one, then on the
    /// other with the first one's address. No figure of it has been taken yet.
    EfaBench(efa::bench::Options),
}

fn main() -> ExitCode {
    let mut report = Report::default();
    match Options::parse().command {
        Command::Test => checks::test(&mut report),
        Command::Docs { check } => report.add("documents", || docs::run(check)),
        Command::Book => report.add("the book", book::build),
        Command::Conformance { check } => report.add("conformance", || conformance::run(check)),
        Command::Bench { args } => report.add("benches", || checks::bench(&args)),
        Command::Budgets { no_run: true, .. } => report.add("benches", checks::build_benches),
        Command::Budgets { write, .. } => {
            report.add("instruction budgets", || checks::budgets(write));
            report.add("counts of the hot paths", || checks::counts(write));
        }
        Command::Loom => report.add("loom", checks::loom),
        Command::Asan { no_run } => report.add("AddressSanitizer", || nightly::asan(no_run)),
        Command::Fuzz(options) => nightly::fuzz(&mut report, &options),
        Command::Soak { minutes } => report.add("soak", || checks::soak(minutes)),
        Command::Simulate { seeds, hours } => checks::simulate(&mut report, seeds, hours),
        Command::Kills { count } => report.add("kills", || checks::kills(count)),
        Command::Capi { test: true, .. } => capi::test(&mut report),
        Command::Capi { debug, .. } => report.add("libfabric.so.1", || capi::build(!debug)),
        Command::Tcp => tcp::test(&mut report),
        Command::Report(options) => report.add("the performance report", || report::main(&options)),
        Command::Deb { debug } => report.add("the Debian package", || deb::run_deb(!debug)),
        Command::Wheel => report.add("the wheel", wheel::run_wheel),
        Command::Install(options) => report.add("install", || install::run_install(&options)),
        Command::Installed(options) => installed::run_installed(&mut report, &options),
        Command::Nixl { speed: true, .. } => report.add("NIXL's backends", nixl::speed::compare),
        Command::Nixl { runs, .. } => nixl::test(&mut report, runs),
        Command::Mpi { suite } => mpi::test(&mut report, suite),
        Command::Nmos => nmos::test(&mut report),
        Command::Nightly(options) => long::run(&mut report, &options),
        Command::Hygiene => hygiene::check(&mut report),
        Command::Aarch64 => report.add("aarch64", checks::aarch64),
        Command::Rdma => vm::suite::run(&mut report),
        Command::Vm(options) => return vm::run(&options),
        Command::Efa(options) => return efa::main(&options),
        Command::EfaBench(options) => report.add("efa-bench", || efa::bench::main(&options)),
    }
    report.finish()
}

/// The result of a step.
type StepResult = Result<Outcome, String>;
