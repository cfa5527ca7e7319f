//! The paths whose instructions are counted: two endpoints in one thread, one operation to a function.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ofi::direct::{CompletionQueue as CompletionQueueOf, Endpoint, Shm};
use ofi::raw::{
    AtomicOp, Call, Caps, CntrAttr, CollectiveKind, CollectiveOp, CompletionQueue, Context, CqBuffer,
    CqTaggedEntry, Datatype, DeferredOp, Endpoint as _, FiAddr, FiOp, Group, Info, Lent, MemoryRegion,
    MrAccess, MrAttr, OpFlags, Piece, RemotePiece, RmaOp, SendOp, Threshold, WaitObj,
};

use ofi_capi::probe::Handles;

use super::node::{Arena, Node};
use super::paths_in_c as c;
use super::run::join;
use super::{Job, Path, Test};
use crate::{Error, Result, link::Link};

/// All of them. A send and a receive both count the read of their completion.
pub const PATHS: &[Path] = &[
    Path { name: "send 64 B, completion read", function: "*paths::*send_and_complete*" },
    Path { name: "receive 64 B, completion read, posted again", function: "*paths::*receive_and_post*" },
    Path { name: "tagged send 64 B, completion read", function: "*paths::*tagged_send_and_complete*" },
    Path {
        name: "tagged receive 64 B, completion read, posted again",
        function: "*paths::*tagged_receive_and_post*",
    },
    Path { name: "write 64 B, completion read", function: "*paths::*write_and_complete_plain*" },
    Path {
        name: "triggered write 64 B, counter added to, completion read",
        function: "*paths::*write_and_complete_triggered*",
    },
    Path { name: "fetch-add 8 B, completion read", function: "*paths::*fetch_add_and_complete*" },
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
    Path { name: "C: send 64 B, completion read", function: "*paths_in_c*plain_send*" },
    Path { name: "C: receive 64 B, completion read, posted again", function: "*paths_in_c*plain_receive*" },
    Path { name: "C: tagged send 64 B, completion read", function: "*paths_in_c*tagged_send*" },
    Path {
        name: "C: tagged receive 64 B, completion read, posted again",
        function: "*paths_in_c*tagged_receive*",
    },
    Path { name: "C: write 64 B, completion read", function: "*paths_in_c*write_and_complete*" },
    Path { name: "C: fetch-add 8 B, completion read", function: "*paths_in_c*fetch_add_and_complete*" },
    Path { name: "C: poll that finds nothing", function: "*paths_in_c*empty_poll*" },
    Path { name: "poll that finds nothing", function: "*paths::*empty_poll*" },
];

/// Of the tagged messages.
const TAG: u64 = 7;

struct Sides {
    sender: Node,
    receiver: Node,
    memory: Box<[u8; 256]>,
}

impl Sides {
    fn open(more: Caps) -> Result<Self> {
        let job = Job::new(Test::PingPong, 64, 1);
        let (a, b) = UnixStream::pair().map_err(Error::io("a socket pair"))?;
        let other = std::thread::spawn(move || Node::open(more, &job, &mut Link::new(b)?, WaitObj::None));
        let sender = Node::open(more, &job, &mut Link::new(a)?, WaitObj::None)?;
        let receiver = other.join().map_err(|_| Error::Stack("opening the receiver".into()))??;
        Ok(Self { sender, receiver, memory: Box::new([1; 256]) })
    }

    fn piece(&mut self, at: usize) -> Piece {
        Piece::new(self.memory.as_mut_ptr().wrapping_add(at), 64)
    }
}

fn read_one(node: &Node, queue: &Arc<dyn CompletionQueue>) -> Result<()> {
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
const WINDOW: usize = 64;

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

/// Reads the completions of a window, as many at a time as there are.
#[inline(always)]
fn read_window(
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
fn empty_poll(node: &Node) -> Result<usize> {
    node.poll(&node.rx, &mut [CqTaggedEntry::EMPTY])
}

#[inline(never)]
fn write_and_complete_plain(node: &Node, op: &RmaOp<'_>) -> Result<()> {
    node.endpoint.write(op).map_err(stack)?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn write_and_complete_triggered(node: &Node, op: &RmaOp<'_>, when: &Threshold<'_>) -> Result<()> {
    node.endpoint.trigger(when, &DeferredOp::Write(*op)).map_err(stack)?;
    when.counter.add(1).map_err(stack)?;
    read_one(node, &node.tx)
}

#[inline(never)]
fn fetch_add_and_complete(node: &Node, op: &AtomicOp<'_>) -> Result<()> {
    node.endpoint.atomic(op).map_err(stack)?;
    read_one(node, &node.tx)
}

/// Adds to memory of the library, which whoever adds reaches by itself.
fn run_fetch_adds(in_c: bool, count: u64) -> Result<()> {
    let mut sides = Sides::open(Caps::ATOMIC)?;
    let (operand, result) = ([Piece::new(sides.piece(0).addr, 8)], [Piece::new(sides.piece(128).addr, 8)]);
    let Sides { sender, receiver, .. } = &sides;
    let arena = receiver.memory(&Job::new(Test::FetchAdd, 8, 1).in_library_memory(), 4096)?;
    let region = remote_region(receiver, &arena)?;
    let remote = [RemotePiece { addr: region.base(), len: 8, key: region.key() }];
    // SAFETY: `sides` lives until the end, and nobody looks at what is in flight.
    let operand = unsafe { Lent::new(&operand, &[]) };
    // SAFETY: as above.
    let result = unsafe { Lent::new(&result, &[]) };
    let op =
        AtomicOp::new(FiOp::Sum, Datatype::Uint64, operand, &remote, sender.peer, Context(1)).fetch(result);
    // Outside the counted functions: the two meet, and the adder is given the memory.
    sender.endpoint.atomic(&op).map_err(stack)?;
    meet(sender, receiver)?;
    let handles = handles(sender, &sender.tx);
    let (from, into) = (operand.pieces()[0].addr, result.pieces()[0].addr);
    (0..count).try_for_each(|_| match in_c {
        true => c::fetch_add_and_complete(&handles, (from, into), (sender.peer, remote[0])),
        false => fetch_add_and_complete(sender, &op),
    })
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
    let (joined, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| join(receiver, false));
        let joined = join(sender, true)?;
        Ok::<_, Error>((joined, others.join().map_err(|_| Error::Stack("joining".into()))??))
    })?;
    let op = |group: &Group, mine, sum| {
        let op = CollectiveOp::new(CollectiveKind::Allreduce, group.addr(), Context(1));
        CollectiveOp { op: FiOp::Sum, ..op.data(Datatype::Uint64, 1, mine, sum) }
    };
    // SAFETY: `sides` lives until the end, and nobody looks at what is in flight.
    let lent = |piece| unsafe { Lent::new(piece, &[]) };
    let ops = [op(&joined, lent(&mine), lent(&sum)), op(&others, lent(&other), lent(&other_sum))];
    (0..count).try_for_each(|_| all_reduce_and_complete([sender, receiver], &ops))
}

/// Registers library memory for everything.
fn remote_region(owner: &Node, arena: &Arena) -> Result<Arc<dyn MemoryRegion>> {
    let target = [Piece::new(arena.base, arena.len)];
    // SAFETY: an arena lives as long as the process, and nobody looks at it.
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

/// How a write is posted.
#[derive(Clone, Copy)]
enum Writing {
    Plain,
    Triggered,
    InC,
}

/// Writes to memory of the library, into which the writer reaches by itself.
fn run_writes(how: Writing, count: u64) -> Result<()> {
    let mut sides = Sides::open(Caps::TRIGGER)?;
    let from = [sides.piece(0)];
    let Sides { sender, receiver, .. } = &sides;
    let job = Job::new(Test::RmaWrite, 64, 1).in_library_memory();
    let arena = receiver.memory(&job, 4096)?;
    let region = remote_region(receiver, &arena)?;
    let remote = [RemotePiece { addr: region.base(), len: 64, key: region.key() }];
    // SAFETY: `sides` lives until the end, and nobody looks at what is in flight.
    let buf = unsafe { Lent::new(&from, &[]) };
    let (context, flags, call) = (Context(1), OpFlags::empty(), Call::Plain);
    let op = RmaOp { buf, remote: &remote, peer: sender.peer, context, data: 0, flags, call };
    // Outside the counted functions: the two meet, and the writer is given the memory.
    sender.endpoint.write(&op).map_err(stack)?;
    meet(sender, receiver)?;
    let counter = sender.domain.open_counter(&CntrAttr::default()).map_err(stack)?;
    let handles = handles(sender, &sender.tx);
    for number in 1..=count {
        match how {
            Writing::Plain => write_and_complete_plain(sender, &op)?,
            Writing::Triggered => {
                write_and_complete_triggered(sender, &op, &Threshold { counter: &counter, value: number })?;
            }
            Writing::InC => c::write_and_complete(&handles, from[0], (sender.peer, remote[0]))?,
        }
    }
    Ok(())
}

/// A node's endpoint and one of its queues, as a C program holds them.
fn handles(node: &Node, queue: &Arc<dyn CompletionQueue>) -> Handles {
    Handles::of(node.endpoint.clone(), &Info::default(), queue.clone())
}

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// See [`super::run_path`].
pub fn run(name: &str, count: u64) -> Result<()> {
    let in_c = name.starts_with("C: ");
    if name.contains("write") {
        let plain = if in_c { Writing::InC } else { Writing::Plain };
        return run_writes(if name.starts_with("triggered") { Writing::Triggered } else { plain }, count);
    }
    if name.starts_with("all-reduce") {
        return run_all_reduces(count);
    }
    if name.contains("fetch-add") {
        return run_fetch_adds(in_c, count);
    }
    let mut sides = Sides::open(Caps::empty())?;
    let (out, into) = (sides.piece(0), sides.piece(128));
    let Sides { sender, receiver, .. } = &sides;
    let tagged = name.contains("tagged");
    receiver.receive(into, tagged.then_some(TAG), 0)?;
    // Outside the counted functions: the two meet.
    sender.send(out, tagged.then_some(TAG))?;
    sender.wait_one(&sender.tx)?;
    receiver.wait_one(&receiver.rx)?;
    receiver.receive(into, tagged.then_some(TAG), 0)?;
    if name.starts_with("window") {
        return run_windows(&mut sides, count);
    }
    let direct = (
        Endpoint::<Shm>::new(sender.endpoint.clone()).map_err(stack)?,
        CompletionQueueOf::new(sender.tx.clone()).map_err(stack)?,
    );
    let ends = [handles(sender, &sender.tx), handles(receiver, &receiver.rx)];
    for _ in 0..count {
        match (name.contains("send"), tagged) {
            _ if name.starts_with("direct") => {
                direct_send(&direct.0, &direct.1, out, sender.peer)?;
                receiver.wait_one(&receiver.rx)?;
                receiver.receive(into, None, 0)?;
            }
            _ if name.starts_with("poll") => {
                empty_poll(receiver)?;
            }
            _ if name.starts_with("C: poll") => {
                c::empty_poll(&ends[1]);
            }
            (true, tagged) if in_c => {
                if tagged {
                    c::tagged_send(&ends[0], out, (sender.peer, TAG))?;
                } else {
                    c::plain_send(&ends[0], out, sender.peer)?;
                }
                receiver.wait_one(&receiver.rx)?;
                receiver.receive(into, tagged.then_some(TAG), 0)?;
            }
            (false, tagged) if in_c => {
                sender.send(out, tagged.then_some(TAG))?;
                sender.wait_one(&sender.tx)?;
                if tagged {
                    c::tagged_receive(&ends[1], into, TAG)?;
                } else {
                    c::plain_receive(&ends[1], into)?;
                }
            }
            (true, false) => {
                send_and_complete(sender, out)?;
                receiver.wait_one(&receiver.rx)?;
                receiver.receive(into, None, 0)?;
            }
            (true, true) => {
                tagged_send_and_complete(sender, out)?;
                receiver.wait_one(&receiver.rx)?;
                receiver.receive(into, Some(TAG), 0)?;
            }
            (false, tagged) => {
                sender.send(out, tagged.then_some(TAG))?;
                sender.wait_one(&sender.tx)?;
                if tagged {
                    tagged_receive_and_post(receiver, into)?
                } else {
                    receive_and_post(receiver, into)?
                }
            }
        }
    }
    Ok(())
}
