//! Notes between the cores of two endpoints: records among the commands, delivered once and in order.

use ofi_api::{Error, Result};
use ofi_core::copy;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::{OutNote, PeerId, Upcalls};
use ofi_rdm::{Flow, Sender};

use crate::Udp;
use crate::command::{STREAM_LIMIT, kind};

/// Maximum payload of a note in bytes.
pub const MAX_NOTE_LEN: usize = 8 << 10;

/// Sends a note.
///
/// # Errors
/// `FI_EAGAIN` if too much waits for the peer.
pub fn send(sender: &mut Sender, out: &OutNote<'_>) -> Result<()> {
    if sender.commands.records() > STREAM_LIMIT {
        return Err(Error::AGAIN);
    }
    let mut fields = Fields::new();
    for word in out.words {
        fields.word(word);
    }
    let body = sender.commands.record(kind::NOTE, 0, fields.bytes(), out.len, None);
    // SAFETY: the pieces are lent during the call, and `body` has `len` bytes.
    let got = unsafe { copy::gather(out.pieces, out.skip, body.as_mut_ptr(), out.len) };
    body[got..].fill(0);
    Ok(())
}

/// Takes a note.
pub fn take<H: Upcalls<Udp>>(host: &mut H, peer: PeerId, body: &[u8]) -> Result<Flow, Broken> {
    let mut words = Words(body);
    let say = [words.word()?, words.word()?, words.word()?, words.word()?];
    if words.0.len() > MAX_NOTE_LEN {
        return Err(Broken);
    }
    // SAFETY: the payload is readable for its length during the call.
    let taken = unsafe { host.noted(peer, say, words.0.as_ptr(), words.0.len()) };
    taken.map(|()| Flow::Next).map_err(|_| Broken)
}
