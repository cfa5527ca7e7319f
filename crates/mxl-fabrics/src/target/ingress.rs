//! The receiving role: memory that initiators of the C++ SDK write, and the connection of one of them at a time.
//!
//! Nothing that arrives here indexes memory unchecked: the target checks CQ data and headers before it copies what they
//! name ([`crate::Target`]).
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{EventKind, Info, PassiveEndpoint};
use ofi_core::pages::Pages;

use crate::link::{Memory, Window};
use crate::message::Remote;
use crate::sdk::plant::{Found, Line, Plant};
use crate::sdk::wire::{ENTRY_HEADER, EntryHeader, Header};
use crate::{Error, Options, Provider, RegionInfo, Result};

/// Time in which an initiator that was accepted must be connected.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(5);
/// An initiator that has written within this time keeps its place: the connections of this protocol prove nothing, so
/// any stranger could take it. The C++ SDK's initiators ask again after five seconds.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Queue reads of one turn.
const READS: usize = 16;
/// Reads of what an ended connection has left in the queues: more than these hold.
const MOST_READS: usize = 65_536;
/// Bytes at which regions begin.
const ALIGNED: usize = 4096;

/// A change of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Connected,
    Disconnected,
    Refused,
}

/// The connected initiator.
struct Caller {
    line: Line,
    is_established: bool,
    heard: Instant,
}

/// The end of a target that initiators of the C++ SDK write to: its memory, and the connection of one of them.
pub(crate) struct Ingress {
    // Dropped in this order: the connection, then the right to write, then the memory.
    caller: Option<Caller>,
    windows: Vec<Window>,
    pep: Arc<dyn PassiveEndpoint>,
    /// A request that waits until everything of the last initiator is read.
    request: Option<Box<Info>>,
    pub plant: Plant,
    memory: Staging,
    /// CQ data that has arrived and was not read, in order.
    pub marks: VecDeque<u64>,
    /// The format of the address, and the address.
    pub name: (u32, Vec<u8>),
}

/// Regions of equal length, side by side.
struct Staging {
    /// Whoever drops it has closed all windows before.
    pages: Pages,
    len: usize,
    stride: usize,
    count: usize,
}

impl Staging {
    fn new(count: usize, len: usize) -> Result<Self> {
        let too_long = || Error::Argument(format!("{count} regions of {len} bytes do not fit into memory"));
        let stride = len.checked_next_multiple_of(ALIGNED).ok_or_else(too_long)?;
        let bytes = stride.checked_mul(count).ok_or_else(too_long)?;
        // Pages that no peer writes are never touched.
        let pages = Pages::new(bytes, false).map_err(|_| too_long())?;
        Ok(Self { pages, len, stride, count })
    }

    fn start(&self, at: usize) -> Option<*mut u8> {
        (at < self.count).then(|| self.pages.base().wrapping_add(at * self.stride))
    }
}

impl Ingress {
    /// Listens, and lends `count` regions of `len` bytes.
    pub fn open(
        provider: Provider,
        place: (Option<&str>, Option<&str>),
        options: &Options,
        (count, len): (usize, usize),
    ) -> Result<Self> {
        let plant = Plant::open(provider, place, options)?;
        let memory = Staging::new(count, len)?;
        let pep = plant.fabric.open_passive(&plant.info).map_err(Error::stack("open a passive endpoint"))?;
        pep.bind_eq(&plant.eq).and_then(|()| pep.listen()).map_err(Error::stack("listen"))?;
        let name = pep.name().map_err(Error::stack("name the passive endpoint"))?;
        let mut windows = Vec::with_capacity(count);
        for addr in (0..count).filter_map(|at| memory.start(at)) {
            // SAFETY: the memory outlives the windows, and there are no references to it.
            windows.push(unsafe { plant.open_window(Memory { addr, len }) }?);
        }
        let name = (name.format().as_c(), name.bytes().to_vec());
        let (caller, request, marks) = (None, None, VecDeque::new());
        Ok(Self { caller, windows, pep, request, plant, memory, marks, name })
    }

    /// The regions, as an info lists them.
    pub fn regions(&self) -> Vec<RegionInfo> {
        let region = |window: &Window| {
            let Remote { addr, key } = window.remote();
            RegionInfo { addr, len: self.memory.len as u64, rkey: key }
        };
        self.windows.iter().map(region).collect()
    }

    /// The number of regions.
    pub fn count(&self) -> usize {
        self.memory.count
    }

    /// Bytes of each.
    pub fn len(&self) -> u64 {
        self.memory.len as u64
    }

    /// Whether an initiator is connected.
    pub fn is_connected(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.is_established)
    }

    /// Bytes of a region: a pointer to them, if they are inside.
    pub fn at(&self, region: usize, offset: usize, len: usize) -> Option<*const u8> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.memory.len);
        let start = self.memory.start(region).filter(|_| is_inside)?;
        Some(start.wrapping_add(offset).cast_const())
    }

    /// The first bytes of a region, as they are now.
    fn head<const N: usize>(&self, region: usize) -> Option<[u8; N]> {
        let from = self.at(region, 0, N)?;
        let mut bytes = [0; N];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: inside the memory, as just checked. A peer may write it meanwhile, so it is read byte by byte.
            *byte = unsafe { from.wrapping_add(at).read_volatile() };
        }
        Some(bytes)
    }

    /// The header of the grain in a slot.
    pub fn grain(&self, slot: u16) -> Option<Header> {
        Header::parse(&self.head(slot.into())?)
    }

    /// The header of an entry.
    pub fn entry(&self, entry: usize) -> Option<EntryHeader> {
        self.head::<ENTRY_HEADER>(entry).map(|bytes| EntryHeader::parse(&bytes))
    }

    /// Ends the connection. Returns whether there was one.
    pub fn hang_up(&mut self) -> bool {
        let was_connected = self.end_caller();
        self.request = None;
        self.marks.clear();
        was_connected
    }

    /// Drops the connection. Returns whether there was one. What it marked and nobody has read is dropped, as none of
    /// it may be taken for the next initiator's: its endpoint is closed later, on another thread, and it stays in the
    /// queue until then.
    fn end_caller(&mut self) -> bool {
        let Some(caller) = self.caller.take() else { return false };
        let was_connected = caller.is_established;
        drop(caller);
        // Nothing arrives any more, so this ends.
        for _ in 0..MOST_READS {
            let mut found = Found::default();
            if !self.plant.poll(&mut found).unwrap_or(false) {
                break;
            }
            self.keep_request(found);
        }
        was_connected
    }

    /// Events of a connection that has ended say nothing new; a request among them is kept.
    fn keep_request(&mut self, found: Found) {
        let newest = found.events.into_iter().flatten().filter_map(|event| event.info).next_back();
        self.request = newest.or(self.request.take());
    }

    /// Drives the connection. What has arrived is in `marks` afterwards; [`Change::Disconnected`] is about what comes
    /// after them. `is_taken`: an initiator has the target by another protocol.
    pub fn poll(&mut self, is_taken: bool, changes: &mut Vec<Change>) -> Result<bool> {
        let mut was_busy = self.answer(is_taken, changes);
        for _ in 0..READS {
            let mut found = Found::default();
            if !self.plant.poll(&mut found)? {
                break;
            }
            was_busy = true;
            if let Some(caller) = self.caller.as_mut().filter(|_| !found.data.is_empty()) {
                caller.heard = Instant::now();
                if let Err(error) = caller.line.replace_receives(&self.plant, found.data.len()) {
                    tracing::debug!(target: "mxl::fabrics", %error, "no receives for an initiator's writes");
                }
                self.marks.extend(found.data);
            }
            for event in found.events {
                self.event(event, changes)?;
            }
        }
        let is_late =
            |caller: &Caller| !caller.is_established && caller.line.since.elapsed() > ESTABLISHED_WITHIN;
        if self.caller.as_ref().is_some_and(is_late) {
            self.end_caller();
        }
        Ok(was_busy)
    }

    fn event(
        &mut self,
        event: Result<ofi::raw::Event, ofi::raw::EqErrorEntry>,
        changes: &mut Vec<Change>,
    ) -> Result<()> {
        let is_of_caller = |fid| self.caller.as_ref().is_some_and(|caller| caller.line.fid == fid);
        match event {
            // An unanswered one before it is refused.
            Ok(event) if event.kind == EventKind::ConnReq => self.request = event.info,
            Ok(event) if is_of_caller(event.fid) && event.kind == EventKind::Connected => {
                if let Some(caller) = &mut self.caller {
                    (caller.is_established, caller.heard) = (true, Instant::now());
                }
                changes.push(Change::Connected);
            }
            Ok(event) if is_of_caller(event.fid) && event.kind == EventKind::Shutdown => {
                self.lose(changes)?
            }
            Err(entry) if is_of_caller(entry.fid) => {
                tracing::debug!(target: "mxl::fabrics", error = %entry.err, "an initiator's connection failed");
                self.lose(changes)?;
            }
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    /// The connection has ended; what arrived before is still read.
    fn lose(&mut self, changes: &mut Vec<Change>) -> Result<()> {
        for _ in 0..READS {
            let mut found = Found::default();
            let was_busy = self.plant.poll(&mut found)?;
            self.marks.extend(std::mem::take(&mut found.data));
            self.keep_request(found);
            if !was_busy {
                break;
            }
        }
        if self.end_caller() {
            changes.push(Change::Disconnected);
        }
        Ok(())
    }

    /// Answers a request, once everything that came before is read.
    fn answer(&mut self, is_taken: bool, changes: &mut Vec<Change>) -> bool {
        if !self.marks.is_empty() {
            return false;
        }
        let Some(request) = self.request.take() else { return false };
        let is_alive = |caller: &Caller| caller.heard.elapsed() < HEARD_WITHIN;
        if is_taken || self.caller.as_ref().is_some_and(is_alive) {
            changes.push(Change::Refused);
            if let Some(handle) = &request.handle
                && let Err(error) = self.pep.reject(handle, &[])
            {
                tracing::debug!(target: "mxl::fabrics", %error, "a request could not be refused");
            }
            return true;
        }
        if self.caller.is_some() {
            // The next turn accepts it, after the program was told of the end.
            if self.end_caller() {
                changes.push(Change::Disconnected);
            }
            // One that came meanwhile takes its place.
            self.request.get_or_insert(request);
            return true;
        }
        // Headers of the last initiator must not be taken for those of the next.
        for start in (0..self.memory.count).filter_map(|at| self.memory.start(at)) {
            for at in 0..Header::LEN.min(self.memory.len) {
                // SAFETY: inside the memory. No peer is connected that may write it.
                unsafe { start.wrapping_add(at).write_volatile(0) };
            }
        }
        match self.plant.line(Some(&request)).and_then(|line| line.accept(&self.plant).map(|()| line)) {
            Ok(line) => self.caller = Some(Caller { line, is_established: false, heard: Instant::now() }),
            Err(error) => {
                tracing::debug!(target: "mxl::fabrics", %error, "a request could not be accepted");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_begin_at_pages_and_are_apart() {
        for (count, len) in [(1, 1), (3, 4096), (7, 5000)] {
            let memory = Staging::new(count, len).unwrap();
            let starts: Vec<usize> =
                (0..count).filter_map(|at| memory.start(at)).map(|start| start.addr()).collect();
            assert!(starts.len() == count && starts.iter().all(|start| start % ALIGNED == 0), "{starts:?}");
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= len), "{starts:?}");
            let first = memory.pages.base().addr();
            assert!(starts[count - 1] + len <= first + memory.pages.len());
            assert!(starts[0] == first && memory.start(count).is_none());
        }
        assert!(Staging::new(usize::MAX, 2).is_err() && Staging::new(1, usize::MAX).is_err());
    }
}
