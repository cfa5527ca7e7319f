//! The paths of long messages over shared memory, and of messages over sockets. Both ends are in one thread.

use ofi::raw::{
    Call, Caps, Context, CqTaggedEntry, Lent, MrAccess, MrAttr, OpFlags, Piece, RemotePiece, RmaOp, SendOp,
};

use super::node::Node;
use super::paths::{Sides, stack};
use super::{Job, Provider, Test};
use crate::{Error, Result};

/// The paths that [`run`] knows.
pub const NAMES: &[&str] =
    &[RING, SINGLE, SOCKETS, INJECT, RECEIVE, TCP_SEND, TCP_INJECT, TCP_RECEIVE, TCP_WRITE];

const RING: &str = "message of 16 KiB through a ring, both ends";
const SINGLE: &str = "message of 1 MiB by a single copy, both ends";
const SOCKETS: &str = "udp: message of 256 KiB, both ends";
const INJECT: &str = "udp: inject 64 B";
const RECEIVE: &str = "udp: receive 64 B, completion read, posted again";
const TCP_SEND: &str = "tcp: send 64 B, completion read";
const TCP_INJECT: &str = "tcp: inject 64 B";
const TCP_RECEIVE: &str = "tcp: receive 64 B, completion read, posted again";
const TCP_WRITE: &str = "tcp: write 64 B, both ends";

/// The datagram leaves in this call.
#[inline(never)]
fn inject_by_socket(node: &Node, piece: Piece) -> Result<()> {
    let pieces = [piece];
    // SAFETY: as for `Node::send`.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let op = SendOp { call: Call::Inject, ..SendOp::new(buf, node.peer, Context::NULL) };
    node.endpoint.send(&op).map_err(stack)
}

/// The message leaves in the send.
#[inline(never)]
fn send_by_socket(node: &Node, piece: Piece) -> Result<()> {
    node.send(piece, None)?;
    node.wait_one(&node.tx).map(drop)
}

/// The write, its execution, and its acknowledgement.
#[inline(never)]
fn write_by_socket(initiator: &Node, owner: &Node, op: &RmaOp<'_>) -> Result<()> {
    initiator.endpoint.write(op).map_err(stack)?;
    let mut entry = [CqTaggedEntry::EMPTY];
    while initiator.poll(&initiator.tx, &mut entry)? == 0 {
        owner.poll(&owner.rx, &mut entry)?;
    }
    Ok(())
}

/// Writes into memory of the receiver.
fn run_writes(sides: &Sides, (from, into): (Piece, Piece), count: u64) -> Result<()> {
    let Sides { sender, receiver, .. } = sides;
    let (here, there) = ([from], [into]);
    // SAFETY: the caller's memory lives until the end, and no code reads memory in flight.
    let attr = unsafe { MrAttr::new(&there, MrAccess::REMOTE_WRITE) };
    let region = receiver.domain.register(&attr).map_err(stack)?;
    let remote = [RemotePiece { addr: region.base(), len: into.len, key: region.key() }];
    // SAFETY: as above.
    let buf = unsafe { Lent::new(&here, &[]) };
    let (context, flags) = (Context(1), OpFlags::empty());
    let op = RmaOp { buf, remote: &remote, peer: sender.peer, context, data: 0, flags, call: Call::Plain };
    (0..count).try_for_each(|_| write_by_socket(sender, receiver, &op))
}

/// The datagram is in the socket: loopback delivers it during the send.
#[inline(never)]
fn receive_by_socket(node: &Node, piece: Piece) -> Result<()> {
    node.wait_one(&node.rx)?;
    node.receive(piece, None, 0)
}

#[inline(never)]
fn exchange(sender: &Node, receiver: &Node, from: Piece, into: Piece) -> Result<()> {
    complete(sender, receiver, from, into)
}

/// Sends a message, receives it, and reads both completions.
#[inline(always)]
fn complete(sender: &Node, receiver: &Node, from: Piece, into: Piece) -> Result<()> {
    receiver.receive(into, None, 0)?;
    sender.send(from, None)?;
    let (mut sent, mut received) = (0, 0);
    while sent == 0 || received == 0 {
        sent += sender.poll(&sender.tx, &mut [CqTaggedEntry::EMPTY])?;
        received += receiver.poll(&receiver.rx, &mut [CqTaggedEntry::EMPTY])?;
    }
    Ok(())
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    let (len, single) = match name {
        RING => (16 << 10, "never"),
        SINGLE => (1 << 20, "always"),
        SOCKETS => (256 << 10, "never"),
        INJECT | RECEIVE | TCP_SEND | TCP_INJECT | TCP_RECEIVE | TCP_WRITE => (64, "never"),
        _ => return Err(Error::NotReady(format!("path {name:?}"))),
    };
    // Choices by measurement would make the count depend on the machine's load.
    for (variable, value) in [("FI_SHM_SINGLE_COPY", single), ("FI_SHM_STREAMING_STORES", "never")] {
        // SAFETY: this process has no other thread yet.
        unsafe { std::env::set_var(variable, value) };
    }
    let provider = match name.split_once(": ") {
        Some(("udp", _)) => Provider::Udp,
        Some(("tcp", _)) => Provider::Tcp,
        _ => Provider::Shm,
    };
    let sides = Sides::open_over(provider, Caps::empty())?;
    let Sides { sender, receiver, .. } = &sides;
    // Whole pages: how a copy is done depends on the places in their pages (`ofi-os/copy/string.rs`), and on the heap
    // those depend on what was allocated before.
    let job = Job::new(Test::PingPong, len, count);
    let (from, into) = (sender.memory(&job, len)?, receiver.memory(&job, len)?);
    let (out, to) = (Piece::new(from.base, len), Piece::new(into.base, len));
    complete(sender, receiver, out, to)?; // outside the counted function: the two connect
    if len > 64 {
        return (0..count).try_for_each(|_| exchange(sender, receiver, out, to));
    }
    if name == TCP_WRITE {
        return run_writes(&sides, (out, to), count);
    }
    receiver.receive(to, None, 0)?;
    for _ in 0..count {
        match name {
            TCP_SEND => send_by_socket(sender, out)?,
            _ => inject_by_socket(sender, out)?,
        }
        receive_by_socket(receiver, to)?;
        // Outside the counted functions: the acknowledgement, so that the next message leaves at once.
        complete(receiver, sender, to, out)?;
    }
    Ok(())
}
