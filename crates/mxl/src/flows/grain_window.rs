//! A reader that maps a few grains of a ring at a time, for programs that read thousands of flows.
//!
//! Each file of a flow takes a mapping of its own: the kernel merges neighbouring mappings only if they are of one
//! file, and the C++ SDK's format has a file for each grain. A process may have 65,530 of them by default
//! (`vm.max_map_count`), so it can have 5,455 readers of 11 grains, with 12 mappings and a descriptor each. A window of
//! `n` grains takes `n + 1` mappings and no descriptor.
//!
//! The price is paid at each grain that is not in the window: its file is opened, checked and mapped in place of the
//! one that was used least recently, and its pages have to be found again.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use rustix::fs::{AtFlags, CWD};

use super::file::Folder;
use super::flow::{Flow, describes_flow};
use super::grains::{self, GrainSlot, ReadGrain};
use super::wait::{self, Wait};
use super::{Error, scaffold};
use crate::protocol;
use crate::ring;

/// Reads a flow of grains, of which it maps a few at a time. [`Domain::read_grain_window`](crate::Domain) opens it.
#[derive(Debug)]
pub struct GrainWindow {
    flow: Flow,
    grains: u64,
    /// Maximum mapped grains.
    most: usize,
    mapped: Vec<Mapped>,
    /// [`GrainSlot::shape`] of all slots: that of the first one that was mapped.
    shape: Option<(u32, u16)>,
    /// Number of reads, by which the mappings know their age.
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
        grains::check(&flow)?;
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

    /// Whether the slot still holds the grain, which is one of the last that were read.
    pub fn holds(&self, index: u64) -> bool {
        let number = ring::slot(index, self.grains) as u32;
        let there = self.mapped.iter().find(|there| there.number == number);
        there.is_some_and(|there| protocol::unchanged(there.slot.words(), index)) && self.intact().is_ok()
    }

    /// The place of a grain's slot among the mapped ones. Maps it if it is not among them.
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
        // First, for a process that is short of mappings.
        if self.mapped.len() == self.most {
            let oldest = self.mapped.iter().enumerate().min_by_key(|(_, there)| there.used);
            self.mapped.swap_remove(oldest.map_or(0, |(at, _)| at));
        }
        let dir = self.flow.dir();
        let folder = Folder::open(dir).and_then(|flow| flow.folder(&dir.join("grains")));
        let opened = folder.and_then(|folder| grains::open_slot(&self.flow, &folder, number, false));
        // By its name another flow may have been found, or part of one that is being deleted.
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

    /// Records a read, at a limited rate. By the file's name, since thousands of descriptors are many too.
    fn touch(&self) {
        grains::record(&self.touched, |times| {
            let access = self.flow.dir().join("access");
            rustix::fs::utimensat(CWD, access, times, AtFlags::SYMLINK_NOFOLLOW)
        });
    }
}
