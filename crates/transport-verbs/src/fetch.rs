//! Payloads that are read from their sender by the device, straight into the receive.

use std::collections::VecDeque;

use ibv::{Access, MemoryRegion, Remote, Segment};
use ofi_api::Errno;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, Peer};

use crate::Verbs;
use crate::adapter::{Posted, READS, REQUESTS};
use crate::lane::{Common, Lane};
use crate::message::{Source, Token};

/// The longest single read: a power of two that every device can.
const LONGEST: usize = 1 << 20;

/// A payload on its way.
pub struct Pull {
    /// The receive that it goes to.
    pub into: SlotId,
    token: Token,
    /// Reads that are not posted yet.
    todo: VecDeque<(Segment, Remote)>,
    /// Reads that are under way.
    posted: usize,
    failed: Option<Errno>,
    /// Registrations of the receive's memory.
    _regions: Vec<MemoryRegion>,
}

// SAFETY: segments are numbers; whoever uses them relies on the receive being open.
unsafe impl Send for Pull {}

impl Lane {
    /// Fetches an announced payload into the open receive `into`.
    pub fn pull<H: Host<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        token: Token,
        into: SlotId,
    ) {
        let Some(receiving) = host.receiving(into) else { return self.discard(common, peer, &token) };
        let (mut regions, mut runs) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (addr, len) in copy::runs(receiving.pieces, 0, receiving.len) {
            // SAFETY: lent until the receive ends; `settle_receives` stops the device before that.
            match unsafe { MemoryRegion::new(&common.domain.transport.pd, addr, len, Access::Local) } {
                Ok(region) => {
                    runs.push((addr, len, region.lkey()));
                    regions.push(region);
                }
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive cannot be registered");
                    failure = Some(Errno::from_raw(error.errno));
                }
            }
        }
        if failure.is_some() || runs.is_empty() {
            host.received(into, failure.map_or(Ok(()), Err));
            return self.discard(common, peer, &token);
        }
        common.counts.regions += regions.len() as u64;
        let todo = plan(&runs, &token.sources);
        let pull = Pull { into, token, todo, posted: 0, failed: None, _regions: regions };
        let id = self.pulls.insert(pull);
        self.fetching.push_back(id);
        self.fetch(common, peer);
    }

    /// Posts reads, as far as there is room.
    pub fn fetch(&mut self, common: &mut Common, peer: Peer) {
        while let Some(&id) = self.fetching.front() {
            let Some(pull) = self.pulls.get_mut(id) else {
                self.fetching.pop_front();
                continue;
            };
            while let Some(&(to, from)) = pull.todo.front() {
                let Some(qp) = self.link.open().and_then(|id| id.qp()) else { return };
                if self.requests >= REQUESTS || common.adapter.reads >= READS {
                    return common.hold(&mut self.is_dirty, peer);
                }
                let wr = common.adapter.posted.insert(Posted::Read { peer, pull: id });
                // SAFETY: the receive's memory is registered, and lent until the receive ends; a lane that it ends for is lost first.
                if let Err(error) = unsafe { qp.read(wr.to_wire(), &[to], from) } {
                    tracing::warn!(target: "ofi::verbs::ep_data", %error, "a read cannot be posted");
                    common.adapter.posted.remove(wr);
                    self.ending.get_or_insert(Errno::EIO);
                    return common.hold(&mut self.is_dirty, peer);
                }
                pull.todo.pop_front();
                pull.posted += 1;
                self.requests += 1;
                common.adapter.reads += 1;
                common.counts.reads += 1;
            }
            self.fetching.pop_front();
        }
    }

    /// A read has ended.
    pub fn fetched<H: Host<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        let Some(pull) = self.pulls.get_mut(id) else { return };
        pull.posted -= 1;
        if let Err(errno) = result {
            pull.failed.get_or_insert(errno);
        }
        if pull.posted > 0 || !pull.todo.is_empty() {
            return;
        }
        // Its registrations go before the application has its memory back.
        let Some(Pull { into, token, failed, _regions, .. }) = self.pulls.remove(id) else { return };
        drop(_regions);
        host.received(into, failed.map_or(Ok(()), Err));
        self.discard(common, peer, &token);
    }
}

/// The reads that move the first bytes of `sources` to `runs`: each of one piece at either end.
fn plan(runs: &[(*mut u8, usize, u32)], sources: &[Source]) -> VecDeque<(Segment, Remote)> {
    let mut todo = VecDeque::new();
    let mut from = sources.iter();
    let mut source: Option<Source> = None;
    for &(mut addr, mut len, lkey) in runs {
        while len > 0 {
            let Some(mut here) = source.take().or_else(|| from.next().copied()) else { return todo };
            let part = len.min(here.len).min(LONGEST);
            if part > 0 {
                let to = Segment { addr, len: part as u32, lkey };
                todo.push_back((to, Remote { addr: here.addr, rkey: here.rkey }));
            }
            (addr, len) = (addr.wrapping_add(part), len - part);
            (here.addr, here.len) = (here.addr + part as u64, here.len - part);
            source = Some(here).filter(|here| here.len > 0);
        }
    }
    todo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cover_every_byte_once_whatever_the_pieces_are() {
        let base = 0x1000 as *mut u8;
        let runs = [(base, 5, 1), (base.wrapping_add(100), LONGEST + 3, 2)];
        let source = |addr, len| Source { addr, len, rkey: addr as u32 };
        let sources = [source(10, 2), source(20, 0), source(30, LONGEST + 1), source(5_000_000, 900)];
        let todo = plan(&runs, &sources);
        let total: usize = todo.iter().map(|(to, _)| to.len as usize).sum();
        assert_eq!(total, LONGEST + 8);
        let all: Vec<_> =
            todo.iter().map(|(to, from)| (to.addr as u64, to.len as usize, from.addr)).collect();
        let first = LONGEST + 1 - 3;
        assert_eq!(
            all,
            [(0x1000, 2, 10), (0x1002, 3, 30), (0x1064, first, 33), (0x1064 + first as u64, 5, 5_000_000)]
        );
    }
}
