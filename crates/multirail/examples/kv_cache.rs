//! A prefill process computes the KV cache of a model, layer by layer, and writes each layer into the memory of a
//! decode process as soon as the layer is computed. The notification with a layer says that all of it has arrived;
//! decoding may begin with the first layer while the last is still being computed.
//!
//! `cargo run --release -p multirail --example kv_cache -- [RAIL,...]` (rails are providers; the default is `shm`)
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use multirail::{Agent, Remote, Way};
use ofi::Hints;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const LAYERS: usize = 32;
/// Blocks of a layer: keys and values of 16 tokens each.
const BLOCKS: usize = 64;
/// 16 tokens x 8 heads x 128 numbers x 2 bytes.
const BLOCK: usize = 32 << 10;
const LAYER: usize = BLOCKS * BLOCK;
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &arguments[..] {
        [role, address, rails] if role == "prefill" => prefill(address, rails),
        [rails] => decode(rails),
        _ => decode("shm"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv_cache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn agent(name: &str, rails: &str) -> ofi::Result<Agent> {
    let builder = Agent::builder(name);
    rails.split(',').fold(builder, |builder, rail| builder.rail(Hints::new().provider(rail))).open()
}

/// The content of a block of the cache.
fn block(layer: usize, block: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at ^ (at >> 8) ^ (layer * 5) ^ (block * 3)) as u8).collect()
}

/// The offset of a page in the decode process, which has scattered its pages.
fn page(layer: usize, block: usize) -> usize {
    layer * LAYER + (block * 27 % BLOCKS) * BLOCK
}

fn decode(rails: &str) -> Outcome {
    let agent = agent("decode-0", rails)?;
    let cache = agent.alloc(LAYERS * LAYER)?;
    let server = agent.serve("127.0.0.1:0")?;
    let mut other = Command::new(std::env::current_exe()?)
        .args(["prefill", &server.address().to_string(), rails])
        .spawn()?;
    let began = Instant::now();
    let mut page_bytes = vec![0; BLOCK];
    for _ in 0..LAYERS {
        let notification = agent.wait_notification(LIMIT)?.ok_or("no layer arrived in time")?;
        let layer = usize::from(notification.bytes[0]);
        for nth in 0..BLOCKS {
            cache.read_into(page(layer, nth), &mut page_bytes)?;
            if page_bytes != block(layer, nth) {
                return Err(format!("layer {layer}, block {nth} differs from the computed one").into());
            }
        }
        println!("layer {layer:2} of {} arrived intact after {:.1?}", notification.peer, began.elapsed());
    }
    agent.notify("prefill-0", b"thank you", LIMIT)?.wait()?;
    let ended = other.wait()?;
    if ended.success() { Ok(()) } else { Err(format!("the prefill process ended with {ended}").into()) }
}

fn prefill(address: &str, rails: &str) -> Outcome {
    let agent = agent("prefill-0", rails)?;
    let layers = agent.alloc(LAYERS * LAYER)?;
    let decoder = agent.visit(address, LIMIT)?;
    let (cache, _) = agent.regions(&decoder)?[0];
    // One plan for each layer: a server prepares them once for a request's pages.
    let plans = (0..LAYERS).map(|layer| {
        let start = |nth: usize| (layer * LAYER + nth * BLOCK) as u64;
        let local = (0..BLOCKS)
            .map(|nth| layers.slice(start(nth)..start(nth + 1)))
            .collect::<ofi::Result<Vec<_>>>()?;
        let remote = |nth| Remote { region: cache, offset: page(layer, nth) as u64, len: BLOCK as u64 };
        agent.prepare(&decoder, Way::Write, &local, &(0..BLOCKS).map(remote).collect::<Vec<_>>())
    });
    let plans = plans.collect::<ofi::Result<Vec<_>>>()?;
    let mut transfers = Vec::new();
    for (layer, plan) in plans.iter().enumerate() {
        for nth in 0..BLOCKS {
            layers.write_from(layer * LAYER + nth * BLOCK, &block(layer, nth))?; // "computed"
        }
        transfers.push(plan.post_notify(&[layer as u8], LIMIT)?);
        agent.progress()?; // the layer travels while the next is computed
    }
    for transfer in &transfers {
        transfer.wait()?;
    }
    agent.wait_notification(LIMIT)?.ok_or("the decode process did not answer")?;
    Ok(())
}
