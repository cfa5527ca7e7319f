//! Payloads that come in messages: they are checked, and copied into the part of the ring that is open for them.

use mxl::Geometry;

use super::publish::Pending;
use super::{Ring, Target};
use crate::Result;
use crate::link::Receive;
use crate::message::Piece;
use crate::shape::{self, Rings};

impl Target {
    /// Handles a message with a payload.
    pub(super) fn piece(&mut self, receive: Receive) -> Result<()> {
        let taken = self.copy_piece(&receive);
        self.link.release(receive);
        if taken.is_none() {
            self.stats.nonsense += 1;
            return Ok(());
        }
        self.publish()
    }

    /// Copies a payload to its place. `None` if it is not from the initiator, or its place is not open.
    fn copy_piece(&mut self, receive: &Receive) -> Option<()> {
        let (piece, payload) = Piece::parse(self.link.bytes(receive))?;
        let peer = self.peer.as_mut().filter(|peer| peer.by_messages && peer.token == piece.token)?;
        let Piece { index, amount, .. } = piece;
        let is_allowed = match &self.ring {
            Ring::Grains(_) => {
                let Geometry::Grains { slices, .. } = self.geometry else { return None };
                let end = u16::try_from(amount).ok().filter(|end| (1..=slices).contains(end))?;
                let open = shape::slices(&self.geometry, 0, end);
                let is_inside = |span: &shape::Span| {
                    open.iter().any(|open| span.to >= open.to && span.to + span.len <= open.to + open.len)
                };
                peer.granted.contains(&index) && piece.spans.iter().all(is_inside)
            }
            Ring::Samples(writer) => {
                let (word, stride) = writer.strides();
                let rings = Rings { length: (stride / word) as u64, word: word as u64 };
                let count = u64::from(amount);
                let is_inside = |span: &shape::Span| {
                    shape::is_in_window(writer.channels(), index, count, rings, span.to, span.len)
                };
                // Published samples must not change.
                let start = index.checked_sub(count)?;
                let is_open = self.expected.is_some_and(|expected| start >= expected) && index <= peer.until;
                is_open && count <= writer.max_write() && piece.spans.iter().all(is_inside)
            }
        };
        if !is_allowed {
            return None;
        }
        let pending = peer.admit(piece.number, Pending::new(index, amount.into(), piece.parts))?;
        let mut rest = payload;
        for span in &piece.spans {
            // `Piece::parse` has checked that the payload is as long as the spans.
            let (bytes, after) = rest.split_at_checked(span.len as usize)?;
            rest = after;
            match &self.ring {
                Ring::Grains(writer) => writer.write_slot(index, span.to as usize, bytes),
                Ring::Samples(writer) => writer.write_rings(span.to as usize, bytes),
            }
            .ok()?;
        }
        pending.arrived += 1;
        Some(())
    }
}
