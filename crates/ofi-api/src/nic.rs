//! The network device of an info (fi_nic(3)), and its NUMA node.
//!
//! An unknown string, NULL in C, is empty here.

use crate::c_enum::c_enum;
use crate::{Errno, Error};

c_enum! {
    /// The bus of a device.
    #[non_exhaustive]
    pub enum BusType {
        /// Unknown, or none.
        Unknown = 0 => "FI_BUS_UNKNOWN",
        /// PCI.
        Pci = 1 => "FI_BUS_PCI",
    }
}

c_enum! {
    /// Whether a port is up.
    #[non_exhaustive]
    pub enum LinkState {
        /// Unknown or not applicable.
        Unknown = 0 => "FI_LINK_UNKNOWN",
        /// Inactive.
        Down = 1 => "FI_LINK_DOWN",
        /// Active.
        Up = 2 => "FI_LINK_UP",
    }
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The device.
    pub device_attr: DeviceAttr,
    /// Its place in the machine.
    pub bus_attr: BusAttr,
    /// How it is connected.
    pub link_attr: LinkAttr,
    /// The nearest NUMA node, if the system reports it. Not in C.
    pub numa_node: Option<u32>,
}

/// The device of a [`Nic`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The operating system's name for it, such as `eth0`, or an absolute path.
    pub name: String,
    /// The vendor's identifier of the product.
    pub device_id: String,
    /// The product's version.
    pub device_version: String,
    /// The vendor.
    pub vendor_id: String,
    /// The driver.
    pub driver: String,
    /// The firmware's version.
    pub firmware: String,
}

/// The place of a [`Nic`] in the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusAttr {
    /// Not known.
    #[default]
    Unknown,
    /// On PCI.
    Pci(PciAttr),
}

impl BusAttr {
    /// The kind of bus (`enum fi_bus_type`).
    pub const fn bus_type(self) -> BusType {
        match self {
            BusAttr::Unknown => BusType::Unknown,
            BusAttr::Pci(_) => BusType::Pci,
        }
    }
}

/// A PCI address: `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PciAttr {
    /// The domain, or segment.
    pub domain_id: u16,
    /// The bus.
    pub bus_id: u8,
    /// The device on the bus.
    pub device_id: u8,
    /// The function of the device.
    pub function_id: u8,
}

impl std::fmt::Display for PciAttr {
    /// As in sysfs: `0000:3b:00.1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PciAttr { domain_id, bus_id, device_id, function_id } = self;
        write!(f, "{domain_id:04x}:{bus_id:02x}:{device_id:02x}.{function_id:x}")
    }
}

impl std::str::FromStr for PciAttr {
    type Err = Error;

    /// Parses the output of `Display`.
    ///
    /// # Errors
    /// `FI_EINVAL` for other text, for a device above 1f, and for a function above 7.
    fn from_str(text: &str) -> Result<Self, Error> {
        let hex = |text: &str, digits: usize, limit: u16| {
            let all = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            all.then(|| u16::from_str_radix(text, 16).ok()).flatten().filter(|&value| value <= limit)
        };
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain_id: hex(domain, 4, u16::MAX)?,
                bus_id: hex(bus, 2, 0xFF)? as u8,
                device_id: hex(device, 2, 0x1F)? as u8,
                function_id: hex(function, 1, 7)? as u8,
            })
        };
        let advice = "give it as sysfs does";
        parse().ok_or_else(|| {
            Error::wanted(Errno::EINVAL, "a PCI address", "one such as 0000:3b:00.1", text, advice)
        })
    }
}

/// How a [`Nic`] is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkAttr {
    /// The link-level address, such as a MAC address.
    pub address: String,
    /// The largest frame, in bytes.
    pub mtu: usize,
    /// The active rate, in bits per second.
    pub speed: usize,
    /// Whether the port is up.
    pub state: LinkState,
    /// The kind of network, such as `Ethernet` or `InfiniBand`.
    pub network_type: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_is_read_as_it_is_written() {
        let address = PciAttr { domain_id: 0x10, bus_id: 0x3b, device_id: 0x1f, function_id: 1 };
        assert_eq!(address.to_string().parse(), Ok(address));
        for bad in [
            "",
            "rxe0",
            "0000:3b:00",
            "0000:3b:20.1",
            "0000:3b:00.8",
            "0:3b:00.1",
            "0000:3b:00.1 ",
            "+000:3b:00.1",
        ] {
            assert!(bad.parse::<PciAttr>().is_err(), "{bad:?}");
        }
    }
}
