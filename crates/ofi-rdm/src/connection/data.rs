//! Data packets: their frames update acknowledgements, streams and credit, and their numbers are acknowledged later.

use super::{Config, Connection};
use crate::driver::{Driver, Lost, Sign};
use crate::stream::{Flow, ReceiveStream, Refused};
use crate::time::Instant;
use crate::wire::{Frame, Header, Record, Stream, header};

/// Runs of received packet numbers that are remembered.
const RECEIVED_RUNS: usize = 128;
/// The outcome of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Fresh,
    Duplicate,
    Malformed,
    /// There is no room for it among the bytes that arrived out of order.
    Crowded,
}

impl Connection {
    /// Processes the frames of a packet.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn on_data<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        head: &Header,
        body: &[u8],
        driver: &mut D,
    ) -> Result<Arrival, Lost> {
        self.thaw();
        let Some(session) = self.session.as_deref_mut() else { return Ok(Arrival::Malformed) };
        if head.number < session.floor || session.received.contains(head.number) {
            self.stats.duplicates += 1;
            // The sender may not know that the packet arrived: acknowledge it again, unless it carried only an
            // acknowledgement. Otherwise two ends would acknowledge each other for ever on a network that duplicates
            // every packet.
            session.ack_now |= asks_for_acknowledgement(body);
            return Ok(Arrival::Duplicate);
        }
        if head.number >= u64::MAX / 2 {
            return Ok(Arrival::Malformed);
        }
        self.hear(now);
        self.stats.packets[1] += 1;
        match self.take_frames(now, peer, body, driver)? {
            Ok(eliciting) => Ok(self.accept(now, config, (head.number, head.flags), eliciting)),
            Err(arrival) => Ok(arrival), // not acknowledged
        }
    }

    /// Processes frames. Returns whether one of them asks for an acknowledgement, or why the packet is refused.
    ///
    /// # Errors
    /// Why the session ended.
    pub(super) fn take_frames<D: Driver>(
        &mut self,
        now: Instant,
        peer: u32,
        mut rest: &[u8],
        driver: &mut D,
    ) -> Result<Result<bool, Arrival>, Lost> {
        let mut eliciting = false;
        loop {
            let (frame, after) = match Frame::parse(rest) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => return Ok(Ok(eliciting)),
                Err(_) => return Ok(Err(Arrival::Malformed)),
            };
            rest = after;
            eliciting |= frame.asks();
            match frame {
                Frame::Ping => {}
                Frame::Ack(ack) => {
                    if !self.on_ack(now, &ack, peer, driver) {
                        return Err(Lost::Broken);
                    }
                    for stream in Stream::ALL {
                        while let Some(mark) = self.sender.stream(stream).pop_acked() {
                            driver.acked(peer, mark);
                        }
                    }
                }
                Frame::Data { stream, offset, bytes } => {
                    let Some(session) = self.session.as_deref_mut() else {
                        return Ok(Err(Arrival::Malformed));
                    };
                    let sender = &mut self.sender;
                    let mut take = |record: Record<'_>| driver.record(peer, sender, stream, record);
                    match session.receive[stream as usize].receive(offset, bytes, &mut take) {
                        Ok(()) => {}
                        Err(Refused::Crowded) => return Ok(Err(Arrival::Crowded)),
                        Err(Refused::Violation) => return Err(Lost::Broken),
                    }
                }
                Frame::Marks { count } => {
                    if self.on_marks(now, count) {
                        driver.congested(peer, Sign::Marked, self.late());
                    }
                }
                Frame::Credit { stream, limit } => self.sender.stream(stream).set_limit(limit),
                Frame::Close { .. } => return Err(Lost::Closed),
            }
        }
    }

    /// Notes that the packet with this number and these flags has arrived.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        config: &Config,
        (number, flags): (u64, u16),
        eliciting: bool,
    ) -> Arrival {
        let Some(session) = self.session.as_deref_mut() else { return Arrival::Malformed };
        let expected = session.received.last().map_or(0, |run| run.end);
        session.received.insert(number..number + 1);
        if session.received.len() > RECEIVED_RUNS
            && let Some(run) = session.received.forget_first()
        {
            session.floor = run.end;
        }
        if number >= expected {
            session.largest_at = now;
        }
        if eliciting {
            let urgent = number != expected || flags & header::flag::URGENT != 0;
            session.on_eliciting(now, config, 1, urgent);
        }
        Arrival::Fresh
    }

    /// Whether the driver stopped a stream.
    pub fn is_stopped(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.receive.iter().any(ReceiveStream::is_stopped))
    }

    /// Resumes stopped streams.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn resume<D: Driver>(&mut self, peer: u32, driver: &mut D) -> Result<(), Lost> {
        let Some(session) = self.session.as_deref_mut() else { return Ok(()) };
        let sender = &mut self.sender;
        for (stream, receive) in Stream::ALL.into_iter().zip(&mut session.receive) {
            if receive.is_stopped() {
                receive
                    .resume(&mut |record| -> Flow { driver.record(peer, sender, stream, record) })
                    .map_err(|_| Lost::Broken)?;
            }
        }
        Ok(())
    }
}

/// Whether a packet has frames that ask for an acknowledgement.
fn asks_for_acknowledgement(mut frames: &[u8]) -> bool {
    while let Ok(Some((frame, rest))) = Frame::parse(frames) {
        if frame.asks() {
            return true;
        }
        frames = rest;
    }
    false
}
