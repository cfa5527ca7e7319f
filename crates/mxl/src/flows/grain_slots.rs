//! The slots of a ring of grains: each is a file of its own, which takes a mapping.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use super::copy::Shared;
use super::file::{self, Folder, Mapping};
use super::flow::Flow;
use super::layout::{self, GrainHeader, PAYLOAD_OFFSET};
use super::{Error, scaffold};
use crate::protocol::SlotWords;
use crate::ring;

/// A mapped slot.
#[derive(Debug)]
pub struct GrainSlot {
    file: Mapping,
    /// Mapped bytes of the payload.
    pub payload: u32,
    /// Slices of a whole grain.
    pub slices: u16,
}

impl GrainSlot {
    /// The words of the header that change.
    pub fn words(&self) -> SlotWords<'_> {
        SlotWords {
            index: self.file.u64_at(8),
            flags: self.file.u32_at(16),
            size: self.file.u32_at(20),
            slices: self.file.u32_at(24),
        }
    }

    /// The bytes of the payload.
    pub fn payload(&self) -> Shared {
        self.file.from(PAYLOAD_OFFSET)
    }

    /// The bytes of the header, and of the payload after it.
    pub fn header(&self) -> Shared {
        self.file.from(0)
    }

    /// Bytes and slices of a whole grain, which are the same in all slots of a ring.
    pub fn shape(&self) -> (u32, u16) {
        (self.payload, self.slices)
    }
}

/// Checks that a flow has grains.
pub fn check(flow: &Flow) -> Result<(), Error> {
    if flow.info.is_discrete() {
        return Ok(());
    }
    Err(Error::argument(format!("flow {} is audio: it has samples", flow.info.id())))
}

/// The slots of a ring, all of the same size. Each takes a mapping, from its first use on.
#[derive(Debug)]
pub struct Slots {
    slots: Box<[OnceLock<GrainSlot>]>,
    /// [`GrainSlot::shape`] of all slots, and the length of their files.
    shape: (u32, u16),
    bytes: u64,
    write: bool,
}

impl Slots {
    /// Checks that all files of a ring exist, and maps the slot of the head. The others are mapped on demand.
    pub fn open(flow: &Flow, write: bool) -> Result<Self, Error> {
        check(flow)?;
        let folder = grains_folder(flow)?;
        let count = flow.info.config.discrete().grain_count;
        let head = ring::slot(flow.runtime().head, count.into()) as u32;
        let first = open_slot(flow, &folder, head, write)?;
        let (shape, bytes) = (first.shape(), folder.size(&scaffold::grain_path(flow.dir(), head))?);
        for number in 0..count {
            if folder.size(&scaffold::grain_path(flow.dir(), number))? != bytes {
                // Its own error says more, where it has one.
                open_slot(flow, &folder, number, write)?;
                return Err(slots_differ(flow));
            }
        }
        let slots: Box<[_]> = (0..count).map(|_| OnceLock::new()).collect();
        let _ = slots[head as usize].set(first);
        Ok(Self { slots, shape, bytes, write })
    }

    /// Maps all slots.
    pub fn open_whole(flow: &Flow, write: bool) -> Result<Self, Error> {
        let slots = Self::open(flow, write)?;
        let folder = grains_folder(flow)?;
        for (number, place) in slots.slots.iter().enumerate() {
            if place.get().is_none() {
                let _ = place.set(slots.map(flow, &folder, number as u32)?);
            }
        }
        Ok(slots)
    }

    /// [`GrainSlot::shape`] of all slots.
    pub fn shape(&self) -> (u32, u16) {
        self.shape
    }

    /// Number of slots.
    pub fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The slot of a grain, if it is mapped. There is at least one slot, and as many as the flow says.
    #[inline]
    pub fn mapped(&self, index: u64) -> Option<&GrainSlot> {
        self.slots[ring::slot(index, self.len()) as usize].get()
    }

    /// The slot of a grain.
    ///
    /// # Errors
    /// Those of a slot that is used for the first time: [`Error::FlowInvalid`] if the flow is gone,
    /// [`Error::Truncated`], and those of the system.
    #[inline]
    pub fn get(&self, flow: &Flow, index: u64) -> Result<&GrainSlot, Error> {
        match self.mapped(index) {
            Some(slot) => Ok(slot),
            None => self.map_anew(flow, ring::slot(index, self.len()) as u32),
        }
    }

    #[cold]
    fn map_anew(&self, flow: &Flow, number: u32) -> Result<&GrainSlot, Error> {
        let mapped = grains_folder(flow).and_then(|folder| self.map(flow, &folder, number));
        // The path may have led to another flow, or to the rest of one that is being deleted.
        if !flow.is_current() {
            return Err(flow.invalid());
        }
        // Another thread may have mapped it meanwhile.
        mapped.map(|slot| self.slots[number as usize].get_or_init(|| slot))
    }

    fn map(&self, flow: &Flow, folder: &Folder, number: u32) -> Result<GrainSlot, Error> {
        let path = scaffold::grain_path(flow.dir(), number);
        if folder.size(&path)? < self.bytes {
            return Err(Error::Truncated { path });
        }
        let slot = open_slot(flow, folder, number, self.write)?;
        if slot.shape() == self.shape { Ok(slot) } else { Err(slots_differ(flow)) }
    }
}

fn slots_differ(flow: &Flow) -> Error {
    Error::file(&flow.dir().join("grains"), "slots of different sizes")
}

/// The flow's folder `grains`.
pub fn grains_folder(flow: &Flow) -> Result<Folder, Error> {
    Folder::open(flow.dir())?.folder(&flow.dir().join("grains"))
}

/// Opens, checks and maps the file of a slot in the flow's folder `grains`.
pub fn open_slot(flow: &Flow, folder: &Folder, index: u32, write: bool) -> Result<GrainSlot, Error> {
    let sizes = flow.info.config.discrete().slice_sizes;
    let line = sizes.iter().fold(0_u32, |sum, &size| sum.saturating_add(size));
    let path = scaffold::grain_path(flow.dir(), index);
    let file = folder.file(&path, write)?;
    let header: GrainHeader = file::header(&file, &path)?;
    if header.version != layout::GRAIN_VERSION {
        let wanted = layout::GRAIN_VERSION;
        return Err(Error::file(&path, format!("version {}, not {wanted}", header.version)));
    }
    let (bytes, _) = file::size(&file, &path)?;
    let need = PAYLOAD_OFFSET as u64 + u64::from(header.grain_size);
    if bytes < need {
        return Err(Error::file(&path, format!("{bytes} bytes; its header says {need}")));
    }
    // The sizes in a header are those of one grain; the slot's capacity follows from the file's length.
    let payload = u32::try_from(bytes - PAYLOAD_OFFSET as u64).unwrap_or(u32::MAX);
    let slices = payload.checked_div(line).unwrap_or(u32::from(header.total_slices));
    let len = PAYLOAD_OFFSET + payload as usize;
    let file = Mapping::new(file.as_fd(), &path, len, write, flow.note(index))?;
    Ok(GrainSlot { file, payload, slices: u16::try_from(slices).unwrap_or(u16::MAX) })
}
