//! One process lets another write and read its memory. Remote CQ data announces that bytes have arrived, and a word in
//! the window counts them.
//!
//! `cargo run --release --example rma_with_data`
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{CompletionFlags, MrAccess, Node, RemoteWindow};
use support::Outcome;

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 16;
/// The offset of a word behind the chunks that counts the chunks written.
const COUNT_AT: usize = CHUNK * CHUNKS;
const BOTH: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

fn main() -> ExitCode {
    support::report(|| {
        let node = Node::open(&support::hints("shm"))?;
        match std::env::args().nth(1) {
            None => owner(&node),
            Some(peer) => writer(&node, &peer),
        }
    })
}

/// The content of chunk `number`.
fn chunk(number: usize) -> Vec<u8> {
    (0..CHUNK).map(|at| (at + at / 256 + number * 3) as u8).collect()
}

fn owner(node: &Node) -> Outcome {
    let (other, _) = support::second_process(&[&node.name()?.to_string()])?;
    let peer = support::meet(node)?;

    // Library memory: the peer maps it, so its writes are plain copies.
    let window = node.domain().alloc_window(COUNT_AT + 8, BOTH)?;
    node.inject(&window.remote().to_bytes(), peer)?;

    for _ in 0..CHUNKS {
        let told = support::next(node)?;
        let number = told.data.ok_or("a completion without data")? as usize;
        if !told.flags.contains(CompletionFlags::REMOTE_WRITE) || told.len != CHUNK {
            return Err(format!("no notice of a chunk: {told:?}").into());
        }
        // The notification follows the bytes. The window is still open and the peer may write, so copy the bytes out.
        let mut bytes = vec![0; CHUNK];
        window.read_into(number * CHUNK, &mut bytes)?;
        if bytes != chunk(number) {
            return Err(format!("chunk {number} is not what was written").into());
        }
    }
    println!("{CHUNKS} chunks of {CHUNK} bytes were written, and are right");
    node.recv(vec![0; 4])?;
    support::next(node)?; // the writer has counted
    println!("the writer's word says {} chunks", window.load_u64(COUNT_AT)?);

    // Once its rights are withdrawn, the memory is plain bytes again, and the peer's next access fails.
    let memory = window.withdraw()?;
    println!("the first bytes are {:?}", &memory[..8]);
    node.inject(b"gone", peer)?;
    node.recv(vec![0; 256])?;
    println!("the writer's read then ends with {}", String::from_utf8_lossy(support::next(node)?.bytes()));
    node.inject(b"bye!", peer)?;
    other.finish()
}

fn writer(node: &Node, peer: &str) -> Outcome {
    println!("{}", node.name()?);
    let peer = support::greet(node, &peer.parse()?)?;
    node.recv(vec![0; RemoteWindow::BYTES])?;
    let remote = RemoteWindow::from_bytes(support::next(node)?.bytes())?;

    for number in 0..CHUNKS {
        let place = (number * CHUNK) as u64;
        node.write_with_data(chunk(number), number as u64, peer, remote.slice(place..place + CHUNK as u64)?)?;
    }
    (0..CHUNKS).try_for_each(|_| support::next(node).map(drop))?;
    let count = remote.slice(COUNT_AT as u64..)?;
    node.write((CHUNKS as u64).to_ne_bytes().to_vec(), peer, count)?;
    support::next(node)?;
    node.read(vec![0; 8], peer, count)?;
    assert_eq!(support::next(node)?.bytes(), (CHUNKS as u64).to_ne_bytes(), "what was written reads back");
    node.recv(vec![0; 4])?;
    node.inject(b"done", peer)?;
    support::next(node)?; // "gone"

    node.read(vec![0; 8], peer, count)?;
    let refused = node.wait(support::LIMIT)?.ok_or("no answer to a read")?;
    let Err(error) = refused.result else { return Err("a withdrawn window was read".into()) };
    node.recv(vec![0; 4])?;
    node.inject(error.errno().name().as_bytes(), peer)?;
    support::next(node)?; // "bye!": until then this process must be there
    Ok(())
}
