//! Receive and transmit contexts: scalable endpoints, and addresses that name one of their contexts (fi_endpoint(3),
//! "Scalable endpoints"; fi_av(3), "fi_rx_addr").

use std::time::Duration;

use ofi::raw::{AvAttr, Errno};

use crate::Kit;
use crate::memory::Memory;
use crate::pair::Pair;

/// Bits of an address that name a receive context.
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
    // What comes after them arrives.
    pair.post(|| pair.a.out(pair.to_b, ()).context(3).send());
    assert_eq!(pair.drive("a message", || pair.b.next_of(1)).done().len, 0);
}

pub fn a_vector_has_room_for_peers_beside_the_bits_of_contexts(kit: &dyn Kit) {
    let side = kit.side();
    let attr = |rx_ctx_bits| AvAttr { rx_ctx_bits, ..AvAttr::default() };
    assert_eq!(side.domain.open_av(&attr(33)).err().map(|error| error.errno()), Some(Errno::EINVAL));
    assert!(side.domain.open_av(&attr(32)).is_ok());
    // An index that no endpoint can have is refused where it is used.
    let pair = Pair::of(kit.opening().rx_ctx_bits(32).open(), kit.opening().rx_ctx_bits(32).open());
    let refused = pair.a.out(pair.to_b.with_rx_index(65_535, 32), ()).send();
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
}
