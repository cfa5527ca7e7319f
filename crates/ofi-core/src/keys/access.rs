//! Copies between a peer's payload and registered memory that the peer names by remote pieces. Each piece is checked
//! when it is copied.

use std::sync::Arc;

use ofi_api::{Errno, Error, MrAccess, RemotePiece, Result};

use super::region::Means;
use super::{Accessor, Grant, RegionTable, Violation};
use crate::copy::{self, Stores};
use crate::hmem::Stager;

/// The runs of remote memory that make up `len` bytes of `remote`, starting at byte `skip`: address, key, length.
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

/// Address, key and length.
type Run = (u64, u64, usize);

/// Device memory that a peer may access.
struct DeviceGrant<T> {
    grant: Grant<T>,
    stager: Arc<Stager>,
}

/// A copy of the driver's has failed.
#[cold]
fn failed(error: &Error) -> Errno {
    tracing::warn!(target: "ofi::core::hmem", %error, "a peer's access to memory of a device fails");
    Errno::EIO
}

impl<T> RegionTable<T> {
    /// The part of the run that a peer may access, with all of `access`.
    fn grant(&self, who: Accessor<'_>, run: Run, access: MrAccess) -> Result<Grant<T>, Errno> {
        let (addr, key, len) = run;
        self.check_as(who, key, addr, len as u64, access).map_err(|violation| violation.errno())
    }

    /// As `grant`, for host memory. A refusal is not recorded; for device memory it is [`Violation::DeviceMemory`].
    #[inline]
    fn grant_host(&self, who: Accessor<'_>, run: Run, access: MrAccess) -> Result<Grant<T>, Violation> {
        let (addr, key, len) = run;
        self.grant_by(Means::Processor, who, key, addr, len as u64, access)
    }

    /// Grants what [`RegionTable::grant_host`] has refused, if the reason is that it is device memory.
    #[cold]
    fn grant_device(
        &self,
        who: Accessor<'_>,
        (addr, key, len): Run,
        access: MrAccess,
        refused: Violation,
    ) -> Result<DeviceGrant<T>, Errno> {
        let len = len as u64;
        let granted = match refused {
            Violation::DeviceMemory => self.grant_by(Means::Driver, who, key, addr, len, access),
            other => Err(other),
        };
        let grant = granted.map_err(|violation| self.refuse(addr, len, access, violation).errno())?;
        let stager = grant.region().hmem().map(|hmem| Arc::clone(hmem.stager())).ok_or(Errno::EACCES)?;
        Ok(DeviceGrant { grant, stager })
    }

    /// Grants for `len` bytes of `remote`, starting at byte `skip`, in order.
    ///
    /// # Errors
    /// The error for the peer, if it may not access a piece. `FI_EOPNOTSUPP` for device memory
    /// ([`RegionTable::is_of_device`]).
    pub fn grants_as(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        (skip, len): (usize, usize),
        access: MrAccess,
    ) -> Result<Vec<Grant<T>>, Errno> {
        if self.is_of_device(remote) {
            return Err(Errno::EOPNOTSUPP);
        }
        runs(remote, skip, len).map(|run| self.grant(who, run, access)).collect()
    }

    /// Writes the bytes of `parts`, at most `len`, to `remote`, starting at its byte `skip`. Fewer, if either is
    /// shorter.
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
            let (granted, device) = match self.grant_host(who, run, MrAccess::REMOTE_WRITE) {
                Ok(granted) => (granted, None),
                Err(refused) => {
                    let found = self.grant_device(who, run, MrAccess::REMOTE_WRITE, refused)?;
                    (found.grant, Some(found.stager))
                }
            };
            for piece in granted.pieces() {
                let mut done = 0;
                while done < piece.len {
                    if part.is_empty() {
                        let Some(next) = parts.next() else { return Ok(()) };
                        part = next;
                    }
                    let (here, rest) = part.split_at(part.len().min(piece.len - done));
                    let to = piece.addr.wrapping_add(done);
                    match &device {
                        // SAFETY: the grant holds the registered memory while it is written; `here` lies within the
                        // piece.
                        None => unsafe { copy::bytes(here.as_ptr(), to, here.len()) },
                        // SAFETY: as above.
                        Some(stager) => unsafe { stager.write(to.addr() as u64, here.as_ptr(), here.len()) }
                            .map_err(|error| failed(&error))?,
                    }
                    (done, part) = (done + here.len(), rest);
                }
            }
        }
        Ok(())
    }

    /// As [`RegionTable::write_as`], with bytes that another process may change meanwhile.
    ///
    /// # Errors
    /// As [`RegionTable::write_as`].
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
            let granted = match self.grant_host(who, run, MrAccess::REMOTE_WRITE) {
                Ok(granted) => granted,
                Err(refused) => {
                    let device = self.grant_device(who, run, MrAccess::REMOTE_WRITE, refused)?;
                    // SAFETY: the caller's promise; the runs together have no more than `len` bytes.
                    unsafe { device.write(from.wrapping_add(done))? };
                    done += device.grant.len();
                    continue;
                }
            };
            for piece in granted.pieces() {
                // SAFETY: the grant holds the registered memory while it is written; the runs together have no more
                // than `len` bytes.
                unsafe { copy::bytes(from.wrapping_add(done), piece.addr, piece.len) };
                done += piece.len;
            }
        }
        Ok(())
    }

    /// Reads `to.len()` bytes of `remote`, starting at its byte `skip`. Returns how many there were.
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

    /// As [`RegionTable::read_as`], with the given kind of stores, to memory that another process may read and change
    /// meanwhile.
    ///
    /// # Errors
    /// As [`RegionTable::read_as`].
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
            let granted = match self.grant_host(who, run, MrAccess::REMOTE_READ) {
                Ok(granted) => granted,
                Err(refused) => {
                    let device = self.grant_device(who, run, MrAccess::REMOTE_READ, refused)?;
                    // SAFETY: the caller's promise; the runs together have no more than `len` bytes.
                    unsafe { device.read(to.wrapping_add(done))? };
                    done += device.grant.len();
                    continue;
                }
            };
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

impl<T> DeviceGrant<T> {
    /// Writes all of it.
    ///
    /// # Safety
    /// `from` may be read for as many bytes.
    unsafe fn write(&self, from: *const u8) -> Result<(), Errno> {
        let mut done = 0;
        for piece in self.grant.pieces() {
            // SAFETY: the grant holds the registered memory; the rest is the caller's promise.
            let written =
                unsafe { self.stager.write(piece.addr.addr() as u64, from.wrapping_add(done), piece.len) };
            written.map_err(|error| failed(&error))?;
            done += piece.len;
        }
        Ok(())
    }

    /// Reads all of it.
    ///
    /// # Safety
    /// `to` may be written for as many bytes.
    unsafe fn read(&self, to: *mut u8) -> Result<(), Errno> {
        let mut done = 0;
        for piece in self.grant.pieces() {
            // SAFETY: as in `write`.
            let read =
                unsafe { self.stager.read(piece.addr.addr() as u64, to.wrapping_add(done), piece.len) };
            read.map_err(|error| failed(&error))?;
            done += piece.len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ofi_api::{MrAttr, Piece};
    use proptest::prelude::*;

    use super::*;
    use crate::keys::{Addressing, KeyChoice, Registration};

    /// Registers each of these ranges. Returns a remote piece for each.
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
        /// Writes in parts, and reads, give the same result as on one flat array.
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
