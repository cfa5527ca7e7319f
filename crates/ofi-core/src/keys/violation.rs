//! Reasons for refused accesses, and their counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ofi_api::{Errno, Error};

/// Why an access was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// No region that peers may access has this key.
    UnknownKey,
    /// No region has this descriptor.
    UnknownDesc,
    /// The region is not enabled yet (`fi_mr_enable`).
    NotEnabled,
    /// The region was registered without a right that the access needs.
    Rights,
    /// Part of the access lies outside the region.
    Bounds,
    /// The end of the access exceeds 64 bits.
    Overflow,
    /// The region's authorization key differs from that of the endpoint through which the access arrives.
    AuthKey,
    /// The region is for another peer only.
    OtherPeer,
    /// The region promises no mapping, and part of the access is at an address where the process has no such memory.
    Unmapped,
    /// The region is device memory, and only the processor could execute the access, such as an atomic.
    DeviceMemory,
}

impl Violation {
    const ALL: [Violation; 10] = [
        Violation::UnknownKey,
        Violation::UnknownDesc,
        Violation::NotEnabled,
        Violation::Rights,
        Violation::Bounds,
        Violation::Overflow,
        Violation::AuthKey,
        Violation::OtherPeer,
        Violation::Unmapped,
        Violation::DeviceMemory,
    ];

    /// The error for the initiator of the access.
    pub const fn errno(self) -> Errno {
        match self {
            Violation::UnknownKey | Violation::NotEnabled | Violation::AuthKey | Violation::OtherPeer => {
                Errno::EKEYREJECTED
            }
            Violation::UnknownDesc => Errno::EINVAL,
            Violation::DeviceMemory => Errno::EOPNOTSUPP,
            Violation::Rights | Violation::Bounds | Violation::Overflow | Violation::Unmapped => {
                Errno::EACCES
            }
        }
    }

    /// A short description without a full stop.
    pub const fn text(self) -> &'static str {
        match self {
            Violation::UnknownKey => "no registration has this key",
            Violation::UnknownDesc => "no registration in this domain has this descriptor",
            Violation::NotEnabled => "the registration is not enabled yet",
            Violation::Rights => "the registration does not allow this kind of access",
            Violation::Bounds => "the access reaches outside the registration",
            Violation::Overflow => "the access wraps around the end of the address space",
            Violation::AuthKey => "the registration is for endpoints with another authorization key",
            Violation::OtherPeer => "the registration is for another peer",
            Violation::Unmapped => {
                "the registration is of the address space, and nothing usable is mapped there"
            }
            Violation::DeviceMemory => "the registration is of a device's memory, which only copies reach",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl std::error::Error for Violation {}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Error {
        Error::with(violation.errno(), violation.text())
    }
}

/// Refused accesses of a table, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViolationCounts([u64; Violation::ALL.len()]);

impl ViolationCounts {
    /// Accesses refused for this reason.
    pub const fn of(&self, reason: Violation) -> u64 {
        self.0[reason as usize]
    }

    /// All refused accesses.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Violation, u64)> {
        Violation::ALL.into_iter().zip(self.0)
    }
}

/// The counters behind [`ViolationCounts`].
#[derive(Default)]
pub(super) struct Counters([AtomicU64; Violation::ALL.len()]);

impl Counters {
    /// Counts a violation and returns it.
    #[cold]
    pub fn count(&self, violation: Violation) -> Violation {
        self.0[violation as usize].fetch_add(1, Relaxed);
        violation
    }

    pub fn read(&self) -> ViolationCounts {
        ViolationCounts(Violation::ALL.map(|reason| self.0[reason as usize].load(Relaxed)))
    }
}
