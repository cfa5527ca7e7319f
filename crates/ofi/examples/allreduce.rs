//! Several processes estimate pi together: each throws its share of darts, and one all-reduce adds up the hits.
//!
//! `cargo run --release --example allreduce`
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{Address, Caps, FiAddr, FiOp, Hints, Node};
use support::Outcome;

const RANKS: usize = 4;
const DARTS: u64 = 200_000;
const ADDRESS: usize = 256;

fn main() -> ExitCode {
    support::report(|| {
        let node = Node::open(&Hints::new().provider("shm").caps(Caps::MSG | Caps::COLLECTIVE))?;
        match std::env::args().nth(1) {
            None => first(&node),
            Some(first) => other(&node, &first),
        }
    })
}

/// Starts the others, and tells them who is in the group.
fn first(node: &Node) -> Outcome {
    let name = node.name()?;
    let mut processes = Vec::new();
    let mut names = vec![name.clone()];
    for _ in 1..RANKS {
        let (process, address) = support::second_process(&[&name.to_string()])?;
        processes.push(process);
        names.push(address);
    }
    for name in &names[1..] {
        let peer = node.insert(name)?;
        for name in &names {
            node.send(name.to_string().into_bytes(), peer)?;
            support::next(node)?;
        }
    }
    let hits = together(node, &names)?;
    let all = RANKS as u64 * DARTS;
    let pi = 4.0 * hits as f64 / all as f64;
    println!("{hits} of {all} darts: pi is about {pi:.4}");
    if (pi - std::f64::consts::PI).abs() > 0.01 {
        return Err("that is too far off".into());
    }
    processes.into_iter().try_for_each(support::Process::finish)
}

fn other(node: &Node, first: &str) -> Outcome {
    for _ in 0..RANKS {
        node.recv(vec![0; ADDRESS])?;
    }
    println!("{}", node.name()?);
    let _: Address = first.parse()?;
    let mut names = Vec::new();
    for _ in 0..RANKS {
        names.push(std::str::from_utf8(support::next(node)?.bytes())?.parse()?);
    }
    together(node, &names)?;
    Ok(())
}

/// Joins the group, throws, and adds up.
fn together(node: &Node, names: &[Address]) -> Outcome<u64> {
    let members: Vec<FiAddr> = names.iter().map(|name| node.insert(name)).collect::<ofi::Result<_>>()?;
    let group = node.join(&members, support::LIMIT)?;
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ (group.rank() as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    let mut coordinate = || {
        // Xorshift (Marsaglia 2003): any generator does.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let hits = (0..DARTS).filter(|_| coordinate().powi(2) + coordinate().powi(2) <= 1.0).count() as u64;
    node.allreduce(&group, FiOp::Sum, &[hits])?;
    let sum = support::next(node)?.value::<u64>().ok_or("no sum")?;
    node.barrier(&group)?; // nobody leaves the group before all have the sum
    support::next(node)?;
    Ok(sum)
}
