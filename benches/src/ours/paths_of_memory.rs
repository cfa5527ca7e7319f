//! The paths into a peer's memory. It is library memory, so the initiator accesses it directly.

use std::sync::Arc;

use ofi::raw::{
    AtomicOp, Call, Caps, CntrAttr, Context, CqTaggedEntry, Datatype, DeferredOp, FiOp, Lent, MemoryRegion,
    MrAccess, MrAttr, OpFlags, Piece, RemotePiece, RmaOp, Threshold,
};

use super::node::{Arena, Node};
use super::paths::{Sides, WINDOW, handles, read_one, read_window, stack};
use super::paths_in_c as c;
use super::{Job, Test};
use crate::{Error, Result};

/// The paths that [`run`] knows.
pub const NAMES: &[&str] = &[
    "write 64 B, completion read",
    "write 64 B with flags, completion read",
    "triggered write 64 B, counter added to, completion read",
    "inject write 64 B",
    "read 64 B, completion read",
    "window of 64 writes of 64 B, completions read together",
    "fetch-add 8 B, completion read",
    "C: write 64 B, completion read",
    "C: write of a message 64 B, completion read",
    "C: inject write 64 B",
    "C: read 64 B, completion read",
    "C: fetch-add 8 B, completion read",
];

/// An access, assembled where it is posted, as C's calls do.
///
/// # Safety
/// As of [`Lent::new`].
#[inline(always)]
unsafe fn access<'a>(
    node: &Node,
    here: &'a [Piece; 1],
    there: &'a [RemotePiece; 1],
    call: Call,
) -> RmaOp<'a> {
    // SAFETY: the caller's promise.
    let buf = unsafe { Lent::new(here, &[]) };
    let (context, flags) = (Context(1), OpFlags::empty());
    RmaOp { buf, remote: there, peer: node.peer, context, data: 0, flags, call }
}

#[inline(never)]
fn write_and_complete_plain(node: &Node, here: Piece, there: RemotePiece, call: Call) -> Result<()> {
    let (here, there) = ([here], [there]);
    // SAFETY: `Sides` lives until the end, and no code reads memory in flight.
    node.endpoint.write(&unsafe { access(node, &here, &there, call) }).map_err(stack)?;
    read_one(node, &node.tx)
}

/// Posts an access and reads its completion like a rail of `multirail`.
#[inline(never)]
fn write_window(node: &Node, op: &RmaOp<'_>, entries: &mut [CqTaggedEntry]) -> Result<()> {
    for nth in 1..=WINDOW {
        let mut flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        flags.set(OpFlags::MORE, nth < WINDOW);
        let op = RmaOp { flags, context: Context(nth), call: Call::Msg, ..*op };
        node.endpoint.write(&op).map_err(stack)?;
    }
    read_window(node, &node.tx, entries, |_| Ok(()))
}

#[inline(never)]
fn write_and_complete_triggered(node: &Node, op: &RmaOp<'_>, when: &Threshold<'_>) -> Result<()> {
    node.endpoint.trigger(when, &DeferredOp::Write(*op)).map_err(stack)?;
    when.counter.add(1).map_err(stack)?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn write_injected(node: &Node, here: Piece, there: RemotePiece) -> Result<()> {
    let (here, there) = ([here], [there]);
    // SAFETY: the piece is there until the call returns.
    let op = unsafe { access(node, &here, &there, Call::Inject) };
    node.endpoint.write(&RmaOp { context: Context::NULL, ..op }).map_err(stack)
}

#[inline(never)]
fn fetch_and_complete(node: &Node, here: Piece, there: RemotePiece) -> Result<()> {
    let (here, there) = ([here], [there]);
    // SAFETY: as in `write_and_complete_plain`.
    node.endpoint.read(&unsafe { access(node, &here, &there, Call::Plain) }).map_err(stack)?;
    read_one(node, &node.tx)
}

/// Eight bytes: the operand, and the place for the old value.
#[inline(never)]
fn fetch_add_and_complete(
    node: &Node,
    (operand, result): (*mut u8, *mut u8),
    there: RemotePiece,
) -> Result<()> {
    let (operand, result, there) = ([Piece::new(operand, 8)], [Piece::new(result, 8)], [there]);
    // SAFETY: as in `write_and_complete_plain`.
    let operand = unsafe { Lent::new(&operand, &[]) };
    // SAFETY: as above.
    let result = unsafe { Lent::new(&result, &[]) };
    let op = AtomicOp::new(FiOp::Sum, Datatype::Uint64, operand, &there, node.peer, Context(1)).fetch(result);
    node.endpoint.atomic(&op).map_err(stack)?;
    read_one(node, &node.tx)
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    match name {
        "fetch-add 8 B, completion read" => run_fetch_adds(false, count),
        "C: fetch-add 8 B, completion read" => run_fetch_adds(true, count),
        _ => run_writes(name, count),
    }
}

/// Adds to library memory, which the initiator accesses directly.
fn run_fetch_adds(in_c: bool, count: u64) -> Result<()> {
    let mut sides = Sides::open(Caps::ATOMIC)?;
    let (operand, result) = (sides.piece(0).addr, sides.piece(128).addr);
    let Sides { sender, receiver, .. } = &sides;
    let arena = receiver.memory(&Job::new(Test::FetchAdd, 8, 1).in_library_memory(), 4096)?;
    let region = remote_region(receiver, &arena)?;
    let there = RemotePiece { addr: region.base(), len: 8, key: region.key() };
    let remote = [there];
    let pieces = [Piece::new(operand, 8)];
    // SAFETY: `sides` lives until the end, and no code reads memory in flight.
    let first = unsafe { Lent::new(&pieces, &[]) };
    let first = AtomicOp::new(FiOp::Sum, Datatype::Uint64, first, &remote, sender.peer, Context(1));
    // Outside the counted functions: the two connect, and the initiator gets the memory.
    sender.endpoint.atomic(&first).map_err(stack)?;
    meet(sender, receiver)?;
    let handles = handles(sender, &sender.tx);
    (0..count).try_for_each(|_| match in_c {
        true => c::fetch_add_and_complete(&handles, (operand, result), (sender.peer, there)),
        false => fetch_add_and_complete(sender, (operand, result), there),
    })
}

/// Registers library memory for all accesses.
fn remote_region(owner: &Node, arena: &Arena) -> Result<Arc<dyn MemoryRegion>> {
    let target = [Piece::new(arena.base, arena.len)];
    // SAFETY: an arena lives as long as the process, and no reference to it exists.
    let attr = unsafe { MrAttr::new(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
    owner.domain.register(&attr).map_err(stack)
}

/// Waits for the first access's completion.
fn meet(sender: &Node, receiver: &Node) -> Result<()> {
    while sender.poll(&sender.tx, &mut [CqTaggedEntry::EMPTY])? == 0 {
        receiver.poll(&receiver.rx, &mut [CqTaggedEntry::EMPTY])?;
    }
    Ok(())
}

/// Runs the writes and reads.
fn run_writes(name: &str, count: u64) -> Result<()> {
    let mut sides = Sides::open(Caps::TRIGGER)?;
    let from = [sides.piece(0)];
    let Sides { sender, receiver, .. } = &sides;
    let job = Job::new(Test::RmaWrite, 64, 1).in_library_memory();
    let arena = receiver.memory(&job, 4096)?;
    let region = remote_region(receiver, &arena)?;
    let remote = [RemotePiece { addr: region.base(), len: 64, key: region.key() }];
    // SAFETY: `sides` lives until the end, and no code reads memory in flight.
    let op = unsafe { access(sender, &from, &remote, Call::Plain) };
    // Outside the counted functions: the two connect, and the writer gets the memory.
    sender.endpoint.write(&op).map_err(stack)?;
    meet(sender, receiver)?;
    let counter = sender.domain.open_counter(&CntrAttr::default()).map_err(stack)?;
    let (handles, here, there) = (handles(sender, &sender.tx), from[0], (sender.peer, remote[0]));
    let mut entries = [CqTaggedEntry::EMPTY; 32];
    for number in 1..=count {
        match name {
            "window of 64 writes of 64 B, completions read together" => {
                write_window(sender, &op, &mut entries)?;
            }
            "write 64 B, completion read" => write_and_complete_plain(sender, here, remote[0], Call::Plain)?,
            "write 64 B with flags, completion read" => {
                write_and_complete_plain(sender, here, remote[0], Call::Msg)?
            }
            "triggered write 64 B, counter added to, completion read" => {
                write_and_complete_triggered(sender, &op, &Threshold { counter: &counter, value: number })?;
            }
            "inject write 64 B" => write_injected(sender, here, remote[0])?,
            "read 64 B, completion read" => fetch_and_complete(sender, here, remote[0])?,
            "C: write 64 B, completion read" => c::write_and_complete(&handles, here, there)?,
            "C: write of a message 64 B, completion read" => c::message_write(&handles, here, there)?,
            "C: inject write 64 B" => c::write_injected(&handles, here, there)?,
            "C: read 64 B, completion read" => c::fetch_and_complete(&handles, here, there)?,
            _ => return Err(Error::NotReady(format!("path {name:?}"))),
        }
    }
    Ok(())
}
