//! The sender: short messages go into a command, long ones are announced.

use ofi_api::{AddrFormat, Error, OpFlags, Piece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutMessage, Payload, Posted, Upcalls};
use ofi_ring::crash_point;
use ofi_ring::doorbell::Wake;
use ofi_ring::record::max_body;

use crate::command::{CommandWriter, before, flag, kind, rx_bits};
use crate::common::{Common, full};
use crate::layout::wish;
use crate::op::Op;
use crate::peer::Peer;
use crate::peer::link::{Link, Up};
use crate::stores::LONG;
use crate::{Shm, region, settings};

/// Every payload that is not long fits into a record of the smallest ring.
const _: () = assert!(before(1, LONG - 1) + LONG - 1 <= max_body(settings::FEWEST_COMMAND_LINES));

impl Peer {
    /// See [`ofi_core::transport::TransportEndpoint::send_now`].
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline(always)]
    pub unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        common: &mut Common,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        if len < LONG {
            // SAFETY: the caller's promise.
            unsafe { self.put::<TAGGED, false>(common, tag, from, len) }
        } else {
            // SAFETY: as above.
            unsafe { self.put_long::<TAGGED>(common, tag, from, len) }
        }
    }

    /// [`put`](Self::put) for long payloads. Separate, because the path of short ones needs fewer registers without it.
    ///
    /// # Safety
    /// As [`put`](Self::put).
    #[inline(never)]
    unsafe fn put_long<const TAGGED: bool>(
        &mut self,
        common: &mut Common,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.put::<TAGGED, true>(common, tag, from, len) }
    }

    /// Puts a message with at most a tag into the ring. `IS_LONG` says whether its payload is long.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline(always)]
    unsafe fn put<const TAGGED: bool, const IS_LONG: bool>(
        &mut self,
        common: &mut Common,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        let Self { link, stores, .. } = self;
        let Some(Link { commands, up: Some(up), .. }) = link else { return false };
        if IS_LONG && len > common.eager {
            return false;
        }
        if self.parked.accesses > 0 || self.end.gone || up.wish() != wish::NONE {
            return false;
        }
        let before = before(usize::from(TAGGED), len);
        let slot = match IS_LONG {
            true => stores.reserve(common.streaming, commands, before + len),
            false => commands.reserve_short(before + len),
        };
        let Ok(mut slot) = slot else { return false };
        let to = slot.body().wrapping_add(before);
        if TAGGED {
            // SAFETY: a word for the tag and the payload were reserved.
            unsafe { CommandWriter::new(slot.body()) }.word(tag);
        }
        let high = if TAGGED { kind::TAGGED_MESSAGE } else { kind::MESSAGE };
        if IS_LONG {
            let pieces = [Piece::new(from.cast_mut(), len)];
            // SAFETY: the caller's promise, and as much was reserved.
            unsafe { stores.publish(common, Some(up.pair()), slot, &pieces, (to, len), high) };
        } else {
            // SAFETY: as above.
            unsafe { copy::bytes(from, to, len) };
            slot.publish(high);
        }
        common.counts.eager += 1;
        if up.bell.ring() == Wake::Needed {
            self.ring(common);
        }
        true
    }

    /// Sends a message.
    pub fn send<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        const SLOW: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::MATCH_COMPLETE).union(OpFlags::FENCE);
        if out.len > common.eager
            || out.flags.intersects(SLOW)
            || self.parked.accesses > 0
            || self.end.gone
            || self.up().is_none_or(|up| up.wish() != wish::NONE)
        {
            return self.send_slow(common, host, out);
        }
        self.send_eager(common, out, 0, None)?;
        Ok(Posted::Done)
    }

    /// Puts a message into the ring.
    #[inline]
    fn send_eager(
        &mut self,
        common: &mut Common,
        out: &OutMessage<'_>,
        mut high: u32,
        op: Option<SlotId>,
    ) -> Result<()> {
        let Some(link) = &mut self.link else { return Err(Error::AGAIN) };
        let has_data = out.flags.contains(OpFlags::REMOTE_CQ_DATA);
        let words = usize::from(op.is_some()) + usize::from(out.tagged) + usize::from(has_data);
        let body_len = before(words, out.len) + out.len;
        let mut slot = match link.commands.reserve(body_len) {
            Ok(slot) => slot,
            Err(error) => {
                self.found_no_room(body_len);
                return Err(full(common, error));
            }
        };
        // SAFETY: `words` words and the payload were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        high = rx_bits(high | kind::MESSAGE, out.rx);
        if let Some(op) = op {
            body.word(op.to_wire());
        }
        if out.tagged {
            body.word(out.tag);
            high |= flag::TAGGED;
        }
        if has_data {
            body.word(out.data);
            high |= flag::DATA;
        }
        let (to, len) = (body.payload(out.len), out.len);
        match out.pieces {
            // SAFETY: the pieces are lent, `len` is the sum of their lengths, and as much was reserved.
            pieces if len >= LONG => unsafe {
                self.stores.publish(common, link.up.as_ref().map(Up::pair), slot, pieces, (to, len), high);
            },
            [one] => {
                // SAFETY: as above.
                unsafe { copy::bytes(one.addr, to, len) };
                slot.publish(high);
            }
            many => {
                // SAFETY: as above.
                unsafe { copy::gather(many, 0, to, len) };
                slot.publish(high);
            }
        }
        crash_point!("message.sent");
        common.counts.eager += 1;
        self.ring(common);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn send_slow<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        if out.flags.contains(OpFlags::FENCE) && self.initiated.outstanding > 0 {
            return Err(Error::AGAIN);
        }
        if self.parked.accesses > 0 || self.end.gone {
            // It must not overtake an access that waits for a grant. And an ended peer makes way for its successor only
            // once everything that it sent has been processed.
            return Err(Error::AGAIN);
        }
        self.connect(common)?;
        let (up, peer_wish) = self.up().map_or((false, wish::NONE), |up| (true, up.wish()));
        // Messages with `FI_MATCH_COMPLETE` semantics are announced, however short: the peer requests them when it has
        // a receive.
        let matched = out.flags.contains(OpFlags::MATCH_COMPLETE);
        let confirm = matched || out.flags.contains(OpFlags::DELIVERY_COMPLETE);
        if peer_wish == wish::CLOSED {
            self.busy = true;
            return Err(Error::AGAIN); // the next poll disconnects the peer, and a later try may find a new one
        }
        if out.len <= common.eager && peer_wish == wish::NONE && !matched {
            if up && !confirm {
                self.send_eager(common, out, 0, None)?;
                return Ok(Posted::Done);
            }
            // Take the slot first, because the command names it; it is freed if there is no room.
            let id = host.open(self.peer, out.ticket, Op::Confirm);
            let (high, op) = if confirm { (flag::CONFIRM, Some(id)) } else { (0, None) };
            if let Err(error) = self.send_eager(common, out, high, op) {
                host.abandon(id);
                return Err(error);
            }
            (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
            if !confirm {
                self.initiated.unconfirmed.push(id);
            }
            return Ok(Posted::Pending);
        }
        self.announce(common, host, out, confirm)
    }

    /// Announces a message whose payload stays here for now.
    fn announce<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
        confirm: bool,
    ) -> Result<Posted> {
        // A short one is held back because the peer has no room: it counts as sent, and the library keeps it.
        let keep = out.len <= common.eager
            && self.initiated.unconfirmed.is_empty()
            && self.up().is_some()
            && !confirm;
        if keep && common.kept + out.len > common.kept_limit {
            return Err(Error::AGAIN);
        }
        let (key, offset) = match out.pieces {
            [one] if !keep && !out.flags.contains(OpFlags::INJECT) => {
                region::source(&common.shared, one.addr, one.len).unwrap_or((0, 0))
            }
            _ => (0, 0),
        };
        let mut high = rx_bits(kind::ANNOUNCE, out.rx);
        let (mut key, mut offset, mut lend) = (key, offset, None);
        if key == 0
            && !keep
            && !out.flags.contains(OpFlags::INJECT)
            && let Some((flags, words, payload)) = self.lend(common, out.pieces, out.len)
        {
            high |= flags;
            ([key, offset], lend) = (words, payload);
        }
        let id = if keep {
            high |= flag::KEPT;
            // SAFETY: the core lends the pieces of what it posts.
            self.back_pressure.kept.insert(unsafe { copy::copied(out.pieces, out.len) })
        } else {
            // SAFETY: the core lends the pieces of what it posts.
            let payload = unsafe { Payload::new(out.pieces, out.len, out.flags) };
            host.open(self.peer, out.ticket, Op::Message { payload, confirm, lend })
        };
        let mut words = [id.to_wire(), out.len as u64, key, offset, 0, 0];
        let mut count = 4;
        if out.tagged {
            high |= flag::TAGGED;
            words[count] = out.tag;
            count += 1;
        }
        if out.flags.contains(OpFlags::REMOTE_CQ_DATA) {
            high |= flag::DATA;
            words[count] = out.data;
            count += 1;
        }
        if confirm {
            high |= flag::CONFIRM;
        }
        if let Err(error) = self.command(common, high, &words[..count]) {
            if keep {
                self.back_pressure.kept.remove(id);
            } else {
                host.abandon(id);
            }
            return Err(error);
        }
        crash_point!("announce.sent");
        common.counts.announced += 1;
        self.tell(common, out, high);
        if keep {
            crash_point!("announce.kept");
            common.counts.kept += 1;
            common.kept += out.len;
            self.busy = true;
            return Ok(Posted::Done);
        }
        (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
        Ok(Posted::Pending)
    }

    /// Logs the protocol of a message that was announced by a command with these flags, once for each peer and reason.
    fn tell(&mut self, common: &Common, out: &OutMessage<'_>, high: u32) {
        let (nth, why) = match out.len {
            len if len > common.eager => (0, "it is longer than a command"),
            _ if high & flag::KEPT != 0 => {
                (1, "the peer has no room for messages that it has no receive for: this end keeps a copy")
            }
            _ if out.flags.contains(OpFlags::MATCH_COMPLETE) => {
                (2, "it completes when it is matched (FI_MATCH_COMPLETE)")
            }
            _ => (3, "the peer has no room for messages that it has no receive for"),
        };
        if self.told.is_first(nth) {
            let payload = if high & (flag::LENT | flag::WRITES) != 0 {
                "one copy from memory to memory, or a ring"
            } else {
                "library memory or a ring"
            };
            tracing::debug!(
                target: "ofi::shm::ep_data",
                peer = %crate::name::shown(&self.socket, AddrFormat::Str), protocol = "rendezvous", why, payload,
                len = out.len, eager_up_to = common.eager,
                "chose the protocol of a message to a peer"
            );
        }
    }
}
