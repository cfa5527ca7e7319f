//! Bulk connections: further connections to one peer of this library, over which long payloads are striped.
//!
//! The connection of all packets stays the one of their order. A packet with a striped payload is preceded by
//! [`Packet::Striped`] there, and followed by the first stripe. The other stripes come on bulk connections, each behind
//! its own header ([`Packet::Stripe`]). The receiver processes nothing that follows the packet until all stripes are
//! there, and nothing on a bulk connection before the packet: so orders, counters, completions and errors are as on one
//! connection. Each end opens the bulk connections on which it sends.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::RemotePiece;
use ofi_core::slots::SlotId;

use crate::wire::Packet;

/// The maximum number of bulk connections that a peer may open.
pub const MAX_INCOMING: usize = 7;
/// The shortest payload that this end stripes, in bytes.
pub const MIN_STRIPED: usize = 256 << 10;
/// The fewest bytes for each stripe of a peer's payload: then none is empty.
const MIN_STRIPE: usize = 32 << 10;
/// Stripes begin at multiples of this.
const ALIGNMENT: usize = 4 << 10;
/// Striped answers to one peer that may wait at once. Further ones go on the main connection alone, where their number
/// is bounded.
const MAX_ANSWERS: usize = 1024;
/// The time after which bulk connections that are not used are closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two looks whether the stripes before a lost one have left.
pub const STOP_PAUSE: Duration = Duration::from_millis(100);
/// The time after a failed attempt within which there is no other one.
pub const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// For everything, and there are no bulk connections beside it.
    #[default]
    Alone,
    /// For all packets, beside bulk connections.
    Main,
    /// For stripes of this end.
    BulkOut,
    /// For stripes of the peer.
    BulkIn,
}

impl Role {
    /// Whether it carries stripes alone.
    pub fn is_bulk(self) -> bool {
        matches!(self, Self::BulkOut | Self::BulkIn)
    }
}

/// The bytes of stripe `index` of a payload of `len` bytes that has `count` of them.
pub fn stripe(len: usize, count: u8, index: u8) -> Range<usize> {
    let share = len.div_ceil(usize::from(count).max(1)).next_multiple_of(ALIGNMENT);
    let start = share.saturating_mul(usize::from(index)).min(len);
    start..start.saturating_add(share).min(len)
}

/// The stripes of a payload that is arriving.
#[derive(Clone, Copy, Debug)]
pub struct Stripes {
    /// The number of the payload, among the striped ones of the connection.
    number: u64,
    count: u8,
    /// A bit for each stripe that has begun to arrive.
    begun: u8,
    /// A bit for each that is not here.
    missing: u8,
    /// They are taken one after another, because the payload began to arrive without a receive.
    in_turn: bool,
}

impl Stripes {
    /// The stripes of payload `number`, the first of which follows its header. `None`: it cannot have so many.
    pub fn new(number: u64, count: u8, len: usize, in_turn: bool) -> Option<Self> {
        let may_have = 2..=MAX_INCOMING as u8 + 1;
        let is_long = len / usize::from(count).max(1) >= MIN_STRIPE;
        let all = u8::MAX >> (u8::BITS - u32::from(count.clamp(1, 8)));
        let fits = may_have.contains(&count) && is_long;
        fits.then_some(Self { number, count, begun: 1, missing: all & !1, in_turn })
    }

    /// How many of them are not here, the first aside. Each needs a connection of its own.
    pub fn missing(&self) -> usize {
        self.missing.count_ones() as usize
    }

    /// Whether all but the first are here.
    pub fn are_here(&self) -> bool {
        self.missing == 0
    }

    /// Whether they are taken one after another.
    pub fn are_in_turn(&self) -> bool {
        self.in_turn
    }

    /// Begins a stripe of a payload of `len` bytes, of which `is_first_here` tells whether the first stripe is. Returns
    /// its bytes, or `None` if it has to wait.
    ///
    /// # Errors
    /// It is no stripe of this payload, or has come before.
    pub fn begin(
        &mut self,
        (number, index, stripe_len): (u64, u8, u64),
        len: usize,
        is_first_here: bool,
    ) -> Result<Option<Range<usize>>, ()> {
        let bit = 1_u8.checked_shl(index.into()).unwrap_or(0);
        let range = stripe(len, self.count, index);
        let is_right = number == self.number
            && index < self.count
            && self.begun & bit == 0
            && range.len() as u64 == stripe_len;
        if !is_right {
            return Err(());
        }
        let waits = self.in_turn && (!is_first_here || self.missing & (bit - 1) != 0);
        if waits {
            return Ok(None);
        }
        self.begun |= bit;
        Ok(Some(range))
    }

    /// A stripe has arrived.
    pub fn end(&mut self, index: u8) {
        self.missing &= !1_u8.checked_shl(index.into()).unwrap_or(0);
    }
}

/// What a stripe of this end consists of.
pub enum Source {
    /// The payload of an operation.
    Lent(SlotId),
    /// Registered memory that the peer reads.
    Read(Vec<RemotePiece>, Arc<StripedAnswer>),
}

/// The answer to one read, which all of its stripes hold until the kernel has them.
pub struct StripedAnswer {
    /// It counts among those of its peer.
    _of_peer: Arc<()>,
}

/// A stripe on its way to the queue of a bulk connection.
pub struct OutStripe {
    pub to: SlotId,
    pub packet: Packet,
    pub source: Source,
    pub range: Range<usize>,
}

/// The bulk connections of a peer.
pub struct Bulk {
    /// How many this end opens.
    pub limit: usize,
    /// Those that this end has opened, or opens.
    pub out: Vec<SlotId>,
    /// Those of them that are established, and may be used.
    pub ready: Vec<SlotId>,
    /// Those that the peer has opened.
    pub incoming: Vec<SlotId>,
    /// One of those has failed, perhaps with a stripe of a payload that is still to come.
    pub lost: bool,
    /// Payloads that this end has striped.
    striped: u64,
    /// Stripes that are not in a queue yet.
    pub waiting: Vec<OutStripe>,
    /// There was a long payload for which more of them are wanted.
    pub wants_more: bool,
    /// When they were used last.
    pub used: Instant,
    /// No attempt before then.
    pub not_before: Instant,
    /// Each striped answer under way holds a clone: they are the strong count less one.
    answers: Arc<()>,
}

impl Bulk {
    /// None yet. This end opens up to `limit`.
    pub fn new(limit: usize) -> Self {
        let now = Instant::now();
        Self {
            limit,
            out: Vec::new(),
            ready: Vec::new(),
            incoming: Vec::new(),
            lost: false,
            striped: 0,
            waiting: Vec::new(),
            wants_more: false,
            used: now,
            not_before: now,
            answers: Arc::new(()),
        }
    }

    /// All bulk connections.
    pub fn all(&self) -> impl Iterator<Item = SlotId> {
        self.out.iter().chain(&self.incoming).copied()
    }

    /// One of them has ended.
    pub fn forget(&mut self, id: SlotId) {
        for list in [&mut self.out, &mut self.ready, &mut self.incoming] {
            list.retain(|&other| other != id);
        }
    }

    /// Begins a payload of `len` bytes, if it is long and there are connections for it. Returns the number of its
    /// stripes: 1 if it is not striped.
    pub fn begin(&mut self, len: usize) -> u8 {
        if len < MIN_STRIPED {
            return 1;
        }
        self.wants_more = self.out.len() < self.limit;
        let count = self.ready.len().min(MAX_INCOMING) as u8 + 1;
        if count == 1 || Arc::strong_count(&self.answers) > MAX_ANSWERS {
            return 1;
        }
        self.striped += 1;
        count
    }

    /// Adds the stripes of that payload for bulk connections.
    pub fn lend(&mut self, op: SlotId, len: usize, count: u8) {
        self.lay(len, count, || Source::Lent(op));
    }

    /// Adds the stripes of that answer for bulk connections. Returns what the first stripe holds.
    pub fn answer(&mut self, remote: &[RemotePiece], len: usize, count: u8) -> Arc<StripedAnswer> {
        let answer = Arc::new(StripedAnswer { _of_peer: Arc::clone(&self.answers) });
        self.lay(len, count, || Source::Read(remote.to_vec(), Arc::clone(&answer)));
        answer
    }

    fn lay(&mut self, len: usize, count: u8, mut source: impl FnMut() -> Source) {
        for (index, &to) in (1..count).zip(&self.ready) {
            let range = stripe(len, count, index);
            let packet = Packet::Stripe { number: self.striped - 1, index, len: range.len() as u64 };
            self.waiting.push(OutStripe { to, packet, source: source(), range });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// No stripe is empty, and together they are the payload.
        #[test]
        fn stripes_are_the_payload(count in 2u8..=8, len in 8 * MIN_STRIPE..64 << 20) {
            let mut end = 0;
            for index in 0..count {
                let range = stripe(len, count, index);
                prop_assert_eq!(range.start, end);
                prop_assert!(!range.is_empty());
                end = range.end;
            }
            prop_assert_eq!(end, len);
            prop_assert!(Stripes::new(0, count, len, false).is_some());
        }

        /// Whatever a peer says, nothing is taken twice or beside the payload.
        #[test]
        fn each_stripe_is_taken_once(
            count: u8,
            len in 0usize..4 << 20,
            said in prop::collection::vec((0u64..3, any::<u8>(), 0u64..4 << 20, any::<bool>()), 0..40),
            in_turn: bool,
        ) {
            let Some(mut stripes) = Stripes::new(1, count, len, in_turn) else { return Ok(()) };
            let mut taken = vec![stripe(len, count, 0)];
            for (number, index, size, right) in said {
                let size = if right { stripe(len, count, index).len() as u64 } else { size };
                let number = if right { 1 } else { number };
                if let Ok(Some(range)) = stripes.begin((number, index, size), len, true) {
                    prop_assert!(range.end <= len);
                    prop_assert!(taken.iter().all(|other| range.start >= other.end || range.end <= other.start));
                    taken.push(range);
                    stripes.end(index);
                }
            }
            let all: usize = taken.iter().map(|range| range.len()).sum();
            prop_assert_eq!(stripes.are_here(), all == len);
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        for (count, len, may) in [
            (0, 1 << 20, false),
            (1, 1 << 20, false),
            (2, 64 << 10, true),
            (2, (64 << 10) - 1, false),
            (8, 256 << 10, true),
            (9, 1 << 30, false),
            (255, usize::MAX, false),
        ] {
            assert_eq!(Stripes::new(0, count, len, false).is_some(), may, "{count} of {len}");
        }
    }

    #[test]
    fn stripes_of_a_kept_message_come_in_turn() {
        let len = 1 << 20;
        let mut stripes = Stripes::new(0, 3, len, true).unwrap();
        let size = |index| stripe(len, 3, index).len() as u64;
        assert_eq!(stripes.begin((0, 1, size(1)), len, false), Ok(None), "the first is not here");
        assert_eq!(stripes.begin((0, 2, size(2)), len, true), Ok(None), "the second is not here");
        assert!(matches!(stripes.begin((0, 1, size(1)), len, true), Ok(Some(_))));
        assert_eq!(stripes.begin((0, 2, size(2)), len, true), Ok(None));
        stripes.end(1);
        assert!(matches!(stripes.begin((0, 2, size(2)), len, true), Ok(Some(_))));
        assert!(!stripes.are_here());
        stripes.end(2);
        assert!(stripes.are_here());
    }
}
