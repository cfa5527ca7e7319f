//! The paths over EFA devices: the library's work above one ([`super::bare_efa`]).

use std::sync::Arc;

use ofi::raw::{
    Call, Caps, Context, Hints, Lent, Mode, MrAccess, MrAttr, MrMode, OpFlags, Piece, RemotePiece, RmaOp,
    SendOp, WaitObj,
};

use super::bare_efa;
use super::node::Node;
use super::paths::{Sides, read_one, stack};
use super::{Job, Test};
use crate::{Error, Result};

/// The prefix of paths over fabric `efa`; the rest is the name of the same path over shared memory.
pub const PREFIX: &str = "efa: ";

/// The paths that [`run`] knows: over fabric `efa-direct`.
pub const NAMES: &[&str] = &[
    "efa-direct: write 64 B, to the doorbell",
    "efa-direct: write 64 B, completion read",
    "efa-direct: read 64 B, to the doorbell",
    "efa-direct: send 64 B, to the doorbell",
];

/// Two endpoints in this thread, over the device.
pub fn sides(direct: bool) -> Result<Sides> {
    bare_efa::add();
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    let modes = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED | MrMode::LOCAL;
    let hints = Hints::new().provider("efa").domain(bare_efa::DOMAIN).mr_mode(modes);
    let hints = match direct {
        true => hints.caps(Caps::MSG | Caps::RMA).mode(Mode::CONTEXT2),
        false => hints.caps(Caps::MSG | Caps::TAGGED | Caps::RMA),
    };
    let job = Job::new(Test::PingPong, 64, 1);
    let open = || Node::alone(&hints, Caps::empty(), &job, WaitObj::None);
    let (mut sender, mut receiver) = (open()?, open()?);
    sender.insert(&receiver.endpoint.name().map_err(stack)?)?;
    receiver.insert(&sender.endpoint.name().map_err(stack)?)?;
    Ok(Sides::of(sender, receiver))
}

#[inline(never)]
fn post_write(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.write(op).map_err(stack)
}

/// Its error differs from a write's, so that the compiler does not merge the two functions.
#[inline(never)]
fn post_read(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.read(op).map_err(|error| Error::Stack(format!("a read: {error}")))
}

#[inline(never)]
fn post_message(node: &Node, op: &SendOp<'_>) -> Result<()> {
    node.endpoint.send(op).map_err(stack)
}

#[inline(never)]
fn write_and_complete(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.write(op).map_err(stack)?;
    read_one(node, &node.tx)
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    let mut sides = sides(true)?;
    let (from, into) = (sides.piece(0), sides.piece(128));
    let Sides { sender, receiver, .. } = &sides;
    let (here, there) = ([from], [into]);
    let register = |node: &Node, piece: &[Piece; 1]| {
        // SAFETY: `sides` lives until the end, and no code reads memory in flight.
        let attr = unsafe { MrAttr::new(piece, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
        node.domain.register(&attr).map_err(stack)
    };
    let (_own, region) = (register(sender, &here)?, register(receiver, &there)?);
    let remote = [RemotePiece { addr: region.base(), len: 64, key: region.key() }];
    // SAFETY: as above.
    let buf = unsafe { Lent::new(&here, &[]) };
    let (context, flags) = (Context(1), OpFlags::empty());
    let op = RmaOp { buf, remote: &remote, peer: sender.peer, context, data: 0, flags, call: Call::Plain };
    write_outside(sender, &op)?;
    for _ in 0..count {
        match name {
            "efa-direct: write 64 B, completion read" => write_and_complete(sender, &op)?,
            "efa-direct: write 64 B, to the doorbell" => {
                post_write(sender, &op)?;
                read_one(sender, &sender.tx)?;
            }
            "efa-direct: read 64 B, to the doorbell" => {
                post_read(sender, &op)?;
                read_one(sender, &sender.tx)?;
            }
            "efa-direct: send 64 B, to the doorbell" => {
                receiver.receive(into, None, 0)?;
                // SAFETY: as above.
                let buf = unsafe { Lent::new(&here, &[]) };
                post_message(sender, &SendOp::new(buf, sender.peer, context))?;
                read_one(sender, &sender.tx)?;
                receiver.wait_one(&receiver.rx)?;
            }
            _ => return Err(Error::NotReady(format!("path {name:?}"))),
        }
    }
    Ok(())
}

/// The first write, which registers memory.
fn write_outside(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.write(op).map_err(stack)?;
    read_one(node, &node.tx)
}
