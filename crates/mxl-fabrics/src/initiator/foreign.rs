//! Sends to targets that the C++ SDK runs, by its protocol.
#![allow(unsafe_code)]

use std::time::Instant;

use mxl::{Geometry, Wait};
use ofi::raw::EventKind;

use super::peer::{Job, Payload, Transfer, What};
use super::{Initiator, Source};
use crate::initiator::egress::{Call, Called, Egress, IN_FLIGHT, Posting, TransferInFlight};
use crate::link::Memory;
use crate::message::Remote;
use crate::rest::WaitFor;
use crate::sdk::plant::{self, Found};
use crate::sdk::wire::{self, ENTRY_HEADER, EntryHeader, GRAIN_HEADER, Header, INVALID, Mark};
use crate::shape::{self, Rings};
use crate::{Error, Result, TargetInfo};

impl Initiator {
    /// Adds a target of the C++ SDK. An info with the id of an earlier one replaces it if it differs.
    pub(super) fn add_foreign(&mut self, info: &TargetInfo) -> Result<()> {
        info.check_sdk(&self.geometry)?;
        if info.provider != self.provider {
            let what = format!("the target is reached over {}, not {}", info.provider, self.provider);
            return Err(Error::Info(what));
        }
        let foreign = self.foreign.as_mut().ok_or_else(|| {
            Error::Info("this initiator does not speak the C++ SDK's protocol: open it without a key, and with writes".into())
        })?;
        if self.peers.iter().any(|peer| peer.info.id == info.id) {
            return Err(Error::Exists(info.id));
        }
        let header = match self.geometry {
            Geometry::Grains { .. } => GRAIN_HEADER,
            Geometry::Samples { .. } => ENTRY_HEADER,
        };
        let bytes = foreign.plant.limits().bytes;
        if bytes <= header as u64 {
            return Err(Error::Argument(format!(
                "targets of the C++ SDK need writes of more than {header} bytes, and {bytes} is the most: \
                 raise max_message"
            )));
        }
        let new = Called::new(info.clone())?;
        let Some(at) = foreign.called.iter().position(|there| there.info.id == info.id) else {
            foreign.called.push(new);
            return Ok(());
        };
        let there = &mut foreign.called[at];
        if there.info == *info {
            return Err(Error::Exists(info.id));
        }
        let was_connected = there.is_connected();
        let lost = there.hang_up();
        *there = Called { stats: there.stats, latency: std::mem::take(&mut there.latency), ..new };
        self.lost_foreign(at, lost, was_connected);
        Ok(())
    }

    /// Drives all of these targets. Returns whether anything happened.
    pub(super) fn serve_foreign(&mut self) -> Result<bool> {
        let Some(foreign) = &mut self.foreign else { return Ok(false) };
        let mut found = Found::default();
        let was_busy = foreign.plant.poll(&mut found)?;
        // A target has no business to write here.
        self.nonsense += found.data.len() as u64;
        for (op, is_ok) in found.ended {
            self.ended_foreign(op, is_ok);
        }
        for event in found.events {
            let (fid, kind) = match &event {
                Ok(event) => (event.fid, Some(event.kind)),
                Err(entry) => (entry.fid, None),
            };
            let Some(foreign) = &mut self.foreign else { break };
            let of = |there: &mut Called| there.line().is_some_and(|line| line.fid == fid);
            let Some(at) = foreign.called.iter_mut().position(of) else { continue };
            match kind {
                Some(EventKind::Connected) => {
                    let there = &mut foreign.called[at];
                    there.established();
                    let target = there.info.id;
                    self.tell(Transfer::Connected { target });
                }
                Some(EventKind::Shutdown) | None => self.hang_up(at),
                Some(_) => {}
            }
        }
        let count = self.foreign.as_ref().map_or(0, |foreign| foreign.called.len());
        for at in 0..count {
            self.call(at);
            self.pump_foreign(at);
        }
        Ok(was_busy)
    }

    /// Calls a target that is not connected, and drops one that is stuck.
    fn call(&mut self, at: usize) {
        let Some(Egress { called, plant }) = &mut self.foreign else { return };
        let there = &mut called[at];
        if there.is_stuck() {
            tracing::warn!(target: "mxl::fabrics", target = there.info.id, "a target takes nothing: it is called again");
            return self.hang_up(at);
        }
        if !matches!(there.call, Call::Idle(next) if Instant::now() >= next) {
            return;
        }
        match plant.line(None).and_then(|line| line.connect(&there.address).map(|()| line)) {
            Ok(line) => there.call = Call::Calling(line),
            Err(error) => {
                tracing::debug!(target: "mxl::fabrics", %error, "a target could not be called");
                self.hang_up(at);
            }
        }
    }

    fn hang_up(&mut self, at: usize) {
        let Some(foreign) = &mut self.foreign else { return };
        let there = &mut foreign.called[at];
        let was_connected = there.is_connected();
        let lost = there.hang_up();
        self.lost_foreign(at, lost, was_connected);
    }

    fn lost_foreign(&mut self, at: usize, lost: Vec<u64>, was_connected: bool) {
        let Some(foreign) = &mut self.foreign else { return };
        let there = &mut foreign.called[at];
        there.stats.lost += lost.len() as u64;
        let target = there.info.id;
        for index in lost {
            self.tell(Transfer::Lost { target, index });
        }
        if was_connected {
            self.tell(Transfer::Disconnected { target });
        }
    }

    fn ended_foreign(&mut self, op: u64, is_ok: bool) {
        let Some(foreign) = &mut self.foreign else { return };
        let of = |there: &mut Called| there.line().is_some_and(|line| line.ended(op));
        let Some(at) = foreign.called.iter_mut().position(of) else { return };
        let there = &mut foreign.called[at];
        if !is_ok {
            there.stats.failed += 1;
            return self.hang_up(at);
        }
        there.ended(op);
        self.judge_foreign(at);
    }

    /// Reports transfers whose writes have all ended, in order.
    fn judge_foreign(&mut self, at: usize) {
        while let Some(foreign) = &mut self.foreign {
            let there = &mut foreign.called[at];
            let Some(sent) = there.sent.pop_front_if(|sent| sent.ops.is_empty()) else { return };
            let target = there.info.id;
            there.stats.bytes += sent.bytes;
            let index = sent.index;
            let is_whole = match &self.source {
                _ if !sent.is_judged => true,
                Source::Grains(reader) => reader.holds(index),
                Source::Samples(reader) => reader.holds(index.saturating_sub(sent.count), sent.committed),
            };
            if sent.is_partial {
                // The end of the batch tells. A torn grain was told already.
                if sent.count > 0 && !is_whole {
                    there.torn = Some(sent.of);
                }
                continue;
            }
            let is_whole = is_whole && there.torn != Some(sent.of);
            there.torn = None;
            if is_whole {
                there.stats.done += 1;
                there.latency.record(sent.since.elapsed());
                self.tell(Transfer::Done { target, index });
                continue;
            }
            there.stats.torn += 1;
            if sent.count == 0 {
                there.flag(index);
            }
            self.tell(Transfer::Torn { target, index });
        }
    }

    /// Queues a transfer for each of these targets.
    pub(super) fn queue_foreign(&mut self, job: Job, is_part: bool, most: usize) {
        let count = self.foreign.as_ref().map_or(0, |foreign| foreign.called.len());
        for at in 0..count {
            let Some(foreign) = &mut self.foreign else { return };
            let there = &mut foreign.called[at];
            if !there.is_connected() {
                self.lost_foreign(at, vec![job.index], false);
                continue;
            }
            let job = if is_part { there.begun.with_earlier(job) } else { job };
            let lost = there.queue(job, most);
            self.lost_foreign(at, lost.into_iter().collect(), false);
            self.pump_foreign(at);
        }
    }

    /// Posts what waits for a target, as far as there is room.
    fn pump_foreign(&mut self, at: usize) {
        loop {
            let Some(foreign) = &mut self.foreign else { return };
            let there = &mut foreign.called[at];
            there.rest = WaitFor::Announced;
            if !there.is_connected() {
                return;
            }
            if there.posting.is_none() {
                let most = IN_FLIGHT.min(there.info.regions.len().div_ceil(2));
                if there.sent.len() >= most {
                    return;
                }
                let Some(job) = there.jobs.pop_front() else { return };
                match self.posting(at, job) {
                    Some((posting, rest)) => {
                        let Some(foreign) = &mut self.foreign else { return };
                        foreign.called[at].posting = Some(posting);
                        if let Some(rest) = rest {
                            foreign.called[at].jobs.push_front(rest);
                        }
                    }
                    None => {
                        self.lost_foreign(at, vec![job.index], false);
                        continue;
                    }
                }
            }
            match self.post_foreign(at) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a transfer to a target failed");
                    if let Some(foreign) = &mut self.foreign {
                        foreign.called[at].stats.failed += 1;
                    }
                    return self.hang_up(at);
                }
            }
        }
    }

    /// The writes of a job, and the part of it that goes into the next entry. `None` if the source has it no longer.
    fn posting(&mut self, at: usize, job: Job) -> Option<(Posting, Option<Job>)> {
        let Egress { called, plant } = self.foreign.as_mut()?;
        let there = &mut called[at];
        let regions = &there.info.regions;
        let sent = |index, count| TransferInFlight {
            index,
            of: job.index,
            count,
            committed: index,
            bytes: 0,
            ops: Vec::new(),
            is_judged: true,
            is_partial: false,
            since: job.since,
            moved: Instant::now(),
        };
        match (job.what, &self.source, self.geometry) {
            (
                What::Grain { start, end, payload },
                Source::Grains(reader),
                Geometry::Grains { payload: size, slices, .. },
            ) => {
                let slot = (job.index % regions.len() as u64) as usize;
                let is_sent = matches!(payload, Payload::Valid | Payload::Flagged);
                let (start, end) = if is_sent { (start, end.min(slices)) } else { (0, 0) };
                if is_sent {
                    reader.read_slices(job.index, 0, Wait::Not).ok()?;
                }
                let flags = if payload == Payload::Valid { 0 } else { INVALID };
                let header = Header { index: job.index, flags, size, total: slices, valid: end }.encode();
                let writes = wire::grain_writes(&self.geometry, start, end);
                let writes = wire::cut(writes, GRAIN_HEADER as u64, plant.limits()).into();
                let (addr, key) = (regions[slot].addr, regions[slot].rkey);
                let mark = Mark { slot: slot as u16, end }.encode();
                let sent =
                    TransferInFlight { is_judged: is_sent, is_partial: job.is_told(), ..sent(job.index, 0) };
                Some((Posting { job, header, remote: Remote { addr, key }, mark, writes, sent }, None))
            }
            (What::Samples { count, published }, Source::Samples(reader), _) => {
                let entry = there.entry % regions.len();
                let room = wire::samples_of(regions[entry].len, reader.channels(), reader.word());
                let now = count.min(room);
                // The first samples first.
                let index = job.index.saturating_sub(count - now);
                if published && reader.read(index, now, Wait::Not).is_err() {
                    return None;
                }
                let ring = Rings { length: reader.stride() as u64 / reader.word(), word: reader.word() };
                // They lie side by side in an entry: their places in a ring do not count.
                let spans = shape::samples(reader.channels(), index, now, ring, ring);
                let write = wire::Write { to: 0, header: true, spans };
                let writes = wire::cut(vec![write], ENTRY_HEADER as u64, plant.limits()).into();
                let header = EntryHeader { index, count: now }.encode().to_vec();
                let (addr, key) = (regions[entry].addr, regions[entry].rkey);
                let committed = if published { index } else { index.saturating_sub(now).min(reader.head()) };
                let sent = TransferInFlight { committed, is_partial: now < count, ..sent(index, now) };
                there.entry = (entry + 1) % regions.len();
                let rest = (now < count)
                    .then_some(Job { what: What::Samples { count: count - now, published }, ..job });
                let posting =
                    Posting { job, header, remote: Remote { addr, key }, mark: entry as u32, writes, sent };
                Some((posting, rest))
            }
            _ => None,
        }
    }

    /// Posts the next write. Returns whether there was room.
    fn post_foreign(&mut self, at: usize) -> Result<bool, ofi::Error> {
        let source = match &self.source {
            Source::Samples(reader) => {
                let len = reader.stride() * reader.channels() as usize;
                Memory { addr: reader.base().cast_mut(), len }
            }
            Source::Grains(reader) => {
                let foreign = self.foreign.as_ref();
                let posting = foreign.and_then(|foreign| foreign.called[at].posting.as_ref());
                let index = posting.map_or(0, |posting| posting.job.index);
                match reader.read_slices(index, 0, Wait::Not) {
                    Ok(grain) => Memory { addr: grain.as_ptr().cast_mut(), len: grain.len() },
                    // Overwritten meanwhile, which is noticed when the writes have ended; a header needs no source.
                    Err(_) => Memory { addr: std::ptr::null_mut(), len: 0 },
                }
            }
        };
        let Some(Egress { called, plant }) = &mut self.foreign else { return Ok(false) };
        let there = &mut called[at];
        let Called { call: Call::Connected(line), posting: Some(posting), rest, .. } = there else {
            return Ok(false);
        };
        let Some(next) = posting.writes.front() else {
            there.posting = None;
            return Ok(true);
        };
        if source.addr.is_null() && !next.spans.is_empty() {
            // The rest of it is gone. The target must not be told that it has arrived.
            let Some(posting) = there.posting.take() else { return Ok(true) };
            there.stats.torn += 1;
            let (target, index) = (there.info.id, posting.job.index);
            if !posting.sent.ops.is_empty() {
                there.sent.push_back(TransferInFlight { is_partial: true, ..posting.sent });
            }
            there.flag(index);
            self.tell(Transfer::Torn { target, index });
            return Ok(true);
        }
        let header: &[u8] = if next.header { &posting.header } else { &[] };
        let len = header.len() as u64 + next.spans.iter().map(|span| span.len).sum::<u64>();
        let to = Remote { addr: posting.remote.addr.wrapping_add(next.to), key: posting.remote.key };
        let data = (posting.writes.len() == 1).then_some(posting.mark);
        let write = plant::Write { header, source, spans: &next.spans, to, data };
        // SAFETY: the slot or the rings are mapped as long as the reader, which outlives the connections; their writer
        // may change them, which `holds` detects.
        let Some(op) = (unsafe { line.write(plant, write)? }) else {
            *rest = WaitFor::Room;
            return Ok(false);
        };
        posting.writes.pop_front();
        posting.sent.ops.push(op);
        (posting.sent.bytes, posting.sent.moved) = (posting.sent.bytes + len, Instant::now());
        if posting.writes.is_empty()
            && let Some(posting) = there.posting.take()
        {
            there.sent.push_back(posting.sent);
        }
        Ok(true)
    }

    /// These targets.
    pub(super) fn foreign_targets(&self) -> impl Iterator<Item = &Called> {
        self.foreign.iter().flat_map(|foreign| &foreign.called)
    }

    /// Removes such a target, because one of this library takes its place.
    pub(super) fn replace_foreign(&mut self, id: u64) {
        let Some(foreign) = &mut self.foreign else { return };
        let Some(at) = foreign.called.iter().position(|there| there.info.id == id) else { return };
        self.hang_up(at);
        self.remove_foreign(id);
    }

    /// Removes such a target. Returns whether it was there.
    pub(super) fn remove_foreign(&mut self, id: u64) -> bool {
        let Some(foreign) = &mut self.foreign else { return false };
        let before = foreign.called.len();
        foreign.called.retain(|there| there.info.id != id);
        foreign.called.len() < before
    }
}
