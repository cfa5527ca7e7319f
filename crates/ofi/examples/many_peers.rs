//! Many peers send to one node, which receives everything in a few buffers: multi-receive packs messages one behind the
//! other, and each completion has its range of the buffer.
//!
//! `cargo run --release --example many_peers [PROCESSES [NODES]]`: by default 4 sender processes, with 16 nodes each.
#![forbid(unsafe_code)]

mod support;

use std::collections::HashMap;
use std::process::ExitCode;

use ofi::{Domain, EpOption, FiAddr, MultiRecvBuffer, Node};
use support::{LIMIT, Outcome};

const MESSAGES: u64 = 200; // of each node
const BUFFER: usize = 1 << 20; // bytes of a multi-receive buffer

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

/// Message `number` of a node: the number, then bytes that differ from message to message.
fn message(number: u64) -> Vec<u8> {
    let mut message = vec![number as u8; 16 + (number * 37 % 900) as usize];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

fn collect(processes: usize, nodes: usize) -> Outcome {
    let (hints, peers) = (support::hints("shm"), processes * nodes);
    // Senders are inserted when their first message arrives.
    let node = Node::builder().hints(hints).av_count(peers).insert_senders(peers).open()?;
    node.set_option(EpOption::MinMultiRecv, 1024)?; // the room that a message may need, in bytes
    for _ in 0..2 {
        node.recv_multi(MultiRecvBuffer::new(vec![0; BUFFER]))?;
    }
    let arguments = ["sender".to_string(), node.name()?.to_string(), nodes.to_string()];
    let others = (0..processes).map(|_| support::process(&arguments)).collect::<Outcome<Vec<_>>>()?;

    let (mut next_of, mut released, mut done) = (HashMap::<FiAddr, u64>::new(), 0, 0);
    while done < peers {
        let mut got = support::next(&node)?;
        let peer = got.source.ok_or("a message without a sender")?;
        let next = next_of.entry(peer).or_default();
        if got.bytes() != message(*next) {
            return Err(format!("message {next} of {peer:?} is out of order or damaged").into());
        }
        *next += 1;
        if *next == MESSAGES {
            node.inject(b"thanks", peer)?;
            done += 1;
        }
        // The last message in a buffer returns it. Once all of its ranges are dropped, it can be posted again.
        if let Some(buffer) = got.released.take() {
            drop(got);
            node.recv_multi(buffer)?;
            released += 1;
        }
    }
    others.into_iter().try_for_each(support::Process::finish)?;
    println!(
        "{peers} peers in {processes} processes sent {MESSAGES} messages each, which came in their order,"
    );
    println!("into 2 buffers of {BUFFER} bytes that were posted again {released} times");
    Ok(())
}

/// One process of senders: several nodes in one domain, each without locks, driven by one thread.
fn senders(collector: &str, count: usize) -> Outcome {
    let (domain, collector) = (Domain::open_exclusive(&support::hints("shm"))?, collector.parse()?);
    let mut nodes = Vec::new();
    for _ in 0..count {
        let node = domain.node().open()?;
        node.recv(vec![0; 16])?; // for the thanks
        nodes.push((node.insert(&collector)?, node));
    }
    for number in 0..MESSAGES {
        for (to, node) in &nodes {
            while let Err(rejected) = node.send(message(number), *to) {
                if !rejected.is_again() {
                    return Err(rejected.error.into());
                }
                node.poll()?.map(ofi::Completion::into_result).transpose()?; // completions make room
            }
        }
    }
    for (_, node) in &nodes {
        while node.wait(LIMIT)?.ok_or("no thanks")?.into_result()?.bytes() != b"thanks" {}
    }
    Ok(())
}
