//! Rates, and PCI links as the kernel prints them.

use std::fmt;

use serde::Serialize;

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Rate(pub u64);

impl Rate {
    /// Not zero, which means "not known" in libfabric.
    pub fn known(bits_per_second: u64) -> Option<Self> {
        (bits_per_second > 0).then_some(Self(bits_per_second))
    }

    /// A rate in units of 10^9 bits per second.
    pub const fn gbps(gigabits: u64) -> Self {
        Self(gigabits.saturating_mul(1_000_000_000))
    }
}

impl fmt::Display for Rate {
    /// `100 Gb/s`, `31.5 Gb/s`, `10 Mb/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000_000 => return write!(f, "{} b/s", self.0),
            1_000_000..1_000_000_000 => (100_000, "Mb/s"),
            _ => (100_000_000, "Gb/s"),
        };
        match (self.0 / unit / 10, self.0 / unit % 10) {
            (whole, 0) => write!(f, "{whole} {name}"),
            (whole, tenth) => write!(f, "{whole}.{tenth} {name}"),
        }
    }
}

/// The current state of a PCI link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PciLink {
    /// Transfers per second per lane, in units of 10^8 (2.5 GT/s is 25).
    pub tenth_gigatransfers: u32,
    /// Lanes.
    pub width: u32,
}

impl PciLink {
    /// Parses `current_link_speed` (`16.0 GT/s PCIe`) and `current_link_width` (`8`). `None` for `Unknown`, zero, and
    /// values that are impossible for a PCI link.
    pub fn parse(speed: &str, width: &str) -> Option<Self> {
        let (whole, tenth) = {
            let number = speed.split_whitespace().next()?;
            number.split_once('.').unwrap_or((number, "0"))
        };
        let tenth: u32 = tenth.parse().ok().filter(|&tenth| tenth < 10)?;
        let tenth_gigatransfers =
            whole.parse::<u32>().ok().filter(|&whole| whole < 1000)?.checked_mul(10)?.checked_add(tenth)?;
        let width = width.trim().parse().ok().filter(|width| (1..=64).contains(width))?;
        (tenth_gigatransfers > 0).then_some(Self { tenth_gigatransfers, width })
    }

    /// The link that carries this many bits per second, within half of a hundredth; the widest of several. `None` if no
    /// link does.
    #[cfg(feature = "hwloc")]
    pub(super) fn carrying(bits_per_second: f64) -> Option<Self> {
        let widths = [16, 8, 4, 2, 1, 32];
        let links = widths.into_iter().flat_map(|width| {
            [25, 50, 80, 160, 320, 640].map(|tenth_gigatransfers| Self { tenth_gigatransfers, width })
        });
        let rate = |link: &Self| link.rate().0 as f64;
        links.into_iter().find(|link| (rate(link) - bits_per_second).abs() < rate(link) / 200.0)
    }

    /// The rate of the link without its coding: 8 of 10 bits up to 5 GT/s, 128 of 130 up to 32, 242 of 256 beyond (PCI
    /// Express Base Specification, "Physical Layer").
    pub fn rate(self) -> Rate {
        let raw = u64::from(self.tenth_gigatransfers) * 100_000_000 * u64::from(self.width);
        Rate(match self.tenth_gigatransfers {
            0..=50 => raw / 10 * 8,
            51..=320 => raw / 130 * 128 + raw % 130 * 128 / 130,
            _ => raw / 256 * 242 + raw % 256 * 242 / 256,
        })
    }
}

impl fmt::Display for PciLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenth_gigatransfers: speed, width } = self;
        match speed % 10 {
            0 => write!(f, "{} GT/s x{width}", speed / 10),
            tenth => write!(f, "{}.{tenth} GT/s x{width}", speed / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_carry_what_their_coding_leaves() {
        let rate = |speed, width| PciLink::parse(speed, width).map(|link| link.rate().0);
        assert_eq!(rate("2.5 GT/s PCIe", "8\n"), Some(16_000_000_000));
        assert_eq!(rate("8.0 GT/s PCIe", "1"), Some(7_876_923_076));
        assert_eq!(rate("32.0 GT/s PCIe", "16"), Some(504_123_076_923));
        assert_eq!(rate("64.0 GT/s PCIe", "16"), Some(968_000_000_000));
        for (speed, width) in
            [("Unknown", "8"), ("", ""), ("8.0 GT/s", "0"), ("8.0 GT/s", "255"), ("0.0", "8")]
        {
            assert_eq!(rate(speed, width), None, "{speed} x{width}");
        }
        for strange in ["99999999999", "4294967295.9 GT/s", "8.77", "-8.0", "8..0"] {
            assert_eq!(rate(strange, "8"), None, "{strange}");
        }
    }

    #[cfg(feature = "hwloc")]
    #[test]
    fn a_link_is_found_by_what_it_carries() {
        let link = |text, width| PciLink::parse(text, width).unwrap();
        for known in
            [link("2.5", "1"), link("8.0", "16"), link("32.0", "16"), link("64.0", "16"), link("5.0", "4")]
        {
            let found = PciLink::carrying(known.rate().0 as f64 * 1.001).unwrap();
            assert_eq!(found.rate(), known.rate(), "{known} {found}");
        }
        for strange in [0.0, -1.0, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(PciLink::carrying(strange), None, "{strange}");
        }
    }

    #[test]
    fn rates_are_printed_short() {
        let text = |bits| Rate(bits).to_string();
        assert_eq!(
            [text(7), text(10_000_000), text(2_500_000_000), text(100_000_000_000)],
            ["7 b/s", "10 Mb/s", "2.5 Gb/s", "100 Gb/s"]
        );
    }
}
