//! Serves initiators that speak the C++ SDK's protocol: what they have written into the memory that they were lent is
//! checked and copied into the flow's ring.
#![allow(unsafe_code)]

use mxl::{Geometry, GrainInfo};
use ofi_ring::crash_point;

use super::slots::silence;
use super::{Received, Ring, Target};
use crate::Result;
use crate::sdk::wire::{self, EntryHeader, GRAIN_HEADER, Header, INVALID, Mark};
use crate::shape;
use crate::target::ingress::{Change, Ingress};

impl Target {
    /// Drives the connection of such an initiator. Returns whether anything happened.
    pub(super) fn serve_foreign(&mut self) -> Result<bool> {
        let Some(mut ingress) = self.ingress.take() else { return Ok(false) };
        let mut changes = Vec::new();
        let served = ingress.poll(self.peer.is_some(), &mut changes).and_then(|was_busy| {
            for change in &changes {
                match change {
                    Change::Connected => {
                        self.stats.taken += 1;
                        self.tell(Received::Connected);
                    }
                    Change::Refused => self.stats.refused += 1,
                    Change::Disconnected => {}
                }
            }
            while let Some(data) = ingress.marks.pop_front() {
                crash_point!("target.mark");
                match &self.ring {
                    Ring::Grains(_) => self.grain_of(&ingress, data)?,
                    Ring::Samples(_) => self.samples_of(&ingress, data)?,
                }
            }
            if changes.contains(&Change::Disconnected) {
                self.tell(Received::Disconnected);
            }
            Ok(was_busy)
        });
        self.ingress = Some(ingress);
        served
    }

    /// Ends such a connection, because an initiator of this library takes its place.
    pub(super) fn leave_foreign(&mut self) {
        if self.ingress.as_mut().is_some_and(Ingress::hang_up) {
            self.tell(Received::Disconnected);
        }
    }

    fn grain_of(&mut self, ingress: &Ingress, data: u64) -> Result<()> {
        let (Ring::Grains(writer), Geometry::Grains { payload, slices, .. }) = (&self.ring, self.geometry)
        else {
            return Ok(());
        };
        let mark = Mark::parse(data).filter(|mark| usize::from(mark.slot) < ingress.count());
        let told = mark.and_then(|mark| Some((mark, ingress.grain(mark.slot)?)));
        let is_sound = |(mark, header): &(Mark, Header)| {
            header.index % writer.grains() == u64::from(mark.slot)
                && (header.size, header.total) == (payload, slices)
                && mark.end <= slices
        };
        let Some((mark, header)) = told.filter(is_sound) else {
            self.stats.nonsense += 1;
            return Ok(());
        };
        if is_grain_overwritten(ingress, mark, header.index) {
            self.stats.overwritten += 1;
            return Ok(());
        }
        let index = header.index;
        let (info, _) = writer.begin(index)?;
        let mut invalid = header.flags & INVALID != 0;
        if mark.end <= info.valid_slices && !invalid {
            // The mark of another grain, whose slot holds this one now.
            self.stats.overwritten += 1;
            return Ok(());
        }
        if info.is_invalid() && info.valid_slices == slices {
            // It is published, as invalid: slices that follow change nothing.
            return Ok(());
        }
        for span in shape::slices(&self.geometry, info.valid_slices, mark.end) {
            let (offset, len) = (span.from as usize, span.len as usize);
            let Some(from) = ingress.at(mark.slot.into(), GRAIN_HEADER + offset, len) else { return Ok(()) };
            // SAFETY: inside the lent memory, which is no part of the flow.
            unsafe { writer.write_slot_from(index, offset, from, len)? };
        }
        if ingress.grain(mark.slot).map(|now| now.index) != Some(index) {
            self.stats.overwritten += 1;
            invalid = true;
        }
        // An invalid grain is whole: no more of it comes.
        let valid = if invalid { slices } else { mark.end };
        crash_point!("target.begun");
        writer.publish(GrainInfo {
            flags: u32::from(invalid),
            size: payload,
            valid_slices: valid,
            ..info
        })?;
        crash_point!("target.published");
        self.stats.published += 1;
        self.told_grain(index, valid, slices, invalid);
        Ok(())
    }

    fn samples_of(&mut self, ingress: &Ingress, data: u64) -> Result<()> {
        let (Ring::Samples(writer), Geometry::Samples { channels, word, .. }) =
            (&mut self.ring, self.geometry)
        else {
            return Ok(());
        };
        let word = u64::from(word);
        let room = wire::samples_of(ingress.len(), channels, word).min(writer.max_write());
        let entry = usize::try_from(data).ok().filter(|entry| *entry < ingress.count());
        let told = entry.and_then(|entry| Some((entry, ingress.entry(entry)?)));
        let is_sound = |(_, header): &(usize, EntryHeader)| {
            header.count > 0 && header.count <= room && header.count <= header.index
        };
        let Some((entry, header)) = told.filter(is_sound) else {
            self.stats.nonsense += 1;
            return Ok(());
        };
        let EntryHeader { index, count } = header;
        let is_later = |later: &u64| {
            let later = usize::try_from(*later).unwrap_or(usize::MAX);
            later == entry || ingress.entry(later).is_some_and(|later| later.index < index)
        };
        if ingress.marks.iter().any(is_later) {
            self.stats.overwritten += 1;
            return Ok(());
        }
        let start = index - count;
        let half = writer.max_write();
        let lost = match (self.expected, self.expected.and_then(|expected| start.checked_sub(expected))) {
            (Some(_), Some(0)) => None,
            (Some(first), Some(gap)) if gap <= half => {
                silence(writer, start, gap)?;
                writer.publish(start)?;
                Some((first, gap))
            }
            // The same samples again, and more of them.
            (Some(expected), None) if index >= expected && writer.head() == expected => None,
            (first, gap) => {
                // The whole ring: its old content belongs to other indices.
                for end in [start, start.saturating_sub(half)] {
                    silence(writer, end, half.min(end))?;
                }
                writer.publish(start)?;
                first.zip(gap)
            }
        };
        if let Some((first, count)) = lost {
            self.lost(first, count);
        }
        let Ring::Samples(writer) = &mut self.ring else { return Ok(()) };
        let (window, _) = writer.begin(index, count)?;
        let (_, stride) = writer.strides();
        let mut offset = wire::ENTRY_HEADER;
        for channel in 0..channels as usize {
            for (at, len) in [(window.start, window.first), (0, window.second)] {
                let (to, len) = (channel * stride + (at * word) as usize, (len * word) as usize);
                let Some(from) = ingress.at(entry, offset, len).filter(|_| len > 0) else { continue };
                // SAFETY: inside the lent memory, which is no part of the flow.
                unsafe { writer.write_rings_from(to, from, len)? };
                offset += len;
            }
        }
        let is_torn = ingress.entry(entry) != Some(header);
        if is_torn {
            silence(writer, index, count)?;
        }
        crash_point!("target.begun");
        writer.publish(index)?;
        crash_point!("target.published");
        self.stats.published += 1;
        self.expected = Some(index);
        if is_torn {
            self.stats.overwritten += 1;
            self.lost(start, count);
        } else {
            self.told_samples(index, count);
        }
        Ok(())
    }
}

/// Whether a later mark shows that a slot was written again after this mark: a peer writes in order, so a later grain
/// has a higher index, and later slices of the same grain a higher end.
fn is_grain_overwritten(ingress: &Ingress, mark: Mark, index: u64) -> bool {
    ingress.marks.iter().filter_map(|data| Mark::parse(*data)).any(|later| {
        if later.slot == mark.slot {
            later.end <= mark.end && later.end > 0
        } else {
            ingress.grain(later.slot).is_some_and(|header| header.index < index)
        }
    })
}
