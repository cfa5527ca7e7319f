//! Copies between a peer's payload and registered memory that the peer names by remote pieces. Each piece is checked
//! when it is copied.

use ofi_api::{Errno, MrAccess, RemotePiece, Result};

use super::{Accessor, Grant, RegionTable};
use crate::copy::{self, Stores};

/// The runs of remote memory that make up `len` bytes of `remote` from byte `skip` on: address, key, length.
fn runs(
    remote: &[RemotePiece],
    mut skip: usize,
    mut len: usize,
) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
    remote.iter().filter_map(move |piece| {
        if skip >= piece.len {
            skip -= piece.len;
            return None;
        }
        let run = (piece.len - skip).min(len);
        let addr = piece.addr.wrapping_add(skip as u64);
        skip = 0;
        len -= run;
        (run > 0).then_some((addr, piece.key, run))
    })
}

impl<T> RegionTable<T> {
    /// The part of the run that a peer may access, with all of `access`.
    fn grant(
        &self,
        who: Accessor<'_>,
        (addr, key, len): (u64, u64, usize),
        access: MrAccess,
    ) -> Result<Grant<T>, Errno> {
        self.check_as(who, key, addr, len as u64, access).map_err(|violation| violation.errno())
    }

    /// Grants for all of `len` bytes of `remote` from byte `skip` on, in order.
    ///
    /// # Errors
    /// The error for the peer, if it may not access a piece.
    pub fn grants_as(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        (skip, len): (usize, usize),
        access: MrAccess,
    ) -> Result<Vec<Grant<T>>, Errno> {
        runs(remote, skip, len).map(|run| self.grant(who, run, access)).collect()
    }

    /// Writes `len` bytes, those of `parts`, from byte `skip` of `remote` on. Fewer, if `parts` or `remote` have fewer.
    ///
    /// # Errors
    /// The error for the peer, if it may not write a piece. The pieces before it are written.
    pub fn write_as<'a>(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        skip: usize,
        len: usize,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let mut parts = parts.into_iter();
        let mut part: &[u8] = &[];
        for run in runs(remote, skip, len) {
            let granted = self.grant(who, run, MrAccess::REMOTE_WRITE)?;
            for piece in granted.pieces() {
                let mut done = 0;
                while done < piece.len {
                    if part.is_empty() {
                        let Some(next) = parts.next() else { return Ok(()) };
                        part = next;
                    }
                    let (here, rest) = part.split_at(part.len().min(piece.len - done));
                    // SAFETY: the grant holds the registered memory while it is written; `here` lies within the piece.
                    unsafe { copy::bytes(here.as_ptr(), piece.addr.wrapping_add(done), here.len()) };
                    (done, part) = (done + here.len(), rest);
                }
            }
        }
        Ok(())
    }

    /// As [`RegionTable::write_as`], with bytes that another process may change meanwhile.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    pub unsafe fn write_raw_as(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        skip: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        let mut done = 0;
        for run in runs(remote, skip, len) {
            let granted = self.grant(who, run, MrAccess::REMOTE_WRITE)?;
            for piece in granted.pieces() {
                // SAFETY: the grant holds the registered memory while it is written; the runs together have no more
                // than `len` bytes.
                unsafe { copy::bytes(from.wrapping_add(done), piece.addr, piece.len) };
                done += piece.len;
            }
        }
        Ok(())
    }

    /// Reads `to.len()` bytes from byte `skip` of `remote` on: how many there were.
    ///
    /// # Errors
    /// The error for the peer, if it may not read a piece.
    pub fn read_as(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        skip: usize,
        to: &mut [u8],
    ) -> Result<usize, Errno> {
        // SAFETY: `to` is as long as it says.
        unsafe { self.read_raw_as(who, remote, skip, Stores::Cached, to.as_mut_ptr(), to.len()) }
    }

    /// As [`RegionTable::read_as`], by these stores, to memory that another process may read and change meanwhile.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// `to` may be written for `len` bytes.
    pub unsafe fn read_raw_as(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        skip: usize,
        stores: Stores,
        to: *mut u8,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for run in runs(remote, skip, len) {
            let granted = self.grant(who, run, MrAccess::REMOTE_READ)?;
            for piece in granted.pieces() {
                // SAFETY: the grant holds the registered memory while it is read; the runs together have no more than
                // `len` bytes.
                unsafe { stores.copy(piece.addr, to.wrapping_add(done), piece.len) };
                done += piece.len;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use ofi_api::{MrAttr, Piece};
    use proptest::prelude::*;

    use super::*;
    use crate::keys::{Addressing, KeyChoice, Registration};

    /// Registers each of these; a remote piece for all of it.
    fn regions(table: &RegionTable<()>, memory: &mut [Vec<u8>], access: MrAccess) -> Vec<RemotePiece> {
        let register = |bytes: &mut Vec<u8>| {
            let piece = [Piece::new(bytes.as_mut_ptr(), bytes.len())];
            // SAFETY: the memory lives as long as the table, and is looked at only between accesses.
            let attr = unsafe { MrAttr::new(&piece, access) };
            let desc = table.register(Registration::new(&attr, KeyChoice::Random, ())).unwrap();
            let key = table.region(desc).unwrap().region().key();
            RemotePiece { addr: 0, len: bytes.len(), key }
        };
        memory.iter_mut().map(register).collect()
    }

    proptest! {
        /// Writes in parts, and reads, are those of one flat array.
        #[test]
        fn pieces_are_one_array(
            lens in prop::collection::vec(1usize..40, 1..5),
            (skip, len) in (0usize..90, 0usize..90),
            cuts in prop::collection::vec(0usize..90, 0..4),
        ) {
            let table = RegionTable::new(Addressing::Offset, 1);
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let remote = regions(&table, &mut memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE);
            let total: usize = lens.iter().sum();
            let bytes: Vec<u8> = (0..len).map(|at| at as u8 + 1).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len)).chain([0, len]).collect();
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let who = Accessor::ANYBODY;
            table.write_as(who, &remote, skip, len, parts).unwrap();
            let mut model = vec![0; total];
            let fits = len.min(total.saturating_sub(skip));
            model[skip.min(total)..][..fits].copy_from_slice(&bytes[..fits]);
            prop_assert_eq!(memory.concat(), &model[..]);
            let mut read = vec![0; len];
            prop_assert_eq!(table.read_as(who, &remote, skip, &mut read), Ok(fits));
            prop_assert_eq!(&read[..fits], &bytes[..fits]);
            // SAFETY: `bytes` has `len` bytes.
            unsafe { table.write_raw_as(who, &remote, skip, bytes.as_ptr(), len) }.unwrap();
            prop_assert_eq!(memory.concat(), &model[..]);
        }
    }

    #[test]
    fn what_may_not_be_accessed_is_not() {
        let table = RegionTable::new(Addressing::Offset, 1);
        let mut memory = [vec![0; 4], vec![0; 4]];
        let remote = regions(&table, &mut memory, MrAccess::REMOTE_READ);
        let written = table.write_as(Accessor::ANYBODY, &remote, 0, 8, [&[1u8; 8][..]]);
        assert_eq!(written, Err(Errno::EACCES));
        assert_eq!(memory.concat(), [0; 8]);
        let beyond = [RemotePiece { len: 5, ..remote[0] }];
        assert!(table.read_as(Accessor::ANYBODY, &beyond, 0, &mut [0; 5]).is_err());
    }
}
