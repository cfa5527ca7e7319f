//! Notes: small messages between the cores of two endpoints, from which collectives are built. They are commands like
//! messages, and in one order with them, but are never matched.

use ofi_api::{Error, Result};
use ofi_core::copy;
use ofi_core::transport::{OutNote, Upcalls};

use crate::Shm;
use crate::command::{CommandWriter, Words, kind};
use crate::common::{Common, full};
use crate::layout::wish;
use crate::peer::{Broken, NextStep, Peer};

/// Bytes of a note's words.
const WORDS: usize = 32;

/// The maximum number of bytes of payload.
pub fn size_limit() -> usize {
    ofi_ring::record::max_body(crate::settings::COMMAND_LINES.get().next_power_of_two()) - WORDS
}

impl Peer {
    /// Sends a note.
    pub fn note(&mut self, common: &mut Common, out: &OutNote<'_>) -> Result<()> {
        if self.end.gone {
            return Err(Error::AGAIN);
        }
        match self.up() {
            None => self.connect(common)?,
            Some(up) if up.wish() == wish::CLOSED => {
                self.busy = true; // the next poll disconnects the peer
                return Err(Error::AGAIN);
            }
            Some(_) => {}
        }
        let Some(link) = self.link_mut() else { return Err(Error::AGAIN) };
        let mut slot = match link.commands.reserve(WORDS + out.len) {
            Ok(slot) => slot,
            Err(error) => {
                self.found_no_room(WORDS + out.len);
                return Err(full(common, error));
            }
        };
        // SAFETY: words and payload were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        out.words.into_iter().for_each(|word| body.word(word));
        // SAFETY: the pieces are lent during the call, and `len` bytes were reserved behind the words.
        unsafe { copy::gather(out.pieces, out.skip, body.rest(), out.len) };
        slot.publish(kind::NOTE);
        self.ring(common);
        Ok(())
    }

    /// Takes a note.
    pub fn take_note<H: Upcalls<Shm>>(&mut self, host: &mut H, mut words: Words) -> Result<NextStep, Broken> {
        let mut note = [0; 4];
        for word in &mut note {
            *word = words.next().ok_or(Broken)?;
        }
        let (body, len) = words.rest();
        // SAFETY: the record has `len` more bytes, readable until it is advanced past.
        unsafe { host.noted(self.peer, note, body, len) }.map_err(|_| Broken)?;
        Ok(NextStep::Next)
    }
}
