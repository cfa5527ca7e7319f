//! Data under the receiver's credit: long messages and accesses, in both directions.

use ofi_api::{Errno, MrAccess};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};

use crate::Efa;
use crate::adapter::Mark;
use crate::common::{Common, Entry, accessor};
use crate::moving::{Incoming, Target};
use crate::op::Work;
use crate::peer::{Broken, PacketStream, Peer};
use crate::ranges::Ranges;
use crate::wire::{Abandoned, Control, Features, Form};

/// Maximum bytes that one CTS clears.
pub fn grant(common: &Common) -> usize {
    common.settings.min_credits * (common.adapter.mtu - 64)
}

impl Peer {
    /// Processes the first bytes of a transfer, and clears the next.
    pub fn begin<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut incoming: Incoming,
        first: &[u8],
    ) {
        let len = first.len();
        if let Err(errno) = place(common, host, &mut incoming, 0, first) {
            return self.abandon(common, host, incoming, errno);
        }
        incoming.got = len;
        if let Some(from) = incoming.source.take() {
            self.fetch(common, host, incoming, &from);
        } else if incoming.got == incoming.len {
            incoming.cleared = incoming.len;
            self.complete(common, host, incoming);
        } else {
            self.clear_new(common, incoming);
        }
    }

    /// Gives a transfer a number, and clears its first data.
    pub fn clear_new(&mut self, common: &mut Common, mut incoming: Incoming) {
        let (before, len) = (incoming.got, grant(common).min(incoming.len - incoming.got));
        incoming.arrived = Ranges::before(before);
        incoming.cleared = before + len;
        let (peer, send_id) = (incoming.peer, incoming.send_id);
        // A million transfers are in flight: this end cannot clear another, and gives up the sender's peer.
        let Some(recv_id) = common.ids.insert(Entry::Incoming(incoming)) else {
            self.ending.get_or_insert(Errno::ENOMEM);
            return common.hold(&mut self.is_dirty, peer);
        };
        let before = self.is_numbered(before);
        self.control(common, peer, Control::Cts { send_id, recv_id, len: len as u64, read: false, before });
    }

    /// The number of bytes that were cleared before, for a peer that understands it.
    fn is_numbered(&self, before: usize) -> Option<u64> {
        self.knows_repeats().then_some(before as u64)
    }

    /// Processes data that this end has cleared.
    pub fn take_data<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        (recv_id, offset): (u32, u64),
        bytes: &[u8],
        answerer: Option<u32>,
    ) -> Result<(), Broken> {
        let offset = usize::try_from(offset).map_err(|_| Broken)?;
        match common.ids.get_mut(recv_id).filter(|entry| entry.peer() == peer) {
            Some(&mut Entry::Op(_, id)) => self.take_answer(common, host, peer, id, offset, bytes, answerer),
            Some(Entry::Incoming(incoming)) => {
                let end = offset.checked_add(bytes.len()).filter(|&end| end <= incoming.len);
                let Some(end) = end.filter(|_| !bytes.is_empty()) else { return Err(Broken) };
                if !incoming.arrived.add(offset, end).map_err(|_| Broken)? {
                    common.counts.stale += 1;
                    return Ok(());
                }
                if bytes.len() > incoming.cleared - incoming.got.min(incoming.cleared) {
                    return Err(Broken);
                }
                let Some(Entry::Incoming(mut incoming)) = common.ids.remove(recv_id) else {
                    return Err(Broken);
                };
                if let Err(errno) = place(common, host, &mut incoming, offset, bytes) {
                    self.abandon(common, host, incoming, errno);
                    return Ok(());
                }
                incoming.got += bytes.len();
                if incoming.got == incoming.len {
                    self.complete(common, host, incoming);
                } else if incoming.got == incoming.cleared {
                    self.clear_new(common, incoming);
                } else {
                    common.ids.put_back(recv_id, Entry::Incoming(incoming));
                }
                Ok(())
            }
            // The transfer was given up, or the packet was repeated.
            _ => {
                common.counts.stale += 1;
                if let Some(send_id) = answerer {
                    self.disown(common, peer, send_id);
                }
                Ok(())
            }
        }
    }

    /// Processes the answer to a read or an atomic operation of this end.
    #[expect(clippy::too_many_arguments, reason = "an answer has these parts")]
    pub fn take_answer<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        offset: usize,
        bytes: &[u8],
        answerer: Option<u32>,
    ) -> Result<(), Broken> {
        let grant = grant(common);
        let Some(op) = host.op(peer, id) else { return Ok(()) };
        let number = op.id;
        let Work::In { pieces, len, got, arrived, cleared, peer_id } = &mut op.work else {
            return Err(Broken);
        };
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= *len).ok_or(Broken)?;
        if bytes.is_empty() && *len > 0 {
            return Err(Broken);
        }
        if !bytes.is_empty() && !arrived.add(offset, end).map_err(|_| Broken)? {
            common.counts.stale += 1;
            return Ok(());
        }
        // SAFETY: `bytes` is readable; the pieces are lent until the operation ends.
        unsafe { copy::scatter(bytes.as_ptr(), bytes.len(), pieces, offset) };
        *got += bytes.len();
        *peer_id = (*peer_id).or(answerer);
        if got == len {
            op.awaits = false;
            self.settle(common, host, peer, id);
        } else if *got >= *cleared
            && let Some(send_id) = *peer_id
        {
            let (before, more) = (*got, grant.min(*len - *got));
            *cleared = before + more;
            let before = self.is_numbered(before);
            let cts = Control::Cts { send_id, recv_id: number, len: more as u64, read: true, before };
            self.control(common, peer, cts);
        }
        Ok(())
    }

    /// Ends a transfer whose bytes have all arrived.
    pub fn complete<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, mut incoming: Incoming) {
        let peer = incoming.peer;
        match &mut incoming.target {
            Target::Receive(into) => host.received(*into, Ok(())),
            Target::Region { remote, data } => {
                if let Some(told) = data
                    && !host.remote_write(peer, *told, incoming.len)
                {
                    return self.finishing.push(incoming);
                }
                // A write by the peer's device is not counted as an access of this end.
                if !remote.is_empty() {
                    host.accessed(&common.domain.regions, MrAccess::REMOTE_WRITE, remote);
                }
            }
            Target::Nowhere => {}
        }
        if incoming.is_read {
            let read = Control::EndOfRead { send_id: incoming.send_id, recv_id: 0 };
            return self.control(common, peer, read);
        }
        if let Some(msg_id) = incoming.receipt {
            self.control(common, peer, Control::Receipt { send_id: incoming.send_id, msg_id });
        }
    }

    /// Offers the reports of completed writes to the core again.
    pub fn finish_writes<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H) {
        for incoming in std::mem::take(&mut self.finishing) {
            self.complete(common, host, incoming);
        }
    }

    /// Gives up a transfer that cannot continue here.
    fn abandon<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        incoming: Incoming,
        errno: Errno,
    ) {
        if let Some(into) = incoming.receive() {
            host.received(into, Err(errno));
        }
        self.refuse(common, incoming.peer, incoming.send_id, errno);
    }

    /// Reports to the peer that its operation failed, if the peer understands that. C's endpoints have no such answer
    /// to accesses.
    pub fn refuse(&mut self, common: &mut Common, peer: PeerId, id: u32, errno: Errno) {
        match self.is_own() {
            None => self.unsaid.push((id, errno)),
            Some(false) => common.counts.refused += 1,
            Some(true) => {
                common.counts.refused += 1;
                let what = Abandoned::Operation(id);
                self.control(common, peer, Control::PeerError { what, errno: errno.get() as u32 });
            }
        }
    }

    /// Processes a control packet of the peer about an operation.
    pub fn take_control<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        control: &Control<'_>,
    ) -> Result<(), Broken> {
        match *control {
            Control::Cts { send_id, recv_id, len, before, .. } => {
                self.take_cts(common, host, peer, (send_id, recv_id), len, before)
            }
            Control::Data { recv_id, offset, payload } => {
                self.take_data(common, host, peer, (recv_id, offset), payload, None)
            }
            Control::ReadResponse { recv_id, send_id, payload } => {
                self.take_data(common, host, peer, (recv_id, 0), payload, Some(send_id))
            }
            Control::AtomicResponse(answer) => {
                self.take_data(common, host, peer, (answer.recv_id, 0), answer.payload, None)
            }
            Control::Receipt { send_id, .. } => {
                if let Some(id) = self.operation(common, peer, send_id)
                    && let Some(op) = host.op(peer, id)
                {
                    op.awaits = false;
                    self.settle(common, host, peer, id);
                }
                Ok(())
            }
            Control::PeerError { what: Abandoned::Operation(id), errno } => {
                let errno = match i32::try_from(errno) {
                    Ok(errno @ 1..4096) => Errno::from_raw(errno),
                    _ => Errno::EIO,
                };
                match common.ids.get_mut(id).filter(|entry| entry.peer() == peer) {
                    Some(&mut Entry::Op(_, id)) => self.finish(common, host, peer, id, Err(errno)),
                    Some(_) => {
                        if let Some(Entry::Incoming(incoming)) = common.ids.remove(id)
                            && let Some(into) = incoming.receive()
                        {
                            host.received(into, Err(Errno::ECANCELED));
                        }
                    }
                    None => common.counts.stale += 1,
                }
                Ok(())
            }
            Control::PeerError { what: Abandoned::Message(id) | Abandoned::Skipped(id), .. } => {
                if self.window.admits(id) {
                    if !self.window.has_room(0) {
                        return Err(Broken);
                    }
                    self.window.skip(id);
                    return self.advance(common, host, peer);
                }
                common.counts.stale += 1;
                Ok(())
            }
            Control::EndOfRead { send_id, .. } => self.take_end_of_read(common, host, peer, send_id),
            Control::ReadNack { send_id, recv_id } => self.take_nack(common, host, peer, (send_id, recv_id)),
        }
    }

    pub fn operation(&self, common: &mut Common, peer: PeerId, id: u32) -> Option<SlotId> {
        match common.ids.get_mut(id) {
            Some(&mut Entry::Op(of, slot)) if of == peer => Some(slot),
            _ => {
                common.counts.stale += 1;
                None
            }
        }
    }

    fn take_cts<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        (send_id, recv_id): (u32, u32),
        more: u64,
        before: Option<u64>,
    ) -> Result<(), Broken> {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        // A repeated packet clears what was cleared before.
        let is_old = |cleared: usize| before.is_some_and(|before| before < cleared as u64);
        match common.ids.get_mut(send_id).filter(|entry| entry.peer() == peer) {
            Some(&mut Entry::Op(_, id)) => {
                let Some(op) = host.op(peer, id) else { return Ok(()) };
                let Work::Out { len, done, .. } = &mut op.work else { return Err(Broken) };
                if is_old(*done) {
                    common.counts.stale += 1;
                    return Ok(());
                }
                let more = more.min(*len - *done);
                if more == 0 {
                    return Err(Broken);
                }
                let stream = PacketStream::Data { op: id, recv_id, done: *done, end: *done + more };
                *done += more;
                self.streams.push_back(stream);
            }
            Some(Entry::Answering(answering)) => {
                let old = answering.cleared;
                if is_old(old) {
                    common.counts.stale += 1;
                    return Ok(());
                }
                answering.cleared = old.saturating_add(more).min(answering.len);
                if answering.cleared == old {
                    return Err(Broken);
                }
                // The stream is queued again, unless unsent cleared data has kept it in the queue.
                if answering.done == old {
                    self.streams.push_back(PacketStream::Answer { id: send_id });
                }
            }
            _ => {
                common.counts.stale += 1;
                self.disown(common, peer, recv_id);
                return Ok(());
            }
        }
        common.hold(&mut self.is_dirty, peer);
        Ok(())
    }

    /// Tells a peer of this library that an operation has ended here, which it is still busy with.
    fn disown(&mut self, common: &mut Common, peer: PeerId, id: u32) {
        if self.is_own() == Some(true) {
            let (what, errno) = (Abandoned::Operation(id), Errno::ECANCELED.get() as u32);
            self.control(common, peer, Control::PeerError { what, errno });
        }
    }

    /// Builds packets of streams while slots are free. `false`: none is free, and none will be by the end of a packet
    /// to the peer.
    pub fn flush_streams<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
    ) -> bool {
        while let Some(stream) = self.streams.pop_front() {
            let (more, rest) = match stream {
                PacketStream::Answer { id } => self.answer(common, host, peer, id),
                out => self.make(common, host, peer, out),
            };
            if let Some(rest) = rest {
                self.streams.push_front(rest);
            }
            if !more {
                return self.inflight > 0;
            }
        }
        true
    }

    /// Builds the next packet of an operation. Returns whether a slot was free, and the rest of the stream.
    fn make<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        stream: PacketStream,
    ) -> (bool, Option<PacketStream>) {
        let (id, at, end) = match &stream {
            PacketStream::Medium { op, done, len, .. } => (*op, *done, *len),
            PacketStream::Data { op, done, end, .. } => (*op, *done, *end),
            PacketStream::Answer { .. } => return (true, None),
        };
        let Some(op) = host.op(peer, id) else {
            // The operation ended midway: this end notifies the peer, if the peer understands that.
            let what = match stream {
                PacketStream::Medium { message, .. } => Abandoned::Message(message.msg_id),
                PacketStream::Data { recv_id, .. } => Abandoned::Operation(recv_id),
                PacketStream::Answer { .. } => return (true, None),
            };
            if self.features.is_some_and(|features| features.has(Features::PEER_ERROR)) {
                let errno = Errno::ECANCELED.get() as u32;
                self.control(common, peer, Control::PeerError { what, errno });
            }
            return (true, None);
        };
        let (payload, whole) = match &op.work {
            Work::Out { payload, len, .. } => (payload, *len),
            // The bytes sent ahead. The receiver reads the rest.
            Work::Lent(lent) => (&lent.payload, lent.runt),
            _ => return (true, None),
        };
        let header = |part: usize| match &stream {
            PacketStream::Medium { message, len, .. } => {
                let form = match message.form {
                    Form::RuntRead { len, runt, from, .. } => {
                        Form::RuntRead { len, offset: at, runt, from, payload: &[] }
                    }
                    _ => Form::Medium { len: *len, offset: at, payload: &[] },
                };
                crate::wire::Message { form, ..*message }.encode(self.origin(common))
            }
            PacketStream::Data { recv_id, .. } => {
                let zeros = &ZEROS[..part];
                let data = Control::Data { recv_id: *recv_id, offset: at as u64, payload: zeros };
                data.encode(common.adapter.address.connid)
            }
            PacketStream::Answer { .. } => unreachable!("returned above"),
        };
        let part = (common.adapter.mtu - header(0).bytes().len()).min(end - at).min(ZEROS.len());
        let header = header(part);
        let posted = self.post_with(common, peer, Mark::Op(id), |_, to| {
            let head = header.bytes();
            // SAFETY: a slot has room for a packet.
            unsafe { copy::bytes(head.as_ptr(), to, head.len()) };
            // SAFETY: as above, behind the header.
            unsafe { payload.gather_raw(at, to.wrapping_add(head.len()), part) };
            head.len() + part
        });
        if !posted {
            return (false, Some(stream));
        }
        op.unacked += 1;
        let at = at + part;
        op.making = at < whole;
        if at == end {
            return (true, None);
        }
        let rest = match stream {
            PacketStream::Medium { op, message, len, .. } => {
                PacketStream::Medium { op, message, done: at, len }
            }
            PacketStream::Data { op, recv_id, end, .. } => PacketStream::Data { op, recv_id, done: at, end },
            answer => answer,
        };
        (true, Some(rest))
    }

    /// Builds the next packet of the answer to a read.
    fn answer<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: u32,
    ) -> (bool, Option<PacketStream>) {
        let connid = common.adapter.address.connid;
        let Some(Entry::Answering(answering)) = common.ids.get_mut(id) else { return (true, None) };
        let (at, recv_id, begun) = (answering.done, answering.recv_id, answering.begun);
        let room = common.adapter.mtu - if begun { 32 } else { 24 };
        let part = room.min(answering.cleared - at).min(ZEROS.len());
        let (remote, whole) = (answering.remote.clone(), answering.len);
        let mut bytes = vec![0u8; part];
        let read = common.domain.regions.read_as(accessor(host, peer), &remote, at, &mut bytes);
        if let Err(errno) = read {
            common.ids.remove(id);
            self.refuse(common, peer, recv_id, errno);
            return (true, None);
        }
        let control = match begun {
            true => Control::Data { recv_id, offset: at as u64, payload: &bytes },
            false => Control::ReadResponse { recv_id, send_id: id, payload: &bytes },
        };
        let posted = self.post_with(common, peer, Mark::Nothing, |_, to| {
            let header = control.encode(connid);
            let head = header.bytes();
            // SAFETY: a slot has room for a packet.
            unsafe { copy::bytes(head.as_ptr(), to, head.len()) };
            // SAFETY: as above, behind the header.
            unsafe { copy::bytes(bytes.as_ptr(), to.wrapping_add(head.len()), part) };
            head.len() + part
        });
        if !posted {
            return (false, Some(PacketStream::Answer { id }));
        }
        if at + part == whole {
            common.ids.remove(id);
            host.accessed(&common.domain.regions, MrAccess::REMOTE_READ, &remote);
            return (true, None);
        }
        let Some(Entry::Answering(answering)) = common.ids.get_mut(id) else { return (true, None) };
        (answering.done, answering.begun) = (at + part, true);
        (true, (answering.done < answering.cleared).then_some(PacketStream::Answer { id }))
    }
}

/// A placeholder payload for encoding headers, which need only the length.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Copies data to its destination.
fn place<H: Upcalls<Efa>>(
    common: &Common,
    host: &mut H,
    incoming: &mut Incoming,
    offset: usize,
    bytes: &[u8],
) -> Result<(), Errno> {
    match &incoming.target {
        Target::Receive(into) => {
            // A receive that has ended discards the data; the sender continues until all is sent.
            if let Some(receiving) = host.receiving(*into) {
                let len = receiving.len.saturating_sub(offset).min(bytes.len());
                // SAFETY: the pieces are lent until the receive ends.
                unsafe { copy::scatter(bytes.as_ptr(), len, receiving.pieces, offset) };
            }
            Ok(())
        }
        Target::Region { remote, .. } => {
            let who = accessor(host, incoming.peer);
            common.domain.regions.write_as(who, remote, offset, bytes.len(), [bytes])
        }
        Target::Nowhere => Ok(()),
    }
}
