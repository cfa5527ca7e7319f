//! Addresses: 32 bytes, in the one form that compares equal.

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use crate::wire::RawAddress;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider efa",
        "the 32 bytes that an endpoint's name is (FI_ADDR_EFA)",
        found,
        "exchange addresses that fi_getname answers",
    )
}

/// The address behind one of the application's.
///
/// # Errors
/// `FI_EINVAL` for what is none.
pub fn raw(address: &Address) -> Result<RawAddress> {
    let ours = matches!(address.format(), AddrFormat::Efa);
    let raw = ours.then(|| RawAddress::from_bytes(address.bytes())).flatten();
    raw.filter(|raw| raw.qpn != 0).ok_or_else(|| invalid(address.to_string()))
}

/// As the application has it.
pub fn named(raw: &RawAddress) -> Address {
    Address::new(AddrFormat::Efa, &raw.to_bytes())
}

/// Names lead nowhere on a fabric of EFA devices.
///
/// # Errors
/// `FI_EINVAL`.
pub fn resolve(node: Option<&str>) -> Result<Address> {
    Err(invalid(format!("the name {:?}", node.unwrap_or(""))))
}
