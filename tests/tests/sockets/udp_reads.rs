//! Remote reads over sockets, answered directly from the memory read. The data must not be newer than the
//! peer's next command, the update of a counter bound to the region, or the close of the registration,
//! however often packets are resent.

use ofi_testkit::prelude::*;
use ofi_tests::udp::{Relay, Weather, relayed};
use ofi_tests::{Naming, opening};

/// A tenth of the packets is lost, so whole batches are resent.
const WEATHER: Weather = Weather { loss: 100, duplicate: 20, reorder: 20, longest: 1_472, forge: 0 };
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
/// Below and above the limit on answers that are sent ahead.
const LENGTHS: [usize; 3] = [5_000, 1 << 20, 5 << 20];
const OLD: u8 = 3;
const NEW: u8 = 200;
const READ: usize = 1;
const OTHER: usize = 2;

/// Two endpoints that reach each other through a relay; the second owns the memory that is read.
fn apart() -> (Pair, Relay) {
    let own =
        || opening(Naming::Udp).hints(|hints| hints.caps(Caps::MSG | Caps::RMA | Caps::RMA_EVENT)).open();
    relayed([own(), own()], WEATHER)
}

/// Waits for the completion of the read, whatever else completes meanwhile.
fn end_of_read(pair: &Pair) -> Event {
    pair.drive("the end of the read", || pair.a.next_of(READ))
}

#[test]
fn a_write_behind_a_read_does_not_change_what_is_read() {
    let (pair, relay) = apart();
    for len in LENGTHS {
        let target = Memory::patterned(len, OLD);
        let (into, from) = (Memory::new(len), Memory::patterned(len, NEW));
        let region = pair.b.register(&target, RIGHTS).unwrap();
        let there = [remote(&region)];
        pair.post(|| pair.a.out(pair.to_b, &into).context(READ).read(&there));
        pair.post(|| pair.a.out(pair.to_b, &from).context(OTHER).write(&there));
        end_of_read(&pair).done();
        into.check(len, OLD);
        pair.drive("the end of the write", || pair.a.next_of(OTHER)).done();
        target.check(len, NEW);
    }
    assert!(relay.lost() > 0, "the relay lost no packets");
}

#[test]
fn the_owner_may_change_what_was_read_when_it_hears_a_later_message() {
    let (pair, relay) = apart();
    for len in LENGTHS {
        let target = Memory::patterned(len, OLD);
        let (into, word) = (Memory::new(len), Memory::patterned(8, 1));
        let region = pair.b.register(&target, RIGHTS).unwrap();
        pair.post(|| pair.b.receive(&word).context(OTHER).post());
        pair.post(|| pair.a.out(pair.to_b, &into).context(READ).read(&[remote(&region)]));
        pair.post(|| pair.a.out(pair.to_b, &word).context(OTHER).send());
        pair.drive("the message", || pair.b.next_of(OTHER)).done();
        target.fill(NEW);
        end_of_read(&pair).done();
        into.check(len, OLD);
        pair.drive("the end of the send", || pair.a.next_of(OTHER)).done();
    }
    assert!(relay.lost() > 0, "the relay lost no packets");
}

#[test]
fn the_owner_may_change_what_was_read_when_a_counter_tells_of_it() {
    let (pair, relay) = apart();
    for len in LENGTHS {
        let target = Memory::patterned(len, OLD);
        let into = Memory::new(len);
        let region = pair.b.register(&target, RIGHTS).unwrap();
        let counter = pair.b.domain.open_counter(&CntrAttr::default()).unwrap();
        region.bind_counter(&counter, BindFlags::REMOTE_READ).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &into).context(READ).read(&[remote(&region)]));
        pair.drive("the region's counter", || (counter.read() == 1).then_some(()));
        target.fill(NEW);
        end_of_read(&pair).done();
        into.check(len, OLD);
    }
    assert!(relay.lost() > 0, "the relay lost no packets");
}

#[test]
fn a_registration_closes_under_a_read_and_its_memory_is_looked_at_no_more() {
    let (pair, relay) = apart();
    let (mut read, mut refused) = (0, 0);
    for len in LENGTHS {
        for polls in [1, 3, 10, 30] {
            let target = Memory::patterned(len, OLD);
            let into = Memory::new(len);
            let region = pair.b.register(&target, RIGHTS).unwrap();
            pair.post(|| pair.a.out(pair.to_b, &into).context(READ).read(&[remote(&region)]));
            for _ in 0..polls {
                std::thread::sleep(Duration::from_millis(1));
                pair.poll();
            }
            let begin = Instant::now();
            region.close().expect("no other use");
            assert!(begin.elapsed() < Duration::from_millis(900), "closing waited for the read");
            target.fill(NEW);
            match end_of_read(&pair) {
                Event::Failed(error) => {
                    assert!(
                        [Errno::ENOKEY, Errno::EINVAL, Errno::EKEYREJECTED].contains(&error.err),
                        "{error:?}"
                    );
                    refused += 1;
                }
                event => {
                    event.done();
                    into.check(len, OLD);
                    read += 1;
                }
            }
        }
    }
    assert!(read > 0 && refused > 0, "{read} ended, and {refused} were refused");
    assert!(relay.lost() > 0, "the relay lost no packets");
}

#[test]
fn an_endpoint_closes_under_a_read_and_the_registration_after_it() {
    let len = LENGTHS[1];
    let (Pair { a, b, to_b, .. }, _relay) = apart();
    let target = Memory::patterned(len, OLD);
    let into = Memory::new(len);
    let region = b.register(&target, RIGHTS).unwrap();
    wait::drive(&[&a, &b], "room to post", || a.out(to_b, &into).context(READ).read(&[remote(&region)]).ok());
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(1));
        wait::drive(&[&a, &b], "a poll", || Some(()));
    }
    drop(b);
    region.close().expect("no use");
    target.fill(NEW);
    match wait::drive(&[&a], "the end of the read", || a.next_of(READ)) {
        Event::Failed(_) => {}
        event => {
            event.done();
            into.check(len, OLD);
        }
    }
}
