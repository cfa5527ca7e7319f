//! The measurements.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ofi::raw::{
    AtomicOp, Call, Caps, CompletionQueue, Context, CqBuffer, CqTaggedEntry, Datatype, FiOp, Lent, MrAccess,
    MrAttr, OpFlags, Piece, RemotePiece, RmaOp, WaitObj,
};

use super::node::{Arena, Node};
use super::threads;
use super::{Job, Role, Sleep, Test};
use super::{crowd, futures, ranks};
use crate::{Error, Figures, Result, link::Link, sys};

pub(super) fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// Runs `job`; see [`super::run`].
pub fn run(job: &Job, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    if let Test::Round { peers } = job.test {
        return crowd::run(job, peers, role, link);
    }
    if let Test::AllReduce { ranks } = job.test {
        return ranks::run(job, ranks, role, link);
    }
    if let Test::Threads { count } = job.test {
        return threads::run(job, count, role, link);
    }
    if let Test::Wake(sleep @ (Sleep::BlockOn | Sleep::Future)) = job.test {
        let figures = futures::wake(job, sleep == Sleep::BlockOn, role, link)?;
        return Ok((role == Role::Client).then_some(figures));
    }
    let wait = match job.test {
        Test::Wake(Sleep::Epoll) => WaitObj::Fd,
        Test::Wake(_) | Test::Idle | Test::IdleAuto => WaitObj::Unspec,
        _ => WaitObj::None,
    };
    let more = match job.test {
        Test::FetchAdd => Caps::ATOMIC,
        _ => Caps::empty(),
    };
    let node = Node::open(more, job, link, wait)?;
    let client = role == Role::Client;
    let figures = match job.test {
        Test::PingPong | Test::EachRound => ping_pong(&node, job, client, link)?,
        Test::TaggedPingPong { posted } => tagged_ping_pong(&node, job, posted, client, link)?,
        Test::Stream => stream(&node, job, client, link)?,
        Test::RmaWrite => rma(&node, job, client, link, true)?,
        Test::RmaRead => rma(&node, job, client, link, false)?,
        Test::FetchAdd => fetch_add(&node, job, client, link)?,
        Test::Wake(sleep) => wake(&node, job, sleep, client, link)?,
        Test::Idle => idle(&node, client, link)?,
        Test::IdleAuto => idle_auto(&node, job, client, link)?,
        Test::AllReduce { .. } | Test::Round { .. } | Test::Threads { .. } => {
            return Err(Error::Stack("it has no single peer".into()));
        }
    };
    node.meet(link)?;
    Ok(client.then_some(figures))
}

/// The location of message `slot` of a window.
pub(super) fn slot(arena: &Arena, size: usize, slot: usize) -> Piece {
    let stride = size.next_multiple_of(64);
    debug_assert!((slot + 1) * stride <= arena.len.max(stride));
    Piece::new(arena.base.wrapping_add(slot * stride), size)
}

fn ping_pong(node: &Node, job: &Job, client: bool, link: &mut Link) -> Result<Figures> {
    let arena = node.memory(job, 2 * job.size.next_multiple_of(64))?;
    let (out, back) = (slot(&arena, job.size, 0), slot(&arena, job.size, 1));
    let round = || -> Result<()> {
        if client {
            node.receive(back, None, 0)?;
            node.send(out, None)?;
            node.wait_one(&node.rx)?;
            node.wait_one(&node.tx)?;
        } else {
            node.wait_one(&node.rx)?;
            node.receive(back, None, 0)?;
            node.send(out, None)?;
            node.wait_one(&node.tx)?;
        }
        Ok(())
    };
    if !client {
        node.receive(back, None, 0)?;
    }
    if job.test == Test::EachRound { each(node, job, link, round) } else { timed(node, job, link, round) }
}

/// The numbers below `count` in a random order, again and again: a full-period generator modulo the next power of two.
fn random_order(count: usize) -> impl FnMut() -> u64 {
    let span = count.next_power_of_two().max(2) as u64;
    let mut state = 1u64;
    move || loop {
        state = (state.wrapping_mul(0x5851_F42D_4C95_7F2D & !3 | 1).wrapping_add(0xB504_F333_F9DE_6485 | 1))
            % span;
        if state < count as u64 {
            return state;
        }
    }
}

fn tagged_ping_pong(node: &Node, job: &Job, posted: usize, client: bool, link: &mut Link) -> Result<Figures> {
    let buffers = posted.max(job.buffers);
    let arena = node.memory(job, (buffers + 1) * job.size.next_multiple_of(64))?;
    let out = slot(&arena, job.size, buffers);
    for tag in 0..posted {
        node.receive(slot(&arena, job.size, tag), Some(tag as u64), tag)?;
    }
    let mut next = random_order(posted); // the same order at both sides
    let mut place = random_order(buffers);
    let mut round = move || -> Result<()> {
        let tag = next();
        let mut again = |tag: u64| {
            let buffer = if buffers > posted { place() } else { tag } as usize;
            node.receive(slot(&arena, job.size, buffer), Some(tag), tag as usize)
        };
        if client {
            node.send(out, Some(tag))?;
            let got = node.wait_one(&node.rx)?;
            again(got.tag)?;
            node.wait_one(&node.tx)?;
        } else {
            let got = node.wait_one(&node.rx)?;
            node.send(out, Some(tag))?;
            again(got.tag)?;
            node.wait_one(&node.tx)?;
        }
        Ok(())
    };
    timed(node, job, link, &mut round)
}

/// Warms up, synchronizes, and times `job.iterations` rounds; half a round is the latency.
fn timed(node: &Node, job: &Job, link: &mut Link, mut round: impl FnMut() -> Result<()>) -> Result<Figures> {
    for _ in 0..(job.iterations / 20).max(10) {
        round()?;
    }
    node.meet(link)?;
    let begin = Instant::now();
    for _ in 0..job.iterations {
        round()?;
    }
    let each = begin.elapsed().as_secs_f64() * 1e6 / job.iterations as f64;
    Ok(Figures::from_latency(job.size, each / 2.0))
}

/// Warms up, synchronizes, and times each of `job.iterations` rounds.
fn each(node: &Node, job: &Job, link: &mut Link, mut round: impl FnMut() -> Result<()>) -> Result<Figures> {
    for _ in 0..(job.iterations / 20).max(10) {
        round()?;
    }
    let mut times = Vec::with_capacity(job.iterations as usize);
    node.meet(link)?;
    let mut begin = Instant::now();
    for _ in 0..job.iterations {
        round()?;
        // One clock read per round: the end of a round is the beginning of the next.
        let end = Instant::now();
        times.push((end - begin).as_nanos() as u64);
        begin = end;
    }
    Figures::from_rounds(job.size, times).ok_or_else(|| Error::Stack("no rounds".into()))
}

fn stream(node: &Node, job: &Job, client: bool, link: &mut Link) -> Result<Figures> {
    let window = job.window;
    // By default one buffer for the whole window, as in fabtests (`ft_alloc_ctx_array`) and ucx_perftest: with one
    // buffer per message, ours would run from memory and theirs from the cache.
    let arena = node.memory(job, job.buffers * job.size.next_multiple_of(64))?;
    let buffer = |message: u64| slot(&arena, job.size, (message % job.buffers as u64) as usize);
    let total = job.iterations + job.iterations / 20 + 10;
    let mut entries = [CqTaggedEntry::EMPTY; 64];
    if !client {
        for index in 0..window {
            node.receive(buffer(index as u64), None, index)?;
        }
    }
    node.meet(link)?;
    let mut begin = Instant::now();
    let mut since = Instant::now();
    let (mut started, mut finished) = (0u64, 0u64);
    let warm = total - job.iterations;
    // What had ended when the time began: the warm ones and some more.
    let mut before = 0;
    if client {
        while finished < total {
            while started < total && started - finished < window as u64 {
                node.send(buffer(started), None)?;
                started += 1;
            }
            let count = node.poll(&node.tx, &mut entries)? as u64;
            finished += count;
            if before == 0 && finished >= warm {
                begin = Instant::now();
                before = finished;
            }
            if count == 0 {
                check(&mut since)?;
            }
        }
        node.receive(slot(&arena, 0, 0), None, 0)?;
        node.wait_one(&node.rx)?; // the receiver has all of them
    } else {
        while finished < total {
            let count = node.poll(&node.rx, &mut entries)?;
            for entry in &entries[..count] {
                let index = entry.op_context.0;
                node.receive(buffer(index as u64), None, index)?;
            }
            finished += count as u64;
            if count == 0 {
                check(&mut since)?;
            }
        }
        node.send(slot(&arena, 0, 0), None)?;
        node.wait_one(&node.tx)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Figures::from_rate(job.size, (total - before) as f64 / seconds))
}

/// Ends a measurement without progress. Reads the clock only after many empty polls.
pub(super) fn check(since: &mut Instant) -> Result<()> {
    thread_local!(static EMPTY: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    let empty = EMPTY.get().wrapping_add(1);
    EMPTY.set(empty);
    if empty.is_multiple_of(1 << 22) {
        if since.elapsed() > Duration::from_secs(60) {
            return Err(Error::Stack("no progress for a minute".into()));
        }
        black_box(since);
    }
    Ok(())
}

fn rma(node: &Node, job: &Job, client: bool, link: &mut Link, write: bool) -> Result<Figures> {
    let stride = job.size.next_multiple_of(64);
    let arena = node.memory(job, job.buffers * stride)?;
    let whole = [Piece::new(arena.base, arena.len)];
    // SAFETY: the arena lives as long as the process, which holds no reference to it.
    let attr = unsafe { MrAttr::new(&whole, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
    let region = node.domain.register(&attr).map_err(stack)?;
    let (key, base): (u64, u64) = link.exchange(&(region.key(), region.base()))?;
    let mut entries = [CqTaggedEntry::EMPTY; 64];
    if !client {
        // The owner of application memory executes the accesses; it polls until it is told that all are done.
        let pieces = slot(&arena, 0, 0);
        node.receive(pieces, None, 0)?;
        node.meet(link)?;
        node.wait_one(&node.rx)?;
        return Ok(Figures::from_rate(job.size, 1.0));
    }
    let post = |access: u64| {
        let buffer = (access % job.buffers as u64) as usize;
        let remote = [RemotePiece { addr: base + (buffer * stride) as u64, len: job.size, key }];
        let piece = [slot(&arena, job.size, buffer)];
        let op = RmaOp {
            // SAFETY: as in `Node::send`.
            buf: unsafe { Lent::new(&piece, &[]) },
            remote: &remote,
            peer: node.peer,
            context: Context(1),
            data: 0,
            flags: OpFlags::empty(),
            call: Call::Plain,
        };
        if write { node.endpoint.write(&op) } else { node.endpoint.read(&op) }
    };
    let total = job.iterations + job.iterations / 20 + 10;
    let warm = total - job.iterations;
    // What had ended when the time began: the warm ones and some more.
    let mut before = 0;
    node.meet(link)?;
    let (mut begin, mut since) = (Instant::now(), Instant::now());
    let (mut started, mut finished) = (0u64, 0u64);
    while finished < total {
        while started < total && started - finished < job.window as u64 {
            match post(started) {
                Ok(()) => started += 1,
                Err(error) if error.is_again() => break,
                Err(error) => return Err(stack(error)),
            }
        }
        let count = node.poll(&node.tx, &mut entries)? as u64;
        finished += count;
        if before == 0 && finished >= warm {
            begin = Instant::now();
            before = finished;
        }
        if count == 0 {
            check(&mut since)?;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    node.send(slot(&arena, 0, 0), None)?;
    node.wait_one(&node.tx)?;
    Ok(Figures::from_rate(job.size, (total - before) as f64 / seconds))
}

fn fetch_add(node: &Node, job: &Job, client: bool, link: &mut Link) -> Result<Figures> {
    let arena = node.memory(job, 64)?;
    // The whole allocation: memory that a registration covers only partly is not shared, since peers would see the
    // rest.
    let piece = [Piece::new(arena.base, arena.len)];
    // SAFETY: the arena lives as long as the process, which holds no reference to it.
    let attr = unsafe { MrAttr::new(&piece, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
    let region = node.domain.register(&attr).map_err(stack)?;
    let (key, addr): (u64, u64) = link.exchange(&(region.key(), region.base()))?;
    let over = slot(&arena, 0, 0);
    if !client {
        // If the memory is not shared, its owner executes the operations while it polls.
        node.receive(over, None, 0)?;
        node.meet(link)?;
        node.wait_one(&node.rx)?;
        return Ok(Figures::from_latency(8, 0.0));
    }
    let remote = [RemotePiece { addr, len: 8, key }];
    let (operand, result) = ([Piece::new(arena.base, 8)], [Piece::new(arena.base.wrapping_add(8), 8)]);
    // SAFETY: as in `Node::send`.
    let operand = unsafe { Lent::new(&operand, &[]) };
    // SAFETY: as above.
    let result = unsafe { Lent::new(&result, &[]) };
    let op =
        AtomicOp::new(FiOp::Sum, Datatype::Uint64, operand, &remote, node.peer, Context(1)).fetch(result);
    let round = || -> Result<()> {
        node.endpoint.atomic(&op).map_err(stack)?;
        node.wait_one(&node.tx).map(drop)
    };
    node.meet(link)?; // the owner polls from here on
    for _ in 0..(job.iterations / 20).max(10) {
        round()?;
    }
    let begin = Instant::now();
    for _ in 0..job.iterations {
        round()?;
    }
    let each = begin.elapsed().as_secs_f64() * 1e6 / job.iterations as f64;
    node.send(over, None)?;
    node.wait_one(&node.tx)?;
    Ok(Figures::from_latency(8, each))
}

fn sleep_one(queue: &std::sync::Arc<dyn CompletionQueue>, sleep: Sleep) -> Result<()> {
    let mut entry = [CqTaggedEntry::EMPTY];
    let patience = Duration::from_secs(20);
    if sleep == Sleep::Sread {
        return queue.read_wait(&mut CqBuffer::new(&mut entry), Some(patience)).map(drop).map_err(stack);
    }
    let fd = queue.wait_fd().ok_or_else(|| Error::Stack("no wait descriptor".into()))?;
    let begin = Instant::now();
    loop {
        match queue.read(&mut CqBuffer::new(&mut entry)) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_again() => {}
            Err(error) => return Err(stack(error)),
        }
        if queue.trywait().is_ok() {
            sys::wait_readable(fd, patience).map_err(Error::io("waiting for the queue's descriptor"))?;
        }
        if begin.elapsed() > patience {
            return Err(Error::Stack("not woken".into()));
        }
    }
}

fn wake(node: &Node, job: &Job, sleep: Sleep, client: bool, link: &mut Link) -> Result<Figures> {
    let arena = node.memory(job, 2 * job.size.next_multiple_of(64))?;
    let (out, back) = (slot(&arena, job.size, 0), slot(&arena, job.size, 1));
    let round = || -> Result<()> {
        if client {
            node.receive(back, None, 0)?;
            node.send(out, None)?;
            sleep_one(&node.rx, sleep)?;
        } else {
            sleep_one(&node.rx, sleep)?;
            node.receive(back, None, 0)?;
            node.send(out, None)?;
        }
        node.wait_one(&node.tx).map(drop)
    };
    if !client {
        node.receive(back, None, 0)?;
    }
    let half = timed(node, job, link, round)?;
    let round_trip = half.latency_us.unwrap_or_default() * 2.0;
    Ok(Figures::from_latency(job.size, round_trip))
}

fn idle(node: &Node, client: bool, link: &mut Link) -> Result<Figures> {
    node.meet(link)?;
    let mut figures = Figures::from_rate(0, 1.0);
    if client {
        let (cpu, begin) = (sys::process_cpu_time().map_err(Error::io("getrusage"))?, Instant::now());
        let mut entry = [CqTaggedEntry::EMPTY];
        let read = node.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(1)));
        if read.is_ok() {
            return Err(Error::Stack("an unexpected completion".into()));
        }
        let used = sys::process_cpu_time().map_err(Error::io("getrusage"))? - cpu;
        figures.cpu_share = Some(used.as_secs_f64() / begin.elapsed().as_secs_f64());
    }
    Ok(figures)
}

fn idle_auto(node: &Node, job: &Job, client: bool, link: &mut Link) -> Result<Figures> {
    let short = Job { iterations: 100, ..*job };
    ping_pong(node, &short, client, link)?;
    node.meet(link)?;
    let (cpu, begin) = (sys::process_cpu_time().map_err(Error::io("getrusage"))?, Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let used = sys::process_cpu_time().map_err(Error::io("getrusage"))? - cpu;
    let share = used.as_secs_f64() / begin.elapsed().as_secs_f64();
    Ok(Figures { cpu_share: Some(share), ..Figures::from_rate(0, 1.0) })
}
