//! The paths whose instructions are counted: two endpoints in one thread, one operation per function.

use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ofi::direct::{CompletionQueue as CompletionQueueOf, Endpoint, Shm};
use ofi::raw::{
    Call, Caps, CntrAttr, CollectiveKind, CollectiveOp, CompletionQueue, Context, Counter, CqBuffer,
    CqTaggedEntry, Datatype, Endpoint as _, FiAddr, FiOp, Group, Info, Lent, Piece, SendOp, WaitObj,
};

use ofi_capi::probe::{CounterHandle, Handles};

use super::node::Node;
use super::paths_in_c as c;
use super::paths_of_efa as of_efa;
use super::paths_of_long as of_long;
use super::paths_of_memory as of_memory;
use super::paths_of_rails as of_rails;
use super::paths_of_verbs as of_verbs;
use super::ranks::join;
use super::{Job, Path, Provider, Test};
use crate::{Error, Result, link::Link};

/// All paths. A send and a receive both include the read of their completion.
pub const PATHS: &[Path] = &[
    Path { name: "send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "receive 64 B, completion read, posted again", function: "*paths::*receive_and_post*" },
    Path { name: "tagged send 64 B, completion read", function: "*paths::*tagged_send_and_complete*" },
    Path {
        name: "tagged receive 64 B, completion read, posted again",
        function: "*paths::*tagged_receive_and_post*",
    },
    Path { name: "write 64 B, completion read", function: "*of_memory::*write_and_complete_plain*" },
    Path {
        name: "write 64 B with flags, completion read",
        function: "*of_memory::*write_and_complete_plain*",
    },
    Path {
        name: "triggered write 64 B, counter added to, completion read",
        function: "*of_memory::*write_and_complete_triggered*",
    },
    Path { name: "inject write 64 B", function: "*of_memory::*write_injected*" },
    Path { name: "read 64 B, completion read", function: "*of_memory::*fetch_and_complete*" },
    Path { name: "fetch-add 8 B, completion read", function: "*of_memory::*fetch_add_and_complete*" },
    Path {
        name: "all-reduce 8 B on 2 ranks, completions read, both ranks",
        function: "*paths::*all_reduce_and_complete*",
    },
    Path { name: "window of 64 sends of 64 B, completions read together", function: "*paths::*send_window*" },
    Path {
        name: "window of 64 receives of 64 B, read together, posted again",
        function: "*paths::*receive_window*",
    },
    Path { name: "direct send 64 B, completion read", function: "*paths::*direct_send*" },
    Path { name: "send 64 B with flags, completion read", function: "*paths::*flagged_send*" },
    Path { name: "inject 64 B", function: "*paths::*plain_inject*" },
    Path { name: "tagged inject 64 B", function: "*paths::*tagged_inject*" },
    Path { name: "counter read", function: "*paths::*read_counter*" },
    Path { name: "C: send 64 B, completion read", function: "*paths_in_c*plain_send*" },
    Path { name: "C: send of a vector 64 B, completion read", function: "*paths_in_c*vector_send*" },
    Path { name: "C: send of a message 64 B, completion read", function: "*paths_in_c*message_send*" },
    Path { name: "C: receive 64 B, completion read, posted again", function: "*paths_in_c*plain_receive*" },
    Path { name: "C: tagged send 64 B, completion read", function: "*paths_in_c*tagged_send*" },
    Path {
        name: "C: tagged receive 64 B, completion read, posted again",
        function: "*paths_in_c*tagged_receive*",
    },
    Path { name: "C: inject 64 B", function: "*paths_in_c*plain_inject*" },
    Path { name: "C: tagged inject 64 B", function: "*paths_in_c*tagged_inject*" },
    Path { name: "C: write 64 B, completion read", function: "*paths_in_c*write_and_complete*" },
    Path { name: "C: write of a message 64 B, completion read", function: "*paths_in_c*message_write*" },
    Path { name: "C: inject write 64 B", function: "*paths_in_c*write_injected*" },
    Path { name: "C: read 64 B, completion read", function: "*paths_in_c*fetch_and_complete*" },
    Path { name: "C: fetch-add 8 B, completion read", function: "*paths_in_c*fetch_add_and_complete*" },
    Path { name: "C: counter read", function: "*paths_in_c*read_counter*" },
    Path { name: "C: poll that finds nothing", function: "*paths_in_c*empty_poll*" },
    Path { name: "poll that finds nothing", function: "*paths::*empty_poll*" },
    Path {
        name: "window of 64 writes of 64 B, completions read together",
        function: "*of_memory::*write_window*",
    },
    Path { name: "message of 16 KiB through a ring, both ends", function: "*paths_of_long*exchange*" },
    Path { name: "message of 1 MiB by a single copy, both ends", function: "*paths_of_long*exchange*" },
    Path { name: "udp: inject 64 B", function: "*paths_of_long*inject_by_socket*" },
    Path {
        name: "udp: receive 64 B, completion read, posted again",
        function: "*paths_of_long*receive_by_socket*",
    },
    Path { name: "udp: message of 256 KiB, both ends", function: "*paths_of_long*exchange*" },
    Path { name: "tcp: send 64 B, completion read", function: "*paths_of_long*send_by_socket*" },
    Path { name: "tcp: inject 64 B", function: "*paths_of_long*inject_by_socket*" },
    Path {
        name: "tcp: receive 64 B, completion read, posted again",
        function: "*paths_of_long*receive_by_socket*",
    },
    Path { name: "tcp: write 64 B, both ends", function: "*paths_of_long*write_by_socket*" },
    Path {
        name: "rails: transfer of 64 writes of 64 B, waited for",
        function: "*of_rails::*transfer_and_wait*",
    },
    Path {
        name: "rails: transfer of 64 writes of 32 and 96 B by turns, waited for",
        function: "*of_rails::*transfer_and_wait*",
    },
    Path {
        name: "rails: transfer of one write of 64 B, waited for",
        function: "*of_rails::*transfer_and_wait*",
    },
    Path { name: "rails: progress that finds nothing", function: "*of_rails::*progress_nothing*" },
    Path { name: "efa: send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "efa: inject 64 B", function: "*paths::*plain_inject*" },
    Path { name: "efa: receive 64 B, completion read, posted again", function: "*paths::*receive_and_post*" },
    Path { name: "efa: tagged send 64 B, completion read", function: "*paths::*tagged_send_and_complete*" },
    Path {
        name: "efa: tagged receive 64 B, completion read, posted again",
        function: "*paths::*tagged_receive_and_post*",
    },
    Path { name: "efa-direct: write 64 B, to the doorbell", function: "*of_efa::*post_write*" },
    Path { name: "efa-direct: write 64 B, completion read", function: "*of_efa::*write_and_complete*" },
    Path { name: "efa-direct: read 64 B, to the doorbell", function: "*of_efa::*post_read*" },
    Path { name: "efa-direct: send 64 B, to the doorbell", function: "*of_efa::*post_message*" },
    Path { name: "verbs: send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "verbs: inject 64 B", function: "*paths::*plain_inject*" },
    Path {
        name: "verbs: receive 64 B, completion read, posted again",
        function: "*paths::*receive_and_post*",
    },
    Path { name: "verbs: tagged send 64 B, completion read", function: "*paths::*tagged_send_and_complete*" },
    Path {
        name: "verbs: tagged receive 64 B, completion read, posted again",
        function: "*paths::*tagged_receive_and_post*",
    },
    Path { name: "verbs: write 64 B, completion read", function: "*of_verbs::*write_and_complete*" },
    Path { name: "verbs: read 64 B, completion read", function: "*of_verbs::*fetch_and_complete*" },
    Path { name: "verbs msg: send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "verbs msg: inject 64 B", function: "*paths::*plain_inject*" },
    Path {
        name: "verbs msg: receive 64 B, completion read, posted again",
        function: "*paths::*receive_and_post*",
    },
    Path { name: "verbs msg: write 64 B, completion read", function: "*of_verbs::*write_and_complete*" },
    Path { name: "verbs msg: read 64 B, completion read", function: "*of_verbs::*fetch_and_complete*" },
    Path { name: "verbs dgram: send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "verbs dgram: inject 64 B", function: "*paths::*plain_inject*" },
    Path {
        name: "verbs dgram: receive 64 B, completion read, posted again",
        function: "*paths::*receive_and_post*",
    },
];

/// The tag of tagged messages.
const TAG: u64 = 7;

pub struct Sides {
    pub sender: Node,
    pub receiver: Node,
    memory: Box<[u8; 256]>,
}

impl Sides {
    pub fn open(more: Caps) -> Result<Self> {
        Self::open_over(Provider::Shm, more)
    }

    pub fn open_over(provider: Provider, more: Caps) -> Result<Self> {
        let job = Job { provider, ..Job::new(Test::PingPong, 64, 1) };
        let (a, b) = UnixStream::pair().map_err(Error::io("a socket pair"))?;
        let other = std::thread::spawn(move || Node::open(more, &job, &mut Link::new(b)?, WaitObj::None));
        let sender = Node::open(more, &job, &mut Link::new(a)?, WaitObj::None)?;
        let receiver = other.join().map_err(|_| Error::Stack("opening the receiver".into()))??;
        Ok(Self::of(sender, receiver))
    }

    /// Wraps two endpoints that are connected.
    pub fn of(sender: Node, receiver: Node) -> Self {
        Self { sender, receiver, memory: Box::new([1; 256]) }
    }

    pub fn piece(&mut self, at: usize) -> Piece {
        Piece::new(self.memory.as_mut_ptr().wrapping_add(at), 64)
    }
}

pub fn read_one(node: &Node, queue: &Arc<dyn CompletionQueue>) -> Result<()> {
    let mut entry = [CqTaggedEntry::EMPTY];
    match queue.read(&mut CqBuffer::new(&mut entry)) {
        Ok(_) => Ok(()),
        Err(error) if error.is_again() => node.wait_one(queue).map(drop),
        Err(error) => Err(Error::Stack(error.to_string())),
    }
}

#[inline(never)]
fn send_and_complete(node: &Node, piece: Piece) -> Result<()> {
    node.send(piece, None)?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn receive_and_post(node: &Node, piece: Piece) -> Result<()> {
    read_one(node, &node.rx)?;
    node.receive(piece, None, 0)
}

#[inline(never)]
fn tagged_send_and_complete(node: &Node, piece: Piece) -> Result<()> {
    node.send(piece, Some(TAG))?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn tagged_receive_and_post(node: &Node, piece: Piece) -> Result<()> {
    read_one(node, &node.rx)?;
    node.receive(piece, Some(TAG), 0)
}

/// Messages in a window, as in the measurement of the rate.
pub const WINDOW: usize = 64;

#[inline(never)]
fn send_window(node: &Node, piece: Piece, entries: &mut [CqTaggedEntry]) -> Result<()> {
    for _ in 0..WINDOW {
        node.send(piece, None)?;
    }
    read_window(node, &node.tx, entries, |_| Ok(()))
}

#[inline(never)]
fn receive_window(node: &Node, piece: Piece, entries: &mut [CqTaggedEntry]) -> Result<()> {
    read_window(node, &node.rx, entries, |context| node.receive(piece, None, context))
}

/// Reads the completions of a window, in batches of all that are there.
#[inline(always)]
pub fn read_window(
    node: &Node,
    queue: &Arc<dyn CompletionQueue>,
    entries: &mut [CqTaggedEntry],
    mut each: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let mut read = 0;
    while read < WINDOW {
        let count = node.poll(queue, entries)?;
        for entry in &entries[..count] {
            each(entry.op_context.0)?;
        }
        read += count;
    }
    Ok(())
}

/// Whole windows, sent and received in turn.
fn run_windows(sides: &mut Sides, count: u64) -> Result<()> {
    let (out, into) = (sides.piece(0), sides.piece(128));
    let Sides { sender, receiver, .. } = &*sides;
    let mut entries = [CqTaggedEntry::EMPTY; WINDOW];
    for context in 1..WINDOW {
        receiver.receive(into, None, context)?;
    }
    for _ in 0..count {
        send_window(sender, out, &mut entries)?;
        receive_window(receiver, into, &mut entries)?;
    }
    Ok(())
}

/// The same as `send_and_complete`, through the types of `ofi::direct`.
#[inline(never)]
fn direct_send(
    endpoint: &Endpoint<Shm>,
    queue: &CompletionQueueOf,
    piece: Piece,
    peer: FiAddr,
) -> Result<()> {
    let pieces = [piece];
    // SAFETY: as for `Node::send`.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    endpoint.send(&SendOp::new(buf, peer, Context(1))).map_err(stack)?;
    let mut entry = [CqTaggedEntry::EMPTY];
    queue.read(&mut CqBuffer::new(&mut entry)).map_err(stack).map(drop)
}

#[inline(never)]
fn flagged_send(node: &Node, piece: Piece) -> Result<()> {
    let pieces = [piece];
    // SAFETY: as for `Node::send`.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let op = SendOp { call: Call::Msg, ..SendOp::new(buf, node.peer, Context(1)) };
    node.endpoint.send(&op).map_err(stack)?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn plain_inject(node: &Node, piece: Piece) -> Result<()> {
    let pieces = [piece];
    // SAFETY: as for `Node::send`.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let op = SendOp { call: Call::Inject, ..SendOp::new(buf, node.peer, Context::NULL) };
    node.endpoint.send(&op).map_err(stack)
}

#[inline(never)]
fn tagged_inject(node: &Node, piece: Piece) -> Result<()> {
    let pieces = [piece];
    // SAFETY: as for `Node::send`.
    let buf = unsafe { Lent::new(&pieces, &[]) };
    let op = SendOp { call: Call::Inject, ..SendOp::new(buf, node.peer, Context::NULL) };
    node.endpoint.send_tagged(&op, TAG).map_err(stack)
}

#[inline(never)]
fn read_counter(counter: &Arc<dyn Counter>) -> u64 {
    counter.read()
}

#[inline(never)]
fn empty_poll(node: &Node) -> Result<usize> {
    node.poll(&node.rx, &mut [CqTaggedEntry::EMPTY])
}

#[inline(never)]
fn all_reduce_and_complete(sides: [&Node; 2], ops: &[CollectiveOp<'_>; 2]) -> Result<()> {
    for (node, op) in sides.iter().zip(ops) {
        node.endpoint.collective(op).map_err(stack)?;
    }
    sides.iter().try_for_each(|node| read_one(node, &node.tx))
}

fn run_all_reduces(count: u64) -> Result<()> {
    let mut sides = Sides::open(Caps::COLLECTIVE)?;
    let [mine, other] = [0, 64].map(|at| [Piece::new(sides.piece(at).addr, 8)]);
    let [sum, other_sum] = [128, 192].map(|at| [Piece::new(sides.piece(at).addr, 8)]);
    let Sides { sender, receiver, .. } = &sides;
    let name = |node: &Node| node.endpoint.name().map_err(stack);
    let names = [name(receiver)?, name(sender)?];
    let (joined, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| join(receiver, &names));
        let joined = join(sender, &names)?;
        Ok::<_, Error>((joined, others.join().map_err(|_| Error::Stack("joining".into()))??))
    })?;
    let op = |group: &Group, mine, sum| {
        let op = CollectiveOp::new(CollectiveKind::Allreduce, group.addr(), Context(1));
        CollectiveOp { op: FiOp::Sum, ..op.data(Datatype::Uint64, 1, mine, sum) }
    };
    // SAFETY: `sides` lives until the end, and no code reads memory in flight.
    let lent = |piece| unsafe { Lent::new(piece, &[]) };
    let ops = [op(&joined, lent(&mine), lent(&sum)), op(&others, lent(&other), lent(&other_sum))];
    (0..count).try_for_each(|_| all_reduce_and_complete([sender, receiver], &ops))
}

/// A node's endpoint and one of its queues, as a C program holds them.
pub fn handles(node: &Node, queue: &Arc<dyn CompletionQueue>) -> Handles {
    Handles::of(node.endpoint.clone(), &Info::default(), queue.clone())
}

pub fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    match name {
        name if of_long::NAMES.contains(&name) => return of_long::run(name, count),
        name if of_memory::NAMES.contains(&name) => return of_memory::run(name, count),
        name if of_rails::NAMES.contains(&name) => return of_rails::run(name, count),
        name if of_efa::NAMES.contains(&name) => return of_efa::run(name, count),
        name if of_verbs::NAMES.contains(&name) => return of_verbs::run(name, count),
        "all-reduce 8 B on 2 ranks, completions read, both ranks" => return run_all_reduces(count),
        _ => {}
    }
    let (mut sides, name) = match name.split_at_checked(name.find(": ").map_or(0, |at| at + 2)) {
        Some((of_efa::PREFIX, name)) => (of_efa::sides(false)?, name),
        _ => match of_verbs::of_name(name) {
            Some((ep, name)) => (of_verbs::sides(ep)?, name),
            None => (Sides::open(Caps::empty())?, name),
        },
    };
    let (out, into) = (sides.piece(0), sides.piece(128));
    let Sides { sender, receiver, .. } = &sides;
    let tag = name.contains("tagged").then_some(TAG);
    receiver.receive(into, tag, 0)?;
    // Outside the counted functions: the two connect.
    sender.send(out, tag)?;
    sender.wait_one(&sender.tx)?;
    receiver.wait_one(&receiver.rx)?;
    receiver.receive(into, tag, 0)?;
    let ends = [handles(sender, &sender.tx), handles(receiver, &receiver.rx)];
    match name {
        name if name.starts_with("window") => run_windows(&mut sides, count),
        "poll that finds nothing" => (0..count).try_for_each(|_| empty_poll(receiver).map(drop)),
        "C: poll that finds nothing" => {
            (0..count).for_each(|_| _ = c::empty_poll(&ends[1]));
            Ok(())
        }
        name if name.ends_with("counter read") => run_counter_reads(name.starts_with("C: "), sender, count),
        _ => run_messages(name, (&sides, ends), (out, into), count),
    }
}

/// Messages from one side to the other, one by one. Work that the name does not mention happens outside the counted
/// functions.
fn run_messages(
    name: &str,
    (Sides { sender, receiver, .. }, [sending, receiving]): (&Sides, [Handles; 2]),
    (out, into): (Piece, Piece),
    count: u64,
) -> Result<()> {
    let tag = name.contains("tagged").then_some(TAG);
    let is_direct = name == "direct send 64 B, completion read";
    let direct =
        is_direct.then(|| Endpoint::<Shm>::new(sender.endpoint.clone())).transpose().map_err(stack)?;
    let queue = CompletionQueueOf::new(sender.tx.clone()).map_err(stack)?;
    for _ in 0..count {
        match name {
            _ if let Some(direct) = &direct => direct_send(direct, &queue, out, sender.peer)?,
            "send 64 B, completion read" => send_and_complete(sender, out)?,
            "send 64 B with flags, completion read" => flagged_send(sender, out)?,
            "tagged send 64 B, completion read" => tagged_send_and_complete(sender, out)?,
            "inject 64 B" => plain_inject(sender, out)?,
            "tagged inject 64 B" => tagged_inject(sender, out)?,
            "C: send 64 B, completion read" => c::plain_send(&sending, out, sender.peer)?,
            "C: send of a vector 64 B, completion read" => c::vector_send(&sending, out, sender.peer)?,
            "C: send of a message 64 B, completion read" => c::message_send(&sending, out, sender.peer)?,
            "C: tagged send 64 B, completion read" => c::tagged_send(&sending, out, (sender.peer, TAG))?,
            "C: inject 64 B" => c::plain_inject(&sending, out, sender.peer)?,
            "C: tagged inject 64 B" => c::tagged_inject(&sending, out, (sender.peer, TAG))?,
            _ => {
                sender.send(out, tag)?;
                sender.wait_one(&sender.tx)?;
            }
        }
        match name {
            "receive 64 B, completion read, posted again" => receive_and_post(receiver, into)?,
            "tagged receive 64 B, completion read, posted again" => tagged_receive_and_post(receiver, into)?,
            "C: receive 64 B, completion read, posted again" => c::plain_receive(&receiving, into)?,
            "C: tagged receive 64 B, completion read, posted again" => {
                c::tagged_receive(&receiving, into, TAG)?;
            }
            _ => {
                receiver.wait_one(&receiver.rx)?;
                receiver.receive(into, tag, 0)?;
            }
        }
        // A device reports when an injected message has arrived.
        sender.poll(&sender.tx, &mut [])?;
    }
    Ok(())
}

/// Reads a counter that does not change.
fn run_counter_reads(in_c: bool, node: &Node, count: u64) -> Result<()> {
    let counter = node.domain.open_counter(&CntrAttr::default()).map_err(stack)?;
    let handle = CounterHandle::of(counter.clone());
    for _ in 0..count {
        black_box(if in_c { c::read_counter(handle) } else { read_counter(&counter) });
    }
    Ok(())
}
