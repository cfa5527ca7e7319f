//! Transmit and receive contexts that several endpoints share (fi_endpoint(3), "Shared contexts").

use crate::prelude::*;

/// Endpoints of one domain that share a receive context, each with a remote endpoint.
pub(super) struct Group {
    /// The context, as a side to post to.
    pub(super) srx: TestEndpoint,
    pub(super) members: Vec<Pair>,
}

impl Group {
    /// Opens `count` members; in a pair `a` is remote, and `b` a member.
    pub(super) fn open(kit: &dyn Kit, count: usize, change: impl Fn(Opening) -> Opening) -> Self {
        Self::sized(kit, count, 0, change)
    }

    /// The same with a context for `size` receives, or the default for 0.
    pub(super) fn sized(
        kit: &dyn Kit,
        count: usize,
        size: usize,
        change: impl Fn(Opening) -> Opening,
    ) -> Self {
        let opening = change(kit.opening());
        let host = opening.clone().open_disabled().expect("opening an endpoint");
        let mut attr = host.info.rx_attr.clone();
        if size > 0 {
            attr.size = size;
        }
        let srx = host.context(host.domain.open_shared_receive(&attr).expect("a shared context"));
        let member = || opening.clone().shared_receive(&srx.ep).beside(&host).vector(&host.av).open();
        let members = (0..count).map(|_| {
            let member = member();
            Pair::of(opening.clone().open(), member)
        });
        Self { members: members.collect(), srx }
    }

    fn sides(&self) -> Vec<&TestEndpoint> {
        self.members.iter().flat_map(|pair| [&pair.a, &pair.b]).collect()
    }

    #[track_caller]
    pub(super) fn drive<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        wait::drive(&self.sides(), what, ready)
    }

    /// Sends to member `at` with data `number`.
    #[track_caller]
    pub(super) fn send(&self, at: usize, tag: Option<u64>, number: u64, memory: &Memory) {
        let pair = &self.members[at];
        let out = pair.a.out(pair.to_b, memory).data(number).context(usize::MAX);
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        self.drive("room to send", || match out.send() {
            Ok(()) => Some(()),
            Err(error) if error.is_again() => None,
            Err(error) => panic!("sending: {error}"),
        });
    }

    /// Sends a message without a receive in the same way, and waits until it is unexpected in the shared context.
    #[track_caller]
    pub(super) fn keep(&self, at: usize, tag: Option<u64>, number: u64, memory: &Memory) {
        let send = || self.send(at, tag, number, memory);
        wait::until_counted(&self.sides(), &self.srx, "rx_unexpected_now", send);
    }

    /// The next event of member `at`.
    #[track_caller]
    pub(super) fn next(&self, at: usize) -> Event {
        self.drive("something at a member", || self.members[at].b.next())
    }
}

pub fn a_context_that_is_shared_is_granted_on_request(kit: &dyn Kit) {
    let plain = kit.info(&kit.usual());
    assert_eq!((plain.ep_attr.tx_ctx_cnt, plain.ep_attr.rx_ctx_cnt), (1, 1));
    assert!(plain.domain_attr.max_ep_stx_ctx > 1 && plain.domain_attr.max_ep_srx_ctx > 1);
    let shared = kit.info(&kit.usual().tx_ctx_cnt(SHARED_CONTEXT).rx_ctx_cnt(SHARED_CONTEXT));
    assert_eq!((shared.ep_attr.tx_ctx_cnt, shared.ep_attr.rx_ctx_cnt), (SHARED_CONTEXT, SHARED_CONTEXT));
}

pub fn a_shared_receive_serves_whichever_endpoint_is_sent_to(kit: &dyn Kit) {
    let group = Group::open(kit, 3, |opening| opening);
    for tag in [None, Some(7)] {
        let got: Vec<Memory> = (0..6).map(|_| Memory::new(100)).collect();
        for (context, got) in got.iter().enumerate() {
            let receive = group.srx.receive(got).context(context);
            if let Some(tag) = tag { receive.tag(tag) } else { receive }.post().unwrap();
        }
        for (number, at) in [2, 0, 1, 1, 0, 2].into_iter().enumerate() {
            let sent = Memory::patterned(100, number as u8);
            group.send(at, tag, number as u64, &sent);
            let entry = group.next(at).done();
            assert_eq!((entry.op_context.0, entry.len, entry.data), (number, 100, number as u64));
            assert_eq!(entry.flags.contains(CompletionFlags::TAGGED), tag.is_some());
            got[number].check(100, number as u8);
        }
    }
}

pub fn messages_wait_for_shared_receives(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    // Short ones are sent whole; the payload of a long one waits at its sender.
    let lengths = [0, 60, 300_000];
    for (number, &len) in lengths.iter().enumerate() {
        for at in [1, 0] {
            group.keep(at, None, number as u64, &Memory::patterned(len, number as u8 + at as u8));
        }
    }
    for (number, &len) in lengths.iter().enumerate() {
        for at in [1, 0] {
            let got = Memory::new(len);
            group.srx.receive(&got).context(number).post().unwrap();
            let entry = group.next(at).done();
            assert_eq!((entry.op_context.0, entry.len, entry.data), (number, len, number as u64));
            got.check(len, number as u8 + at as u8);
        }
    }
}

pub fn a_shared_tagged_receive_takes_its_tag_through_any_endpoint(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    let got = Memory::new(8);
    group.srx.receive(&got).tag(5).context(5).post().unwrap();
    group.srx.receive(&got).tag_ignoring(0, 0xF0).context(0).post().unwrap();
    group.send(1, Some(0x30), 1, &Memory::new(8));
    assert_eq!(group.next(1).done().op_context.0, 0);
    group.send(0, Some(6), 2, &Memory::new(8));
    group.send(0, Some(5), 3, &Memory::new(8));
    assert_eq!(group.next(0).done().op_context.0, 5);
    group.srx.receive(&got).tag(6).context(6).post().unwrap();
    let entry = group.next(0).done();
    assert_eq!((entry.op_context.0, entry.tag, entry.data), (6, 6, 2));
}

pub fn a_shared_receive_is_directed_at_a_peer_of_all_endpoints(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    let [first, second] = &group.members[..] else { panic!("two members") };
    // The remote endpoint of the second member also sends to the first.
    let to_first = second.a.insert(&first.b);
    let got = Memory::new(10);
    let post = |context, from| group.srx.receive(&got).from(from).context(context).post().unwrap();
    group.srx.receive(&got).from(first.to_a).context(1).post().unwrap();
    post(2, second.to_a);
    post(3, second.to_a);
    second.a.out(to_first, &Memory::new(10)).context(usize::MAX).send().unwrap();
    let (entry, source) = match group.next(0) {
        Event::Done(entry, source) => (entry, source),
        Event::Failed(error) => panic!("{error:?}"),
    };
    assert_eq!((entry.op_context.0, source), (2, second.to_a));
    group.send(1, None, 1, &Memory::new(10));
    assert_eq!(group.next(1).done().op_context.0, 3);
    group.send(0, None, 1, &Memory::new(10));
    assert_eq!(group.next(0).done().op_context.0, 1);
    // Unexpected messages are found by their source.
    group.keep(0, None, 4, &Memory::new(10));
    group.keep(1, None, 5, &Memory::new(10));
    post(6, second.to_a);
    assert_eq!(group.next(1).done().data, 5);
    group.srx.receive(&got).from(first.to_a).context(7).post().unwrap();
    assert_eq!(group.next(0).done().data, 4);
}

pub fn a_shared_buffer_holds_messages_of_several_endpoints(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening.hints(|hints| with_caps(hints, Caps::MULTI_RECV)));
    group.srx.ep.set_option(EpOption::MinMultiRecv, 100).unwrap();
    assert_eq!(group.srx.ep.option(EpOption::MinMultiRecv), Ok(100));
    let buffer = Memory::new(1_000);
    group.keep(1, None, 0, &Memory::patterned(200, 0));
    group.srx.receive(&buffer).context(9).msg(OpFlags::MULTI_RECV).post().unwrap();
    let mut end = 0;
    for (number, at) in [1, 0, 0, 1, 0].into_iter().enumerate() {
        if number > 0 {
            group.send(at, None, number as u64, &Memory::patterned(200, number as u8));
        }
        let entry = group.next(at).done();
        let offset = entry.buf.addr() - buffer.as_ptr().addr();
        assert_eq!((entry.op_context.0, entry.len, entry.data), (9, 200, number as u64));
        assert!(offset >= end && offset + 200 <= 1_000);
        buffer.slice(offset..offset + 200).check(number as u8);
        end = offset + 200;
        assert_eq!(entry.flags.contains(CompletionFlags::MULTI_RECV), number == 4);
    }
}

/// Adds capabilities to hints.
fn with_caps(hints: Hints, more: Caps) -> Hints {
    let caps = hints.info.caps | more;
    hints.caps(caps)
}

pub fn a_shared_context_has_room_for_its_size_of_receives(kit: &dyn Kit) {
    let group = Group::sized(kit, 2, 16, |opening| opening);
    let got = Memory::new(4);
    for round in 0..5 {
        let mut posted = 0;
        while group.srx.receive(&got).context(1).post().is_ok() {
            posted += 1;
            assert!(posted <= 16);
        }
        assert_eq!(posted, 16, "in round {round}");
        assert!(group.srx.receive(&got).context(1).post().unwrap_err().is_again());
        for number in 0..16 {
            group.send(number % 2, None, number as u64, &Memory::new(4));
        }
        for number in 0..16 {
            group.next(number % 2).done();
        }
    }
}

pub fn a_shared_receive_reports_as_its_endpoint_is_bound(kit: &dyn Kit) {
    let group = Group::open(kit, 1, |opening| opening.selective(BindFlags::RECV));
    let got = Memory::new(4);
    group.srx.receive(&got).context(1).post().unwrap();
    group.srx.receive(&got).context(2).msg(OpFlags::COMPLETION).post().unwrap();
    group.srx.receive(&got).context(3).post().unwrap();
    for number in 0..2 {
        group.send(0, None, number, &Memory::new(4));
    }
    assert_eq!(group.next(0).done().op_context.0, 2, "only what asked for it");
    // A message that is too long is reported in any case.
    group.send(0, None, 2, &Memory::new(100));
    let error = group.next(0).failed();
    assert_eq!((error.err, error.op_context.0, error.olen), (Errno::ETRUNC, 3, 96));
}

pub fn a_cancelled_shared_receive_ends_at_the_first_endpoint(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    let got = Memory::new(4);
    group.srx.receive(&got).context(1).post().unwrap();
    group.srx.receive(&got).context(2).post().unwrap();
    group.srx.cancel(1).unwrap();
    assert_eq!(group.next(0).failed().err, Errno::ECANCELED);
    assert_eq!(group.srx.cancel(1).unwrap_err().errno(), Errno::ENOENT);
    group.send(1, None, 3, &Memory::new(4));
    assert_eq!(group.next(1).done().op_context.0, 2);
}

pub fn an_endpoint_that_closes_leaves_shared_receives_to_the_others(kit: &dyn Kit) {
    let mut group = Group::sized(kit, 2, 4, |opening| opening);
    let got = Memory::new(300_000);
    // One of its messages has completed unread, one is in flight, and one is unexpected.
    group.srx.receive(&got).context(1).post().unwrap();
    let send = || group.send(1, None, 1, &Memory::new(10));
    wait::until_counted(&group.sides(), &group.members[1].b, "rx_messages", send);
    group.send(1, None, 2, &Memory::new(300_000));
    group.send(1, None, 3, &Memory::new(10));
    wait::drive_through(Duration::from_millis(20), &[&group.members[1].a, &group.members[1].b]);
    drop(group.members.remove(1));
    // All four receives are available to the other member.
    for context in 0..4 {
        group.srx.receive(&got).context(context).post().unwrap();
    }
    assert!(group.srx.receive(&got).post().unwrap_err().is_again());
    for number in 0..4 {
        group.send(0, None, 10 + number, &Memory::new(20));
        let entry = group.next(0).done();
        assert_eq!((entry.op_context.0, entry.data, entry.len), (number as usize, 10 + number, 20));
    }
}

pub fn a_shared_context_that_closes_takes_its_receives_along(kit: &dyn Kit) {
    let mut group = Group::open(kit, 1, |opening| opening);
    let got = Memory::patterned(100, 9);
    group.srx.receive(&got).context(1).post().unwrap();
    // Endpoints must not keep the application's handle alive.
    let members = std::mem::take(&mut group.members);
    drop(group);
    let pair = &members[0];
    pair.post(|| pair.a.out(pair.to_b, &Memory::patterned(100, 1)).context(2).inject().send());
    pair.post(|| pair.a.out(pair.to_b, &Memory::patterned(100_000, 1)).context(2).send());
    wait::drive_through(Duration::from_millis(20), &[&pair.a, &pair.b]);
    assert!(pair.b.next().is_none());
    got.check(100, 9);
}

pub fn wrong_bindings_of_shared_contexts_are_refused(kit: &dyn Kit) {
    let side = kit.opening().open_disabled().unwrap();
    let (tx, rx) = (side.info.tx_attr.clone(), side.info.rx_attr.clone());
    let stx = side.domain.open_shared_transmit(&tx).unwrap();
    let srx = side.domain.open_shared_receive(&rx).unwrap();
    let refused = |outcome: Result<()>| outcome.unwrap_err().errno();
    assert_eq!(refused(side.ep.bind_shared_transmit(&stx)), Errno::EINVAL, "it has its own");
    assert_eq!(refused(side.ep.bind_shared_receive(&srx)), Errno::EINVAL, "it has its own");
    let sharing = || kit.opening().shared_transmit(&stx).shared_receive(&srx).beside(&side);
    let shared = sharing().open_disabled().unwrap();
    assert_eq!(refused(shared.ep.bind_shared_transmit(&stx)), Errno::EBUSY);
    assert_eq!(refused(shared.ep.bind_shared_receive(&srx)), Errno::EBUSY);
    assert_eq!(refused(shared.ep.bind_shared_receive(&side.ep)), Errno::EINVAL, "no context");
    let without = kit.opening().hints(|hints| hints.rx_ctx_cnt(SHARED_CONTEXT)).beside(&side);
    assert_eq!(refused(without.open_disabled().unwrap().ep.enable()), Errno::EINVAL, "none is bound");
    // Endpoints may use a part of the context's capabilities.
    let mut less = rx.clone();
    less.caps -= if rx.caps.contains(Caps::TAGGED) { Caps::TAGGED } else { Caps::MSG };
    let less = side.domain.open_shared_receive(&less).unwrap();
    assert_eq!(refused(sharing().shared_receive(&less).open_disabled().map(drop)), Errno::EINVAL);
    let short = TxAttr { inject_size: tx.inject_size - 1, ..tx.clone() };
    let short = side.domain.open_shared_transmit(&short).unwrap();
    assert_eq!(refused(sharing().shared_transmit(&short).open_disabled().map(drop)), Errno::EINVAL);
    // Calls that belong to endpoints alone.
    let nothing = ReceiveOp::new(Lent::EMPTY, Context(1));
    assert_eq!(refused(shared.ep.receive(&nothing)), Errno::EOPBADSTATE);
    assert_eq!(refused(srx.bind_cq(&side.tx, BindFlags::RECV)), Errno::EOPNOTSUPP);
    assert_eq!(refused(srx.connect(&Address::from_text("fi_none://x"), &[])), Errno::EOPNOTSUPP);
    assert!(srx.enable().is_ok());
}

pub fn endpoints_of_a_shared_context_have_one_vector(kit: &dyn Kit) {
    let first = kit.opening().open_disabled().unwrap();
    let srx = first.domain.open_shared_receive(&first.info.rx_attr).unwrap();
    let member = |av| kit.opening().shared_receive(&srx).beside(&first).vector(av).try_open();
    let one = member(&first.av).unwrap();
    let other = first.domain.open_av(&AvAttr::default()).unwrap();
    assert_eq!(member(&other).err().map(|error| error.errno()), Some(Errno::EINVAL));
    drop(one);
}

pub fn endpoints_share_the_room_of_a_transmit_context(kit: &dyn Kit) {
    const SIZE: usize = 4;
    let host = kit.opening().open_disabled().unwrap();
    let attr = TxAttr { size: SIZE, ..host.info.tx_attr.clone() };
    let stx = host.domain.open_shared_transmit(&attr).unwrap();
    let pairs: Vec<Pair> = (0..2)
        .map(|_| {
            let member = kit.opening().shared_transmit(&stx).beside(&host).open();
            Pair::of(member, kit.opening().open())
        })
        .collect();
    let sides: Vec<&TestEndpoint> = pairs.iter().flat_map(|pair| [&pair.a, &pair.b]).collect();
    pairs.iter().for_each(|pair| {
        // Connects them, whatever that takes.
        pair.b.receive(()).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, ()).context(1).inject().send());
        pair.drive("a first message", || pair.b.next_of(1)).done();
        pair.drive("its end", || (pair.a.statistic("tx_outstanding") == 0).then_some(()));
    });
    let (sent, got) = (Memory::patterned(100, 3), Memory::new(100));
    for round in 0..6 {
        let (one, two) = (&pairs[round % 2], &pairs[(round + 1) % 2]);
        // Sends that complete on delivery, to endpoints that are not polled.
        let send =
            |pair: &Pair| pair.a.out(pair.to_b, &sent).context(2).msg(OpFlags::DELIVERY_COMPLETE).send();
        let fill = |pair: &Pair, most: usize| {
            let mut count = 0;
            let mut tries = 0;
            while count < most && tries < 200 {
                tries += 1;
                pair.a.poll();
                count += usize::from(send(pair).is_ok());
            }
            count
        };
        assert_eq!(fill(one, SIZE), SIZE, "one endpoint may use all of it");
        assert!(send(one).unwrap_err().is_again());
        assert!(send(two).unwrap_err().is_again(), "and leaves nothing to the other");
        for _ in 0..SIZE {
            one.b.receive(&got).context(3).post().unwrap();
        }
        for _ in 0..SIZE {
            wait::drive(&sides, "an arrival", || one.b.next_of(3)).done();
            wait::drive(&sides, "a delivery", || one.a.next_of(2)).done();
        }
        assert_eq!(fill(two, 1), 1, "room comes back to whoever needs it");
        two.b.receive(&got).context(3).post().unwrap();
        wait::drive(&sides, "an arrival", || two.b.next_of(3)).done();
        wait::drive(&sides, "a delivery", || two.a.next_of(2)).done();
    }
    drop(pairs);
    let after = kit.opening().shared_transmit(&stx).beside(&host).open();
    let pair = Pair::of(after, kit.opening().open());
    pair.warm_up();
}

pub fn threads_post_to_a_shared_context_while_its_endpoints_are_read(kit: &dyn Kit) {
    const EACH: usize = 2_000;
    let group = Group::sized(kit, 2, 64, |opening| opening);
    let (srx, got) = (&group.srx, Memory::new(64));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let give_up = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        // One thread's posts take messages out, the other's reads put them in: they contend for the context.
        scope.spawn(|| {
            let mut posted = 0;
            while posted < 2 * EACH && Instant::now() < give_up {
                match srx.receive(&got).context(1).post() {
                    Ok(()) => posted += 1,
                    Err(error) if error.is_again() => std::thread::yield_now(),
                    Err(error) => panic!("posting: {error}"),
                }
            }
        });
        for pair in &group.members {
            scope.spawn(|| {
                let (sent, mut to_send, mut received) = (Memory::new(64), EACH, 0);
                while received < EACH && Instant::now() < give_up {
                    if to_send > 0 && pair.a.out(pair.to_b, &sent).inject().send().is_ok() {
                        to_send -= 1;
                    }
                    pair.poll();
                    while let Some(event) = pair.b.next() {
                        event.done();
                        received += 1;
                    }
                    while pair.a.next().is_some() {}
                }
                done.fetch_add(received, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 2 * EACH, "each message met one receive");
}
