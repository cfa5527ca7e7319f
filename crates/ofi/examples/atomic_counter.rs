//! Several processes draw tickets from a counter in the memory of one of them. A lock, taken by compare-and-swap,
//! guards an update that is too large for one atomic operation.
//!
//! `cargo run --release --example atomic_counter [TICKETS]`, by default 2,000 for each process
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;
use std::time::Instant;

use ofi::{Caps, FiAddr, FiOp, MrAccess, Node, RemoteWindow};
use support::Outcome;

const WORKERS: usize = 3;
const TICKETS: &str = "2000"; // of each worker
const BOTH: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

fn main() -> ExitCode {
    support::report(|| {
        let hints = support::hints("shm").caps(Caps::MSG | Caps::RMA | Caps::ATOMIC);
        let node = Node::open(&hints)?;
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match &arguments[..] {
            [peer, tickets] => worker(&node, peer, tickets.parse()?),
            tickets => owner(&node, tickets.first().map_or(TICKETS, |tickets| tickets)),
        }
    })
}

fn owner(node: &Node, each: &str) -> Outcome {
    // Tickets, the lock, and the sum that it guards.
    let window = node.domain().alloc_window(24, BOTH)?;
    let start = Instant::now();
    let (mut others, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..WORKERS {
        others.push(support::second_process(&[&node.name()?.to_string(), each])?.0);
        peers.push(support::meet(node)?);
    }
    // Not earlier: the next greeting could be confused with the message of a worker that has already finished.
    for &peer in &peers {
        node.inject(&window.remote().to_bytes(), peer)?;
    }
    // The workers no longer need this process: they change the memory themselves.
    for _ in 0..WORKERS {
        node.recv(vec![0; 4])?;
        support::next(node)?;
    }
    let (tickets, sum) = (window.load_u64(0)?, window.load_u64(16)?);
    println!("{WORKERS} processes drew {tickets} tickets in {:.1?}", start.elapsed());
    if tickets != WORKERS as u64 * each.parse::<u64>()? || sum != tickets * (tickets - 1) / 2 {
        return Err(format!("{tickets} tickets with sum {sum}: some were lost").into());
    }
    for other in others {
        other.finish()?;
    }
    Ok(())
}

/// Repeats an operation until it succeeds, and returns the old value.
fn done(node: &Node) -> Result<u64, Box<dyn std::error::Error>> {
    support::next(node)?.value::<u64>().ok_or_else(|| "a completion without a value".into())
}

/// Adds to the guarded sum.
fn add_under_lock(node: &Node, peer: FiAddr, remote: RemoteWindow, value: u64) -> Outcome {
    let (lock, sum) = (remote.slice(8..16)?, remote.slice(16..24)?);
    loop {
        node.compare_swap(0u64, 1, peer, lock)?;
        if done(node)? == 0 {
            break;
        }
        std::thread::yield_now();
    }
    node.read(vec![0; 8], peer, sum)?;
    let old = done(node)?;
    node.write((old + value).to_ne_bytes().to_vec(), peer, sum)?;
    support::next(node)?;
    node.fetch_atomic(FiOp::AtomicWrite, &[0u64], vec![0; 8], peer, lock)?;
    done(node)?;
    Ok(())
}

fn worker(node: &Node, peer: &str, tickets: u64) -> Outcome {
    println!("{}", node.name()?);
    let peer = support::greet(node, &peer.parse()?)?;
    node.recv(vec![0; RemoteWindow::BYTES])?;
    let remote = RemoteWindow::from_bytes(support::next(node)?.bytes())?;
    let mut mine = 0;
    for _ in 0..tickets {
        node.fetch_add(1u64, peer, remote.slice(..8)?)?;
        mine += done(node)?;
    }
    add_under_lock(node, peer, remote, mine)?;
    node.send(b"done".to_vec(), peer)?;
    support::next(node)?;
    Ok(())
}
