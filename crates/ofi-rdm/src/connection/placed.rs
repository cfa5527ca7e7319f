//! Packets whose payload is already in place, with other frames after the payload.

use super::{Config, Connection};
use crate::driver::{Driver, Lost};
use crate::stream::{Flow, ReceiveStream};
use crate::time::Instant;
use crate::wire::{Frame, Header, Stream, header};

impl Connection {
    /// Takes a packet that was predicted, and whose payload must not be read. Returns whether it did. If not, nothing
    /// has changed, and [`Connection::on_data`] can handle the packet together with its payload.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn on_placed<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        packet: &[u8],
        driver: &mut D,
    ) -> Result<bool, Lost> {
        if self.trailer() > 0 || self.is_checked(config) {
            return Ok(false);
        }
        self.thaw();
        let local = self.local;
        let Some(session) = self.session.as_deref_mut() else { return Ok(false) };
        let next = session.received.last().map_or(0, |run| run.end);
        let Some((flags, number)) = Header::of_data(packet, local).filter(|&(_, found)| found == next) else {
            return Ok(false);
        };
        let Ok(Some((Frame::Data { stream, offset, bytes }, tail))) = Frame::parse(&packet[header::LEN..])
        else {
            return Ok(false);
        };
        let Some(record) = session.receive[stream as usize].whole(0, offset, bytes) else { return Ok(false) };
        if !goes_behind(tail, stream, &session.receive) {
            return Ok(false);
        }
        match driver.records(peer, &mut self.sender, stream, &[record]) {
            (_, Flow::Next) => {}
            (_, Flow::Stop) => return Ok(false),
            (_, Flow::Broken) => return Err(Lost::Broken),
        }
        session.receive[stream as usize].took(bytes.len() as u64);
        self.hear(now);
        self.stats.packets[1] += 1;
        // The frames were parsed before, and can no longer be refused.
        if self.take_frames(now, peer, tail, driver)?.is_ok() {
            self.accept(now, config, (number, flags), true);
        }
        Ok(true)
    }
}

/// Whether all of `frames` can be taken after a part of `stream`: they are well formed, leave the session open, and
/// have no bytes of that stream, nor bytes of the other one that arrive out of order.
fn goes_behind(mut frames: &[u8], stream: Stream, receive: &[ReceiveStream; 2]) -> bool {
    loop {
        match Frame::parse(frames) {
            Ok(None) => return true,
            Ok(Some((frame, rest))) => {
                let fits = match frame {
                    Frame::Data { stream: other, offset, .. } => {
                        other != stream && receive[other as usize].continues_at(offset)
                    }
                    Frame::Close { .. } => false,
                    _ => true,
                };
                if !fits {
                    return false;
                }
                frames = rest;
            }
            Err(_) => return false,
        }
    }
}
