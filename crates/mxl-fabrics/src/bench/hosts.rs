//! Between two processes: grains that are sent one after the other, each when the one before is published.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition};
use serde_json::{Value, json};

use super::figures::Figures;
use super::local::{nanoseconds, pin};
use crate::{Error, Initiator, Provider, Received, Result, Target, TargetInfo};

/// Either end gives up when nothing happens for so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Grains before it is measured: rings are mapped and windows registered.
const WARM: u64 = 30;

/// A process that ends with the measurement.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Argument(format!("{doing}: {error}"))
}

/// This program in another role.
fn start(role: &str, provider: Provider, arguments: &[String]) -> Result<Running> {
    let program = std::env::current_exe().map_err(system("find this program"))?;
    let mut command = Command::new(program);
    command.args(["--role", role, "--provider", provider.name()]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // What is asked for are sockets; two processes of one host would share memory.
    command.env("FI_UDP_SHARED_MEMORY", "0");
    command.spawn().map(Running).map_err(system("start this program again"))
}

/// Times of grains over one provider, in nanoseconds from handing a grain over to its being published.
///
/// # Errors
/// What either process says.
pub fn measure(provider: Provider, target: &[String], initiator: &[String]) -> Result<Figures> {
    let mut receiving = start("target", provider, target)?;
    let out = receiving.0.stdout.take().ok_or_else(|| Error::Argument("no standard output".into()))?;
    let mut info = String::new();
    BufReader::new(out).read_line(&mut info).map_err(system("read the target's info"))?;
    let mut sending = start("initiator", provider, initiator)?;
    if let Some(mut stdin) = sending.0.stdin.take() {
        stdin.write_all(info.as_bytes()).map_err(system("hand over the target's info"))?;
    }
    let mut said = String::new();
    if let Some(mut out) = sending.0.stdout.take() {
        out.read_to_string(&mut said).map_err(system("read the times"))?;
    }
    let times = serde_json::from_str::<Value>(&said).ok();
    let times = times.as_ref().and_then(Value::as_array);
    let times = times.ok_or_else(|| Error::Argument(format!("over {provider}: see the lines above")))?;
    Ok(Figures::new(times.iter().filter_map(Value::as_u64).collect()))
}

fn place(provider: Provider) -> (Option<&'static str>, Option<&'static str>) {
    (Some("127.0.0.1").filter(|_| provider != Provider::Shm), None)
}

/// Receives until its initiator goes.
pub fn receive(domain: &Domain, definition: &FlowDefinition, provider: Provider, core: usize) -> Result<()> {
    pin(core)?;
    let mut target = Target::open(domain, definition, provider, place(provider), None)?;
    println!("{}", target.info().to_json());
    let mut last = Instant::now();
    while last.elapsed() < PATIENCE {
        match target.poll()? {
            Some(Received::Disconnected) => return Ok(()),
            Some(_) => last = Instant::now(),
            None => {}
        }
    }
    Err(Error::Argument("no initiator came".into()))
}

/// Sends `count` grains, and prints their times.
pub fn send(
    domain: &Domain,
    definition: &FlowDefinition,
    provider: Provider,
    core: usize,
    count: u64,
) -> Result<()> {
    pin(core)?;
    let mut info = String::new();
    std::io::stdin().read_line(&mut info).map_err(system("read the target's info"))?;
    let writer = domain.create_grains(definition, &BatchHints::default())?.writer;
    let mut initiator = Initiator::open(domain, definition.id, provider, place(provider))?;
    let info = TargetInfo::parse(&info)?;
    initiator.add(&info)?;
    if !initiator.connect(PATIENCE)? {
        return Err(Error::Argument(format!("the target did not answer over {provider}")));
    }
    let mut times = Vec::new();
    for index in 1000..1000 + WARM + count {
        writer.open(index)?.commit()?;
        let begin = Instant::now();
        initiator.send(index)?;
        while !initiator.is_idle() {
            if begin.elapsed() > PATIENCE {
                return Err(Error::Argument(format!("grain {index} does not arrive over {provider}")));
            }
            initiator.poll()?;
        }
        if index >= 1000 + WARM {
            times.push(nanoseconds(begin.elapsed()));
        }
    }
    let lost = initiator.target(info.id).map_or(0, |(_, stats)| stats.lost + stats.torn);
    if lost > 0 {
        return Err(Error::Argument(format!("{lost} of {count} grains were lost over {provider}")));
    }
    initiator.remove(info.id)?;
    println!("{}", json!(times));
    Ok(())
}
