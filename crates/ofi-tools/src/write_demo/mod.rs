//! `fi_write_demo`: remote writes of random pages between two processes, with the messages of the C++ demo
//! `16_write_cpu`. The reader announces its address and the memory that it offers, then requests pages ([`message`]).
//! The writer fills them ([`fill`]) and writes each to its place ([`job`]). The C++ demo treats the arrival of the last
//! write as the arrival of all, which is wrong on networks that reorder. Here either the last write waits for the
//! completions of all others, or every write carries data and the reader counts; both are correct for every provider.

#![forbid(unsafe_code)]

mod choice;
mod figures;
mod fill;
mod job;
mod ladder;
mod message;
mod nics;
mod options;
mod plot;
mod reader;
mod steps;
mod threads;
mod writer;

use std::process::ExitCode;

use crate::failure::Result;
use crate::{exit, output};
pub(crate) use options::Options;
use steps::Steps;

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    match Options::from_command_line() {
        Ok(mut options) => exit::end("fi_write_demo", start(&mut options)),
        Err(error) => exit::usage(&error),
    }
}

/// Completes the options, shows them, and runs the role that they give.
fn start(options: &mut Options) -> Result<()> {
    let choice = choice::choose(options);
    if options.asked.is_none() {
        output::tell(&format!("fi_write_demo: provider {}: {}", choice.provider, choice.why));
    }
    options.provider = choice.provider;
    options.nics = nics::count(options)?;
    let steps = Steps::new(options.verbose);
    steps.step("configuration", || configuration(options, &choice.why));
    match &options.address {
        _ if options.ladder => ladder::run(options),
        Some(address) => reader::run(options, address, steps),
        None => writer::run(options, steps),
    }
}

/// The options of a role as they are in effect.
fn configuration(options: &Options, why: &str) -> String {
    let Options { provider, page_size, pages, nics, threads, pin, timeout, reading, writing, .. } = options;
    let requests = writing.requests.map_or("no limit".to_string(), |requests| requests.to_string());
    let writer = format!(
        "requests {requests}, batch {}, on full {:?}, counters {:?}, lazy {}, warm-up {}",
        writing.batch, writing.on_full, writing.counters, writing.lazy, writing.warm_up
    );
    let reader = format!(
        "pages {pages} of {page_size} bytes in each region of {} bytes, rounds {}, requests {}, arrival {:?}",
        reading.region, reading.rounds, reading.repeat, reading.arrival
    );
    let role = match (&options.address, options.ladder) {
        (_, true) => format!("ladder of writers; {reader}"),
        (Some(address), false) => format!("reader of {address}; {reader}"),
        (None, false) => format!("writer; {writer}"),
    };
    format!(
        "provider {provider} ({why}); NICs {nics}, threads {threads}, pin {pin}, timeout {timeout} s; {role}"
    )
}
