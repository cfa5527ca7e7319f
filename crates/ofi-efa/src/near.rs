//! Peers on the same host: shared memory, under the endpoint's fabric address.
//!
//! An endpoint is also the shared-memory endpoint `fi_shm://efa/` followed by its 32-byte address in hexadecimal, which
//! is unique on a fabric. A [`ProbeListener`] advertises that. C libfabric's endpoints have no locality probe, and are
//! reached over the device even on the same host. Fabric `efa-direct` uses only the device, as with C: its operations
//! are the device's requests.

use std::fmt::Write;

use ofi_api::{AddrFormat, Address, EpType, Info, Result};
use ofi_core::composite::CompositeSpec;
use ofi_shm::Shm;
use ofi_shm::locality_probe::{self, ProbeListener};

use crate::domain::DIRECT;
use crate::state::EndpointState;
use crate::wire::RawAddress;
use crate::{Efa, address, settings};

/// Prefix of the addresses in shared memory.
const SCHEME: &str = "fi_shm://efa/";

/// The composite transport: a device for other hosts, and shared memory for this one.
pub struct EfaOrShm;

impl CompositeSpec for EfaOrShm {
    type Near = Shm;
    type Far = Efa;
    type Meeting = ProbeListener;

    const FAR_IS_COSTLY: bool = false;
    const FAR_NAME: &'static str = "the EFA device";

    fn near_info(info: &Info) -> Option<Info> {
        let paired = info.ep_attr.ep_type == EpType::Rdm && info.fabric_attr.name != DIRECT;
        let near = Info { src_addr: None, dest_addr: None, addr_format: AddrFormat::Str, ..info.clone() };
        (paired && settings::ENABLE_SHM_TRANSFER.get()).then_some(near)
    }

    fn own_near(_own: &EndpointState, far: &Address) -> Option<Address> {
        name(far)
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        far(near).into_iter().collect()
    }

    fn meet(near: &Address) -> Result<ProbeListener> {
        ProbeListener::open(near)
    }

    fn near_address(_own: &mut ProbeListener, far: &Address) -> Option<Address> {
        name(far).filter(locality_probe::is_open)
    }

    fn near_names(far: &Address) -> Vec<Address> {
        name(far).into_iter().collect()
    }

    fn is_beside(one: &Address, other: &Address) -> bool {
        let gid = |address| address::raw(address).ok().map(|raw| raw.gid);
        gid(one).is_some() && gid(one) == gid(other)
    }
}

/// The shared-memory name of the endpoint at `far`.
fn name(far: &Address) -> Option<Address> {
    let mut text = String::from(SCHEME);
    for byte in address::raw(far).ok()?.to_bytes() {
        write!(text, "{byte:02x}").ok()?;
    }
    Some(Address::from_text(&text))
}

/// The fabric address of the endpoint with this shared-memory name.
fn far(near: &Address) -> Option<Address> {
    let digits = near.text()?.strip_prefix(SCHEME)?;
    let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
    let raw = RawAddress::from_bytes(&pairs.collect::<Option<Vec<u8>>>()?)?;
    let far = address::named(&raw);
    // An address has exactly one name: no signs, no capitals.
    (name(&far).as_ref() == Some(near)).then_some(far)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(qpn: u16, connid: u32) -> Address {
        let gid = std::array::from_fn(|at| (at as u8) << 4 | 0xa);
        address::named(&RawAddress { gid, qpn, connid })
    }

    #[test]
    fn an_address_comes_back_from_its_name_in_shared_memory() {
        for (qpn, connid) in [(1, 0), (0xffff, u32::MAX), (7, 0x8000_0001)] {
            let far = endpoint(qpn, connid);
            let near = name(&far).unwrap();
            assert_eq!(EfaOrShm::far_addresses(&near), [far], "{near}");
        }
        let good = name(&endpoint(1, 2)).unwrap().text().unwrap().to_owned();
        let capitals = good.replace('a', "A");
        let bad =
            ["fi_shm://efa/", "fi_shm://efa/0", "fi_shm://efa/+1", "fi_shm://efa/\u{e9}\u{e9}", &capitals];
        for text in bad.into_iter().chain([&good[..good.len() - 2], &good.replace("efa/", "udp/")]) {
            assert!(EfaOrShm::far_addresses(&Address::from_text(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn endpoints_of_one_device_are_beside_each_other() {
        assert!(EfaOrShm::is_beside(&endpoint(1, 2), &endpoint(3, 4)));
        assert!(!EfaOrShm::is_beside(&endpoint(1, 2), &Address::from_text("fi_shm://x")));
    }
}
