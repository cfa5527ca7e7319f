//! Predicts the next packets: they continue payloads that were requested or have begun to arrive. With a prediction, a
//! driver can let the kernel put the bytes at their destination.

use core::net::SocketAddr;

use super::{Config, Connection};
use crate::driver::{HEADS, Heads};
use crate::stream::{Part, Train};
use crate::wire::{Header, Kind, Stream};

/// Rows that are predicted together.
const ROWS: usize = 4;

/// The prediction of a peer's next packets, as rows. Each packet begins with one part, and has no other bytes of its
/// stream.
#[derive(Debug)]
pub struct RxPrediction {
    rows: [Option<Heads>; ROWS],
    counts: [usize; ROWS],
    /// The source address.
    pub from: SocketAddr,
}

impl RxPrediction {
    /// Bytes of each packet before its part.
    pub const HEAD: usize = HEADS;
    /// The maximum number of rows of a prediction.
    pub const ROWS: usize = ROWS;

    /// The number of packets in row `row` that the peer may send.
    pub fn count(&self, row: usize) -> usize {
        self.counts.get(row).copied().unwrap_or(0)
    }

    /// Checks whether a packet with this beginning is the next one of row `row`. If so, advances the prediction to the
    /// packet after it.
    pub fn meets(&mut self, row: usize, packet: &[u8]) -> bool {
        self.rows.get_mut(row).is_some_and(|row| row.as_mut().is_some_and(|heads| heads.meets(packet)))
    }
}

impl Connection {
    /// Predicts packets with these rows of parts, if they come next on `stream` and can be accepted in place. A row is
    /// given by its first part and the number of parts of that length.
    pub fn foresee(&self, config: &Config, stream: Stream, rows: &[(Part, usize)]) -> Option<RxPrediction> {
        if self.trailer() > 0 || self.is_checked(config) || !self.is_open() {
            return None;
        }
        let session = self.session.as_deref()?;
        let mut number = session.received.last().map_or(0, |run| run.end);
        let (mut start, limit) = session.receive[stream as usize].position()?;
        let mut foresight =
            RxPrediction { rows: [const { None }; ROWS], counts: [0; ROWS], from: self.address };
        let places = foresight.rows.iter_mut().zip(&mut foresight.counts);
        for ((part, wanted), (heads, count)) in rows.iter().zip(places) {
            let train = Train::expected(part, start);
            let most = limit.saturating_sub(start) / train.stride();
            *count = usize::try_from(most).map_or(*wanted, |most| most.min(*wanted));
            *heads = Some(Heads::new(&Header::new(Kind::Data, self.local, number), stream, &train));
            (number, start) = (number + *count as u64, start + *count as u64 * train.stride());
            if *count < *wanted {
                break;
            }
        }
        Some(foresight)
    }
}
