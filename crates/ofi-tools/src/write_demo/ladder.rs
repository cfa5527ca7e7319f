//! The ladder: the steps of the C++ demos 7 to 15. Each step adds one option to the step before.
//!
//! Every step starts a writer process with its options; this process is the reader.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde::Serialize;
use serde_json::{Value, json};

use super::message::Arrival;
use super::options::Options;
use super::steps::Steps;
use super::{plot, reader};
use crate::failure::{Failure, Result};
use crate::output;

/// One step with all of its options.
#[derive(Debug, Clone)]
struct LadderStep {
    name: &'static str,
    nics: u64,
    threads: u64,
    pin: bool,
    arguments: Vec<String>,
}

/// The result of a step.
#[derive(Debug, Serialize)]
pub struct Rung {
    /// The step.
    pub step: &'static str,
    /// 10^9 bits per second, from the first post to the last completion, of all NICs together.
    pub gigabits_per_second: f64,
    /// Median time from post to completion, in microseconds.
    pub write_p50_us: f64,
    /// 99th percentile of the same.
    pub write_p99_us: f64,
}

/// Runs all steps and prints their results.
///
/// # Errors
/// The first error of a step.
pub fn run(options: &Options) -> Result<()> {
    let mut rungs = Vec::new();
    for step in steps(options) {
        rungs.push(climb(options, &step)?);
        if !options.json {
            let heading = if rungs.len() == 1 { HEADING } else { "" };
            output::print(&format!("{heading}{}", line(&rungs)))?;
        }
    }
    if options.json {
        let Options { provider, page_size, pages, nics, threads, .. } = options;
        let rounds = options.reading.rounds;
        output::print_json(&json!({
            "provider": provider, "page_size": page_size, "pages": pages, "rounds": rounds, "nics": nics,
            "threads": threads, "steps": rungs,
        }))?;
    }
    match &options.svg {
        Some(file) => {
            let doing = || format!("writing {}", file.display());
            std::fs::write(file, plot::svg(&rungs)).map_err(|error| Failure::system(doing(), error))
        }
        None => Ok(()),
    }
}

const HEADING: &str = "step                              Gb/s  x before   write us p50      p99\n";

fn line(rungs: &[Rung]) -> String {
    let Some((rung, before)) = rungs.split_last() else { return String::new() };
    let gain = before.last().map(|before| rung.gigabits_per_second / before.gigabits_per_second);
    let gain = gain.map_or_else(String::new, |gain| format!("{gain:.2}"));
    let Rung { step, gigabits_per_second: rate, write_p50_us: p50, write_p99_us: p99 } = rung;
    format!("{step:28} {rate:>9.3} {gain:>9} {p50:>14.1} {p99:>8.1}\n")
}

fn steps(options: &Options) -> Vec<LadderStep> {
    let with = |step: &LadderStep, name, more: &[&str]| {
        let mut arguments = step.arguments.clone();
        arguments.extend(more.iter().map(ToString::to_string));
        LadderStep { name, arguments, ..step.clone() }
    };
    let bare = LadderStep {
        name: "one NIC, sleep when full",
        nics: 1,
        threads: 1,
        pin: false,
        arguments: Vec::new(),
    };
    let first = with(&bare, bare.name, &["--batch=1", "--counters=shared", "--on-full=sleep"]);
    let queue = LadderStep { name: "queue when full", ..first.clone() };
    let queue = LadderStep { arguments: replaced(&queue, "--on-full=sleep", "--on-full=queue"), ..queue };
    let nics = LadderStep { name: "all NICs, one thread", nics: options.nics, ..queue.clone() };
    let warm = with(&nics, "warm-up", &["--warm-up"]);
    let threads = LadderStep { name: "threads", threads: options.threads, ..warm.clone() };
    let pin = LadderStep { name: "a core for each thread", pin: true, ..threads.clone() };
    let own = LadderStep {
        name: "own counters",
        arguments: replaced(&pin, "--counters=shared", "--counters=own"),
        ..pin.clone()
    };
    let batch = LadderStep {
        name: "batches of 16",
        arguments: replaced(&own, "--batch=1", "--batch=16"),
        ..own.clone()
    };
    let lazy = with(&batch, "post where the queue is read", &["--lazy"]);
    vec![first, queue, nics, warm, threads, pin, own, batch, lazy]
}

fn replaced(step: &LadderStep, old: &str, new: &str) -> Vec<String> {
    step.arguments.iter().map(|one| if one == old { new.to_string() } else { one.clone() }).collect()
}

/// A writer process that is killed on drop.
struct WriterProcess(Child);

impl Drop for WriterProcess {
    fn drop(&mut self) {
        // It has ended already, or its result is no longer needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn climb(options: &Options, step: &LadderStep) -> Result<Rung> {
    let system = |doing: &'static str| move |error| Failure::system(doing, error);
    let program = std::env::current_exe().map_err(system("finding this program"))?;
    let mut command = Command::new(program);
    command.args(["--json", "--requests=1", "--provider", &options.provider]).args(&step.arguments);
    command.args([format!("--nics={}", step.nics), format!("--threads={}", step.threads)]);
    if step.pin {
        command.arg("--pin");
    }
    command.args((0..options.verbose).map(|_| "--verbose"));
    let steps = Steps::new(options.verbose);
    steps.step("ladder", || format!("step {:?}", step.name));
    let mut writer =
        WriterProcess(command.stdout(Stdio::piped()).spawn().map_err(system("starting the writer"))?);
    let gone = || Failure::Peer(format!("the writer of step {:?} ended early", step.name));
    let mut lines = BufReader::new(writer.0.stdout.take().ok_or_else(gone)?);
    let mut address = String::new();
    lines.read_line(&mut address).map_err(system("reading the writer's output"))?;
    let mut asking = options.clone();
    (asking.nics, asking.threads, asking.pin) = (step.nics, step.threads, step.pin);
    (asking.reading.repeat, asking.reading.arrival) = (1, Arrival::Last);
    reader::ask(&asking, address.trim(), steps)?;
    let mut text = String::new();
    lines.read_to_string(&mut text).map_err(system("reading the writer's output"))?;
    let figures: Value = serde_json::from_str(&text).map_err(|_| gone())?;
    let number = |value: &Value| value.as_f64().ok_or_else(gone);
    Ok(Rung {
        step: step.name,
        gigabits_per_second: number(&figures["gigabits_per_second"])?,
        write_p50_us: number(&figures["write_us"]["p50"])?,
        write_p99_us: number(&figures["write_us"]["p99"])?,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn each_step_is_the_one_before_and_one_switch_more() {
        let mut options = Options::try_parse_from(["fi_write_demo", "--ladder", "--threads=2"]).unwrap();
        options.nics = 4;
        let steps = steps(&options);
        assert_eq!(steps.len(), 9);
        for pair in steps.windows(2) {
            let differ = [
                pair[0].nics != pair[1].nics,
                pair[0].threads != pair[1].threads,
                pair[0].pin != pair[1].pin,
                pair[0].arguments != pair[1].arguments,
            ];
            assert_eq!(differ.iter().filter(|&&differs| differs).count(), 1, "{pair:?}");
        }
        for step in &steps {
            let arguments = step.arguments.iter().map(String::as_str);
            Options::try_parse_from(["fi_write_demo"].into_iter().chain(arguments)).unwrap();
        }
    }
}
