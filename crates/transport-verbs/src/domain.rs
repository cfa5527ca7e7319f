//! A domain: a device, chosen by an address that it has.

use std::net::IpAddr;
use std::sync::Arc;

use ibv::{Context, ProtectionDomain};
use ofi_api::{Errno, Error, Info, Result};

use crate::{address, failed, settings};

/// An address of a device of this host.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The device.
    pub context: Context,
    /// Its port.
    pub port: u8,
}

/// All of them, global ones of ports that are up first.
///
/// # Errors
/// What is missing on this host.
pub fn addresses() -> Result<Vec<Own>> {
    let mut all = Vec::new();
    let name = settings::DEVICE_NAME.get();
    for &context in ibv::contexts().map_err(|error| failed(&error))? {
        if !context.name().starts_with(&*name) {
            continue;
        }
        let ports = context.query().map_err(|error| failed(&error))?.ports;
        for port in 1..=ports {
            let active = context.port(port).is_ok_and(|port| port.active);
            for gid in context.gids(port).unwrap_or_default() {
                let local = matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
                // A link-local address says nothing without its interface.
                if !local {
                    all.push((!active, Own { ip: gid.ip(), context, port }));
                }
            }
        }
    }
    all.sort_by_key(|(down, _)| *down);
    if all.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose interface has an IP address",
            format!("none, of names that begin with {name:?}"),
            "give the interface an address (`ip addr add`), or set FI_VERBS_DEVICE_NAME",
        ));
    }
    Ok(all.into_iter().map(|(_, own)| own).collect())
}

/// See the module.
pub struct Domain {
    /// Whose memory its queue pairs use.
    pub pd: Arc<ProtectionDomain>,
    /// The address that endpoints have unless they are named.
    pub ip: IpAddr,
}

impl Domain {
    /// Opens the device that has the info's source address.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is none.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = info.src_addr.as_ref().map(address::socket).transpose()?.map(|socket| socket.ip());
        let wanted = wanted.filter(|ip| !ip.is_unspecified());
        let all = addresses()?;
        let found = all.iter().find(|own| wanted.is_none_or(|ip| ip == own.ip));
        let own = found.ok_or_else(|| {
            Error::wanted(
                Errno::ENODEV,
                "fi_info.src_addr",
                "an address of an RDMA device",
                wanted.map_or_else(String::new, |ip| ip.to_string()),
                "use an info that getinfo answered",
            )
        })?;
        let pd = ProtectionDomain::new(own.context).map_err(|error| failed(&error))?;
        Ok(Self { pd, ip: own.ip })
    }
}
