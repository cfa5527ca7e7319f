//! The receiver: messages inside commands, and announcements.

use ofi_core::transport::{Announced, Arrived, Delivery, PeerId, RxName, Upcalls};
use ofi_ring::crash_point;

use crate::Shm;
use crate::command::{Words, flag, rx_of};
use crate::common::Common;
use crate::peer::{Broken, NextStep, Peer};
use crate::token::Token;

/// Takes a message of `peer` that has only an optional tag before its payload.
#[inline(always)]
pub fn deliver<const TAGGED: bool, H: Upcalls<Shm>>(
    peer: PeerId,
    host: &mut H,
    mut words: Words,
) -> Result<Delivery, Broken> {
    let tag = if TAGGED { words.next().ok_or(Broken)? } else { 0 };
    let (body, len) = words.payload_after(usize::from(TAGGED));
    let arrived = Arrived { peer, rx: RxName::ANY, tagged: TAGGED, has_data: false, tag, data: 0, len };
    // SAFETY: the payload is readable for `len` bytes until the record is advanced past.
    Ok(unsafe { host.deliver(&arrived, body) })
}

impl Peer {
    /// Takes a message.
    pub fn take_message<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let confirm = if high & flag::CONFIRM != 0 { Some(words.next().ok_or(Broken)?) } else { None };
        let mut arrived = self.arrived(high, &mut words)?;
        let (body, len) = words.payload();
        arrived.len = len;
        // SAFETY: the payload is readable for `len` bytes until the record is advanced past.
        let delivery = unsafe { host.deliver(&arrived, body) };
        crash_point!("message.taken");
        if delivery != Delivery::Taken {
            if delivery == Delivery::Stopped {
                return Ok(self.stop());
            }
            self.after_delivery(common, host, delivery);
        }
        if let Some(op) = confirm {
            self.done(common, op, Ok(()));
        }
        Ok(NextStep::Next)
    }

    /// The envelope of a message, without its length.
    #[inline]
    fn arrived(&self, high: u32, words: &mut Words) -> Result<Arrived, Broken> {
        let (tagged, has_data) = (high & flag::TAGGED != 0, high & flag::DATA != 0);
        let tag = if tagged { words.next().ok_or(Broken)? } else { 0 };
        let data = if has_data { words.next().ok_or(Broken)? } else { 0 };
        Ok(Arrived { peer: self.peer, rx: rx_of(high), tagged, has_data, tag, data, len: 0 })
    }

    /// Takes an announcement.
    pub fn take_announcement<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let mut next = || words.next().ok_or(Broken);
        let (op, len, key, offset) = (next()?, next()?, next()?, next()?);
        let mut arrived = self.arrived(high, &mut words)?;
        arrived.len = usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or(Broken)?;
        crash_point!("announce.taken");
        match host.announce(&arrived, Token { op, high, key, offset }) {
            Announced::Pull(into) => self.pull(common, host, Token { op, high, key, offset }, into),
            Announced::Kept => {}
            Announced::Stopped(_) => return Ok(self.stop()),
            Announced::Unwanted(token) => self.discard(common, token),
        }
        Ok(NextStep::Next)
    }
}
