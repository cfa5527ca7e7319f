//! Predicts the headers of the next packets, which continue payloads that were requested or have begun to arrive. With
//! them, a driver can have the kernel receive payloads into their destination.

use core::net::SocketAddr;

use super::{Config, Connection};
use crate::driver::{HEADS, Heads};
use crate::stream::{Part, Train};
use crate::wire::{Header, Kind, Stream};

/// Maximum rows of a prediction. A row is a batch of packets of equal length.
const ROWS: usize = 4;

/// The prediction of a peer's next packets. Each packet begins with one part of a payload, and has no other bytes of
/// that part's stream.
#[derive(Debug)]
pub struct RxPrediction {
    rows: [Option<Heads>; ROWS],
    counts: [usize; ROWS],
    /// The source address.
    pub from: SocketAddr,
}

impl RxPrediction {
    /// Bytes of headers before the part in each packet.
    pub const HEAD: usize = HEADS;
    /// Maximum rows of a prediction.
    pub const ROWS: usize = ROWS;

    /// Predicted packets of row `row`, as far as the peer has credit for them.
    pub fn count(&self, row: usize) -> usize {
        self.counts.get(row).copied().unwrap_or(0)
    }

    /// Whether a packet that begins with these bytes is the next one of row `row`. If so, advances the row.
    pub fn meets(&mut self, row: usize, packet: &[u8]) -> bool {
        self.rows.get_mut(row).is_some_and(|row| row.as_mut().is_some_and(|heads| heads.meets(packet)))
    }
}

impl Connection {
    /// Predicts packets with these rows of parts, as the next ones on `stream`. A row is its first part and the number
    /// of parts of that length. `None` if packets are encrypted or carry checksums.
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
