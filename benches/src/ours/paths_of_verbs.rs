//! The paths over RDMA devices, for each type of endpoint: the library's work above one ([`super::bare_verbs`]).

use std::sync::Arc;

use ofi::raw::{
    AddrFormat, Call, Caps, Context, CqTaggedEntry, EpType, Hints, Lent, Mode, MrAccess, MrAttr, MrMode,
    OpFlags, ReceiveOp, RemotePiece, RmaOp, SendOp, WaitObj,
};

use super::bare_verbs;
use super::node::Node;
use super::paths::{Sides, read_one, stack};
use super::{Job, Test};
use crate::{Error, Result};

/// The prefixes of paths with messages, for each type of endpoint; the rest is the name of the same path over shared
/// memory.
pub const PREFIXES: [(&str, EpType); 3] =
    [("verbs: ", EpType::Rdm), ("verbs msg: ", EpType::Msg), ("verbs dgram: ", EpType::Dgram)];

/// The paths that [`run`] knows.
pub const NAMES: &[&str] = &[
    "verbs: write 64 B, completion read",
    "verbs: read 64 B, completion read",
    "verbs msg: write 64 B, completion read",
    "verbs msg: read 64 B, completion read",
];

/// The type of the endpoints of a path's name, and the name without its prefix.
pub fn of_name(name: &str) -> Option<(EpType, &str)> {
    PREFIXES.into_iter().find_map(|(prefix, ep)| Some((ep, name.strip_prefix(prefix)?)))
}

/// Two endpoints in this thread, over the device, which have connected.
pub fn sides(ep: EpType) -> Result<Sides> {
    bare_verbs::add();
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    let hints = Hints::new().provider("verbs").domain(bare_verbs::NAME).ep_type(ep);
    let hints = hints.mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY);
    let hints = match ep {
        EpType::Dgram => hints.addr_format(AddrFormat::IbUd).caps(Caps::MSG),
        EpType::Msg => {
            let hints = hints.addr_format(AddrFormat::SockaddrIn).caps(Caps::MSG | Caps::RMA);
            let mode = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::LOCAL | MrMode::ALLOCATED;
            hints.mr_mode(mode).mode(Mode::RX_CQ_DATA)
        }
        _ => hints.addr_format(AddrFormat::SockaddrIn).caps(Caps::MSG | Caps::TAGGED | Caps::RMA),
    };
    let job = Job::new(Test::PingPong, 64, 1);
    if ep == EpType::Msg {
        let [caller, answerer] = Node::connected(&hints)?;
        return Ok(Sides::of(caller, answerer));
    }
    let open = || Node::alone(&hints, Caps::empty(), &job, WaitObj::None);
    let (mut sender, mut receiver) = (open()?, open()?);
    sender.insert(&receiver.endpoint.name().map_err(stack)?)?;
    receiver.insert(&sender.endpoint.name().map_err(stack)?)?;
    // Both ends are needed for the connection, so a path that waits at one end alone would not end.
    receiver.endpoint.receive(&ReceiveOp::new(Lent::EMPTY, Context(0))).map_err(stack)?;
    sender.endpoint.send(&SendOp::new(Lent::EMPTY, sender.peer, Context(1))).map_err(stack)?;
    meet(&sender, &receiver)?;
    receiver.wait_one(&receiver.rx)?;
    Ok(Sides::of(sender, receiver))
}

/// Waits for the completion of an operation that needs the other end.
fn meet(sender: &Node, receiver: &Node) -> Result<()> {
    while sender.poll(&sender.tx, &mut [CqTaggedEntry::EMPTY])? == 0 {
        receiver.poll(&receiver.rx, &mut [])?;
    }
    Ok(())
}

/// Its error differs from that of the same function in [`super::paths_of_efa`], so that the compiler does not merge the
/// two.
#[inline(never)]
fn write_and_complete(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.write(op).map_err(|error| Error::Stack(format!("a write over verbs: {error}")))?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn fetch_and_complete(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.read(op).map_err(|error| Error::Stack(format!("a read over verbs: {error}")))?;
    read_one(node, &node.tx)
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    let (ep, name) = of_name(name).ok_or_else(|| Error::NotReady(format!("path {name:?}")))?;
    let mut sides = sides(ep)?;
    let (from, into) = (sides.piece(0), sides.piece(128));
    let Sides { sender, receiver, .. } = &sides;
    let (here, there) = ([from], [into]);
    // SAFETY: `sides` lives until the end, and no code reads memory in flight.
    let attr = unsafe { MrAttr::new(&there, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
    let region = receiver.domain.register(&attr).map_err(stack)?;
    let remote = [RemotePiece { addr: region.base(), len: 64, key: region.key() }];
    // SAFETY: as above.
    let local = unsafe { MrAttr::new(&here, MrAccess::WRITE | MrAccess::READ) };
    // Connected endpoints want it registered.
    let _registered = sender.domain.register(&local).map_err(stack)?;
    // SAFETY: as above.
    let buf = unsafe { Lent::new(&here, &[]) };
    let (context, flags) = (Context(1), OpFlags::empty());
    let op = RmaOp { buf, remote: &remote, peer: sender.peer, context, data: 0, flags, call: Call::Plain };
    // The owner executes the first access, and gives the device's key for the later ones.
    sender.endpoint.write(&op).map_err(stack)?;
    meet(sender, receiver)?;
    for _ in 0..count {
        match name {
            name if name.starts_with("write") => write_and_complete(sender, &op)?,
            _ => fetch_and_complete(sender, &op)?,
        }
    }
    let statistics = sender.endpoint.statistics();
    let native = statistics.iter().filter(|statistic| statistic.name.starts_with("verbs_native_"));
    if ep == EpType::Rdm && native.map(|statistic| statistic.value).sum::<u64>() < count {
        return Err(Error::Stack("the owner executed accesses, not the device".into()));
    }
    Ok(())
}
