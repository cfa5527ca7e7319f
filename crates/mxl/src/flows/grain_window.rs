//! A reader that maps a few grains of a ring at a time, for programs that read thousands of flows.
//!
//! Each file of a flow needs a mapping of its own: the kernel merges neighbouring mappings only if they are of one
//! file, and the C++ SDK's format has a file for each grain. By default a process may have 65,530 mappings
//! (`vm.max_map_count`), enough for 5,455 readers of rings of 11 grains, with 12 mappings and a descriptor each. A
//! window of `n` grains takes `n + 1` mappings and no descriptor.
//!
//! The cost is paid at each grain that is not in the window: its file is opened, checked, and mapped in place of the
//! least recently used one, and its pages fault in again.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use rustix::fs::{AtFlags, CWD};

use super::flow::{Flow, describes_flow};
use super::grain_slots::{self, GrainSlot};
use super::grains::{self, ReadGrain};
use super::wait::{self, Wait};
use super::{Error, scaffold};
use crate::protocol;
use crate::ring;

/// Reads a flow of grains with only a few of them mapped at a time. [`Domain::read_grain_window`](crate::Domain) opens
/// it.
#[derive(Debug)]
pub struct GrainWindow {
    flow: Flow,
    grains: u64,
    /// Maximum mapped grains.
    most: usize,
    mapped: Vec<Mapped>,
    /// [`GrainSlot::shape`] of all slots, taken from the first one that was mapped.
    shape: Option<(u32, u16)>,
    /// The number of reads so far, which orders the mappings by their last use.
    reads: u64,
    touched: AtomicU64,
}

#[derive(Debug)]
struct Mapped {
    number: u32,
    slot: GrainSlot,
    used: u64,
}

describes_flow!(GrainWindow);

impl GrainWindow {
    pub(crate) fn new(flow: Flow, most: usize) -> Result<Self, Error> {
        grain_slots::check(&flow)?;
        if most == 0 {
            return Err(Error::argument("a window of 0 grains: it has 1 at least"));
        }
        let grains = u64::from(flow.info.config.discrete().grain_count);
        let touched = AtomicU64::new(0);
        let mut window = Self { flow, grains, most, mapped: Vec::new(), shape: None, reads: 0, touched };
        // A broken flow is an error now.
        window.map(window.flow.runtime().head)?;
        Ok(window)
    }

    /// Number of grains in the ring.
    pub fn grains(&self) -> u64 {
        self.grains
    }

    /// A whole grain, as [`GrainReader::read`](crate::GrainReader::read) returns it. The next read may unmap it.
    ///
    /// # Errors
    /// Those of [`GrainReader::read`](crate::GrainReader::read), and those of the system for a file that cannot be
    /// mapped, or that the C++ SDK is deleting.
    pub fn read(&mut self, index: u64, wait: Wait) -> Result<ReadGrain<'_>, Error> {
        self.read_slices(index, u16::MAX, wait)
    }

    /// Returns a grain as soon as at least `slices` of it are valid.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_slices(&mut self, index: u64, slices: u16, wait: Wait) -> Result<ReadGrain<'_>, Error> {
        let at = self.map(index)?;
        let slot = &self.mapped[at].slot;
        let said = Cell::new(false);
        let say = || {
            said.set(true);
            self.touch();
            wait::SLICE
        };
        let grain = grains::available((&self.flow, slot, self.grains), (index, slices), wait, say)?;
        if !said.get() {
            self.touch();
        }
        Ok(ReadGrain::new(&self.flow, slot, index, grain))
    }

    /// Whether the slot still holds the grain. False for a grain that is no longer mapped.
    pub fn holds(&self, index: u64) -> bool {
        let number = ring::slot(index, self.grains) as u32;
        let there = self.mapped.iter().find(|there| there.number == number);
        there.is_some_and(|there| protocol::unchanged(there.slot.words(), index)) && self.intact().is_ok()
    }

    /// Maps a grain's slot if it is not mapped yet. Returns its index among the mapped slots.
    fn map(&mut self, index: u64) -> Result<usize, Error> {
        self.reads += 1;
        let number = ring::slot(index, self.grains) as u32;
        let at = match self.mapped.iter().position(|there| there.number == number) {
            Some(at) => at,
            None => self.map_anew(number)?,
        };
        self.mapped[at].used = self.reads;
        Ok(at)
    }

    #[cold]
    fn map_anew(&mut self, number: u32) -> Result<usize, Error> {
        // Unmap first, for a process that has no mappings left.
        if self.mapped.len() == self.most {
            let oldest = self.mapped.iter().enumerate().min_by_key(|(_, there)| there.used);
            self.mapped.swap_remove(oldest.map_or(0, |(at, _)| at));
        }
        let dir = self.flow.dir();
        let folder = grain_slots::grains_folder(&self.flow);
        let opened = folder.and_then(|folder| grain_slots::open_slot(&self.flow, &folder, number, false));
        // The path may have led to another flow, or to the rest of one that is being deleted.
        if !self.flow.is_current() {
            return Err(self.flow.invalid());
        }
        let slot = opened?;
        if *self.shape.get_or_insert(slot.shape()) != slot.shape() {
            let path = scaffold::grain_path(dir, number);
            return Err(Error::file(&path, "slots of different sizes"));
        }
        self.mapped.push(Mapped { number, slot, used: 0 });
        Ok(self.mapped.len() - 1)
    }

    /// Records a read, at a limited rate. Opens the file by name, because thousands of readers would need as many
    /// descriptors.
    fn touch(&self) {
        grains::record(&self.touched, |times| {
            let access = self.flow.dir().join("access");
            rustix::fs::utimensat(CWD, access, times, AtFlags::SYMLINK_NOFOLLOW)
        });
    }
}
