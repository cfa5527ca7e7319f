//! Two processes send messages back and forth: a buffer moves into a send, comes back with its completion, and is
//! posted again.
//!
//! `cargo run --release --example message_pingpong [ROUNDS]`, by default 1,000 of each size
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;
use std::time::Instant;

use ofi::{Completion, CompletionKind, FiAddr, Node, WaitObj, threading};
use support::{LIMIT, Outcome};

const SIZES: [usize; 6] = [0, 8, 64, 4 << 10, 64 << 10, 1 << 20];
const ROUNDS: &str = "1000"; // of each size

/// One thread uses the node, so it needs no locks. The compiler rejects a second thread.
type Local = Node<threading::Exclusive>;

fn main() -> ExitCode {
    support::report(|| {
        let node = Node::builder_exclusive()
            .hints(support::hints("shm"))
            .wait_obj(WaitObj::Yield) // a latency is measured: do not sleep
            .open()?;
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match &arguments[..] {
            [peer, rounds] => pong(&node, peer, rounds.parse()?),
            rounds => ping(&node, rounds.first().map_or(ROUNDS, |rounds| rounds)),
        }
    })
}

fn ping(node: &Local, rounds: &str) -> Outcome {
    let (other, address) = support::second_process(&[&node.name()?.to_string(), rounds])?;
    let rounds: usize = rounds.parse()?;
    let peer = node.insert(&address)?;
    for size in SIZES {
        let sent: Vec<u8> = (0..size).map(|at| (at * 31 + size) as u8).collect();
        let (mut out, mut back) = (sent.clone(), vec![0; size]);
        let start = Instant::now();
        for _ in 0..rounds {
            (out, back) = exchange(node, peer, out, back)?;
        }
        let half = start.elapsed() / (2 * rounds.max(1) as u32);
        if back != sent {
            return Err(format!("{size} bytes came back changed").into());
        }
        println!("{size:>8} bytes: {half:>9.2?} one way");
    }
    other.finish()?;
    println!("{} messages each way, all as they were sent", rounds * SIZES.len());
    Ok(())
}

/// Sends one buffer and receives into the other. Both come back.
fn exchange(node: &Local, peer: FiAddr, out: Vec<u8>, back: Vec<u8>) -> Outcome<(Vec<u8>, Vec<u8>)> {
    node.recv(back)?;
    node.send(out, peer)?;
    let (first, second) = (support::next(node)?, support::next(node)?);
    let is_receive = |done: &Completion| done.kind() == CompletionKind::Receive;
    let (mut sent, mut received) = if is_receive(&first) { (second, first) } else { (first, second) };
    Ok((sent.take_buffer().ok_or("no buffer")?, received.take_buffer().ok_or("no buffer")?))
}

fn pong(node: &Local, peer: &str, rounds: usize) -> Outcome {
    let peer = node.insert(&peer.parse()?)?;
    let largest = SIZES[SIZES.len() - 1];
    let mut buffer = vec![0; largest];
    node.recv(buffer)?;
    println!("{}", node.name()?); // ready
    for round in 0..rounds * SIZES.len() {
        let mut received = support::next(node)?;
        let len = received.len;
        buffer = received.take_buffer().ok_or("no buffer")?;
        node.send_message(ofi::SendMsg::new(buffer, peer).range(..len))?;
        let mut sent = node.wait(LIMIT)?.ok_or("the answer did not go out")?.into_result()?;
        buffer = sent.take_buffer().ok_or("no buffer")?;
        if round + 1 < rounds * SIZES.len() {
            node.recv(std::mem::take(&mut buffer))?;
        }
    }
    Ok(())
}
