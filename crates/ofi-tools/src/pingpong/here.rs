//! A run of both sides: starts the other process and measures every transport of this host against it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ofi::raw::{Caps, Info};
use ofi_progress_bar::Progress;
use serde_json::{Value, json};

use super::cores;
use super::link::Link;
use super::measure::{AccessRow, Bench, Budget, Row, WINDOW, access_window};
use super::message::{Message, Setup};
use super::node;
use super::options::{Level, Memory, Options};
use super::sides::{self, telling};
use super::{setup, sizes, table};
use crate::failure::{Failure, Result};
use crate::output;

/// Measures every transport of this host that the options do not exclude.
///
/// # Errors
/// Any error of either side.
pub fn run(options: &Options) -> Result<()> {
    let pair = match options.cores[..] {
        [ours, theirs] => Some([ours, theirs]),
        _ => cores::choose()?,
    };
    let base = Setup { crowded: pair.is_none_or(|[ours, theirs]| ours == theirs), ..setup(options) };
    let infos = transports(&base)?;
    let plan = PingpongPlan::new(options);
    let bar = Progress::steps(false, Some((infos.len() * plan.steps(options)) as u64));
    let mut results = Vec::new();
    for info in &infos {
        let (fabric, domain) = (&info.fabric_attr, &info.domain_attr);
        let names = [&fabric.prov_name, &fabric.name, &domain.name].map(String::clone);
        let mine = Setup { names, core: pair.map(|[core, _]| core), ..base.clone() };
        let (mut peer, mut link) =
            PeerProcess::start(&Setup { core: pair.map(|[_, core]| core), ..mine.clone() })?;
        let run = Run { options, plan: &plan, bar: &bar, pair };
        let result = run.transport(info, &mine, &mut link);
        results.push(peer.end(telling(&mut link, result))?);
    }
    drop(bar);
    if options.json {
        let value = json!({
            "fi_pingpong": env!("CARGO_PKG_VERSION"),
            "cores": pair,
            "threading": options.threading,
            "memory": options.memory,
            "window": WINDOW,
            "transports": results,
        });
        return output::print_json(&value);
    }
    Ok(())
}

/// The other process of such a run; its standard input is the control connection.
///
/// # Errors
/// Any error of either side.
pub fn peer() -> Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| Failure::system("taking the control connection", error))?;
    let mut link = Link::unix(UnixStream::from(socket))?;
    let result = match link.receive("waiting to be told what to open", || Ok(()))? {
        Message::Setup(setup) => serve(&mut link, &setup),
        other => Err(super::jobs::unexpected(&other)),
    };
    telling(&mut link, result)
}

fn serve(link: &mut Link, setup: &Setup) -> Result<()> {
    let node = sides::open_server(link, setup, false)?;
    sides::serve(link, &node, |_, _| Ok(()))
}

/// The best interface of each provider.
fn transports(setup: &Setup) -> Result<Vec<Info>> {
    let mut best: Vec<Info> = Vec::new();
    for info in node::offers(setup)? {
        if best.iter().all(|other| other.fabric_attr.prov_name != info.fabric_attr.prov_name) {
            best.push(info);
        }
    }
    Ok(best)
}

/// The measurements of each transport.
struct PingpongPlan {
    sizes: Vec<usize>,
    budget: Budget,
}

impl PingpongPlan {
    fn new(options: &Options) -> PingpongPlan {
        let chosen = options.sizes.as_ref().or(options.size.as_ref());
        let sizes = chosen.map_or_else(|| sizes::DEFAULT.to_vec(), |choice| choice.up_to(sizes::MAX));
        PingpongPlan { sizes, budget: if options.quick { Budget::quick() } else { Budget::NORMAL } }
    }

    fn steps(&self, options: &Options) -> usize {
        let accesses = self.sizes.iter().filter(|&&size| size > 0).count() * 2;
        self.sizes.len() + if options.rma { accesses } else { 0 }
    }
}

/// The state of the run that all transports share.
struct Run<'a> {
    options: &'a Options,
    plan: &'a PingpongPlan,
    bar: &'a Progress,
    pair: Option<[usize; 2]>,
}

impl Run<'_> {
    fn transport(&self, info: &Info, setup: &Setup, link: &mut Link) -> Result<Value> {
        let node = sides::open_client(link, setup, self.options.verbose)?;
        let limit = node.info().ep_attr.max_msg_size;
        let sizes: Vec<usize> = self.plan.sizes.iter().copied().filter(|&size| size <= limit).collect();
        self.print(|| self.title(info))?;
        let mut bench =
            Bench { node: &node, link, budget: self.plan.budget, iterations: self.options.iterations };
        let rows = self.messages(&mut bench, &sizes)?;
        let can_access = info.caps.contains(Caps::RMA);
        let accesses =
            if self.options.rma && can_access { self.accesses(&mut bench, &sizes)? } else { Vec::new() };
        if self.options.stats {
            node.tell_counters();
        }
        bench.link.send(&Message::Bye)?;
        Ok(json!({
            "provider": info.fabric_attr.prov_name,
            "domain": info.domain_attr.name,
            "protocol": info.ep_attr.protocol.to_string(),
            "rows": rows,
            "rma": self.options.rma.then_some(accesses),
        }))
    }

    fn messages(&self, bench: &mut Bench<'_>, sizes: &[usize]) -> Result<Vec<Row>> {
        let (options, memory) = (self.options, self.options.memory);
        self.print(|| table::head(options.check))?;
        let mut rows = Vec::new();
        for &bytes in sizes {
            self.bar.begin(format!("messages of {}", sizes::text(bytes)));
            let latency_us = bench.latency(bytes, memory)?;
            let (rate_mps, window) = bench.rate(bytes, memory)?;
            let checked = if options.check { Some(bench.check(bytes, memory)?) } else { None };
            let bandwidth_gbps = rate_mps * bytes as f64 / 1e3;
            let row = Row { bytes, latency_us, rate_mps, bandwidth_gbps, window, checked };
            self.bar.done();
            self.print(|| table::row(&row))?;
            rows.push(row);
        }
        Ok(rows)
    }

    fn accesses(&self, bench: &mut Bench<'_>, sizes: &[usize]) -> Result<Vec<AccessRow>> {
        self.print(|| format!("\nremote memory access\n{}", table::access_head()))?;
        let mut rows = Vec::new();
        for &bytes in sizes.iter().filter(|&&size| size > 0) {
            for memory in [Memory::Library, Memory::Application] {
                self.bar.begin(format!("accesses of {} to {memory} memory", sizes::text(bytes)));
                let (write_us, write_gbps) = bench.access(bytes, memory, true)?;
                let (read_us, read_gbps) = bench.access(bytes, memory, false)?;
                let window = access_window(bytes);
                let row = AccessRow { bytes, memory, window, write_us, write_gbps, read_us, read_gbps };
                self.bar.done();
                self.print(|| table::access_row(&row))?;
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn title(&self, info: &Info) -> String {
        let cores = match self.pair {
            Some([ours, theirs]) if ours != theirs => format!("cores {ours} and {theirs}"),
            _ => "one core for both processes, which take turns: latencies are those of the scheduler".into(),
        };
        let threading = match self.options.threading {
            Level::Domain => "FI_THREAD_DOMAIN",
            Level::Safe => "FI_THREAD_SAFE",
        };
        let (provider, protocol) = (&info.fabric_attr.prov_name, info.ep_attr.protocol);
        let progress = info.domain_attr.progress;
        format!(
            "{provider} ({protocol}): two processes, {cores}; {threading}, {progress}, window {WINDOW}, {} memory\n",
            self.options.memory
        )
    }

    fn print(&self, text: impl FnOnce() -> String) -> Result<()> {
        if self.options.json { Ok(()) } else { self.bar.aside(|| output::print(&text())) }
    }
}

/// Time that the other process may take to end after the last request.
const PARTING: Duration = Duration::from_secs(2);

/// The other process. On drop it is killed if it still runs.
struct PeerProcess {
    child: Child,
}

impl PeerProcess {
    fn start(setup: &Setup) -> Result<(PeerProcess, Link)> {
        let failed = |doing: &'static str| move |error| Failure::system(doing, error);
        let (ours, theirs) = UnixStream::pair().map_err(failed("making a socket pair"))?;
        let program = std::env::current_exe().map_err(failed("finding this program's file"))?;
        let mut command = Command::new(program);
        command.arg("--peer").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn().map_err(failed("starting the second process"))?;
        drop(command); // and with it this process's copy of the peer's end, so that its death is noticed
        let (peer, mut link) = (PeerProcess { child }, Link::unix(ours)?);
        link.send(&Message::Setup(setup.clone()))?;
        Ok((peer, link))
    }

    /// Waits for the end of the process. If the process died, adds that to the failure.
    fn end<T>(&mut self, result: Result<T>) -> Result<T> {
        let status = self.wait()?;
        match (result, status) {
            (Err(failure @ Failure::Told { .. }), _) => Err(failure),
            (_, Some(status)) if status.signal().is_some() => {
                let signal = status.signal().unwrap_or_default();
                Err(Failure::Peer(format!("the second process was killed by signal {signal}")))
            }
            (Ok(_), None) => Err(Failure::Peer("the second process did not end".into())),
            (Ok(_), Some(status)) if !status.success() => {
                Err(Failure::Peer(format!("the second process ended with {status}")))
            }
            (result, _) => result,
        }
    }

    fn wait(&mut self) -> Result<Option<ExitStatus>> {
        let since = Instant::now();
        loop {
            let status = self.child.try_wait();
            match status.map_err(|error| Failure::system("waiting for the second process", error))? {
                None if since.elapsed() < PARTING => std::thread::sleep(Duration::from_millis(1)),
                status => return Ok(status),
            }
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // Both calls are harmless for a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
