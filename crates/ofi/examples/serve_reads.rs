//! A node registers memory once, and serves reads of it. Over an RDMA device, the reader's device reads the memory, and
//! the owner's program does nothing.
//!
//! `cargo run --release --features verbs --example serve_reads [PROVIDER]`: over provider `verbs` if the host has an
//! RDMA device, else over shared memory; or over the named provider.
#![forbid(unsafe_code)]

mod support;

use std::process::ExitCode;

use ofi::{Hints, MrAccess, Node, RemoteWindow};
use support::Outcome;

const LEN: usize = 64 << 10;
const READS: usize = 100;

fn main() -> ExitCode {
    support::report(|| match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => match Node::open(&Hints::new().provider("verbs")) {
            Ok(node) => owner(&node, "verbs"),
            Err(error) => {
                println!("no RDMA device ({error}): over shared memory");
                owner(&open("shm")?, "shm")
            }
        },
        [provider] => owner(&open(provider)?, provider),
        [provider, owner] => reader(&open(provider)?, owner),
        _ => Err("at most the name of a provider".into()),
    })
}

fn open(provider: &str) -> Outcome<Node> {
    Ok(Node::open(&Hints::new().provider(provider))?)
}

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at + at / 256) as u8).collect()
}

fn owner(node: &Node, provider: &str) -> Outcome {
    let (other, _) = support::second_process(&[provider, &node.name()?.to_string()])?;
    let peer = support::meet(node)?;
    let window = node.domain().window(content(), MrAccess::REMOTE_READ)?;
    node.recv(vec![0; 8])?;
    node.inject(&window.remote().to_bytes(), peer)?;
    if support::next(node)?.bytes() != b"finished" {
        return Err("the reader says something else".into());
    }
    if window.withdraw()? != content() {
        return Err("reads have changed the memory".into());
    }
    println!("{READS} reads of {LEN} bytes were served over {provider}");
    other.finish()
}

fn reader(node: &Node, owner: &str) -> Outcome {
    println!("{}", node.name()?);
    let owner = support::greet(node, &owner.parse()?)?;
    node.recv(vec![0; RemoteWindow::BYTES])?;
    let remote = RemoteWindow::from_bytes(support::next(node)?.bytes())?;
    for _ in 0..READS {
        node.read(vec![0; LEN], owner, remote)?;
        if support::next(node)?.bytes() != content() {
            return Err("a read has got something else".into());
        }
    }
    node.inject(b"finished", owner)?;
    Ok(())
}
