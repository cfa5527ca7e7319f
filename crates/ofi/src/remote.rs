//! Remote windows: what a peer needs to access registered memory.

use std::ops::{Bound, Range, RangeBounds};

use ofi_api::{Errno, Error, RemotePiece, Result};

/// A range of a peer's memory. The peer creates it with [`Window::remote`](crate::Window::remote) and sends its
/// [bytes](RemoteWindow::to_bytes). Here it is the target of [`write`](crate::Node::write) or the source of
/// [`read`](crate::Node::read). Like an address, it is only a value: the peer checks key, range and rights at each
/// access.
///
/// ```
/// let window = ofi::RemoteWindow { key: 7, base: 4096, len: 100 };
/// let part = window.slice(10..20)?;
/// assert_eq!((part.base, part.len), (4106, 10));
/// assert_eq!(ofi::RemoteWindow::from_bytes(&part.to_bytes())?, part);
/// assert!(window.slice(..101).is_err());
/// # Ok::<(), ofi::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteWindow {
    /// The key of the registration.
    pub key: u64,
    /// The address of the first byte for accesses: a virtual address (`FI_MR_VIRT_ADDR`), or an offset.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteWindow {
    /// Bytes of the wire form.
    pub const BYTES: usize = 24;

    /// The wire form: key, base and length, as little-endian `u64`s.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.key, self.base, self.len]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Parses the bytes that [`RemoteWindow::to_bytes`] wrote.
    ///
    /// # Errors
    /// `FI_EINVAL` unless there are [`Self::BYTES`] bytes, and for a range beyond 64-bit addresses.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(invalid(format!("{} bytes", Self::BYTES), format!("{} bytes", bytes.len())));
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let window = Self { key: word(0), base: word(8), len: word(16) };
        match window.base.checked_add(window.len) {
            Some(_) => Ok(window),
            None => Err(invalid(
                "a range of 64-bit addresses",
                format!("{} bytes from {:#x} on", window.len, window.base),
            )),
        }
    }

    /// The sub-range `range`, in bytes from the start of the window.
    ///
    /// # Errors
    /// `FI_EINVAL` if the range exceeds the window.
    pub fn slice(self, range: impl RangeBounds<u64>) -> Result<Self> {
        let Range { start, end } = resolve(&range, self.len)?;
        match self.base.checked_add(start) {
            Some(base) => Ok(Self { base, len: end - start, ..self }),
            None => {
                Err(invalid("a range of 64-bit addresses", format!("{start} bytes behind {:#x}", self.base)))
            }
        }
    }

    pub(crate) fn piece(self) -> Result<RemotePiece> {
        let len = usize::try_from(self.len).map_err(|_| Error::new(Errno::EMSGSIZE))?;
        Ok(RemotePiece { addr: self.base, len, key: self.key })
    }
}

/// The bounds of a range in an object of length `len`.
///
/// # Errors
/// `FI_EINVAL` for a range that is backwards or exceeds the object.
pub(crate) fn resolve(range: &impl RangeBounds<u64>, len: u64) -> Result<Range<u64>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        _ => {
            let shown = |bound: Option<u64>| bound.map_or("2^64".into(), |bound| bound.to_string());
            Err(invalid(format!("a part of {len} bytes"), format!("{}..{}", shown(start), shown(end))))
        }
    }
}

#[cold]
fn invalid(wanted: impl Into<String>, found: impl Into<String>) -> Error {
    Error::wanted(Errno::EINVAL, "a range", wanted, found, "give one that lies inside")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_with_overflow() {
        assert_eq!(resolve(&(..), 5).unwrap(), 0..5);
        assert_eq!(resolve(&(1..=4), 5).unwrap(), 1..5);
        assert_eq!(resolve(&(5..5), 5).unwrap(), 5..5);
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
        let backwards = 3..2;
        for bad in [resolve(&backwards, 5), resolve(&(0..6), 5), resolve(&(0..=u64::MAX), 5)] {
            assert_eq!(bad.unwrap_err(), Errno::EINVAL);
        }
        // The longest object ends before the last byte that a bound can include.
        let all = resolve(&(0..=u64::MAX), u64::MAX).unwrap_err();
        assert!(all.to_string().contains("0..2^64"), "{all}");
        let none = (Bound::Excluded(u64::MAX), Bound::Unbounded);
        assert_eq!(resolve(&none, u64::MAX).unwrap_err(), Errno::EINVAL);
        assert_eq!(resolve(&(0..=u64::MAX - 1), u64::MAX).unwrap(), 0..u64::MAX);
    }

    #[test]
    fn bytes_of_a_stranger_are_checked() {
        assert_eq!(RemoteWindow::from_bytes(&[0; 23]).unwrap_err(), Errno::EINVAL);
        assert_eq!(RemoteWindow::from_bytes(&[0xFF; 24]).unwrap_err(), Errno::EINVAL);
        let all = RemoteWindow { key: u64::MAX, base: 1, len: u64::MAX - 1 };
        assert_eq!(RemoteWindow::from_bytes(&all.to_bytes()).unwrap(), all);
    }
}
