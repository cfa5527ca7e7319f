//! Fields of records: how transports that send packets say what an operation is. All numbers are 8 bytes in network
//! byte order.
//!
//! A record has a kind, which each transport numbers for itself, [flags](flag), fields as the kind has them, and a
//! payload.

use ofi_api::{OpFlags, RemotePiece, Result};

use super::{Arrived, OutMessage, PeerId, RemoteData, RxName};

/// The maximum number of remote pieces of one operation (`rma_iov_limit`).
pub const RMA_IOV_LIMIT: usize = 8;

/// Flags of records.
pub mod flag {
    /// There is a tag.
    pub const TAGGED: u8 = 1;
    /// There is remote CQ data.
    pub const DATA: u8 = 2;
    /// The sender wants to know when the message has been delivered.
    pub const CONFIRM: u8 = 4;
    /// The operation's number names a message that the sending library keeps.
    pub const KEPT: u8 = 8;
    /// A receive context of the receiver is named.
    pub const NAMED: u8 = 16;

    /// Whether a record may have these flags.
    pub const fn are_known(flags: u8) -> bool {
        flags & !(TAGGED | DATA | CONFIRM | KEPT | NAMED) == 0
    }
}

/// Collects the fixed fields of a record.
pub struct Fields {
    bytes: [u8; Self::MAX_LEN],
    len: usize,
}

impl Fields {
    /// The maximum length of the fields, in bytes: eight words, and three for each remote piece.
    pub const MAX_LEN: usize = 8 * (8 + 3 * RMA_IOV_LIMIT);

    /// None yet.
    #[expect(clippy::new_without_default, reason = "no caller needs a default")]
    pub fn new() -> Self {
        Self { bytes: [0; Self::MAX_LEN], len: 0 }
    }

    /// Appends a word.
    pub fn word(&mut self, word: u64) -> &mut Self {
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_be_bytes());
        self.len += 8;
        self
    }

    /// Appends remote pieces: their number, then address, length and key of each. At most [`RMA_IOV_LIMIT`].
    pub fn pieces(&mut self, pieces: &[RemotePiece]) -> &mut Self {
        self.word(pieces.len() as u64);
        for piece in pieces {
            self.word(piece.addr).word(piece.len as u64).word(piece.key);
        }
        self
    }

    /// Appends the receive context, if one is named. Returns the flag for it.
    pub fn rx(&mut self, rx: RxName) -> u8 {
        if rx == RxName::ANY {
            return 0;
        }
        self.word(rx.to_wire().into());
        flag::NAMED
    }

    /// Appends remote CQ data, if any. Returns the flags for it.
    pub fn remote_data(&mut self, data: Option<RemoteData>) -> u8 {
        let Some(data) = data else { return 0 };
        self.word(data.value);
        flag::DATA | self.rx(data.rx)
    }

    /// Appends tag, data and receive context. Returns the flags for them.
    pub fn envelope(&mut self, out: &OutMessage<'_>) -> u8 {
        let mut flags = 0;
        if out.tagged {
            self.word(out.tag);
            flags |= flag::TAGGED;
        }
        if out.flags.contains(OpFlags::REMOTE_CQ_DATA) {
            self.word(out.data);
            flags |= flag::DATA;
        }
        flags | self.rx(out.rx)
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A record breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Takes words off the front of a record's body.
pub struct Words<'a>(pub &'a [u8]);

impl Words<'_> {
    /// The next one.
    pub fn word(&mut self) -> Result<u64, Broken> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(Broken)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*word))
    }

    /// The next one, if `there`.
    pub fn word_if(&mut self, there: bool) -> Result<Option<u64>, Broken> {
        there.then(|| self.word()).transpose()
    }

    /// The receive context that the record's `flags` say is named.
    pub fn rx(&mut self, flags: u8) -> Result<RxName, Broken> {
        let named = self.word_if(flags & flag::NAMED != 0)?.unwrap_or(0);
        u16::try_from(named).map(RxName::from_wire).map_err(|_| Broken)
    }

    /// The envelope of a message of `peer`, its length aside, as [`Fields::envelope`] wrote it.
    pub fn arrived(&mut self, peer: PeerId, flags: u8) -> Result<Arrived, Broken> {
        let (tagged, has_data) = (flags & flag::TAGGED != 0, flags & flag::DATA != 0);
        let tag = self.word_if(tagged)?.unwrap_or(0);
        let data = self.word_if(has_data)?.unwrap_or(0);
        let rx = self.rx(flags)?;
        Ok(Arrived { peer, rx, tagged, has_data, tag, data, len: 0 })
    }

    /// Remote CQ data, where `flags` say that there is some.
    pub fn remote_data(&mut self, flags: u8) -> Result<Option<RemoteData>, Broken> {
        let value = self.word_if(flags & flag::DATA != 0)?;
        let rx = self.rx(flags)?;
        Ok(value.map(|value| RemoteData { value, rx }))
    }

    /// Remote pieces: 1 to [`RMA_IOV_LIMIT`].
    pub fn pieces(&mut self) -> Result<Vec<RemotePiece>, Broken> {
        let count = self.word()?;
        if count == 0 || count > RMA_IOV_LIMIT as u64 {
            return Err(Broken);
        }
        (0..count)
            .map(|_| {
                let (addr, len, key) = (self.word()?, self.word()?, self.word()?);
                let len = usize::try_from(len).map_err(|_| Broken)?;
                Ok(RemotePiece { addr, len, key })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_bad_counts_are_refused() {
        let pieces = [RemotePiece { addr: 1, len: 2, key: u64::MAX }; RMA_IOV_LIMIT];
        let mut fields = Fields::new();
        fields.word(7).pieces(&pieces).word(9);
        let mut words = Words(fields.bytes());
        assert_eq!((words.word(), words.pieces()), (Ok(7), Ok(pieces.to_vec())));
        assert_eq!((words.word(), words.word()), (Ok(9), Err(Broken)));
        for count in [0, RMA_IOV_LIMIT as u64 + 1, u64::MAX] {
            let mut fields = Fields::new();
            fields.word(count).word(1).word(1).word(1);
            assert_eq!(Words(fields.bytes()).pieces(), Err(Broken));
        }
    }
}
