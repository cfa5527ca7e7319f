//! How tags select receives: exact tags, ignored bits, the order of receives, one source, and a peek before a receive.
//!
//! `cargo run --release --example tagged_matching`
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{Completion, Node, Op};
use support::{LIMIT, Outcome};

/// This program's convention: the upper half of a tag is the kind of message, the lower half its number.
const fn tag(kind: u32, number: u32) -> u64 {
    (kind as u64) << 32 | number as u64
}
const ANY_NUMBER: u64 = 0xFFFF_FFFF;
const ORDER: u32 = 1;
const NOTE: u32 = 2;

fn main() -> ExitCode {
    support::report(|| {
        let node = Node::open(&support::hints("shm"))?;
        match std::env::args().nth(1) {
            None => receiver(&node),
            Some(peer) => sender(&node, &peer),
        }
    })
}

fn sender(node: &Node, peer: &str) -> Outcome {
    println!("{}", node.name()?);
    let receiver = support::greet(node, &peer.parse()?)?;
    let notes = [(NOTE, 1, "first note"), (NOTE, 2, "second note")];
    let orders = [(ORDER, 7, "seven"), (ORDER, 8, "eight"), (ORDER, 9, "nine")];
    for (kind, number, text) in notes.into_iter().chain(orders) {
        node.inject_tagged(text.as_bytes(), receiver, tag(kind, number))?;
    }
    node.recv(vec![0; 1])?;
    support::next(node)?; // "done": this process must not exit earlier
    Ok(())
}

fn receiver(node: &Node) -> Outcome {
    let (other, _) = support::second_process(&[&node.name()?.to_string()])?;
    let sender = support::meet(node)?;

    // Receives are posted in this order; each message takes the first one that matches.
    let eight = node.recv_tagged(vec![0; 32], tag(ORDER, 8), 0)?;
    let any_order = node.recv_tagged(vec![0; 32], tag(ORDER, 0), ANY_NUMBER)?;
    let from_sender = node.recv_tagged_from(vec![0; 32], sender, tag(ORDER, 0), ANY_NUMBER)?;
    let mut got = [support::next(node)?, support::next(node)?, support::next(node)?];
    got.sort_by_key(|done| done.tag);
    expect(&got[0], any_order, "seven", "seven matches no exact receive, so it takes the first wildcard")?;
    expect(&got[1], eight, "eight", "eight takes its exact receive")?;
    expect(&got[2], from_sender, "nine", "nine takes what is left: a wildcard for one source")?;

    // The notes arrived before a receive was posted, and wait.
    let found = look(node, || node.peek(tag(NOTE, 2), 0))?;
    println!("peek: note 2 is here, {} bytes from {:?}; it stays where it is", found.len, found.source);
    let mut found = look(node, || node.peek_claim(tag(NOTE, 0), ANY_NUMBER))?;
    let claim = found.claim.take().ok_or("nothing was claimed")?;
    println!("peek and claim: the oldest note has tag {:x?}, and no other receive takes it", found.tag);
    let second = node.recv_tagged(vec![0; 32], tag(NOTE, 0), ANY_NUMBER)?;
    expect(
        &support::next(node)?,
        second,
        "second note",
        "a receive for any note passes over the claimed one",
    )?;
    let first = node.claim(claim, vec![0; found.len])?;
    expect(&support::next(node)?, first, "first note", "the claim receives the claimed note")?;

    node.inject(b"!", sender)?;
    other.finish()
}

fn expect(done: &Completion, op: Op, text: &str, why: &str) -> Outcome {
    let got = String::from_utf8_lossy(done.bytes());
    if done.op != Some(op) || got != text {
        return Err(format!("{why}: wanted {text:?}, got {got:?}").into());
    }
    println!("{why}");
    Ok(())
}

/// Searches until the message is there.
fn look(node: &Node, search: impl Fn() -> ofi::Result<Op>) -> Outcome<Completion> {
    let begin = std::time::Instant::now();
    loop {
        search()?;
        let found = node.wait(LIMIT)?.ok_or("no answer to a search")?;
        if found.result.is_ok() || begin.elapsed() > LIMIT {
            return Ok(found.into_result()?);
        }
    }
}
