//! Several processes, on one host or on many, estimate pi together: each throws its share of darts, and an all-reduce
//! sums the hits.
//!
//! `cargo run --release --example allreduce` starts four processes on this host. For `n` hosts, run
//! `cargo run --release --example allreduce -- 10.0.0.1:7000 n` on each, with the address of one of them.
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::rendezvous::{Peers, Place};
use ofi::{Caps, FiOp, Node};
use support::Outcome;

const DARTS: u64 = 200_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    support::report(|| match &arguments[..] {
        [] => four(),
        [place, count] => one_of(&place.parse()?, count.parse()?),
        _ => Err("usage: allreduce [PLACE COUNT]".into()),
    })
}

/// Starts three other processes and acts as the fourth.
fn four() -> Outcome {
    let socket = std::env::temp_dir().join(format!("ofi-allreduce-{}", std::process::id()));
    let place = Place::Unix(socket);
    let arguments = [place.to_string(), "4".to_string()];
    let others: Vec<_> = (1..4).map(|_| support::process(&arguments)).collect::<Outcome<_>>()?;
    one_of(&place, 4)?;
    others.into_iter().try_for_each(support::Process::finish)
}

/// Joins the other processes and does its share.
fn one_of(place: &Place, count: usize) -> Outcome {
    let node = Node::open(&support::hints("udp").caps(Caps::MSG | Caps::COLLECTIVE))?;
    let group = node.meet(place, count, support::LIMIT)?;
    let hits = together(&node, &group)?;
    let all = count as u64 * DARTS;
    let pi = 4.0 * hits as f64 / all as f64;
    if group.rank == 0 {
        println!("{hits} of {all} darts: pi is about {pi:.4}");
    }
    if (pi - std::f64::consts::PI).abs() > 0.01 {
        return Err("that is too far off".into());
    }
    Ok(())
}

/// Joins the group, throws, and adds up.
fn together(node: &Node, peers: &Peers) -> Outcome<u64> {
    let group = node.join(&peers.peers, support::LIMIT)?;
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ (group.rank() as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    let mut coordinate = || {
        // Xorshift (Marsaglia 2003); any generator would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let hits = (0..DARTS).filter(|_| coordinate().powi(2) + coordinate().powi(2) <= 1.0).count() as u64;
    node.allreduce(&group, FiOp::Sum, &[hits])?;
    let sum = support::next(node)?.value::<u64>().ok_or("no sum")?;
    node.barrier(&group)?; // no process leaves the group before all have the sum
    support::next(node)?;
    Ok(sum)
}
