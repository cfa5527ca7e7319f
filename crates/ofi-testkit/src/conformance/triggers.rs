//! Triggered operations and deferred work (fi_trigger(3)).

use std::sync::Arc;

use crate::prelude::*;

/// Long enough to notice an event that should not happen.
const SHORT: Duration = Duration::from_millis(30);
/// Nothing may take this long.
const LONG: Duration = Duration::from_secs(5);
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// Endpoints that can trigger, if the transport supports that.
fn pair(kit: &dyn Kit, change: impl Fn(Opening) -> Opening) -> Option<Pair> {
    let caps = kit.usual().info.caps | Caps::TRIGGER;
    kit.getinfo(&kit.usual().caps(caps)).ok()?;
    let pair = kit.pair_with(|opening| change(opening.hints(|hints| hints.caps(caps))));
    pair.warm_up();
    Some(pair)
}

fn plain(kit: &dyn Kit) -> Option<Pair> {
    pair(kit, |opening| opening)
}

fn counter(side: &TestEndpoint) -> Arc<dyn Counter> {
    side.domain.open_counter(&CntrAttr { wait_obj: WaitObj::Unspec, ..CntrAttr::default() }).unwrap()
}

fn at(counter: &Arc<dyn Counter>, value: u64) -> Threshold<'_> {
    Threshold { counter, value }
}

/// Each kind of operation from `a` with `context`, on the 8 bytes in `memory`, and the peer's part of each.
struct Ops<'a> {
    pair: &'a Pair,
    from: Memory,
    into: Memory,
    theirs: Memory,
    region: Arc<dyn MemoryRegion>,
}

impl<'a> Ops<'a> {
    fn new(pair: &'a Pair) -> Self {
        let theirs = Memory::patterned(8, 2);
        let region = pair.b.register(&theirs, RIGHTS).unwrap();
        let (from, into) = (Memory::patterned(8, 1), Memory::new(8));
        Self { pair, from, into, theirs, region }
    }

    /// Calls `post` with each operation, its context and its name.
    fn each(&self, mut post: impl FnMut(&DeferredOp<'_>, usize, &str)) {
        let (from, into) = ([self.from.slice(..).piece()], [self.into.slice(..).piece()]);
        // SAFETY: the memory lives as long as `self`, which callers drop after their operations have ended.
        let from = unsafe { Lent::new(&from, &[]) };
        // SAFETY: as above.
        let into = unsafe { Lent::new(&into, &[]) };
        let to = self.pair.to_b;
        let remote = [remote(&self.region)];
        let send = |context| SendOp::new(from, to, Context(context));
        let receive = |context| ReceiveOp::new(into, Context(context));
        let rma = |buf, context| RmaOp {
            buf,
            remote: &remote,
            peer: to,
            context: Context(context),
            data: 0,
            flags: OpFlags::empty(),
            call: Call::Plain,
        };
        post(&DeferredOp::Send(send(11)), 11, "a send");
        post(&DeferredOp::SendTagged(send(12), 5), 12, "a tagged send");
        post(&DeferredOp::Write(rma(from, 13)), 13, "a write");
        post(&DeferredOp::Read(rma(into, 14)), 14, "a read");
        post(&DeferredOp::Receive(receive(15)), 15, "a receive");
        let tag = TagMatch { tag: 5, ignore: 0 };
        post(&DeferredOp::ReceiveTagged(receive(16), tag), 16, "a tagged receive");
    }

    /// Executes the other side's part of every operation.
    fn meet(&self) {
        let pair = self.pair;
        pair.post(|| pair.b.receive(()).context(21).post());
        pair.post(|| pair.b.receive(()).context(22).tag(5).post());
        pair.post(|| pair.b.out(pair.to_a, &self.from).inject().send());
        pair.post(|| pair.b.out(pair.to_a, &self.from).tag(5).inject().send());
    }
}

pub fn every_triggered_operation_waits_for_its_threshold(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let ops = Ops::new(&pair);
    ops.each(|op, context, name| {
        let counter = counter(&pair.a);
        pair.a.ep.trigger(&at(&counter, 3), op).unwrap();
        ops.meet();
        wait::drive_through(SHORT, &[&pair.a, &pair.b]);
        assert!(pair.a.next_of(context).is_none(), "{name} did not wait");
        counter.add(2).unwrap();
        wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
        assert!(pair.a.next_of(context).is_none(), "{name} started below its threshold");
        counter.add_error(5).unwrap();
        wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
        assert!(pair.a.next_of(context).is_none(), "{name} was started by failures");
        counter.add(1).unwrap();
        let end = pair.drive(name, || pair.a.next_of(context));
        if !matches!(op, DeferredOp::Send(_) | DeferredOp::SendTagged(..)) {
            end.done();
        }
    });
    assert_eq!(ops.theirs.bytes(), ops.from.bytes(), "the write was made");
}

pub fn a_threshold_that_is_reached_starts_at_once(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let ops = Ops::new(&pair);
    let counter = counter(&pair.a);
    counter.set(7).unwrap();
    ops.meet();
    ops.each(|op, context, name| {
        pair.a.ep.trigger(&at(&counter, 7), op).unwrap();
        pair.a.ep.trigger(&at(&counter, 0), op).unwrap();
        pair.drive(name, || pair.a.next_of(context));
        ops.meet();
        pair.drive(name, || pair.a.next_of(context));
    });
}

pub fn triggered_sends_start_in_the_order_of_their_thresholds(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let counter = counter(&pair.a);
    let into: Vec<Memory> = (0..8).map(|_| Memory::new(1)).collect();
    for memory in &into {
        pair.b.receive(memory).context(1).post().unwrap();
    }
    let bytes: Vec<Memory> = (0..8).map(|number| Memory::patterned(1, number)).collect();
    for (number, threshold) in [(0, 5), (1, 2), (2, 9), (3, 2), (4, 5), (5, 1), (6, 9), (7, 30)] {
        let piece = [bytes[number].slice(..).piece()];
        // SAFETY: `bytes` lives until the pair is gone.
        let buf = unsafe { Lent::new(&piece, &[]) };
        let op = DeferredOp::Send(SendOp::new(buf, pair.to_b, Context(2)));
        pair.a.ep.trigger(&at(&counter, threshold), &op).unwrap();
    }
    counter.add(20).unwrap(); // past several thresholds at once
    pair.all_done(&pair.b, 1, 7);
    let order: Vec<Vec<u8>> = into[..7].iter().map(Memory::bytes).collect();
    let wanted: Vec<Vec<u8>> = [5, 1, 3, 0, 4, 2, 6].map(|number: usize| bytes[number].bytes()).to_vec();
    assert_eq!(order, wanted);
    counter.set(30).unwrap();
    pair.all_done(&pair.b, 1, 1);
}

pub fn a_receive_triggers_an_answer(kit: &dyn Kit) {
    let counting = |opening: Opening| {
        let attr = CntrAttr { wait_obj: WaitObj::Unspec, ..CntrAttr::default() };
        opening.counter(attr, BindFlags::RECV)
    };
    let Some(pair) = pair(kit, counting) else { return };
    let base = pair.b.counters[0].read();
    let answer = Memory::patterned(100_000, 9);
    let into = Memory::new(100_000);
    let pieces = [answer.slice(..).piece()];
    for round in 1..=20 {
        // SAFETY: `answer` lives until the pair is gone.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let op = DeferredOp::Send(SendOp::new(buf, pair.to_a, Context(4)));
        pair.b.ep.trigger(&at(&pair.b.counters[0], base + round), &op).unwrap();
        pair.b.receive(()).context(5).post().unwrap();
        pair.a.receive(&into).context(6).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
        // `b` only waits for its counter: that receives the question and starts the answer.
        std::thread::scope(|scope| {
            scope.spawn(|| pair.b.counters[0].wait(base + round, Some(LONG)).unwrap());
        });
        pair.drive("the answer", || pair.a.next_of(6)).done();
        into.check(100_000, 9);
        pair.all_done(&pair.b, 4, 1);
        pair.all_done(&pair.b, 5, 1);
    }
}

pub fn a_triggered_inject_lets_go_of_its_buffer_at_once(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let counter = counter(&pair.a);
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    let piece = [from.slice(..).piece()];
    // SAFETY: `from` lives until the pair is gone.
    let buf = unsafe { Lent::new(&piece, &[]) };
    let op = SendOp { call: Call::Inject, ..SendOp::new(buf, pair.to_b, Context(1)) };
    pair.a.ep.trigger(&at(&counter, 1), &DeferredOp::Send(op)).unwrap();
    from.fill(77);
    pair.b.receive(&into).context(2).post().unwrap();
    counter.add(1).unwrap();
    pair.all_done(&pair.b, 2, 1);
    into.check(64, 5);
    pair.quiet(SHORT);
}

pub fn more_triggered_sends_than_there_is_room_for_all_arrive(kit: &dyn Kit) {
    let small = |opening: Opening| opening.hints(|hints| hints.tx_size(16).rx_size(64));
    let Some(pair) = pair(kit, small) else { return };
    let counter = counter(&pair.a);
    const COUNT: usize = 1_000;
    let op = DeferredOp::Send(SendOp::new(Lent::EMPTY, pair.to_b, Context(1)));
    let marked = |data| match op {
        DeferredOp::Send(op) => DeferredOp::Send(SendOp { data, flags: OpFlags::REMOTE_CQ_DATA, ..op }),
        other => other,
    };
    for number in 0..COUNT {
        pair.a.ep.trigger(&at(&counter, number as u64 / 10 + 1), &marked(number as u64)).unwrap();
    }
    counter.set(u64::MAX).unwrap();
    let (mut posted, mut sent, mut seen) = (0, 0, 0);
    pair.drive("all messages", || {
        while posted < COUNT && pair.b.receive(()).context(2).post().is_ok() {
            posted += 1;
        }
        while pair.a.next_of(1).map(Event::done).is_some() {
            sent += 1;
        }
        while let Some(entry) = pair.b.next_of(2).map(Event::done) {
            assert_eq!(entry.data, seen as u64, "in order");
            seen += 1;
        }
        (sent == COUNT && seen == COUNT).then_some(())
    });
}

pub fn a_triggered_operation_can_be_cancelled(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let counter = counter(&pair.a);
    let op = |context| DeferredOp::Send(SendOp::new(Lent::EMPTY, pair.to_b, Context(context)));
    for context in [1, 2, 3] {
        pair.a.ep.trigger(&at(&counter, 1), &op(context)).unwrap();
    }
    pair.a.cancel(2).unwrap();
    let error = pair.failed(&pair.a);
    assert_eq!((error.op_context, error.err), (Context(2), Errno::ECANCELED));
    assert_eq!(pair.a.cancel(2).unwrap_err().errno(), Errno::ENOENT);
    counter.add(1).unwrap();
    pair.all_done(&pair.a, 1, 1);
    pair.all_done(&pair.a, 3, 1);
    pair.quiet(SHORT);
}

pub fn triggered_operations_are_checked_when_they_are_given(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let counter = counter(&pair.a);
    let send = SendOp::new(Lent::EMPTY, pair.to_b, Context(1));
    let trigger = |counter: &Arc<dyn Counter>, op| {
        pair.a.ep.trigger(&at(counter, 1), &DeferredOp::Send(op)).map_err(|error| error.errno())
    };
    let call = Call::Msg;
    assert_eq!(trigger(&counter, SendOp { flags: OpFlags::PEEK, call, ..send }), Err(Errno::EBADFLAGS));
    let null = [Piece::new(std::ptr::null_mut(), 8)];
    // SAFETY: there is no memory at null that could be accessed.
    let buf = unsafe { Lent::new(&null, &[]) };
    assert_eq!(trigger(&counter, SendOp { buf, call: Call::Inject, ..send }), Err(Errno::EINVAL));
    let foreign = kit.side().domain.open_counter(&CntrAttr::default()).unwrap();
    assert_eq!(trigger(&foreign, send), Err(Errno::EDOMAIN));
    assert_eq!(
        trigger(&counter, SendOp { flags: OpFlags::TRIGGER, call, ..send }),
        Ok(()),
        "means what it is"
    );
    // The destination is checked when the operation starts, and an error is reported on the queue.
    assert_eq!(trigger(&counter, SendOp { dest: FiAddr(999), context: Context(3), ..send }), Ok(()));
    counter.add(1).unwrap();
    pair.all_done(&pair.a, 1, 1);
    let error = pair.failed(&pair.a);
    assert_eq!((error.op_context, error.err), (Context(3), Errno::EINVAL));
    // Fails without the capability.
    let other = kit.side();
    let counter = other.domain.open_counter(&CntrAttr::default()).unwrap();
    let error = other.ep.trigger(&at(&counter, 1), &DeferredOp::Send(send)).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
}

/// A pair of endpoints, each with a counter of all its operations, to check that deferred work is not counted there.
fn watched(kit: &dyn Kit) -> Option<Pair> {
    pair(kit, |opening| opening.counter(CntrAttr::default(), BindFlags::empty()))
}

pub fn deferred_work_is_counted_by_its_own_counter(kit: &dyn Kit) {
    let Some(pair) = watched(kit) else { return };
    let (ops, trigger) = (Ops::new(&pair), counter(&pair.a));
    let before = pair.a.counters[0].read();
    let mut round = 0;
    ops.each(|op, context, name| {
        round += 1;
        let completion = counter(&pair.a);
        let work = Work::Post { endpoint: &pair.a.ep, op: *op, completion: Some(&completion) };
        pair.a.domain.queue_work(&at(&trigger, round), &work).unwrap();
        ops.meet();
        wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
        assert_eq!(completion.read(), 0, "{name} did not wait");
        // Failures count as well as successes.
        if round % 2 == 0 {
            trigger.add(1).unwrap()
        } else {
            trigger.add_error(1).unwrap()
        }
        pair.drive(name, || (completion.read() == 1).then_some(()));
        assert!(pair.a.next_of(context).is_none(), "{name} was told to a queue");
        assert_eq!(completion.read_error(), 0);
    });
    assert_eq!(pair.a.counters[0].read(), before, "the endpoint's counter counts none of it");
    assert_eq!(ops.theirs.bytes(), ops.from.bytes(), "the write was made");
}

pub fn deferred_work_is_told_to_the_endpoint_on_request(kit: &dyn Kit) {
    let Some(pair) = watched(kit) else { return };
    let (trigger, completion) = (counter(&pair.a), counter(&pair.a));
    let before = pair.a.counters[0].read();
    let op = SendOp { flags: OpFlags::COMPLETION, ..SendOp::new(Lent::EMPTY, pair.to_b, Context(8)) };
    let work = Work::Post { endpoint: &pair.a.ep, op: DeferredOp::Send(op), completion: Some(&completion) };
    pair.a.domain.queue_work(&at(&trigger, 0), &work).unwrap();
    pair.all_done(&pair.a, 8, 1);
    assert_eq!((completion.read(), pair.a.counters[0].read()), (1, before + 1));
    let op = ReceiveOp { flags: OpFlags::COMPLETION, ..ReceiveOp::new(Lent::EMPTY, Context(9)) };
    let work = Work::Post { endpoint: &pair.a.ep, op: DeferredOp::Receive(op), completion: None };
    pair.a.domain.queue_work(&at(&trigger, 0), &work).unwrap();
    pair.post(|| pair.b.out(pair.to_a, ()).inject().send());
    pair.all_done(&pair.a, 9, 1);
}

pub fn failed_work_is_counted_or_told(kit: &dyn Kit) {
    let Some(pair) = watched(kit) else { return };
    let (trigger, completion) = (counter(&pair.a), counter(&pair.a));
    let memory = Memory::new(8);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let remote = [remote(&region)];
    region.close().unwrap();
    let piece = [memory.slice(..).piece()];
    // SAFETY: `memory` lives until the pair is gone.
    let buf = unsafe { Lent::new(&piece, &[]) };
    let (context, flags, call) = (Context(3), OpFlags::empty(), Call::Msg);
    let op = RmaOp { buf, remote: &remote, peer: pair.to_b, context, data: 0, flags, call };
    let work = Work::Post { endpoint: &pair.a.ep, op: DeferredOp::Write(op), completion: Some(&completion) };
    pair.a.domain.queue_work(&at(&trigger, 0), &work).unwrap();
    pair.drive("the failure", || (completion.read_error() == 1).then_some(()));
    pair.quiet(SHORT);
    // Without a completion counter, the queue reports errors: of operations that fail, and of those that cannot start.
    let work = Work::Post { endpoint: &pair.a.ep, op: DeferredOp::Write(op), completion: None };
    pair.a.domain.queue_work(&at(&trigger, 0), &work).unwrap();
    assert_eq!(pair.failed(&pair.a).op_context, Context(3));
    let op = SendOp::new(Lent::EMPTY, FiAddr(999), Context(4));
    let work = Work::Post { endpoint: &pair.a.ep, op: DeferredOp::Send(op), completion: None };
    pair.a.domain.queue_work(&at(&trigger, 0), &work).unwrap();
    assert_eq!(pair.failed(&pair.a).op_context, Context(4));
    assert_eq!(completion.read(), 0);
}

pub fn deferred_work_sets_and_adds_to_counters(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let [first, second, third] = [counter(&pair.a), counter(&pair.a), counter(&pair.a)];
    let queue = |when, work| pair.a.domain.queue_work(&when, &work).unwrap();
    // A chain in which each link starts the next, queued in reverse order.
    queue(at(&third, 10), Work::SetCounter(&first, 1_000));
    queue(at(&second, 5), Work::AddCounter(&third, 10));
    queue(at(&first, 1), Work::SetCounter(&second, 7));
    assert_eq!((first.read(), second.read(), third.read()), (0, 0, 0));
    first.add(1).unwrap();
    assert_eq!((first.read(), second.read(), third.read()), (1_000, 7, 10));
}

pub fn a_ring_of_deferred_work_runs_by_itself(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    const ROUNDS: u64 = 50;
    let sides = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
    let received = sides.map(|(side, _)| counter(side));
    // Each received message makes the side send the next one: everything is queued before the first is sent.
    for ((side, to), received) in sides.iter().zip(&received) {
        for round in 1..=ROUNDS {
            let receive = DeferredOp::Receive(ReceiveOp::new(Lent::EMPTY, Context::NULL));
            let work = Work::Post { endpoint: &side.ep, op: receive, completion: Some(received) };
            side.domain.queue_work(&at(received, 0), &work).unwrap();
            let send = DeferredOp::Send(SendOp::new(Lent::EMPTY, *to, Context::NULL));
            let work = Work::Post { endpoint: &side.ep, op: send, completion: None };
            side.domain.queue_work(&at(received, round), &work).unwrap();
        }
    }
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    std::thread::scope(|scope| {
        scope.spawn(|| received[1].wait(ROUNDS, Some(LONG)).unwrap());
        received[0].wait(ROUNDS, Some(LONG)).unwrap();
    });
    assert_eq!((received[0].read(), received[1].read()), (ROUNDS, ROUNDS));
    pair.a.domain.flush_work(None).unwrap();
    pair.b.domain.flush_work(None).unwrap();
}

pub fn deferred_work_is_cancelled_and_flushed(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let (one, two, target) = (counter(&pair.a), counter(&pair.a), counter(&pair.a));
    let queue = |counter| pair.a.domain.queue_work(&at(counter, 1), &Work::AddCounter(&target, 1)).unwrap();
    let (first, _second, third) = (queue(&one), queue(&one), queue(&two));
    assert_ne!(first, third);
    pair.a.domain.cancel_work(first).unwrap();
    assert_eq!(pair.a.domain.cancel_work(first).unwrap_err().errno(), Errno::ENOENT);
    one.add(1).unwrap();
    assert_eq!(target.read(), 1, "the other one was started");
    queue(&two);
    assert_eq!(pair.a.domain.flush_work(Some(&one)).unwrap(), 0);
    assert_eq!(pair.a.domain.flush_work(Some(&two)).unwrap(), 2);
    assert_eq!(pair.a.domain.cancel_work(third).unwrap_err().errno(), Errno::ENOENT);
    two.add(1).unwrap();
    assert_eq!(target.read(), 1);
    let fourth = pair.a.domain.queue_work(&at(&two, 9), &Work::AddCounter(&target, 1)).unwrap();
    assert_eq!(pair.a.domain.flush_work(None).unwrap(), 1);
    assert_eq!(pair.a.domain.cancel_work(fourth).unwrap_err().errno(), Errno::ENOENT);
}

pub fn deferred_work_that_is_not_supported_is_refused(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let counter = counter(&pair.a);
    let queue = |endpoint, op| {
        let work = Work::Post { endpoint, op, completion: None };
        pair.a.domain.queue_work(&at(&counter, 1), &work).map_err(|error| error.errno())
    };
    let receive = ReceiveOp::new(Lent::EMPTY, Context::NULL);
    let multi = DeferredOp::Receive(ReceiveOp { flags: OpFlags::MULTI_RECV, ..receive });
    assert_eq!(queue(&pair.a.ep, multi), Err(Errno::ENOSYS));
    let peek = DeferredOp::ReceiveTagged(ReceiveOp { flags: OpFlags::PEEK, ..receive }, TagMatch::default());
    assert_eq!(queue(&pair.a.ep, peek), Err(Errno::ENOSYS));
    assert_eq!(queue(&pair.b.ep, DeferredOp::Receive(receive)), Err(Errno::EDOMAIN));
    let plain = kit.opening().beside(&pair.a).open();
    assert_eq!(queue(&plain.ep, DeferredOp::Receive(receive)), Err(Errno::EOPNOTSUPP));
}

pub fn work_for_a_closed_endpoint_counts_as_failed(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    let (trigger, completion) = (counter(&pair.a), counter(&pair.a));
    let Pair { a, to_b, .. } = pair;
    let op = DeferredOp::Send(SendOp::new(Lent::EMPTY, to_b, Context(1)));
    let work = Work::Post { endpoint: &a.ep, op, completion: Some(&completion) };
    a.domain.queue_work(&at(&trigger, 1), &work).unwrap();
    a.ep.trigger(&at(&trigger, 1), &op).unwrap();
    let domain = Arc::clone(&a.domain);
    drop(a);
    trigger.add(1).unwrap();
    assert_eq!((completion.read(), completion.read_error()), (0, 1));
    drop(domain);
}

pub fn many_threads_trigger_each_operation_once(kit: &dyn Kit) {
    let Some(pair) = plain(kit) else { return };
    const COUNT: u64 = 2_000;
    let (trigger, target) = (counter(&pair.a), counter(&pair.a));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 1..=COUNT {
                    let when = at(&trigger, number);
                    pair.a.domain.queue_work(&when, &Work::AddCounter(&target, 1)).unwrap();
                }
            });
            scope.spawn(|| (0..COUNT / 2).for_each(|_| trigger.add(1).unwrap()));
        }
    });
    pair.drive("all work", || (target.read() == 2 * COUNT).then_some(()));
    wait::drive_through(Duration::from_millis(5), &[&pair.a]);
    assert_eq!(target.read(), 2 * COUNT);
}

pub fn automatic_progress_starts_what_is_due(kit: &dyn Kit) {
    let counting = |opening: Opening| {
        opening.hints(|hints| hints.progress(Progress::Auto)).counter(CntrAttr::default(), BindFlags::RECV)
    };
    let Some(pair) = pair(kit, counting) else { return };
    let next = pair.b.counters[0].read() + 1;
    let op = DeferredOp::Send(SendOp::new(Lent::EMPTY, pair.to_a, Context(4)));
    pair.b.ep.trigger(&at(&pair.b.counters[0], next), &op).unwrap();
    pair.b.receive(()).context(5).post().unwrap();
    pair.a.receive(()).context(6).post().unwrap();
    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
    // No function is called on `b`.
    wait::drive(&[&pair.a], "the answer", || pair.a.next_of(6)).done();
}
