//! Memory of an endpoint without peers, with few and with many. It has exchanged a message with each of them;
//! they are endpoints of another process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ofi::raw::{Address, Caps, CqTaggedEntry, EpType, Hints, Piece, WaitObj};

use super::{Figure, figure};
use crate::ours::{Job, Node, Provider, Test};
use crate::{Error, Result, sys};

/// Peers of the endpoints that are compared.
const FEW: usize = 10;
const MANY: usize = 1000;
/// Bytes of a message.
const MESSAGE: usize = 64;
/// The row of the process with the peers, which the provider's name follows.
pub const SERVER: &str = "peers-of-";

/// An endpoint over shared memory.
pub fn over_shm() -> Result<Vec<Figure>> {
    measure("shm")
}

/// An endpoint over the sockets of `udp`.
pub fn over_udp() -> Result<Vec<Figure>> {
    measure("udp")
}

/// An endpoint over `tcp`.
pub fn over_tcp() -> Result<Vec<Figure>> {
    measure("tcp")
}

fn measure(provider: &str) -> Result<Vec<Figure>> {
    sys::raise_descriptors().map_err(Error::io("asking for descriptors"))?;
    let resident = || sys::resident_bytes().map_err(Error::io("looking at memory"));
    let before = resident()?;
    let mut node = open(provider)?;
    let mut figures = Vec::new();
    let mut add = |peers: usize| -> Result<()> {
        let kib = resident()?.saturating_sub(before) as f64 / 1024.0;
        figures.push(figure(format!("KiB of an endpoint with {peers} peers"), kib, None));
        Ok(())
    };
    add(0)?;
    for (peers, more) in [(FEW, FEW), (MANY, MANY - FEW)] {
        meet(&mut node, provider, more)?;
        add(peers)?;
    }
    Ok(figures)
}

/// Exchanges a message with each of so many peers, which stay until this process ends.
fn meet(node: &mut Node, provider: &str, peers: usize) -> Result<()> {
    let this = std::env::current_exe().map_err(Error::io("finding this program"))?;
    let mut server = Command::new(this);
    server
        .args(["scale", "--row", &format!("{SERVER}{provider}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut server = server.spawn().map_err(Error::io("starting the peers"))?;
    let (Some(mut to), Some(from)) = (server.stdin.take(), server.stdout.take()) else {
        return Err(Error::Link("the peers have no pipes".into()));
    };
    let name = node.endpoint.name().map_err(stack)?;
    writeln!(to, "{peers}\n{name}").map_err(Error::io("writing to the peers"))?;
    let mut lines = BufReader::new(from).lines();
    let message = Piece::new(Box::leak(Box::new([1u8; MESSAGE])).as_mut_ptr(), MESSAGE);
    let mut addresses = Vec::with_capacity(peers);
    for _ in 0..peers {
        let line = lines.next().ok_or_else(|| Error::Link("the peers ended early".into()))?;
        let line = line.map_err(Error::io("reading from the peers"))?;
        node.insert(&line.parse().map_err(stack)?)?;
        addresses.push(node.peer);
    }
    for peer in addresses {
        node.peer = peer;
        node.receive(message, None, 0)?;
        node.send(message, None)?;
        node.wait_one(&node.tx)?;
        node.wait_one(&node.rx)?;
    }
    // The pipe stays open, and the peers with it, until this process ends.
    std::mem::forget((to, server));
    Ok(())
}

/// The process with the peers: answers messages until its standard input ends.
pub fn serve(provider: &str) -> Result<()> {
    sys::raise_descriptors().map_err(Error::io("asking for descriptors"))?;
    let mut input = BufReader::new(std::io::stdin());
    let mut line = || -> Result<String> {
        let mut line = String::new();
        input.read_line(&mut line).map_err(Error::io("reading what to do"))?;
        Ok(line.trim().to_owned())
    };
    let peers: usize = line()?.parse().map_err(|_| Error::Link("expected a number of peers".into()))?;
    let theirs: Address = line()?.parse().map_err(stack)?;
    let message = Piece::new(Box::leak(Box::new([1u8; MESSAGE])).as_mut_ptr(), MESSAGE);
    let mut nodes = Vec::with_capacity(peers);
    for _ in 0..peers {
        let mut node = open(provider)?;
        node.insert(&theirs)?;
        node.receive(message, None, 0)?;
        println!("{}", node.endpoint.name().map_err(stack)?);
        nodes.push(node);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        over.store(true, Ordering::Relaxed);
    });
    let mut entries = [CqTaggedEntry::EMPTY; 16];
    while !is_over.load(Ordering::Relaxed) {
        for node in &nodes {
            node.poll(&node.tx, &mut entries)?;
            for _ in 0..node.poll(&node.rx, &mut entries)? {
                node.receive(message, None, 0)?;
                node.send(message, None)?;
            }
        }
    }
    Ok(())
}

fn open(provider: &str) -> Result<Node> {
    let hints = Hints::new().caps(Caps::MSG).provider(provider).ep_type(EpType::Rdm);
    let (hints, kind) = match provider {
        "shm" => (hints, Provider::Shm),
        "udp" => (hints, Provider::Udp),
        _ => (hints, Provider::Tcp),
    };
    let hints = match kind {
        Provider::Shm => hints,
        _ => hints.src_addr(Address::from(crate::bare::own_address(0)?)),
    };
    let job = Job { provider: kind, ..Job::new(Test::PingPong, MESSAGE, 1) };
    Node::alone(&hints, Caps::empty(), &job, WaitObj::None)
}

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}
