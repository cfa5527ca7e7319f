//! Two agents of `multirail` in one process, with very many regions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use multirail::{Agent, Local, Prepared, Region, Remote, Way};
use ofi::Hints;

use super::{Figure, figure};
use crate::{Error, Result};

const FEW: usize = 2_000;
const MANY: usize = 32_000;
const LEN: u64 = 64;
/// Repetitions, of which the shortest counts.
const TIMES: usize = 9;
/// Posts that are timed, each beside and without a thread that prepares.
const POSTS: usize = 4_000;
/// Transfers beside which a region is withdrawn.
const IN_FLIGHT: [usize; 2] = [10, 65_536];
const LIMIT: Duration = Duration::from_secs(60);

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// An agent that is its own peer, and its regions.
fn open() -> Result<(Agent, Vec<Region<Vec<u8>>>)> {
    let agent = Agent::builder("alice").rail(Hints::new().provider("shm")).open().map_err(stack)?;
    let regions = (0..MANY).map(|_| agent.register(vec![0_u8; LEN as usize]));
    let regions = regions.collect::<ofi::raw::Result<Vec<_>>>().map_err(stack)?;
    agent.load(&agent.metadata().map_err(stack)?).map_err(stack)?;
    Ok((agent, regions))
}

/// One range in each of these regions: local ones, and remote ones in the opposite order.
fn ranges(regions: &[Region<Vec<u8>>]) -> Result<(Vec<Local>, Vec<Remote>)> {
    let local = regions.iter().map(|region| region.slice(..));
    let local = local.collect::<ofi::raw::Result<Vec<_>>>().map_err(stack)?;
    let remote = |region: &Region<Vec<u8>>| Remote { region: region.id(), offset: 0, len: LEN };
    Ok((local, regions.iter().rev().map(remote).collect()))
}

fn plan(agent: &Agent, (local, remote): &(Vec<Local>, Vec<Remote>)) -> Result<Prepared> {
    agent.prepare("alice", Way::Write, local, remote).map_err(stack)
}

/// Preparing one descriptor in each of many regions.
pub(super) fn prepare() -> Result<Vec<Figure>> {
    let (agent, regions) = open()?;
    let time = |count: usize| -> Result<f64> {
        let ranges = ranges(&regions[..count])?;
        let mut least = f64::INFINITY;
        for _ in 0..TIMES {
            let begin = Instant::now();
            let made = plan(&agent, &ranges)?;
            least = least.min(begin.elapsed().as_secs_f64() * 1e3);
            drop(made);
        }
        Ok(least)
    };
    let (few, many) = (time(FEW)?, time(MANY)?);
    let growth = (many / MANY as f64) / (few / FEW as f64);
    Ok(vec![
        figure(format!("preparing {MANY} descriptors in as many regions, ms"), many, Some(10.0)),
        figure(format!("a descriptor of {MANY}, as a multiple of one of {FEW}"), growth, Some(2.0)),
    ])
}

/// Withdrawing a region that no transfer uses, while few or many transfers of others are in flight.
pub(super) fn revoke() -> Result<Vec<Figure>> {
    let (agent, regions) = open()?;
    let (first, rest) = regions.split_at(TIMES * 2);
    // Notifications to a peer that takes none stay in flight.
    let mut in_flight = Vec::new();
    let mut time = |count: usize, regions: &[Region<Vec<u8>>]| -> Result<f64> {
        while in_flight.len() < count {
            let one = plan(&agent, &ranges(&rest[in_flight.len() % rest.len()..][..1])?)?;
            in_flight.push(one.post_notify(b"kept", LIMIT).map_err(stack)?);
        }
        let mut least = f64::INFINITY;
        for region in regions {
            let begin = Instant::now();
            agent.revoke(region, LIMIT).map_err(stack)?;
            least = least.min(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(least)
    };
    let [few, many] = IN_FLIGHT;
    let (least, most) = (time(few, &first[..TIMES])?, time(many, &first[TIMES..])?);
    let busy = in_flight.iter().filter(|transfer| transfer.progress().outcome.is_none()).count();
    Ok(vec![
        figure(format!("withdrawing a region beside {few} transfers, us"), least, None),
        figure(format!("beside {many} ({busy} in flight), us"), most, None),
        figure("as a multiple", most / least, Some(2.0)),
    ])
}

/// The 99th percentile of posts by this thread, in microseconds.
fn posts(agent: &Agent, plan: &Prepared) -> Result<f64> {
    let mut times = Vec::with_capacity(POSTS);
    for _ in 0..POSTS {
        let begin = Instant::now();
        let transfer = plan.post(LIMIT).map_err(stack)?;
        times.push(begin.elapsed());
        while transfer.poll().map_err(stack)?.outcome.is_none() {}
        drop(transfer);
        agent.progress().map_err(stack)?;
        std::thread::yield_now(); // the thread that prepares may run on the same core
    }
    times.sort_unstable();
    Ok(times[POSTS * 99 / 100].as_secs_f64() * 1e6)
}

/// Posting while another thread prepares.
pub(super) fn post_beside_prepare() -> Result<Vec<Figure>> {
    let (agent, regions) = open()?;
    let one = plan(&agent, &ranges(&regions[..1])?)?;
    let all = ranges(&regions)?;
    let alone = posts(&agent, &one)?;
    let is_over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                plan(&agent, &all)?;
            }
            Ok(())
        });
        let beside = posts(&agent, &one);
        is_over.store(true, Ordering::Relaxed);
        let prepared: Result<()> = other.join().map_err(|_| Error::Stack("a thread panicked".into()))?;
        prepared.and(beside)
    })?;
    Ok(vec![
        figure("a post, 99th percentile, us", alone, None),
        figure(format!("while a thread prepares {MANY} descriptors over and over, us"), beside, None),
    ])
}
