//! Moves a byte by each capability that an endpoint was granted. Its peer has all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ofi_testkit::prelude::*;

use super::ends::{End, Path, Two};

/// Moves, each of one capability.
pub static MOVED: AtomicUsize = AtomicUsize::new(0);

pub fn count() {
    MOVED.fetch_add(1, Ordering::Relaxed);
}

/// Whether `caps` have `kind` in one of its directions. Without any direction all are implied.
pub fn has(caps: Caps, kind: Caps, direction: Caps) -> bool {
    let all =
        if kind.intersects(Caps::RMA | Caps::ATOMIC) { Caps::RMA_DIRECTIONS } else { Caps::MSG_DIRECTIONS };
    caps.contains(kind) && (!caps.intersects(all) || caps.contains(direction))
}

/// Whether an end takes messages of this kind. A shared context has what the attributes of receives say, which may be
/// less than the endpoint has.
pub fn takes(end: &End, kind: Caps) -> bool {
    let shared = || has(end.info.rx_attr.caps, kind, Caps::RECV);
    has(end.info.caps, kind, Caps::RECV) && (end.receives.is_none() || shared())
}

/// The first end of `two` has the info under test.
pub fn all(two: &Two) {
    let caps = two.a.info.caps;
    for (kind, tag) in [(Caps::MSG, None), (Caps::TAGGED, Some(5))] {
        if has(caps, kind, Caps::SEND) {
            sends(two, tag);
        }
        if takes(&two.a, kind) {
            message(two.inward(), length(two.inward()), tag, How::Plain);
        }
    }
    for (direction, access) in [
        (Caps::WRITE, (|two| write(two.outward())) as fn(&Two)),
        (Caps::READ, |two| read(two.outward())),
        (Caps::REMOTE_WRITE, |two| write(two.inward())),
        (Caps::REMOTE_READ, |two| read(two.inward())),
    ] {
        if has(caps, Caps::RMA, direction) {
            access(two);
        }
    }
    if has(caps, Caps::ATOMIC, Caps::WRITE) {
        add(two.outward());
    }
    if has(caps, Caps::ATOMIC, Caps::REMOTE_WRITE) {
        add(two.inward());
    }
    if has(caps, Caps::ATOMIC, Caps::READ) {
        fetch(two.outward());
    }
    for (several, kind, tag) in
        [(Caps::MULTI_RECV, Caps::MSG, None), (Caps::TAGGED_MULTI_RECV, Caps::TAGGED, Some(5))]
    {
        if caps.contains(several) && takes(&two.a, kind | several) {
            packs(two, tag);
        }
    }
}

/// How a message is sent.
#[derive(Clone, Copy, PartialEq)]
pub enum How {
    Plain,
    /// As with `fi_inject`.
    Injected,
    /// Behind a fence.
    Fenced,
}

/// A message length that both ends support, and that may be injected if the endpoint injects by default.
pub fn length(path: Path<'_>) -> usize {
    let limits = [path.from, path.at].map(|end| end.info.ep_attr.max_msg_size);
    let tx = &path.from.info.tx_attr;
    let injected = if tx.op_flags.contains(OpFlags::INJECT) { tx.inject_size } else { usize::MAX };
    100.min(limits[0]).min(limits[1]).min(injected)
}

pub fn message(path: Path<'_>, len: usize, tag: Option<u64>, how: How) {
    count();
    let Path { from, to, at, source } = path;
    let (before, behind) = (from.prefix(), at.prefix());
    let (sent, got) = (Memory::patterned(before + len, 9), Memory::new(behind + len.max(1)));
    sent.slice(before..).fill(3);
    let caps = at.info.caps;
    let directed =
        caps.contains(if tag.is_some() { Caps::TAGGED_DIRECTED_RECV } else { Caps::DIRECTED_RECV });
    let receive = at.receiver().receive(&got).context(1).from(if directed { source } else { FiAddr::UNSPEC });
    let receive = if let Some(tag) = tag { receive.tag(tag) } else { receive };
    at.post(from, "posting a receive", || receive.post());
    let counted = from.counters.first().map(|counter| counter.read());
    let out = from.out(to, &sent).context(2);
    let out = if let Some(tag) = tag { out.tag(tag) } else { out };
    let out = match how {
        How::Plain => out,
        How::Injected => out.inject(),
        How::Fenced => out.msg(OpFlags::FENCE | OpFlags::COMPLETION),
    };
    from.post(at, "posting a send", || out.send());
    let event = at.ended(from, 1, "a message");
    let Event::Done(entry, found) = event else { panic!("a failure: {event:?}") };
    assert_eq!(entry.len, behind + len);
    got.slice(behind..behind + len).check(3);
    if caps.contains(Caps::SOURCE) {
        assert_eq!(found, source, "FI_SOURCE");
    }
    if how != How::Injected {
        from.ended(at, 2, "a send").done();
    }
    if let Some(counted) = counted {
        let counter = &from.counters[0];
        let sides = [&from.side, &at.side];
        wait::drive(&sides, "the counter of sends", || (counter.read() > counted).then_some(()));
    }
}

fn sends(two: &Two, tag: Option<u64>) {
    let path = two.outward();
    message(path, length(path), tag, How::Plain);
    message(path, length(path).min(two.a.info.tx_attr.inject_size), tag, How::Injected);
    if two.a.info.caps.contains(Caps::FENCE) {
        message(path, length(path), tag, How::Fenced);
    }
}

pub const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// A counter of peers' accesses to a registration (`FI_RMA_EVENT`). Enables the registration after binding if required.
fn counter_of(path: Path<'_>, region: &Arc<dyn MemoryRegion>, what: BindFlags) -> Option<Arc<dyn Counter>> {
    let at = path.at;
    let counts = at.info.caps.contains(Caps::RMA_EVENT);
    let counter = counts.then(|| {
        let counter = at.domain.open_counter(&CntrAttr::default()).expect("a counter");
        region.bind_counter(&counter, what).expect("FI_RMA_EVENT: a counter of a region");
        counter
    });
    if counts && at.info.domain_attr.mr_mode.contains(MrMode::RMA_EVENT) {
        region.enable().expect("enabling a registration");
    }
    counter
}

fn write(path: Path<'_>) {
    count();
    let len = length(path);
    let (sent, there) = (Memory::patterned(len, 3), Memory::new(len.max(1)));
    let region = path.at.register(&there, RIGHTS);
    let counter = counter_of(path, &region, BindFlags::REMOTE_WRITE);
    let out = path.from.out(path.to, &sent).context(3);
    path.from.post(path.at, "a write", || out.write(&[remote_at(&region, 0, len)]));
    path.from.ended(path.at, 3, "a write").done();
    let wanted = sent.bytes();
    let sides = [&path.from.side, &path.at.side];
    wait::drive(&sides, "its bytes", || (there.slice(0..len).bytes() == wanted).then_some(()));
    if let Some(counter) = counter {
        wait::drive(&sides, "FI_RMA_EVENT: the region's counter", || (counter.read() == 1).then_some(()));
    }
}

fn read(path: Path<'_>) {
    count();
    let len = length(path).max(1);
    let (got, there) = (Memory::new(len), Memory::patterned(len, 3));
    let region = path.at.register(&there, RIGHTS);
    let counter = counter_of(path, &region, BindFlags::REMOTE_READ);
    let out = path.from.out(path.to, &got).context(4);
    path.from.post(path.at, "a read", || out.read(&[remote(&region)]));
    path.from.ended(path.at, 4, "a read").done();
    got.check(len, 3);
    if let Some(counter) = counter {
        let sides = [&path.from.side, &path.at.side];
        wait::drive(&sides, "FI_RMA_EVENT: reads of a region", || (counter.read() == 1).then_some(()));
    }
}

/// One atomic addition to a word of the peer. Devices have only fetching additions.
fn add(path: Path<'_>) {
    let tx = &path.from.info.tx_attr;
    if tx.op_flags.contains(OpFlags::INJECT) && tx.inject_size < 8 {
        return; // it injects by default, and less than a word
    }
    if path.from.ep.atomic_valid(AtomicKind::Base, FiOp::Sum, Datatype::Uint64).is_err() {
        return;
    }
    count();
    let (one, there) = (Memory::new(8), Memory::new(8));
    one.slice(..).put(&1_u64.to_ne_bytes());
    let region = path.at.register(&there, RIGHTS);
    counter_of(path, &region, BindFlags::REMOTE_WRITE);
    let out = path.from.out(path.to, &one).context(5);
    path.from.post(path.at, "an addition", || out.atomic(FiOp::Sum, Datatype::Uint64, &[remote(&region)]));
    path.from.ended(path.at, 5, "an addition").done();
    let sides = [&path.from.side, &path.at.side];
    wait::drive(&sides, "its sum", || (there.bytes() == 1_u64.to_ne_bytes()).then_some(()));
}

/// One fetching atomic addition, which every endpoint with `FI_ATOMIC` has.
fn fetch(path: Path<'_>) {
    let caps = path.from.info.caps;
    if !has(caps, Caps::ATOMIC, Caps::WRITE) {
        return; // it changes the memory too
    }
    path.from
        .ep
        .atomic_valid(AtomicKind::Fetch, FiOp::Sum, Datatype::Uint64)
        .expect("FI_ATOMIC: an addition");
    count();
    let (one, old, there) = (Memory::new(8), Memory::new(8), Memory::new(8));
    one.slice(..).put(&1_u64.to_ne_bytes());
    there.slice(..).put(&6_u64.to_ne_bytes());
    let region = path.at.register(&there, RIGHTS);
    counter_of(path, &region, BindFlags::REMOTE_WRITE);
    let out = path.from.out(path.to, &one).context(6).msg(OpFlags::COMPLETION);
    let target = [remote(&region)];
    path.from.post(path.at, "a fetch", || out.fetch(FiOp::Sum, Datatype::Uint64, &old, &target));
    path.from.ended(path.at, 6, "a fetch").done();
    assert_eq!((old.bytes(), there.bytes()), (6_u64.to_ne_bytes().into(), 7_u64.to_ne_bytes().into()));
}

/// One buffer for two messages (`FI_MULTI_RECV`).
fn packs(two: &Two, tag: Option<u64>) {
    let Path { from, to, at, .. } = two.inward();
    if at.prefix() > 0 {
        return; // a buffer of several messages has one prefix for each
    }
    count();
    let receiver = at.receiver();
    receiver.ep.set_option(EpOption::MinMultiRecv, 16).expect("FI_OPT_MIN_MULTI_RECV");
    let buffer = Memory::new(from.info.ep_attr.max_msg_size.min(4096) + 64);
    let receive = receiver.receive(&buffer).context(7).msg(OpFlags::MULTI_RECV);
    let receive = if let Some(tag) = tag { receive.tag(tag) } else { receive };
    at.post(from, "posting a buffer for several messages", || receive.post());
    for _ in 0..2 {
        let sent = Memory::patterned(10, 1);
        let out = from.out(to, &sent).context(2);
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        from.post(at, "posting a send", || out.send());
        let entry = at.ended(from, 7, "a part of the buffer").done();
        assert_eq!(entry.len, 10);
        from.ended(at, 2, "the send").done();
    }
    // The buffer has room left, and may be the only receive that the endpoint supports.
    receiver.cancel(7).expect("cancelling the buffer");
    let error = at.ended(from, 7, "the end of the buffer").failed();
    assert_eq!(error.err, Errno::ECANCELED);
}
