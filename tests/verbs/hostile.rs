//! Peers that break the protocol: each loses its connection, and other peers are unaffected.

use std::net::SocketAddr;
use std::sync::Arc;

use ibv::{
    Access, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, EventChannel, MemoryRegion,
    Post, ProtectionDomain, QueuePairAttr, Receives, Remote, Segment, SharedReceiveQueue, Work,
};
use ofi_testkit::prelude::*;

use super::VerbsPair;

const SLOT: usize = 8704;

/// Deterministic pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick(&mut self, from: &[u64]) -> u64 {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A greeting (`crates/ofi-verbs/src/endpoint/meeting.rs`).
fn greeting(numbers: &mut Numbers, address: SocketAddr, incarnation: u64) -> Vec<u8> {
    let SocketAddr::V4(v4) = address else { panic!("{address}") };
    let mut bytes = b"ofv1".to_vec();
    bytes.extend(v4.ip().to_ipv6_mapped().octets());
    bytes.extend(v4.port().to_be_bytes());
    bytes.extend(0u32.to_be_bytes());
    bytes.extend(64u16.to_be_bytes());
    bytes.extend(incarnation.to_be_bytes());
    bytes.extend(1u32.to_be_bytes());
    if numbers.below(16) == 0 {
        let at = numbers.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << numbers.below(8);
    }
    bytes
}

/// A record, mostly with a valid header and meaningful words.
fn record(numbers: &mut Numbers, key: u64, addr: u64) -> Vec<u8> {
    let kind = numbers.below(24) as u8;
    let flags = numbers.pick(&[0, 0, 1, 2, 3, 4, 8, 16, 31, 32, 255]) as u8;
    let credits = numbers.pick(&[0, 0, 0, 1, 65535]) as u16;
    let mut bytes = vec![kind, flags];
    bytes.extend(credits.to_be_bytes());
    bytes.extend(if numbers.below(30) == 0 { [1; 4] } else { [0; 4] });
    for _ in 0..numbers.below(20) {
        let any = numbers.next();
        let word = numbers.pick(&[0, 1, 1, 2, 8, 64, 8192, 1 << 20, u64::MAX, 1 << 63, key, addr, any]);
        bytes.extend(word.to_be_bytes());
    }
    let more = numbers.pick(&[0, 0, 1, 7, 8, 64, 8192]) as usize;
    bytes.extend((0..more).map(|_| numbers.next() as u8));
    if kind == 9 && numbers.below(2) == 0 {
        // A pack of one record, with another length now and then.
        let inner = bytes.split_off(8);
        let len = inner.len() as u64 + 8 + numbers.pick(&[0, 0, 0, 1, 65535]);
        bytes.extend((len as u16).to_be_bytes());
        bytes.extend([numbers.below(10) as u8, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(inner);
    }
    bytes.truncate(if numbers.below(20) == 0 { numbers.below(16) as usize } else { SLOT });
    bytes
}

/// The attacker's device, with memory to send from and to receive into.
struct Attacker {
    attr: QueuePairAttr,
    srq: Arc<SharedReceiveQueue>,
    channel: Arc<EventChannel>,
    region: MemoryRegion,
    memory: *mut u8,
}

impl Attacker {
    fn new() -> Self {
        let context = ibv::contexts().unwrap()[0];
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = CompletionQueue::new(&CompletionChannel::new(context).unwrap(), 256).unwrap();
        let srq = SharedReceiveQueue::new(&pd, 128, 1).unwrap();
        // Never freed: the device may use it as long as the process lives.
        let memory = Box::leak(vec![0u8; 2 * SLOT].into_boxed_slice()).as_mut_ptr();
        // SAFETY: leaked memory, which only raw pointers lead to.
        let region = unsafe { MemoryRegion::new(&pd, memory, 2 * SLOT, Access::RemoteReadWrite) }.unwrap();
        let attr = QueuePairAttr {
            pd,
            cq,
            receives: Receives::Shared(Arc::clone(&srq)),
            size: 64,
            pieces: 1,
            receive_pieces: 1,
            inline: 0,
        };
        let made = Self { attr, srq, channel: EventChannel::new().unwrap(), region, memory };
        (0..128).for_each(|_| made.receive());
        made
    }

    /// All receives share one buffer, because their contents are not read.
    fn receive(&self) {
        let to = Segment { addr: self.memory.wrapping_add(SLOT), len: SLOT as u32, lkey: self.region.lkey() };
        // SAFETY: leaked memory.
        let _ = unsafe { self.srq.post(1, &[to]) };
    }

    /// Reads completions. Returns whether one was of a send.
    fn poll(&self) -> bool {
        let mut sent = false;
        let mut received = 0;
        let _ = self.attr.cq.poll(|entry| match entry.id {
            1 => received += 1,
            _ => sent = true,
        });
        (0..received).for_each(|_| self.receive());
        sent
    }

    /// Connects with this greeting, unless it is refused.
    fn connect(&self, side: &TestEndpoint, greeting: &[u8]) -> Option<CmId> {
        let to = side.name().to_socket_addr().unwrap();
        let mut id = CmId::new(&self.channel).unwrap();
        let limit = Duration::from_secs(5);
        id.resolve_address(None, to, limit).unwrap();
        let event =
            || wait::drive(&[side], "an event", || self.channel.next().unwrap().map(|event| event.kind));
        assert_eq!(event(), CmEventKind::AddressResolved);
        id.resolve_route(limit).unwrap();
        assert_eq!(event(), CmEventKind::RouteResolved);
        id.create_qp(&self.attr).unwrap();
        id.connect(ConnParam { private_data: greeting, reads: 1, retries: 7, rnr_retries: 7 }).unwrap();
        (event() == CmEventKind::Established).then_some(id)
    }

    /// Whether the connection still exists after the completion of a request.
    fn goes_on(&self, side: &TestEndpoint) -> bool {
        // The event of a disconnect comes long before the device gives up retrying.
        wait::drive(&[side], "the end of a send", || {
            let is_over = self.channel.next().unwrap().is_some();
            if is_over { Some(false) } else { self.poll().then_some(true) }
        })
    }

    /// Connects, and sends records until one breaks the connection, `count` at most.
    fn attack(
        &self,
        side: &TestEndpoint,
        numbers: &mut Numbers,
        greeting: &[u8],
        count: usize,
        (key, addr): (u64, u64),
    ) {
        let Some(id) = self.connect(side, greeting) else { return };
        for _ in 0..count {
            let bytes = record(numbers, key, addr);
            // SAFETY: leaked memory, from which nothing is being sent now; a record is no longer than a slot.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory, bytes.len()) };
            let from = Segment { addr: self.memory, len: bytes.len() as u32, lkey: self.region.lkey() };
            // SAFETY: leaked memory.
            if unsafe { id.qp().unwrap().send(2, &[from], Post::default()) }.is_err() {
                break;
            }
            if !self.goes_on(side) {
                break;
            }
        }
        self.leave(side, id);
    }

    /// Outstanding completions and events are read before the next attempt.
    fn leave(&self, side: &TestEndpoint, id: CmId) {
        drop(id);
        for _ in 0..20 {
            side.poll();
            self.poll();
        }
        while let Ok(Some(_)) = self.channel.next() {}
    }
}

/// A valid greeting.
fn polite(address: SocketAddr, incarnation: u64) -> Vec<u8> {
    let mut numbers = Numbers(7);
    // Without the bit that `greeting` sometimes corrupts.
    loop {
        let hello = greeting(&mut numbers, address, incarnation);
        if hello == greeting(&mut numbers, address, incarnation) {
            return hello;
        }
    }
}

/// The friend's message, whose tag no attacker knows.
fn greet(pair: &Pair, len: usize) {
    const TAG: u64 = 0x5EED_5EED_5EED;
    let (from, into) = (Memory::patterned(len, 1), Memory::new(len));
    pair.b.receive(&into).context(7).tag(TAG).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(8).tag(TAG).send());
    pair.drive("the friend's message", || pair.b.next_of(7)).done();
    pair.drive("its end", || pair.a.next_of(8)).done();
    into.check(len, 1);
}

#[test]
fn a_peer_that_sends_anything_costs_nobody_else_anything() {
    let kit: &dyn ofi_testkit::Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let target = Memory::new(4096);
    let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let (attacker, mut numbers) = (Attacker::new(), Numbers(0x9E37_79B9_7F4A_7C15));
    let connections = pair.a.statistic("verbs_connections");
    let own = pair.b.name().to_socket_addr().unwrap().ip(); // all of them are on one host
    for round in 0..150 {
        let address = SocketAddr::new(own, 1 + (round % 7) as u16);
        let hello = greeting(&mut numbers, address, 1000 + round);
        let count = 1 + numbers.below(12) as usize;
        attacker.attack(&pair.b, &mut numbers, &hello, count, (region.key(), region.base()));
        if round % 10 == 0 {
            greet(&pair, 8);
        }
    }
    assert!(pair.b.statistic("verbs_malformed") > 20, "{}", pair.b.report());
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "the friend's connection went on");
    greet(&pair, 100_000);
}

#[test]
fn a_stranger_cannot_speak_for_a_peer_at_another_address() {
    let kit: &dyn ofi_testkit::Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let attacker = Attacker::new();
    let mut numbers = Numbers(7);
    let before = pair.b.statistic("verbs_malformed");
    let elsewhere = SocketAddr::new([10, 77, 0, 9].into(), 7);
    attacker.attack(&pair.b, &mut numbers, &polite(elsewhere, 9), 1, (0, 0));
    wait::drive(&[&pair.a, &pair.b], "the refusal", || {
        (pair.b.statistic("verbs_malformed") > before).then_some(())
    });
    greet(&pair, 100_000);
}

/// Immediate data consumes a receive without writing to it, and a record that is too long makes the queue pair fail.
/// Neither loses a receive of the endpoint, or affects another peer.
#[test]
fn requests_that_no_endpoint_posts_end_their_connection_alone() {
    let kit: &dyn ofi_testkit::Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let attacker = Attacker::new();
    let own = pair.b.name().to_socket_addr().unwrap().ip();
    let connections = pair.a.statistic("verbs_connections");
    let nowhere = Remote { addr: 0, rkey: 0 };
    let works = [(Work::Write(nowhere, Some(5)), 0), (Work::Send(Some(5)), 8), (Work::Send(None), SLOT + 1)];
    for round in 0..9 {
        let (work, len) = works[round % works.len()];
        let malformed = pair.b.statistic("verbs_malformed");
        let hello = polite(SocketAddr::new(own, 9), 2000 + round as u64);
        let id = attacker.connect(&pair.b, &hello).expect("a greeting that is right");
        // SAFETY: leaked memory, from which nothing is being sent now.
        unsafe { attacker.memory.cast::<[u8; 8]>().write([1, 0, 0, 0, 0, 0, 0, 0]) };
        let from = Segment { addr: attacker.memory, len: len as u32, lkey: attacker.region.lkey() };
        let pieces = if len == 0 { &[][..] } else { &[from] };
        // SAFETY: leaked memory.
        unsafe { id.qp().unwrap().work(2, pieces, work, Post::default()) }.unwrap();
        attacker.goes_on(&pair.b);
        if len <= SLOT {
            wait::drive(&[&pair.a, &pair.b], "the end of the connection", || {
                (pair.b.statistic("verbs_malformed") > malformed).then_some(())
            });
        }
        attacker.leave(&pair.b, id);
        greet(&pair, 8);
    }
    greet(&pair, 100_000);
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "the friend's connection went on");
}
