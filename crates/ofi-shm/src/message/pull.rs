//! The transfer of an announced payload: the receiver requests it or copies it itself, and the sender streams it.

use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;
use ofi_ring::crash_point;

use crate::Shm;
use crate::command::{Words, flag, kind};
use crate::common::Common;
use crate::op::{Op, ReadPath};
use crate::peer::bulk::BulkStream;
use crate::peer::grants::KeyState;
use crate::peer::parked::Parked;
use crate::peer::pull::Pull;
use crate::peer::{Broken, Peer};
use crate::token::{Sink, Token};

impl Peer {
    /// Moves an announced payload into the open receive `into`.
    pub fn pull<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H, token: Token, into: SlotId) {
        let Some(len) = host.receiving(into).map(|receiving| receiving.len) else { return };
        if token.key != 0 && token.high & flag::LENT == 0 && len > 0 {
            match self.grant(common, token.key, false) {
                KeyState::Asked => {
                    self.parked.queue.push_back(Parked::Pull { token, into });
                    self.busy = true;
                    return;
                }
                KeyState::Mapped(_) => {
                    if self.pull_directly(common, host, token, into, len) {
                        return;
                    }
                }
                KeyState::Refused | KeyState::Device(_) => {}
            }
        }
        self.start_transfer(common, host, token, Sink::Receive(into), len);
    }

    /// Requests a payload in parts.
    pub fn ask<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        token: Token,
        sink: Sink,
        len: usize,
        measured: bool,
    ) {
        crash_point!("pull.ask");
        let into = match sink {
            Sink::Receive(into) => into,
            Sink::Write(id) => {
                if let Some(write) = self.served.writes.get_mut(id) {
                    write.is_measured = measured;
                }
                return self.reply(common, kind::SEND, [token.op, id.to_wire(), len as u64]);
            }
            Sink::Read(id) => {
                if let Some(Op::Read { coming, .. }) = host.op(self.peer, id) {
                    *coming = ReadPath::Parts(measured);
                }
                return self.reply(common, kind::SEND | flag::SERVED, [token.op, 0, len as u64]);
            }
        };
        let high = kind::SEND | (token.high & flag::KEPT);
        self.reply(common, high, [token.op, into.to_wire(), len as u64]);
        if len == 0 {
            host.received(into, Ok(()));
            if token.high & flag::CONFIRM != 0 {
                self.done(common, token.op, Ok(()));
            }
        } else {
            self.pulls.insert(into.to_wire(), Pull { token, got: 0, len, measured });
            self.busy = true;
        }
    }

    /// Copies a payload out of the sender's library memory.
    fn pull_directly<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        token: Token,
        into: SlotId,
        len: usize,
    ) -> bool {
        let Some(receiving) = host.receiving(into) else { return true };
        let Some(KeyState::Mapped(granted)) = self.grants.known.get(&token.key) else { return false };
        let Some(source) = granted.at(token.offset, len) else { return false };
        // SAFETY: `at` checked that the bytes lie in the granted mapping; the pieces are lent for this receive.
        unsafe { copy::scatter(source, len, receiving.pieces, 0) };
        common.counts.direct_bytes += len as u64;
        crash_point!("pull.copied");
        host.received(into, Ok(()));
        self.done(common, token.op, Ok(()));
        true
    }

    /// Tells the sender that its payload is not needed.
    pub fn discard(&mut self, common: &mut Common, token: Token) {
        crash_point!("discard.send");
        self.reply(common, kind::DONE | (token.high & flag::KEPT), [token.op, 0, 0]);
    }

    /// The peer requests a payload, or the bytes of a write.
    pub fn start_stream<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        into: u64,
        len: u64,
    ) -> Result<(), Broken> {
        if high & flag::SERVED != 0 {
            return self.stream_offered(op, len);
        }
        let id = SlotId::from_wire(op);
        let len = usize::try_from(len).map_err(|_| Broken)?;
        if high & flag::KEPT != 0 {
            let Some(bytes) = self.back_pressure.kept.remove(id) else { return Ok(()) };
            common.kept -= bytes.len();
            let len = len.min(bytes.len());
            if len > 0 {
                // An empty payload is never pulled, so a part of it cannot have been requested.
                self.bulk.streams.push_back(BulkStream::kept(bytes, into, len));
            }
            return Ok(());
        }
        match host.op(self.peer, id) {
            Some(Op::Message { confirm, .. }) => {
                if len == 0 {
                    if !*confirm {
                        self.finish(host, id, Ok(()));
                    }
                } else {
                    self.bulk.streams.push_back(BulkStream::message(id, into, len));
                }
            }
            Some(Op::Write(..)) => self.bulk.streams.push_back(BulkStream::write(id, into, len)),
            _ => return Err(Broken),
        }
        Ok(())
    }

    /// Processes a part of a pulled payload.
    pub fn take_message_part<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (id, offset): (u64, u64),
        words: Words,
    ) -> Result<(), Broken> {
        let (body, part) = words.rest();
        let into = SlotId::from_wire(id);
        let pull = self.pulls.get_mut(&id).ok_or(Broken)?;
        if offset != pull.got as u64 || part > pull.len - pull.got {
            return Err(Broken);
        }
        if let Some(receiving) = host.receiving(into) {
            // SAFETY: the record holds `part` bytes, the pieces are lent for this receive, and `got + part` is within
            // their checked length.
            unsafe { copy::scatter(body, part, receiving.pieces, pull.got) };
        }
        pull.got += part;
        if pull.got == pull.len {
            crash_point!("pull.ended");
            let (token, len, measured) = (pull.token, pull.len, pull.measured);
            self.pulls.remove(&id);
            host.received(into, Ok(()));
            if token.high & flag::CONFIRM != 0 {
                self.done(common, token.op, Ok(()));
            }
            if measured {
                self.transfer_completed(common, host, Sink::Receive(into), len);
            }
        }
        Ok(())
    }
}
