//! Receive and transmit contexts: scalable endpoints, and addresses that select one of their contexts (fi_endpoint(3),
//! "Scalable endpoints"; fi_av(3), "fi_rx_addr").

use std::sync::Arc;

use crate::prelude::*;

/// Address bits that select a receive context.
const BITS: u32 = 4;

pub fn an_endpoint_with_one_context_is_reached_by_its_name_too(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.rx_ctx_bits(BITS));
    let (sent, got) = (Memory::patterned(100, 1), Memory::new(100));
    for to in [pair.to_b, pair.to_b.with_rx_index(0, BITS)] {
        pair.b.receive(&got).from(pair.to_a.with_rx_index(3, BITS)).context(1).post().unwrap();
        pair.post(|| pair.a.out(to, &sent).context(2).send());
        let (entry, source) = pair.done_from(&pair.b);
        assert_eq!((entry.len, source), (100, pair.to_a), "a source has no context");
        pair.all_done(&pair.a, 2, 1);
    }
}

pub fn a_message_for_a_context_that_is_not_there_is_dropped_and_counted(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.rx_ctx_bits(BITS));
    let nowhere = pair.to_b.with_rx_index(5, BITS);
    let got = Memory::new(100_000);
    pair.b.receive(&got).context(1).post().unwrap();
    for len in [0, 10, 100_000] {
        let sent = Memory::patterned(len, 1);
        pair.post(|| pair.a.out(nowhere, &sent).context(2).send());
        pair.post(|| pair.a.out(nowhere, &sent).tag(7).context(2).send());
    }
    pair.all_done(&pair.a, 2, 6);
    pair.drive("all six", || (pair.b.statistic("rx_dropped") == 6).then_some(()));
    pair.quiet(Duration::from_millis(20));
    // Later messages arrive.
    pair.post(|| pair.a.out(pair.to_b, ()).context(3).send());
    assert_eq!(pair.drive("a message", || pair.b.next_of(1)).done().len, 0);
}

pub fn a_vector_has_room_for_peers_beside_the_bits_of_contexts(kit: &dyn Kit) {
    let side = kit.side();
    let attr = |rx_ctx_bits| AvAttr { rx_ctx_bits, ..AvAttr::default() };
    assert_eq!(side.domain.open_av(&attr(33)).err().map(|error| error.errno()), Some(Errno::EINVAL));
    assert!(side.domain.open_av(&attr(32)).is_ok());
    // An index that no endpoint can have is refused when it is used.
    let pair = Pair::of(kit.opening().rx_ctx_bits(32).open(), kit.opening().rx_ctx_bits(32).open());
    let refused = pair.a.out(pair.to_b.with_rx_index(65_535, 32), ()).send();
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
}

/// A scalable endpoint, enabled, with all its contexts.
struct Scalable {
    tx: Vec<TestEndpoint>,
    rx: Vec<TestEndpoint>,
    hub: TestEndpoint,
}

/// The options of scalable endpoints.
fn scalable(kit: &dyn Kit, tx: usize, rx: usize) -> Opening {
    let caps = kit.usual_caps() | Caps::NAMED_RX_CTX;
    kit.opening().hints(|hints| hints.caps(caps).tx_ctx_cnt(tx).rx_ctx_cnt(rx)).rx_ctx_bits(BITS)
}

impl Scalable {
    /// Opens one without contexts, and does not enable it.
    fn bare(opening: Opening) -> Self {
        let host = opening.open_disabled().expect("opening an endpoint");
        let hub = host.domain.open_scalable(&host.info).expect("a scalable endpoint");
        hub.bind_av(&host.av).unwrap();
        Self { tx: Vec::new(), rx: Vec::new(), hub: host.context(hub) }
    }

    fn open(kit: &dyn Kit, tx: usize, rx: usize) -> Self {
        Self::of(scalable(kit, tx, rx), tx, rx)
    }

    /// Opens and enables one with the given numbers of contexts.
    fn of(opening: Opening, tx: usize, rx: usize) -> Self {
        let mut own = Self::bare(opening);
        for index in 0..tx {
            let (ep, _) = own.hub.ep.transmit_context(index, None).unwrap();
            own.tx.push(own.side(ep, BindFlags::TRANSMIT));
        }
        for index in 0..rx {
            own.add_receiver(index, None);
        }
        own.hub.ep.enable().unwrap();
        own
    }

    fn side(&self, ep: Arc<dyn Endpoint>, direction: BindFlags) -> TestEndpoint {
        let queue = self.hub.domain.open_cq(&CqAttr { wait_obj: WaitObj::Fd, ..CqAttr::default() }).unwrap();
        ep.bind_cq(&queue, direction).unwrap();
        ep.enable().unwrap();
        self.hub.context_with(ep, queue)
    }

    fn add_receiver(&mut self, index: usize, attr: Option<&RxAttr>) {
        let (ep, _) = self.hub.ep.receive_context(index, attr).unwrap();
        self.rx.push(self.side(ep, BindFlags::RECV));
    }

    fn sides<'a>(&'a self, others: &[&'a TestEndpoint]) -> Vec<&'a TestEndpoint> {
        self.tx.iter().chain(&self.rx).chain(others.iter().copied()).collect()
    }
}

/// Sends, and retries while resources are short.
#[track_caller]
fn send(sides: &[&TestEndpoint], mut out: impl FnMut() -> Result<()>) {
    wait::drive(sides, "room to send", || match out() {
        Ok(()) => Some(()),
        Err(error) if error.is_again() => None,
        Err(error) => panic!("sending: {error}"),
    });
}

pub fn a_receive_context_is_reached_by_its_name(kit: &dyn Kit) {
    let own = Scalable::open(kit, 1, 3);
    let far = kit.opening().rx_ctx_bits(BITS).open();
    let (to, from) = (far.insert(&own.hub), own.hub.insert(&far));
    let sides = own.sides(&[&far]);
    for len in [0, 100, 300_000] {
        for (index, rx) in own.rx.iter().enumerate() {
            let (sent, got) = (Memory::patterned(len, index as u8), Memory::new(len));
            let named = to.with_rx_index(index as u32, BITS);
            rx.receive(&got).context(1).post().unwrap();
            send(&sides, || far.out(named, &sent).context(2).data(index as u64).send());
            let (entry, source) = match wait::drive(&sides, "a message", || rx.next()) {
                Event::Done(entry, source) => (entry, source),
                Event::Failed(error) => panic!("{error:?}"),
            };
            assert_eq!((entry.op_context.0, entry.len, entry.data, source), (1, len, index as u64, from));
            got.check(len, index as u8);
            // A message before its receive, with a tag.
            send(&sides, || far.out(named, &sent).tag(7).context(2).send());
            wait::drive_through(Duration::from_millis(5), &sides);
            rx.receive(&got).tag(7).from(from).context(3).post().unwrap();
            assert_eq!(wait::drive(&sides, "a message", || rx.next()).done().op_context.0, 3);
            for _ in 0..2 {
                wait::drive(&sides, "a send", || far.next_of(2)).done();
            }
        }
    }
    // A context that does not exist, and one that is not opened.
    send(&sides, || far.out(to.with_rx_index(3, BITS), ()).context(2).send());
    wait::drive(&sides, "the drop", || (own.hub.statistic("rx_dropped") == 1).then_some(()));
}

pub fn transmit_contexts_have_the_address_of_their_endpoint(kit: &dyn Kit) {
    let own = Scalable::open(kit, 3, 1);
    let far = kit.side();
    let (to, from) = (own.hub.insert(&far), far.insert(&own.hub));
    let sides = own.sides(&[&far]);
    let got = Memory::new(200_000);
    for (index, tx) in own.tx.iter().enumerate() {
        assert_eq!(tx.name(), own.hub.name());
        for len in [10, 200_000] {
            let sent = Memory::patterned(len, index as u8);
            far.receive(&got).from(from).context(5).post().unwrap();
            send(&sides, || tx.out(to, &sent).context(index).send());
            let (entry, source) = match wait::drive(&sides, "a message", || far.next()) {
                Event::Done(entry, source) => (entry, source),
                Event::Failed(error) => panic!("{error:?}"),
            };
            assert_eq!((entry.op_context.0, entry.len, source), (5, len, from));
            got.slice(0..len).check(index as u8);
            let sent = wait::drive(&sides, "the send, at its own context", || tx.next()).done();
            assert_eq!(sent.op_context.0, index);
        }
    }
    // The answer goes to the endpoint's only address.
    own.rx[0].receive(&got).from(to).context(6).post().unwrap();
    send(&sides, || far.out(from, ()).context(1).inject().send());
    assert_eq!(wait::drive(&sides, "an answer", || own.rx[0].next()).done().op_context.0, 6);
}

pub fn selective_contexts_complete_only_on_request(kit: &dyn Kit) {
    let mut own =
        Scalable::bare(scalable(kit, 1, 1).hints(|hints| hints.tx_op_flags(OpFlags::TRANSMIT_COMPLETE)));
    let (ep, _) = own.hub.ep.transmit_context(0, None).unwrap();
    let counter = own.hub.domain.open_counter(&CntrAttr::default()).unwrap();
    ep.bind_counter(&counter, BindFlags::empty()).unwrap();
    own.tx.push(own.side(ep, BindFlags::TRANSMIT | BindFlags::SELECTIVE_COMPLETION));
    own.add_receiver(0, None);
    own.hub.ep.enable().unwrap();
    let far = kit.side();
    let to = own.hub.insert(&far);
    let (sides, tx) = (own.sides(&[&far]), &own.tx[0]);
    let got = Memory::new(100_000);
    let region = far.register(&got, MrAccess::REMOTE_WRITE).unwrap();
    let level = OpFlags::DELIVERY_COMPLETE;
    for len in [10, 100_000] {
        let (sent, before) = (Memory::patterned(len, 1), counter.read());
        (0..2).for_each(|_| far.receive(&got).context(5).post().unwrap());
        send(&sides, || tx.out(to, &sent).context(1).send());
        send(&sides, || tx.out(to, &sent).context(1).msg(level).send());
        let there = [remote_at(&region, 0, len)];
        send(&sides, || tx.out(to, &sent).context(1).msg(level).write(&there));
        for _ in 0..2 {
            wait::drive(&sides, "a message", || far.next_of(5)).done();
        }
        wait::drive(&sides, "the count", || (counter.read() == before + 3).then_some(()));
        assert_eq!(tx.pending(), 0, "{len} bytes");
        far.receive(&got).context(5).post().unwrap();
        send(&sides, || tx.out(to, &sent).context(2).msg(level | OpFlags::COMPLETION).send());
        assert_eq!(wait::drive(&sides, "the entry", || tx.next()).done().op_context.0, 2);
        wait::drive(&sides, "a message", || far.next_of(5)).done();
    }
}

pub fn without_a_name_the_endpoint_chooses_a_context_that_can(kit: &dyn Kit) {
    let mut own = Scalable::bare(scalable(kit, 1, 2));
    let attr = |kind| RxAttr { caps: kind | Caps::RECV, ..RxAttr::default() };
    own.add_receiver(0, Some(&attr(Caps::TAGGED)));
    own.add_receiver(1, Some(&attr(Caps::MSG)));
    own.hub.ep.enable().unwrap();
    let far = kit.side(); // its vector has no bits for contexts
    let to = far.insert(&own.hub);
    let sides = own.sides(&[&far]);
    let got = Memory::new(8);
    assert_eq!(own.rx[0].receive(&got).post().unwrap_err().errno(), Errno::EOPNOTSUPP);
    assert_eq!(own.rx[1].receive(&got).tag(1).post().unwrap_err().errno(), Errno::EOPNOTSUPP);
    own.rx[0].receive(&got).tag(1).context(1).post().unwrap();
    own.rx[1].receive(&got).context(2).post().unwrap();
    send(&sides, || far.out(to, ()).inject().send());
    assert_eq!(wait::drive(&sides, "an untagged message", || own.rx[1].next()).done().op_context.0, 2);
    send(&sides, || far.out(to, ()).tag(1).inject().send());
    assert_eq!(wait::drive(&sides, "a tagged message", || own.rx[0].next()).done().op_context.0, 1);
    // A message to a context that cannot receive it is dropped.
    let other = kit.opening().rx_ctx_bits(BITS).open();
    let named = other.insert(&own.hub).with_rx_index(0, BITS);
    let sides = own.sides(&[&far, &other]);
    send(&sides, || other.out(named, ()).inject().send());
    wait::drive(&sides, "the drop", || (own.hub.statistic("rx_dropped") == 1).then_some(()));
}

/// As MPICH does: the receive context gets a capability of senders (`FI_NAMED_RX_CTX`), and directions are omitted.
pub fn contexts_take_directions_and_names_for_granted(kit: &dyn Kit) {
    let own = Scalable::bare(scalable(kit, 1, 1));
    let wanted = Caps::MSG | Caps::TAGGED;
    let attr = TxAttr { caps: wanted, ..TxAttr::default() };
    let (_tx, granted) = own.hub.ep.transmit_context(0, Some(&attr)).unwrap();
    assert_eq!(granted.caps, wanted | Caps::SEND);
    let attr = RxAttr { caps: wanted | Caps::NAMED_RX_CTX, ..RxAttr::default() };
    let (_rx, granted) = own.hub.ep.receive_context(0, Some(&attr)).unwrap();
    assert_eq!(granted.caps, wanted | Caps::RECV);
}

pub fn messages_of_one_sender_go_to_one_context_in_order(kit: &dyn Kit) {
    const EACH: u64 = 50;
    let own = Scalable::open(kit, 1, 2);
    let far: Vec<TestEndpoint> = (0..4).map(|_| kit.side()).collect();
    let to: Vec<FiAddr> = far.iter().map(|far| far.insert(&own.hub)).collect();
    let from: Vec<FiAddr> = far.iter().map(|far| own.hub.insert(far)).collect();
    let sides = own.sides(&far.iter().collect::<Vec<_>>());
    for rx in &own.rx {
        (0..4 * EACH).for_each(|_| rx.receive(()).context(1).post().unwrap());
    }
    for number in 0..EACH {
        for (far, &to) in far.iter().zip(&to) {
            send(&sides, || far.out(to, ()).data(number).inject().send());
        }
    }
    let mut next = [0; 4];
    let mut home = [None; 4];
    let mut used = [false; 2];
    for _ in 0..4 * EACH {
        let (at, event) = wait::drive(&sides, "a message", || {
            own.rx.iter().enumerate().find_map(|(at, rx)| Some((at, rx.next()?)))
        });
        let Event::Done(entry, source) = event else { panic!("{event:?}") };
        let sender = from.iter().position(|&from| from == source).expect("a known sender");
        assert_eq!(*home[sender].get_or_insert(at), at, "one context for one sender");
        assert_eq!(entry.data, next[sender], "in order");
        next[sender] += 1;
        used[at] = true;
    }
    assert_eq!(used, [true; 2], "several senders are spread");
}

pub fn messages_wait_for_a_context_that_is_opened_later(kit: &dyn Kit) {
    let mut own = Scalable::of(scalable(kit, 1, 2), 1, 1);
    let far = kit.opening().rx_ctx_bits(BITS).open();
    let to = far.insert(&own.hub).with_rx_index(1, BITS);
    let lens = [20, 200_000];
    for (number, &len) in lens.iter().enumerate() {
        let sides = own.sides(&[&far]);
        send(&sides, || far.out(to, &Memory::patterned(len, number as u8)).data(number as u64).send());
        wait::drive_through(Duration::from_millis(10), &sides);
    }
    own.add_receiver(1, None);
    let got = Memory::new(200_000);
    for (number, &len) in lens.iter().enumerate() {
        own.rx[1].receive(&got).context(number).post().unwrap();
        let entry = wait::drive(&own.sides(&[&far]), "a message", || own.rx[1].next()).done();
        assert_eq!((entry.op_context.0, entry.len, entry.data), (number, len, number as u64));
        got.slice(0..len).check(number as u8);
    }
}

pub fn a_context_has_what_it_asks_for_within_its_endpoint(kit: &dyn Kit) {
    let own = Scalable::bare(scalable(kit, 2, 2));
    let hub = &own.hub.ep;
    let (tx, granted) = hub.transmit_context(0, None).unwrap();
    assert_eq!(granted, own.hub.info.tx_attr);
    let refused = |outcome: Result<(Arc<dyn Endpoint>, TxAttr)>| outcome.err().map(|error| error.errno());
    assert_eq!(refused(hub.transmit_context(0, None)), Some(Errno::EBUSY));
    assert_eq!(refused(hub.transmit_context(2, None)), Some(Errno::EINVAL));
    let more = TxAttr { inject_size: granted.inject_size + 1, ..TxAttr::default() };
    assert_eq!(refused(hub.transmit_context(1, Some(&more))), Some(Errno::EINVAL));
    let less = TxAttr { inject_size: 8, size: 2, ..TxAttr::default() };
    let (short, granted) = hub.transmit_context(1, Some(&less)).unwrap();
    assert_eq!((granted.inject_size, granted.size, granted.caps), (8, 2, own.hub.info.tx_attr.caps));
    let all = own.hub.info.rx_attr.size;
    let less = RxAttr { size: 3, ..RxAttr::default() };
    let (rx, granted) = hub.receive_context(0, Some(&less)).unwrap();
    assert_eq!((granted.size, granted.caps), (3, own.hub.info.rx_attr.caps));
    let (other, granted) = hub.receive_context(1, None).unwrap();
    assert_eq!(granted.size, all);
    // A context that was closed may be opened again.
    drop(tx);
    let (tx, _) = hub.transmit_context(0, None).unwrap();
    assert_eq!(refused(hub.transmit_context(0, None)), Some(Errno::EBUSY));
    let short = own.side(short, BindFlags::SEND);
    let rx = own.side(rx, BindFlags::RECV);
    hub.enable().unwrap();
    let to = own.hub.insert(&own.hub);
    assert_eq!(short.out(to, &Memory::new(9)).inject().send().unwrap_err().errno(), Errno::EMSGSIZE);
    let got = Memory::new(8);
    (0..3).for_each(|_| rx.receive(&got).context(1).post().unwrap());
    assert!(rx.receive(&got).context(1).post().unwrap_err().is_again());
    send(&[&short, &rx], || short.out(to, &Memory::new(8)).context(2).send());
    wait::drive(&[&short, &rx], "a message to itself", || rx.next_of(1)).done();
    wait::drive(&[&short, &rx], "its send", || short.next_of(2)).done();
    rx.receive(&got).context(1).post().unwrap();
    drop((tx, other));
}

pub fn an_endpoint_with_a_single_context_is_used_without_naming_it(kit: &dyn Kit) {
    let own = Scalable::bare(scalable(kit, 1, 1));
    let (hub, queue) = (&own.hub.ep, &own.hub.tx);
    let refused = |outcome: Result<()>| outcome.unwrap_err().errno();
    assert_eq!(refused(own.hub.out(FiAddr(0), ()).send()), Errno::EOPNOTSUPP, "nothing is bound");
    assert_eq!(refused(hub.bind_cq(queue, BindFlags::empty())), Errno::EBADFLAGS);
    let counter = own.hub.domain.open_counter(&CntrAttr::default()).unwrap();
    hub.bind_cq(queue, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    hub.bind_counter(&counter, BindFlags::empty()).unwrap();
    assert_eq!(refused(hub.transmit_context(0, None).map(drop)), Errno::EBUSY);
    assert_eq!(refused(own.hub.out(FiAddr(0), ()).send()), Errno::EOPBADSTATE, "before it is enabled");
    hub.set_option(EpOption::MinMultiRecv, 100).unwrap();
    assert_eq!(hub.option(EpOption::MinMultiRecv), Ok(100));
    hub.enable().unwrap();
    let far = kit.side();
    let pair = Pair::of(own.hub.context_with(Arc::clone(hub), Arc::clone(queue)), far);
    for len in [10, 100_000] {
        let (sent, got) = (Memory::patterned(len, 1), Memory::new(len));
        pair.post(|| pair.b.receive(&got).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &sent).context(2).send());
        pair.all_done(&pair.b, 1, 1);
        pair.all_done(&pair.a, 2, 1);
        got.check(len, 1);
        got.fill(0);
        pair.post(|| pair.a.receive(&got).tag(4).context(3).post());
        pair.post(|| {
            pair.b.out(pair.to_a, &sent).tag(4).inject().send().or_else(|error| {
                if error.errno() == Errno::EMSGSIZE {
                    pair.b.out(pair.to_a, &sent).tag(4).send()
                } else {
                    Err(error)
                }
            })
        });
        pair.all_done(&pair.a, 3, 1);
        got.check(len, 1);
        got.fill(0);
        let region = pair.b.register(&got, MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &sent).context(5).write(&[remote(&region)]));
        pair.all_done(&pair.a, 5, 1);
        got.check(len, 1);
    }
    assert_eq!(counter.read(), 6);
    pair.a.receive(()).tag(9).context(6).post().unwrap();
    pair.a.cancel(6).unwrap();
    assert_eq!(pair.failed(&pair.a).err, Errno::ECANCELED);
    // With several, the program has to say which.
    let many = Scalable::bare(scalable(kit, 2, 2));
    let error = many.hub.ep.bind_cq(&many.hub.tx, BindFlags::TRANSMIT).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
    let error = many.hub.ep.bind_cq(&many.hub.tx, BindFlags::RECV).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
}

pub fn contexts_and_their_endpoint_refuse_what_they_do_not_have(kit: &dyn Kit) {
    let own = Scalable::open(kit, 1, 1);
    let refused = |outcome: Result<()>| outcome.unwrap_err().errno();
    let nothing = Memory::new(1);
    for side in [&own.hub, &own.tx[0]] {
        assert_eq!(refused(side.receive(&nothing).post()), Errno::EOPNOTSUPP);
        assert_eq!(refused(side.receive(&nothing).tag(1).post()), Errno::EOPNOTSUPP);
    }
    for side in [&own.hub, &own.rx[0]] {
        assert_eq!(refused(side.out(FiAddr(0), &nothing).send()), Errno::EOPNOTSUPP);
        assert_eq!(refused(side.out(FiAddr(0), &nothing).tag(1).send()), Errno::EOPNOTSUPP);
        assert_eq!(refused(side.out(FiAddr(0), &nothing).read(&[])), Errno::EOPNOTSUPP);
    }
    assert_eq!(refused(own.tx[0].ep.bind_av(&own.hub.av)), Errno::EOPNOTSUPP);
    assert_eq!(refused(own.tx[0].ep.bind_cq(&own.rx[0].rx, BindFlags::TRANSMIT)), Errno::EOPBADSTATE);
    assert_eq!(refused(own.tx[0].ep.transmit_context(0, None).map(drop)), Errno::EOPNOTSUPP);
    let plain = kit.side();
    assert_eq!(refused(plain.ep.transmit_context(0, None).map(drop)), Errno::EOPNOTSUPP);
    // Not before both are enabled, and not without a queue.
    let bare = Scalable::bare(scalable(kit, 1, 1));
    let (tx, _) = bare.hub.ep.transmit_context(0, None).unwrap();
    assert_eq!(refused(tx.enable()), Errno::ENOCQ);
    assert_eq!(refused(tx.bind_cq(&bare.hub.tx, BindFlags::RECV)), Errno::EBADFLAGS);
    let tx = bare.side(tx, BindFlags::TRANSMIT);
    assert_eq!(refused(tx.out(FiAddr(0), &nothing).send()), Errno::EOPBADSTATE);
    let shared = kit.opening().hints(|hints| hints.rx_ctx_cnt(SHARED_CONTEXT)).first_info().unwrap();
    assert_eq!(refused(plain.domain.open_scalable(&shared).map(drop)), Errno::EINVAL);
}

pub fn an_info_with_collectives_opens_contexts_that_refuse_them(kit: &dyn Kit) {
    // Hints without capabilities get FI_COLLECTIVE, before getinfo can know which kind of endpoint is opened.
    let unasked = || kit.opening().hints(|hints| hints.caps(Caps::empty())).rx_ctx_bits(BITS);
    let info = unasked().first_info().unwrap();
    assert!(info.caps.contains(Caps::COLLECTIVE) && info.domain_attr.max_ep_tx_ctx > 1, "{info}");
    let (own, far) = (Scalable::of(unasked(), 1, 1), Scalable::of(unasked(), 1, 1));
    let to = own.hub.insert(&far.hub);
    far.hub.insert(&own.hub); // FI_SOURCE_ERR is among the capabilities
    let sides = own.sides(&[&far.tx[0], &far.rx[0]]);
    // The attributes of the info may be asked for by name.
    let (_, granted) = Scalable::bare(unasked()).hub.ep.transmit_context(0, Some(&info.tx_attr)).unwrap();
    assert_eq!(granted, info.tx_attr);
    let (sent, got) = (Memory::patterned(100, 1), Memory::new(100));
    far.rx[0].receive(&got).tag(3).context(1).post().unwrap();
    send(&sides, || own.tx[0].out(to, &sent).tag(3).context(2).send());
    assert_eq!(wait::drive(&sides, "a message", || far.rx[0].next()).done().len, 100);
    got.check(100, 1);
    wait::drive(&sides, "the send", || own.tx[0].next_of(2)).done();
    let set = Arc::clone(&own.hub.av).set(&AvSetAttr::default()).unwrap();
    for side in [&own.hub, &own.tx[0], &own.rx[0]] {
        let refused = side.ep.join_collective(FiAddr::NOTAVAIL, &*set, Context(0)).err().unwrap();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP);
    }
}

pub fn transmit_contexts_read_write_and_change_remote_memory(kit: &dyn Kit) {
    let caps = kit.usual_caps() | Caps::NAMED_RX_CTX | Caps::ATOMIC;
    let opening = || scalable(kit, 2, 2).hints(|hints| hints.caps(caps));
    let (own, far) = (Scalable::of(opening(), 2, 2), Scalable::of(opening(), 2, 2));
    let to = own.hub.insert(&far.hub);
    let others: Vec<&TestEndpoint> = far.tx.iter().chain(&far.rx).collect();
    let sides = own.sides(&others);
    let (from, target) = (Memory::patterned(4_096, 5), Memory::new(4_096));
    let access = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let region = far.hub.register(&target, access).unwrap();
    for (index, tx) in own.tx.iter().enumerate() {
        let named = to.with_rx_index(index as u32, BITS);
        let write = || tx.out(named, &from).context(1).data(40 + index as u64).write(&[remote(&region)]);
        send(&sides, write);
        wait::drive(&sides, "the write, at its context", || tx.next_of(1)).done();
        // Its data is reported by the context that the address selects.
        let told = wait::drive(&sides, "the data", || far.rx[index].next()).done();
        assert_eq!((told.data, told.len), (40 + index as u64, 4_096));
        target.check(4_096, 5);
        let back = Memory::new(4_096);
        send(&sides, || tx.out(named, &back).context(2).read(&[remote(&region)]));
        wait::drive(&sides, "the read, at its context", || tx.next_of(2)).done();
        back.check(4_096, 5);
        let count = tx.ep.atomic_valid(AtomicKind::Base, FiOp::Sum, Datatype::Uint64).unwrap();
        assert!(count >= 1);
        send(&sides, || {
            tx.out(named, &Memory::new(8)).context(3).atomic(
                FiOp::Sum,
                Datatype::Uint64,
                &[remote_at(&region, 0, 8)],
            )
        });
        wait::drive(&sides, "the atomic, at its context", || tx.next_of(3)).done();
    }
}

pub fn a_context_that_closes_leaves_the_others_alone(kit: &dyn Kit) {
    let mut own = Scalable::open(kit, 2, 2);
    let far = kit.opening().rx_ctx_bits(BITS).open();
    let (to_far, to) = (own.hub.insert(&far), far.insert(&own.hub));
    let got = Memory::patterned(100, 9);
    own.rx[1].receive(&got).context(1).post().unwrap();
    // A send that its receiver takes while the context closes.
    let (sent, there) = (Memory::patterned(300_000, 1), Memory::new(300_000));
    far.receive(&there).context(4).post().unwrap();
    let long = own.tx.remove(1);
    send(&[&long, &far], || long.out(to_far, &sent).context(2).send());
    std::thread::scope(|scope| {
        scope.spawn(|| wait::drive(&[&far], "the message", || far.next_of(4)).done());
        drop(long);
    });
    there.check(300_000, 1);
    drop(own.rx.remove(1));
    let sides = own.sides(&[&far]);
    send(&sides, || far.out(to.with_rx_index(1, BITS), &Memory::patterned(100, 1)).inject().send());
    own.rx[0].receive(()).context(2).post().unwrap();
    send(&sides, || far.out(to.with_rx_index(0, BITS), ()).inject().send());
    assert_eq!(wait::drive(&sides, "a message", || own.rx[0].next()).done().op_context.0, 2);
    got.check(100, 9);
    far.receive(&there).context(5).post().unwrap();
    send(&sides, || own.tx[0].out(to_far, ()).context(3).send());
    wait::drive(&sides, "a message", || far.next_of(5)).done();
    // After reopening, it gets the messages that arrived for it.
    own.add_receiver(1, None);
    own.rx[1].receive(&there).context(6).post().unwrap();
    assert_eq!(wait::drive(&own.sides(&[&far]), "a message", || own.rx[1].next()).done().op_context.0, 6);
}

/// A peer that is not polled while a context closes later finds the messages sent to it intact; data of reads is
/// discarded. The peer and the other contexts continue.
pub fn what_a_closing_context_has_under_way_goes_on_without_its_memory(kit: &dyn Kit) {
    const LEN: usize = 2 << 20;
    let manual = |opening: Opening| opening.hints(|hints| hints.progress(Progress::Manual));
    for way in ["message", "write", "read"] {
        let mut own = Scalable::of(manual(scalable(kit, 2, 1)), 2, 1);
        let far = manual(kit.opening().rx_ctx_bits(BITS)).open();
        let to = own.hub.insert(&far);
        let (sent, there) = (Memory::patterned(LEN, 1), Memory::new(LEN));
        let region = far.register(&there, MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ).unwrap();
        // They are connected: until the context has closed, the peer takes nothing after this message.
        far.receive(()).context(1).post().unwrap();
        send(&own.sides(&[&far]), || own.tx[1].out(to, ()).context(2).send());
        wait::drive(&own.sides(&[&far]), "a first message", || far.next_of(1)).done();
        wait::drive(&own.sides(&[&far]), "its end", || own.tx[1].next_of(2)).done();
        let closing = own.tx.remove(0);
        let post = || match way {
            "message" => closing.out(to, &sent).context(3).send(),
            "write" => closing.out(to, &sent).context(3).write(&[remote(&region)]),
            _ => closing.out(to, &sent).context(3).read(&[remote(&region)]),
        };
        send(&[&closing], post);
        drop(closing);
        sent.fill(77);
        let sides = own.sides(&[&far]);
        if way == "message" {
            far.receive(&there).context(4).post().unwrap();
            assert_eq!(wait::drive(&sides, "the message", || far.next_of(4)).done().len, LEN);
        }
        // After that the peer is idle, or a fence would block this message.
        far.receive(()).context(5).post().unwrap();
        send(&sides, || own.tx[0].out(to, ()).context(6).msg(OpFlags::FENCE).send());
        wait::drive(&sides, "a message after it", || far.next_of(5)).done();
        wait::drive(&sides, "its end", || own.tx[0].next_of(6)).done();
        match way {
            "read" => sent.check(LEN, 77),
            _ => there.check(LEN, 1),
        }
    }
}

pub fn a_context_searches_cancels_and_packs_like_an_endpoint(kit: &dyn Kit) {
    let caps = kit.usual_caps() | Caps::NAMED_RX_CTX | Caps::MULTI_RECV;
    let own = Scalable::of(scalable(kit, 1, 2).hints(|hints| hints.caps(caps)), 1, 2);
    let far = kit.opening().rx_ctx_bits(BITS).open();
    let to = far.insert(&own.hub).with_rx_index(1, BITS);
    let sides = own.sides(&[&far]);
    let rx = &own.rx[1];
    send(&sides, || far.out(to, &Memory::patterned(50, 1)).tag(3).data(8).inject().send());
    let found = wait::drive(&sides, "the message", || {
        rx.receive(()).tag(3).context(1).msg(OpFlags::PEEK | OpFlags::CLAIM).post().unwrap();
        match wait::drive(&sides, "an answer", || rx.next_of(1)) {
            Event::Done(entry, _) => Some(entry),
            Event::Failed(error) => {
                assert_eq!(error.err, Errno::ENOMSG);
                None
            }
        }
    });
    assert_eq!((found.len, found.data), (50, 8));
    let got = Memory::new(50);
    rx.receive(&got).tag(3).context(1).msg(OpFlags::CLAIM).post().unwrap();
    wait::drive(&sides, "what was claimed", || rx.next_of(1)).done();
    got.check(50, 1);
    rx.receive(&got).context(2).post().unwrap();
    rx.cancel(2).unwrap();
    assert_eq!(rx.cancel(2).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(wait::drive(&sides, "the cancelled one", || rx.next_of(2)).failed().err, Errno::ECANCELED);
    rx.ep.set_option(EpOption::MinMultiRecv, 100).unwrap();
    let buffer = Memory::new(250);
    rx.receive(&buffer).context(3).msg(OpFlags::MULTI_RECV).post().unwrap();
    for number in 0..2 {
        send(&sides, || far.out(to, &Memory::patterned(100, number)).inject().send());
        let entry = wait::drive(&sides, "a part", || rx.next_of(3)).done();
        let offset = entry.buf.addr() - buffer.as_ptr().addr();
        buffer.slice(offset..offset + 100).check(number);
        assert_eq!(entry.flags.contains(CompletionFlags::MULTI_RECV), number == 1);
    }
}

pub fn a_blocked_reader_of_a_context_wakes_for_its_message(kit: &dyn Kit) {
    let own = Scalable::open(kit, 1, 2);
    let far = kit.opening().rx_ctx_bits(BITS).open();
    let to = far.insert(&own.hub);
    let sides = own.sides(&[&far]);
    // Connect first.
    own.rx[0].receive(()).context(1).post().unwrap();
    send(&sides, || far.out(to.with_rx_index(0, BITS), ()).inject().send());
    wait::drive(&sides, "a first message", || own.rx[0].next_of(1)).done();
    for (index, rx) in own.rx.iter().enumerate() {
        rx.receive(()).context(2).post().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut entries = [CqTaggedEntry::EMPTY; 1];
                let mut buffer = CqBuffer::new(&mut entries);
                let read = rx.rx.read_wait(&mut buffer, Some(Duration::from_secs(20)));
                read.map(|count| (count, entries[0].op_context.0))
            });
            std::thread::sleep(Duration::from_millis(50));
            send(&[&far], || far.out(to.with_rx_index(index as u32, BITS), ()).inject().send());
            wait::drive(&[&far], "the reader", || reader.is_finished().then_some(()));
            assert_eq!(reader.join().unwrap(), Ok((1, 2)), "context {index}");
        });
    }
}

pub fn threads_use_contexts_of_one_endpoint_at_once(kit: &dyn Kit) {
    const EACH: usize = 1_000;
    let (own, far) = (Scalable::open(kit, 2, 2), Scalable::open(kit, 2, 2));
    let (to_far, to_own) = (own.hub.insert(&far.hub), far.hub.insert(&own.hub));
    let give_up = Instant::now() + Duration::from_secs(60);
    let run = |at: usize, mine: &Scalable, to: FiAddr| {
        let (tx, rx) = (&mine.tx[at], &mine.rx[at]);
        let (sent, got) = (Memory::new(64), Memory::new(64));
        let (mut to_send, mut under_way, mut posted, mut received) = (EACH, EACH, 0, 0);
        while (received < EACH || under_way > 0) && Instant::now() < give_up {
            if posted < EACH && rx.receive(&got).context(1).post().is_ok() {
                posted += 1;
            }
            let out = tx.out(to.with_rx_index(at as u32, BITS), &sent).data(at as u64).context(2);
            if to_send > 0 && out.send().is_ok() {
                to_send -= 1;
            }
            tx.poll();
            rx.poll();
            while let Some(event) = rx.next() {
                assert_eq!(event.done().data, at as u64, "only what was sent to this context");
                received += 1;
            }
            while let Some(event) = tx.next() {
                event.done();
                under_way -= 1;
            }
        }
        received
    };
    let got: usize = std::thread::scope(|scope| {
        let threads = (0..2).flat_map(|at| [(at, &own, to_far), (at, &far, to_own)]);
        let threads: Vec<_> = threads.map(|(at, mine, to)| scope.spawn(move || run(at, mine, to))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert_eq!(got, 4 * EACH);
}
