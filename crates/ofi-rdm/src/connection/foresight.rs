//! Predicts the next packets: those that continue a payload of which a part has arrived. With a prediction, a driver
//! can have the kernel put the bytes at their destination.

use core::net::SocketAddr;

use super::{Config, Connection};
use crate::driver::{HEADS, Heads};
use crate::stream::{Part, Train};
use crate::wire::{Header, Kind, Stream};

/// See the module. Predicts a row of packets, each with one part and nothing else.
#[derive(Debug)]
pub struct Foresight {
    heads: Heads,
    /// The source address.
    pub from: SocketAddr,
    /// The most packets that the peer may send.
    pub most: usize,
}

impl Foresight {
    /// Bytes of each packet before its part.
    pub const HEAD: usize = HEADS;

    /// Whether a packet with this beginning is the predicted one. If so, the prediction moves on to the packet after
    /// it.
    pub fn meets(&mut self, packet: &[u8]) -> bool {
        self.heads.meets(packet)
    }
}

impl Connection {
    /// The packets that begin with `part`, if they come next on `stream` and can be accepted in place.
    pub fn foresee(&self, config: &Config, stream: Stream, part: &Part) -> Option<Foresight> {
        if self.trailer() > 0 || self.is_checked(config) || !self.is_open() {
            return None;
        }
        let session = self.session.as_deref()?;
        let number = session.received.last().map_or(0, |run| run.end);
        let (start, limit) = session.receive[stream as usize].position()?;
        let train = Train::expected(part, start);
        let most = (limit - start) / train.stride();
        let heads = Heads::new(&Header::new(Kind::Data, self.local, number), stream, &train);
        Some(Foresight { heads, from: self.address, most: usize::try_from(most).unwrap_or(usize::MAX) })
    }
}
