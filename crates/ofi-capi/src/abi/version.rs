//! The versions of C's structures.

use ofi_api::Version;

/// The version of the exported symbol that a caller uses: `FABRIC_1.n` is `Abi(n)`. Structures of an older version are
/// prefixes of the newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Abi(pub u32);

impl Abi {
    /// The newest version.
    pub(crate) const NEWEST: Self = Self(10);

    /// The newest version that can be known to a program that requests this interface version (fabric(7), "ABI
    /// changes").
    pub(crate) fn of(version: Version) -> Self {
        Self(match (version.major, version.minor) {
            (0, _) | (1, 0..5) => 0,
            (1, 5..7) => 1,
            (1, 7..10) => 2,
            (1, 10..20) => 3,
            (1, 20..) => 7,
            (2, 0..5) => 8,
            // Two versions had interface 2.6, so whether the newer fields exist is unknown.
            _ => 9,
        })
    }

    /// Size of `fi_info`: since 1.2 it has `nic`.
    pub(crate) const fn info(self) -> usize {
        if self.0 < 2 { 112 } else { 120 }
    }

    /// Size of `fi_tx_attr`: since 1.3 it has `tclass`.
    pub(crate) const fn tx_attr(self) -> usize {
        if self.0 < 3 { 72 } else { 80 }
    }

    /// Size of `fi_rx_attr`.
    pub(crate) const fn rx_attr(self) -> usize {
        64
    }

    /// Size of `fi_ep_attr`: authorization keys since 1.1, device contexts since 1.10.
    pub(crate) const fn ep_attr(self) -> usize {
        match self.0 {
            0 => 80,
            1..=9 => 96,
            _ => 104,
        }
    }

    /// Size of `fi_domain_attr`, which grew most often.
    pub(crate) const fn domain_attr(self) -> usize {
        match self.0 {
            0 => 104,
            1 | 2 => 184,
            3..=6 => 188,
            7 => 200,
            8 => 204,
            9 => 224,
            _ => 232,
        }
    }

    /// Size of `fi_fabric_attr`: `api_version` since 1.1.
    pub(crate) const fn fabric_attr(self) -> usize {
        if self.0 == 0 { 28 } else { 32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr};
    use std::mem::offset_of;

    #[test]
    fn the_newest_is_the_whole() {
        let newest = Abi::NEWEST;
        assert_eq!(newest.info(), size_of::<fi_info>());
        assert_eq!(newest.tx_attr(), size_of::<fi_tx_attr>());
        assert_eq!(newest.rx_attr(), size_of::<fi_rx_attr>());
        assert_eq!(newest.ep_attr(), size_of::<fi_ep_attr>());
        assert_eq!(newest.domain_attr(), size_of::<fi_domain_attr>());
        assert_eq!(newest.fabric_attr(), size_of::<fi_fabric_attr>());
    }

    #[test]
    fn an_older_one_ends_before_the_fields_that_came_later() {
        assert_eq!(Abi(0).domain_attr(), offset_of!(fi_domain_attr, max_ep_stx_ctx));
        assert_eq!(Abi(2).domain_attr(), offset_of!(fi_domain_attr, tclass));
        assert_eq!(Abi(3).domain_attr(), offset_of!(fi_domain_attr, tclass) + 4);
        assert_eq!(Abi(7).domain_attr(), offset_of!(fi_domain_attr, max_group_id));
        assert_eq!(Abi(8).domain_attr(), offset_of!(fi_domain_attr, max_group_id) + 4);
        assert_eq!(Abi(9).domain_attr(), offset_of!(fi_domain_attr, max_xpu_ctx_cnt));
        assert_eq!(Abi(1).info(), offset_of!(fi_info, nic));
        assert_eq!(Abi(0).ep_attr(), offset_of!(fi_ep_attr, auth_key_size));
        assert_eq!(Abi(2).tx_attr(), offset_of!(fi_tx_attr, tclass));
        assert_eq!(Abi(0).fabric_attr(), offset_of!(fi_fabric_attr, api_version));
    }

    #[test]
    fn a_version_tells_what_a_program_can_know() {
        assert_eq!(Abi::of(Version::new(1, 4)), Abi(0));
        assert_eq!(Abi::of(Version::new(1, 6)), Abi(1));
        assert_eq!(Abi::of(Version::new(1, 9)), Abi(2));
        assert_eq!(Abi::of(Version::new(1, 10)), Abi(3));
        assert_eq!(Abi::of(Version::new(1, 17)).domain_attr(), 188);
        assert_eq!(Abi::of(Version::new(1, 22)), Abi(7));
        assert_eq!(Abi::of(Version::new(2, 0)), Abi(8));
        assert_eq!(Abi::of(Version::new(2, 6)), Abi(9));
    }
}
