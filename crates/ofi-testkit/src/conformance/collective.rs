//! Collectives (fi_collective(3)) and sets of addresses (fi_av_set(3)). `ofi-core/collective` checks each schedule
//! against a model for all numbers of ranks; here whole groups run over the transport.

use std::sync::Arc;

use crate::connect::open_eq;
use crate::prelude::*;

const CAPS: Caps = Caps::MSG.union(Caps::COLLECTIVE);

/// Endpoints that have joined a group, in order of rank.
struct Circle {
    groups: Vec<Group>,
    sides: Vec<TestEndpoint>,
    queues: Vec<Arc<dyn EventQueue>>,
    /// The ranks in each side's numbering.
    members: Vec<Vec<FiAddr>>,
    sets: Vec<Arc<dyn AvSet>>,
}

impl Circle {
    /// Opens a group; `None` if the provider has no collectives.
    fn open(kit: &dyn Kit, ranks: usize) -> Option<Self> {
        let mut circle = Self::apart(kit, ranks)?;
        circle.join();
        Some(circle)
    }

    /// Opens the endpoints without joining.
    fn apart(kit: &dyn Kit, ranks: usize) -> Option<Self> {
        Self::apart_with(kit, ranks, |opening| opening)
    }

    fn apart_with(kit: &dyn Kit, ranks: usize, change: impl Fn(Opening) -> Opening) -> Option<Self> {
        let hints = kit.usual().caps(CAPS);
        kit.getinfo(&hints).ok()?;
        let (mut sides, mut queues) = (Vec::new(), Vec::new());
        for _ in 0..ranks {
            let opening = kit.opening().hints(|hints| hints.caps(CAPS));
            let side = change(opening).open_disabled().unwrap();
            let queue = open_eq(&side.fabric).unwrap();
            side.ep.bind_eq(&queue).unwrap();
            side.ep.enable().unwrap();
            sides.push(side);
            queues.push(queue);
        }
        let (mut members, mut sets) = (Vec::new(), Vec::new());
        for side in &sides {
            let numbers: Vec<FiAddr> = sides.iter().map(|other| side.insert(other)).collect();
            let set = Arc::clone(&side.av).set(&AvSetAttr::default()).unwrap();
            numbers.iter().for_each(|&number| set.insert(number).unwrap());
            members.push(numbers);
            sets.push(set);
        }
        Some(Self { groups: Vec::new(), sides, queues, members, sets })
    }

    fn all(&self) -> Vec<&TestEndpoint> {
        self.sides.iter().collect()
    }

    fn join_one(&self, rank: usize) -> Group {
        let set = &*self.sets[rank];
        self.sides[rank].ep.join_collective(set.addr(), set, Context(100 + rank)).unwrap()
    }

    /// Waits for an event of `rank`'s queue.
    fn event(&self, rank: usize) -> Result<ofi::raw::Event> {
        wait::drive(&self.all(), "an event", || match self.queues[rank].read() {
            Err(error) if error.is_again() => None,
            other => Some(other),
        })
    }

    fn join(&mut self) {
        self.groups = (0..self.sides.len()).map(|rank| self.join_one(rank)).collect();
        for (rank, group) in self.groups.iter().enumerate() {
            let event = self.event(rank).unwrap();
            assert_eq!((event.kind, event.fid), (EventKind::JoinComplete, group.fid()));
            assert_eq!(event.context, Context(100 + rank));
            assert_eq!((group.rank(), group.ranks()), (rank, self.sides.len()));
        }
    }

    /// Posts one rank's part, and keeps the memory alive.
    fn post(&self, rank: usize, work: &Work) -> Result<()> {
        self.post_flagged(rank, work, OpFlags::empty())
    }

    fn post_flagged(&self, rank: usize, work: &Work, flags: OpFlags) -> Result<()> {
        let side = &self.sides[rank];
        let (buf, result) = (&work.buf[rank], &work.result[rank]);
        let pieces = [buf, result].map(|memory| [memory.slice(..).piece()]);
        // SAFETY: the memory is in `work`, which outlives the wait for all completions in `run`; a failed test leaks
        // it.
        let lent = pieces.each_ref().map(|pieces| unsafe { Lent::new(pieces, &[]) });
        let mut op = CollectiveOp::new(work.kind, self.groups[rank].addr(), Context(rank + 1));
        op = op.data(work.datatype, work.count, lent[0], lent[1]);
        op.op = work.op;
        op.flags = flags;
        op.root = self.members[rank][work.root];
        side.ep.collective(&op)
    }

    /// Waits for one completion at each rank.
    fn done(&self) {
        for (rank, side) in self.sides.iter().enumerate() {
            let entry = wait::drive(&self.all(), "a collective", || side.next_of(rank + 1)).done();
            assert_eq!(entry.flags, CompletionFlags::COLLECTIVE);
        }
    }

    /// Runs the collective at all ranks; later ranks start later.
    fn run(&self, work: &Work) {
        for rank in 0..self.sides.len() {
            self.post(rank, work).unwrap();
            self.sides.iter().for_each(TestEndpoint::poll);
        }
        self.done();
    }
}

/// One collective, with the memory of all ranks.
struct Work {
    kind: CollectiveKind,
    op: FiOp,
    datatype: Datatype,
    count: usize,
    root: usize,
    buf: Vec<Memory>,
    result: Vec<Memory>,
}

/// Element `index` of `rank`.
fn element(rank: usize, index: usize) -> u32 {
    (rank as u32 + 1) * 1_000_003 + (index as u32).wrapping_mul(7_919)
}

impl Work {
    /// A collective on `u32`, with memory of the length that its kind requires.
    fn new(kind: CollectiveKind, ranks: usize, root: usize, count: usize) -> Self {
        use CollectiveKind as K;
        let (mut buf, mut result) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let at_root = |count| if rank == root { count } else { 0 };
            let (input, output) = match kind {
                K::Barrier => (0, 0),
                K::Broadcast => (count, 0),
                K::Alltoall => (count * ranks, count * ranks),
                K::Allreduce => (count, count),
                K::Allgather => (count, count * ranks),
                K::ReduceScatter => (count * ranks, count),
                K::Reduce => (count, at_root(count)),
                K::Scatter => (at_root(count * ranks), count),
                K::Gather => (count, at_root(count * ranks)),
            };
            let numbers: Vec<u8> = (0..input).flat_map(|index| element(rank, index).to_ne_bytes()).collect();
            let memory = Memory::new(numbers.len());
            memory.slice(..).put(&numbers);
            buf.push(memory);
            result.push(Memory::new(4 * output));
        }
        Self { kind, op: FiOp::Sum, datatype: Datatype::Uint32, count, root, buf, result }
    }

    /// Checks that every rank has the right result.
    fn check(&self) {
        use CollectiveKind as K;
        let (ranks, count) = (self.buf.len(), self.count);
        let sum = |index| (0..ranks).fold(0u32, |sum, rank| sum.wrapping_add(element(rank, index)));
        for rank in 0..ranks {
            let wanted = |index: usize| match self.kind {
                K::Alltoall => element(index / count, rank * count + index % count),
                K::Allreduce | K::Reduce => sum(index),
                K::Allgather | K::Gather => element(index / count, index % count),
                K::ReduceScatter => sum(rank * count + index),
                K::Scatter => element(self.root, rank * count + index),
                K::Broadcast => element(self.root, index),
                K::Barrier => 0,
            };
            let memory = if self.kind == K::Broadcast { &self.buf[rank] } else { &self.result[rank] };
            let found = memory.bytes();
            for (index, found) in found.chunks(4).enumerate() {
                let found = u32::from_ne_bytes(found.try_into().unwrap());
                assert_eq!(found, wanted(index), "{} at rank {rank}, element {index}", self.kind);
            }
        }
    }
}

pub fn every_collective_of_every_size(kit: &dyn Kit) {
    for ranks in [1, 2, 3, 5, 8] {
        let Some(circle) = Circle::open(kit, ranks) else { return };
        for &kind in CollectiveKind::VALUES {
            for count in [0, 1, 7, 1_000, 6_000] {
                let work = Work::new(kind, ranks, count % ranks, count);
                circle.run(&work);
                work.check();
            }
        }
        assert!(circle.sides.iter().all(|side| side.pending() == 0));
    }
}

pub fn a_join_needs_no_more_than_reads_of_the_event_queues(kit: &dyn Kit) {
    let Some(circle) = Circle::apart(kit, 3) else { return };
    let _groups: Vec<Group> = (0..3).map(|rank| circle.join_one(rank)).collect();
    let mut joined = [false; 3];
    wait::until("all joins", || {
        for (queue, joined) in circle.queues.iter().zip(&mut joined) {
            match queue.read() {
                Ok(event) => *joined = event.kind == EventKind::JoinComplete,
                Err(error) => assert!(error.is_again(), "{error}"),
            }
        }
        joined == [true; 3]
    });
}

pub fn every_operation_that_combines(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 3) else { return };
    type Formula = fn(u32, u32) -> u32;
    let formulas: [(FiOp, Formula); 10] = [
        (FiOp::Min, u32::min),
        (FiOp::Max, u32::max),
        (FiOp::Sum, u32::wrapping_add),
        (FiOp::Prod, u32::wrapping_mul),
        (FiOp::Lor, |a, b| (a != 0 || b != 0).into()),
        (FiOp::Land, |a, b| (a != 0 && b != 0).into()),
        (FiOp::Bor, |a, b| a | b),
        (FiOp::Band, |a, b| a & b),
        (FiOp::Lxor, |a, b| ((a != 0) != (b != 0)).into()),
        (FiOp::Bxor, |a, b| a ^ b),
    ];
    for (op, formula) in formulas {
        let mut work = Work::new(CollectiveKind::Allreduce, 3, 0, 10);
        work.op = op;
        circle.run(&work);
        for index in 0..10 {
            let wanted = formula(formula(element(0, index), element(1, index)), element(2, index));
            for result in &work.result {
                assert_eq!(result.bytes()[4 * index..][..4], wanted.to_ne_bytes(), "{op}");
            }
        }
    }
}

pub fn a_barrier_holds_until_the_last_has_come(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 4) else { return };
    let work = Work::new(CollectiveKind::Barrier, 4, 0, 0);
    for late in 0..4 {
        for rank in (0..4).filter(|&rank| rank != late) {
            circle.post(rank, &work).unwrap();
        }
        wait::drive_through(Duration::from_millis(20), &circle.all());
        assert!(circle.sides.iter().all(|side| side.pending() == 0), "{late} has not come yet");
        circle.post(late, &work).unwrap();
        circle.done();
    }
}

pub fn selective_collectives_complete_only_on_request(kit: &dyn Kit) {
    let selective = |opening: Opening| opening.selective(BindFlags::TRANSMIT);
    let Some(mut circle) = Circle::apart_with(kit, 2, selective) else { return };
    circle.join();
    let levels = [OpFlags::empty(), OpFlags::DELIVERY_COMPLETE, OpFlags::TRANSMIT_COMPLETE];
    for (number, flags) in levels.into_iter().enumerate() {
        let silent = Work::new(CollectiveKind::Allreduce, 2, 0, 10 + number);
        (0..2).for_each(|rank| circle.post_flagged(rank, &silent, flags).unwrap());
        let told = Work::new(CollectiveKind::Barrier, 2, 0, 0);
        (0..2).for_each(|rank| circle.post_flagged(rank, &told, flags | OpFlags::COMPLETION).unwrap());
        circle.done();
        silent.check();
        assert!(circle.sides.iter().all(|side| side.pending() == 0), "{flags}");
    }
}

pub fn many_collectives_may_be_posted_at_once(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 3) else { return };
    let works: Vec<Work> = (0..200)
        .map(|number| {
            let kind = CollectiveKind::VALUES[number % 9];
            Work::new(kind, 3, number % 3, [1, 100, 5_000][number / 9 % 3])
        })
        .collect();
    // A rank far ahead of the others is held back, and loses nothing.
    for rank in 0..3 {
        for work in &works {
            wait::drive(&circle.all(), "room", || circle.post(rank, work).ok());
        }
    }
    for (rank, side) in circle.sides.iter().enumerate() {
        for _ in &works {
            wait::drive(&circle.all(), "a collective", || side.next_of(rank + 1)).done();
        }
    }
    works.iter().for_each(Work::check);
}

pub fn collectives_and_messages_do_not_meet(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 2) else { return };
    let (a, b) = (&circle.sides[0], &circle.sides[1]);
    let into = Memory::new(64);
    b.receive(&into).context(70).post().unwrap();
    for count in [1, 10_000] {
        let work = Work::new(CollectiveKind::Allreduce, 2, 0, count);
        circle.run(&work);
        work.check();
    }
    assert_eq!(b.pending(), 0, "the receive waits for a message");
    let from = Memory::patterned(64, 5);
    a.out(circle.members[0][1], &from).context(71).send().unwrap();
    wait::drive(&circle.all(), "the message", || b.next_of(70)).done();
    into.check(64, 5);
}

pub fn an_endpoint_is_in_several_groups(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 4) else { return };
    // Three more groups: the even ranks, the odd ones in reverse order, and all ranks again.
    let mut groups = Vec::new();
    for rank in 0..4 {
        let set = Arc::clone(&circle.sides[rank].av).set(&AvSetAttr::default()).unwrap();
        let members = &circle.members[rank];
        for other in (0..4).rev().filter(|other| other % 2 == rank % 2) {
            set.insert(members[other]).unwrap();
        }
        let ep = &circle.sides[rank].ep;
        let half = ep.join_collective(circle.groups[rank].addr(), &*set, Context(1)).unwrap();
        groups.push((half, circle.join_one(rank)));
    }
    for (rank, (half, all)) in groups.iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(circle.event(rank).unwrap().kind, EventKind::JoinComplete);
        }
        assert_eq!((half.rank(), half.ranks()), (1 - rank / 2, 2));
        assert_eq!((all.rank(), all.ranks()), (rank, 4));
    }
    // The same operation in both groups at the same time.
    let mut results = Vec::new();
    for (rank, (half, all)) in groups.iter().enumerate() {
        for group in [half, all] {
            let (buf, result) = (Memory::new(8), Memory::new(8));
            buf.slice(..).put(&(1u64 << (8 * rank)).to_ne_bytes());
            let pieces = [&buf, &result].map(|memory| [memory.slice(..).piece()]);
            // SAFETY: kept in `results` until all is done.
            let lent = pieces.each_ref().map(|pieces| unsafe { Lent::new(pieces, &[]) });
            let mut op = CollectiveOp::new(CollectiveKind::Allreduce, group.addr(), Context(rank + 1)).data(
                Datatype::Uint64,
                1,
                lent[0],
                lent[1],
            );
            op.op = FiOp::Sum;
            circle.sides[rank].ep.collective(&op).unwrap();
            results.push((rank, group.ranks(), buf, result));
        }
    }
    circle.done();
    circle.done();
    for (rank, ranks, _, result) in results {
        let wanted: u64 = match (ranks, rank % 2) {
            (4, _) => 0x0101_0101,
            (_, 0) => 0x0001_0001,
            (_, _) => 0x0100_0100,
        };
        assert_eq!(result.bytes(), wanted.to_ne_bytes());
    }
}

pub fn sets_are_ordered_and_combine(kit: &dyn Kit) {
    let Some(circle) = Circle::apart(kit, 5) else { return };
    let (av, numbers) = (&circle.sides[0].av, &circle.members[0]);
    let open = |attr: AvSetAttr| Arc::clone(av).set(&attr);
    let picked = |indices: &[usize]| -> Vec<FiAddr> { indices.iter().map(|&at| numbers[at]).collect() };
    let set = open(AvSetAttr { universe: true, ..AvSetAttr::default() }).unwrap();
    assert_eq!(set.members(), *numbers);
    let range = (numbers[1], numbers[4]);
    let odd = open(AvSetAttr { range, stride: 2, ..AvSetAttr::default() }).unwrap();
    assert_eq!(odd.members(), picked(&[1, 3]));
    odd.insert(numbers[0]).unwrap();
    odd.insert(numbers[3]).unwrap();
    assert_eq!(odd.members(), picked(&[1, 3, 0]), "what is there already stays where it is");
    set.diff(&*odd).unwrap();
    assert_eq!(set.members(), picked(&[2, 4]));
    set.union(&*odd).unwrap();
    assert_eq!(set.members(), picked(&[2, 4, 1, 3, 0]));
    set.remove(numbers[1]).unwrap();
    set.intersect(&*odd).unwrap();
    assert_eq!(set.members(), picked(&[3, 0]));
    assert_ne!(set.addr(), odd.addr());
    for error in [
        set.insert(FiAddr(1 << 40)).unwrap_err(),
        set.remove(numbers[2]).unwrap_err(),
        open(AvSetAttr { range, stride: 0, ..AvSetAttr::default() }).err().unwrap(),
        open(AvSetAttr { stride: 1, ..AvSetAttr::default() }).err().unwrap(),
        open(AvSetAttr { range: (numbers[4], numbers[1]), stride: 1, ..AvSetAttr::default() }).err().unwrap(),
    ] {
        assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    }
}

pub fn polls_leave_a_sleeper_on_events_its_wake_up(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 2) else { return };
    let (queue, other) = (&circle.queues[1], &circle.sides[0]);
    let fd = queue.wait_fd().unwrap();
    let is_readable = |until| ofi_core::sys::wait_readable(&[fd], Some(until));
    for _ in 0..3 {
        let _joined = circle.join_one(1);
        circle.sides.iter().for_each(TestEndpoint::poll);
        wait::drive(&[], "an event queue that may be waited for", || {
            assert!(queue.read().unwrap_err().is_again(), "nobody else has joined");
            queue.trywait().ok()
        });
        // Another thread reads the queue once, and not again.
        circle.sides[1].poll();
        let _other = circle.join_one(0);
        let give_up = Instant::now() + Duration::from_secs(10);
        let event = loop {
            assert!(Instant::now() < give_up, "the sleeper is not woken");
            other.poll();
            if is_readable(Instant::now() + Duration::from_millis(1)) {
                match queue.read() {
                    Ok(event) => break event,
                    Err(error) => assert!(error.is_again(), "{error}"),
                }
                let _again = queue.trywait();
            }
        };
        assert_eq!(event.kind, EventKind::JoinComplete);
        circle.event(0).unwrap();
    }
}

pub fn joins_and_collectives_are_checked(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 2) else { return };
    let (side, set) = (&circle.sides[0], &circle.sets[0]);
    let errno = |result: Result<Group>| result.err().unwrap().errno();
    assert_eq!(errno(side.ep.join_collective(FiAddr(77), &**set, Context(1))), Errno::EINVAL);
    assert_eq!(errno(side.ep.join_collective(set.addr(), &*circle.sets[1], Context(1))), Errno::EINVAL);
    let without = Arc::clone(&side.av).set(&AvSetAttr::default()).unwrap();
    without.insert(circle.members[0][1]).unwrap();
    assert_eq!(errno(side.ep.join_collective(without.addr(), &*without, Context(1))), Errno::EINVAL);
    let unbound = kit.opening().hints(|hints| hints.caps(CAPS)).open();
    let empty = Arc::clone(&unbound.av).set(&AvSetAttr::default()).unwrap();
    assert_eq!(errno(unbound.ep.join_collective(empty.addr(), &*empty, Context(1))), Errno::ENOEQ);
    let plain = kit.opening().hints(|hints| hints.caps(Caps::MSG)).open();
    assert_eq!(errno(plain.ep.join_collective(empty.addr(), &*empty, Context(1))), Errno::EOPNOTSUPP);

    let group = circle.groups[0].addr();
    let new = |kind| CollectiveOp::new(kind, group, Context(1));
    let combining = |op, datatype| {
        let mut new = new(CollectiveKind::Allreduce);
        (new.op, new.datatype, new.count) = (op, datatype, 0);
        new
    };
    let mut foreign_root = new(CollectiveKind::Broadcast);
    foreign_root.root = FiAddr(9);
    let mut short = new(CollectiveKind::Allgather);
    short.count = 1;
    let mut huge = short;
    huge.count = usize::MAX;
    let mut flagged = new(CollectiveKind::Barrier);
    (flagged.flags, flagged.call) = (OpFlags::INJECT, Call::Msg);
    for (op, wanted) in [
        (CollectiveOp::new(CollectiveKind::Barrier, FiAddr(3), Context(1)), Errno::EINVAL),
        (foreign_root, Errno::EINVAL),
        (short, Errno::EINVAL),
        (huge, Errno::EMSGSIZE),
        (flagged, Errno::EBADFLAGS),
        (combining(FiOp::Noop, Datatype::Int32), Errno::EOPNOTSUPP),
        (combining(FiOp::Diff, Datatype::Int32), Errno::EOPNOTSUPP),
        (combining(FiOp::Min, Datatype::FloatComplex), Errno::EOPNOTSUPP),
        (combining(FiOp::Sum, Datatype::Void), Errno::EOPNOTSUPP),
    ] {
        let error = side.ep.collective(&op).unwrap_err();
        assert_eq!(error.errno(), wanted, "{error}");
    }
    let query = |kind, op, datatype| side.domain.query_collective(kind, op, datatype);
    let attr = query(CollectiveKind::Allreduce, FiOp::Sum, Datatype::Double).unwrap();
    assert!(attr.datatype_attr.size == 8 && attr.datatype_attr.count > 1 << 20 && attr.max_members >= 2);
    assert!(query(CollectiveKind::Barrier, FiOp::Noop, Datatype::Void).is_ok());
    let refused = query(CollectiveKind::Reduce, FiOp::Bor, Datatype::Double).unwrap_err();
    assert_eq!(refused.errno(), Errno::EOPNOTSUPP);
    // None of these errors has affected the group.
    let work = Work::new(CollectiveKind::Allreduce, 2, 0, 3);
    circle.run(&work);
    work.check();
}

pub fn a_member_that_leaves_or_ends_fails_the_others(kit: &dyn Kit) {
    for ends in [false, true] {
        let Some(mut circle) = Circle::open(kit, 3) else { return };
        let work = Work::new(CollectiveKind::Barrier, 3, 0, 0);
        for rank in 0..2 {
            circle.post(rank, &work).unwrap();
        }
        if ends {
            drop(circle.groups.pop());
            drop(circle.sides.pop());
        } else {
            circle.post(2, &work).unwrap();
            circle.done();
            // A member that leaves after the end affects no other …
            wait::drive_through(Duration::from_millis(5), &circle.all());
            // … but one that leaves in the middle does.
            for rank in 1..3 {
                circle.post(rank, &work).unwrap();
            }
            drop(circle.groups.pop());
            let error = wait::drive(&circle.all(), "its own end", || circle.sides[2].next_of(3)).failed();
            assert_eq!(error.err, Errno::ECANCELED);
            circle
                .post(0, &work)
                .or_else(|error| match error.errno() {
                    Errno::ECANCELED => Ok(()), // it has already been told
                    _ => Err(error),
                })
                .unwrap();
        }
        for (rank, side) in circle.sides.iter().enumerate().take(2) {
            if !ends && rank == 0 {
                continue;
            }
            let error = wait::drive(&circle.all(), "the failure", || side.next_of(rank + 1)).failed();
            assert!(error.flags.contains(CompletionFlags::COLLECTIVE));
            assert!(
                [Errno::ECONNRESET, Errno::ECANCELED, Errno::ECONNABORTED].contains(&error.err),
                "{error:?}"
            );
            let error = circle.post(rank, &work).unwrap_err();
            assert_eq!(error.errno(), if ends { Errno::ECONNRESET } else { Errno::ECANCELED });
        }
    }
}

pub fn a_member_may_end_when_its_part_is_done(kit: &dyn Kit) {
    for count in [1, 1_000] {
        let Some(mut circle) = Circle::open(kit, 3) else { return };
        // The root sends to both others, and is done before they have started.
        let work = Work::new(CollectiveKind::Broadcast, 3, 2, count);
        circle.post(2, &work).unwrap();
        wait::drive(&circle.all(), "the root", || circle.sides[2].next_of(3)).done();
        drop(circle.groups.pop());
        drop(circle.sides.pop());
        wait::drive_through(Duration::from_millis(50), &circle.all());
        for rank in 0..2 {
            circle.post(rank, &work).unwrap();
        }
        circle.done();
        work.check();
        // Operations that need this member fail.
        let work = Work::new(CollectiveKind::Barrier, 3, 0, 0);
        circle.post(0, &work).unwrap();
        let error = wait::drive(&circle.all(), "the failure", || circle.sides[0].next_of(1)).failed();
        assert_eq!(error.err, Errno::ECONNRESET);
    }
}

pub fn ranks_that_disagree_are_told(kit: &dyn Kit) {
    let Some(circle) = Circle::open(kit, 2) else { return };
    let (one, other) =
        (Work::new(CollectiveKind::Allreduce, 2, 0, 3), Work::new(CollectiveKind::Allreduce, 2, 0, 4));
    circle.post(0, &one).unwrap();
    circle.post(1, &other).unwrap();
    for (rank, side) in circle.sides.iter().enumerate() {
        let error = wait::drive(&circle.all(), "the failure", || side.next_of(rank + 1)).failed();
        assert_eq!(error.err, Errno::EINVAL);
    }
}
