//! The parts of the ring that an initiator may write: slots of grains, room for samples.
#![allow(unsafe_code)]

use std::collections::hash_map::Entry;

use mxl::{Geometry, GrainWriter, SampleWriter};
use ofi_ring::crash_point;

use super::peer::InitiatorPeer;
use super::{Ring, Target};
use crate::Result;
use crate::link::{Link, Memory};
use crate::message::{Message, Remote};

/// Open slots beyond the one that is written, so that the next grain need not wait for its slot. Readers of the
/// target's flow have that much less history.
const AHEAD: usize = 2;

impl Target {
    /// Opens slots from `index` on, as many as are permitted.
    pub(super) fn open_for(&mut self, index: u64, floor: u64) -> Result<()> {
        let Self { peer: Some(peer), ring, link, geometry, .. } = self else { return Ok(()) };
        match ring {
            Ring::Grains(writer) => {
                peer.granted.retain(|granted| *granted >= floor);
                for index in (0..=AHEAD as u64).filter_map(|ahead| index.checked_add(ahead)) {
                    grant(peer, writer, link, geometry, index)?;
                    crash_point!("target.granted");
                }
            }
            Ring::Samples(writer) => {
                if writer.head() != index {
                    // The whole ring: its old content belongs to other indices.
                    let half = writer.max_write();
                    silence(writer, index, half)?;
                    silence(writer, index.saturating_sub(half), half)?;
                    writer.publish(index)?;
                }
                self.expected = Some(index);
                let (word, stride) = writer.strides();
                peer.until = index.saturating_add((stride / word / 2) as u64);
                peer.outbox.push_back(Message::Room { token: peer.token, until: peer.until });
            }
        }
        Ok(())
    }
}

/// Opens the slot of a grain for the initiator, unless the initiator has that slot or the permitted number of slots.
pub(super) fn grant(
    peer: &mut InitiatorPeer,
    writer: &GrainWriter,
    link: &Link,
    geometry: &Geometry,
    index: u64,
) -> Result<()> {
    let grains = writer.grains();
    let most = (AHEAD + 1).min((grains.max(3) - 2) as usize);
    let slot = index % grains;
    let is_taken = peer.granted.iter().any(|granted| granted % grains == slot);
    let Geometry::Grains { payload, .. } = *geometry else { return Ok(()) };
    if peer.granted.contains(&index) {
        // A repeated request: the grant was sent once, and messages are reliable.
        return Ok(());
    }
    if is_taken || peer.granted.len() >= most {
        return Ok(());
    }
    let (_, addr) = writer.begin(index)?;
    let payload = match peer.windows.entry(slot) {
        _ if peer.by_messages => Remote::default(),
        Entry::Occupied(there) => there.get().remote(),
        Entry::Vacant(place) => {
            // SAFETY: the slot is mapped as long as the writer, which outlives the windows; there are no references to
            // it.
            let window = unsafe { link.open_window(Memory { addr, len: payload as usize }) }?;
            place.insert(window).remote()
        }
    };
    peer.granted.push_back(index);
    peer.outbox.push_back(Message::Grant { token: peer.token, index, payload });
    Ok(())
}

/// Writes silence into the `count` samples before `index`.
pub(crate) fn silence(writer: &mut SampleWriter, index: u64, count: u64) -> Result<()> {
    let ((word, _), channels) = (writer.strides(), writer.channels());
    let mut open = writer.open(index, count)?;
    for channel in 0..channels {
        if word == 4 {
            open.write_channel(channel, &vec![0_f32; count as usize])?;
        } else {
            open.write_channel(channel, &vec![0_f64; count as usize])?;
        }
    }
    Ok(())
}
