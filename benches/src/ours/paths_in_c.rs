//! The paths as C programs take them: calls through the tables of `libfabric.so.1`. Each does the same as the path of
//! that name in `paths.rs`.

use std::ptr::null_mut;

use ofi::raw::{CqTaggedEntry, Datatype, FiAddr, FiOp, Piece, RemotePiece};
use ofi_capi::probe::{CounterHandle, Handles};

use crate::{Error, Result};

#[inline(never)]
pub fn plain_send(c: &Handles, piece: Piece, peer: FiAddr) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.send(piece.addr.cast(), piece.len, peer.0, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn plain_receive(c: &Handles, piece: Piece) -> Result<()> {
    read_one(c)?;
    // SAFETY: as for `Node::receive`.
    succeeded(unsafe { c.receive(piece.addr.cast(), piece.len, FiAddr::UNSPEC.0, null_mut()) })
}

#[inline(never)]
pub fn tagged_send(c: &Handles, piece: Piece, (peer, tag): (FiAddr, u64)) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.tagged_send(piece.addr.cast(), piece.len, (peer.0, tag), null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn tagged_receive(c: &Handles, piece: Piece, tag: u64) -> Result<()> {
    read_one(c)?;
    let from = (FiAddr::UNSPEC.0, tag);
    // SAFETY: as for `Node::receive`.
    succeeded(unsafe { c.tagged_receive(piece.addr.cast(), piece.len, from, null_mut()) })
}

#[inline(never)]
pub fn write_and_complete(c: &Handles, piece: Piece, (peer, remote): (FiAddr, RemotePiece)) -> Result<()> {
    let to = (peer.0, remote.addr, remote.key);
    // SAFETY: the piece is lent until the completion, which is read before it is used again.
    succeeded(unsafe { c.write(piece.addr.cast(), piece.len, to, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn vector_send(c: &Handles, piece: Piece, peer: FiAddr) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.send_vector(piece.addr.cast(), piece.len, peer.0, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn message_send(c: &Handles, piece: Piece, peer: FiAddr) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.send_message(piece.addr.cast(), piece.len, peer.0, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn plain_inject(c: &Handles, piece: Piece, peer: FiAddr) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.inject(piece.addr.cast_const().cast(), piece.len, peer.0) })
}

#[inline(never)]
pub fn tagged_inject(c: &Handles, piece: Piece, (peer, tag): (FiAddr, u64)) -> Result<()> {
    // SAFETY: as for `Node::send`.
    succeeded(unsafe { c.tagged_inject(piece.addr.cast_const().cast(), piece.len, (peer.0, tag)) })
}

#[inline(never)]
pub fn message_write(c: &Handles, piece: Piece, (peer, remote): (FiAddr, RemotePiece)) -> Result<()> {
    let to = (peer.0, remote.addr, remote.key);
    // SAFETY: as for `write_and_complete`.
    succeeded(unsafe { c.write_message(piece.addr.cast(), piece.len, to, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn write_injected(c: &Handles, piece: Piece, (peer, remote): (FiAddr, RemotePiece)) -> Result<()> {
    let to = (peer.0, remote.addr, remote.key);
    // SAFETY: the piece is there until the call returns.
    succeeded(unsafe { c.inject_write(piece.addr.cast_const().cast(), piece.len, to) })
}

#[inline(never)]
pub fn fetch_and_complete(c: &Handles, piece: Piece, (peer, remote): (FiAddr, RemotePiece)) -> Result<()> {
    let from = (peer.0, remote.addr, remote.key);
    // SAFETY: as for `write_and_complete`.
    succeeded(unsafe { c.fetch(piece.addr.cast(), piece.len, from, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn read_counter(counter: CounterHandle) -> u64 {
    counter.read()
}

/// Eight bytes: the operand, and the place for the old value.
#[inline(never)]
pub fn fetch_add_and_complete(
    c: &Handles,
    (operand, result): (*mut u8, *mut u8),
    (peer, remote): (FiAddr, RemotePiece),
) -> Result<()> {
    let (here, to) = ((operand.cast_const().cast(), result.cast()), (peer.0, remote.addr, remote.key));
    let what = (Datatype::Uint64.as_c(), FiOp::Sum.as_c());
    // SAFETY: both are lent until the completion, which is read before they are used again.
    succeeded(unsafe { c.fetch_atomic(here, to, what, null_mut()) })?;
    read_one(c)
}

#[inline(never)]
pub fn empty_poll(c: &Handles) -> isize {
    let mut entry = [CqTaggedEntry::EMPTY];
    // SAFETY: room for one entry of the queue's format.
    unsafe { c.read(entry.as_mut_ptr().cast(), 1) }
}

#[inline(always)]
fn read_one(c: &Handles) -> Result<()> {
    let mut entry = [CqTaggedEntry::EMPTY];
    // SAFETY: room for one entry of the queue's format.
    match unsafe { c.read(entry.as_mut_ptr().cast(), 1) } {
        1 => Ok(()),
        other => succeeded(other),
    }
}

#[inline(always)]
fn succeeded(answer: isize) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(Error::Stack(format!("a C call returned {answer}"))) }
}
