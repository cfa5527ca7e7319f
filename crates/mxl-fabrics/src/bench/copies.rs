//! Grains to another process, sent one after the other: each when the previous one is published.

use std::time::Instant;

use mxl::{BatchHints, Domain, FlowDefinition};
use serde_json::{Value, json};

use super::cores::pin;
use super::figures::Figures;
use super::local::nanoseconds;
use super::pair::{self, EVENT_TIMEOUT, Places, place};
use crate::{Error, Initiator, Provider, Received, Result, Target};

/// Grains sent before the measurement, so that rings are mapped and windows registered.
const WARM: u64 = 30;

/// Latencies of grains over one provider, in nanoseconds from the call that sends a grain to its publication.
///
/// # Errors
/// The error of either process.
pub fn measure(provider: Provider, places: Places<'_>) -> Result<Figures> {
    let said = pair::run(provider, places)?;
    let times = said.initiator.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(Figures::new(times.iter().filter_map(Value::as_u64).collect()))
}

/// Receives until the initiator disconnects.
pub fn receive(domain: &Domain, definition: &FlowDefinition, provider: Provider, core: usize) -> Result<()> {
    pin(core)?;
    let mut target = Target::open(domain, definition, provider, place(provider), None)?;
    println!("{}", target.info().to_json());
    let mut last = Instant::now();
    while last.elapsed() < EVENT_TIMEOUT {
        match target.poll()? {
            Some(Received::Disconnected) => {
                println!("{}", json!({ "published": target.stats().published }));
                return Ok(());
            }
            Some(_) => last = Instant::now(),
            None => {}
        }
    }
    Err(Error::Argument("no initiator connected".into()))
}

/// Sends `count` grains, and prints their times.
pub fn send(
    domain: &Domain,
    definition: &FlowDefinition,
    provider: Provider,
    core: usize,
    count: u64,
) -> Result<()> {
    let info = pair::begin(core)?;
    let writer = domain.create_grains(definition, &BatchHints::default())?.writer;
    let mut initiator = Initiator::open(domain, definition.id, provider, place(provider))?;
    initiator.add(&info)?;
    if !initiator.connect(EVENT_TIMEOUT)? {
        return Err(Error::Argument(format!("the target did not answer over {provider}")));
    }
    let mut times = Vec::new();
    for index in 1000..1000 + WARM + count {
        writer.open(index)?.commit()?;
        let begin = Instant::now();
        initiator.send(index)?;
        while !initiator.is_idle() {
            if begin.elapsed() > EVENT_TIMEOUT {
                return Err(Error::Argument(format!("grain {index} did not arrive over {provider}")));
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
