//! Many peers send to one node, which receives everything in a few buffers: multi-receive packs messages behind each
//! other, and each completion has a range of the buffer.
//!
//! `cargo run --release --example many_peers [PROCESSES [NODES]]`: the number of other processes (4), and of nodes in
//! each (16).
#![forbid(unsafe_code)]

mod support;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Instant;

use ofi::{Domain, EpOption, FiAddr, Hints, MultiRecvBuffer, Node, threading};
use support::{LIMIT, Outcome};

/// Messages of each node.
const MESSAGES: u64 = 200;
/// Bytes of a multi-receive buffer.
const BUFFER: usize = 1 << 20;

fn main() -> ExitCode {
    support::report(|| {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match &arguments[..] {
            [role, collector, nodes] if role == "sender" => senders(collector, nodes.parse()?),
            numbers => {
                let number = |at: usize, default| numbers.get(at).map_or(Ok(default), |text| text.parse());
                collect(number(0, 4)?, number(1, 16)?)
            }
        }
    })
}

/// The length of message `number`.
fn len(number: u64) -> usize {
    16 + (number * 37 % 900) as usize
}

fn collect(processes: usize, nodes: usize) -> Outcome {
    let node = Node::builder().hints(Hints::new().provider("shm")).av_count(processes * nodes).open()?;
    node.set_option(EpOption::MinMultiRecv, 1024)?; // the room that a message may need, in bytes
    for _ in 0..2 {
        node.recv_multi(MultiRecvBuffer::new(vec![0; BUFFER]))?;
    }
    let (name, count) = (node.name()?.to_string(), nodes.to_string());
    let mut others = Vec::new();
    for _ in 0..processes {
        others.push(support::second_process(&["sender", &name, &count])?.0);
    }

    // A node's first message is its address; the others carry its index.
    let peers = processes * nodes;
    let mut next_of: HashMap<FiAddr, u64> = HashMap::new();
    let (mut bytes, mut released, mut done) = (0, 0, 0);
    let start = Instant::now();
    while done < peers {
        if start.elapsed() > LIMIT {
            return Err(format!("{done} of {peers} peers are done after {LIMIT:?}").into());
        }
        // One by one, so that the sender is known when the source of the next message is looked up.
        let Some(completion) = node.poll()? else {
            std::thread::yield_now();
            continue;
        };
        let message = completion.into_result()?;
        bytes += message.len;
        if let Some(peer) = message.source {
            let next = next_of.entry(peer).or_default();
            let (number, rest) = message.bytes().split_first_chunk().ok_or("a short message")?;
            if u64::from_le_bytes(*number) != *next
                || message.len != len(*next)
                || rest.iter().any(|&byte| byte != *next as u8)
            {
                return Err(format!("message {next} of {peer:?} is out of order or damaged").into());
            }
            *next += 1;
            if *next == MESSAGES {
                node.inject(b"thanks", peer)?;
                done += 1;
            }
        } else {
            let address = std::str::from_utf8(message.bytes())?.parse()?;
            next_of.insert(node.insert(&address)?, 0);
        }
        // The program holds no ranges at this point, so the buffer can be posted again.
        if let (Some(buffer), range) = (message.released, message.range) {
            drop(range);
            node.recv_multi(buffer)?;
            released += 1;
        }
    }
    let elapsed = start.elapsed();
    for other in others {
        other.finish()?;
    }
    println!(
        "{peers} peers in {processes} processes sent {} messages, {bytes} bytes, in {elapsed:.1?}",
        peers as u64 * MESSAGES
    );
    println!(
        "each peer's came in order, into 2 buffers of {BUFFER} bytes that were posted again {released} times"
    );
    Ok(())
}

/// One process of senders: several nodes in one domain, each without locks, driven by one thread.
fn senders(collector: &str, count: usize) -> Outcome {
    let domain = Domain::open_exclusive(&Hints::new().provider("shm"))?;
    let collector = collector.parse()?;
    let mut nodes = Vec::new();
    for _ in 0..count {
        let node = domain.node().open()?;
        node.recv(vec![0; 16])?; // for the thanks
        let to = support::greet(&node, &collector)?;
        nodes.push((node, to, 0));
    }
    println!("{}", nodes.first().ok_or("no nodes")?.0.name()?);
    let mut thanked = 0;
    let start = Instant::now();
    while thanked < count {
        if start.elapsed() > LIMIT {
            return Err(format!("{thanked} of {count} nodes are done after {LIMIT:?}").into());
        }
        for (node, to, next) in &mut nodes {
            thanked += usize::from(step(node, *to, next)?);
        }
    }
    Ok(())
}

/// Sends the node's next message if there is room, and polls. Whether the collector has acknowledged everything.
fn step(node: &Node<threading::Exclusive>, to: FiAddr, next: &mut u64) -> Outcome<bool> {
    if *next < MESSAGES {
        let mut message = vec![*next as u8; len(*next)];
        message[..8].copy_from_slice(&next.to_le_bytes());
        match node.send(message, to) {
            Ok(_) => *next += 1,
            Err(rejected) if rejected.is_again() => {}
            Err(rejected) => return Err(rejected.error.into()),
        }
    } else {
        std::thread::yield_now();
    }
    let Some(completion) = node.poll()? else { return Ok(false) };
    Ok(completion.into_result()?.bytes() == b"thanks")
}
