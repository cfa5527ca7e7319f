//! The device, port and GID of a local address, as rdma_cm binds it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cm::{CmId, EventChannel};
use crate::device::{Context, Gid, contexts};
use crate::error::Result;

/// Where connections from an address begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The device.
    pub context: Context,
    /// The port.
    pub port: u8,
    /// The port's GID for the address; zeros if the kernel does not report it.
    pub gid: Gid,
}

/// Identifiers bound to devices that are not in [`contexts`], because they appeared later: a device stays open while an
/// identifier is bound to it.
static LATE: Mutex<Vec<CmId>> = Mutex::new(Vec::new());

/// Finds the device, port and GID of a local address. `None` if no RDMA device has the address; an address of another
/// network namespace is not local.
///
/// # Errors
/// The errors of rdma_create_id(3), and those of rdma_bind_addr(3) that do not concern the address.
pub fn binding_of(channel: &Arc<EventChannel>, ip: IpAddr) -> Result<Option<Binding>> {
    let id = CmId::new(channel)?;
    if let Err(error) = id.bind(SocketAddr::new(ip, 0)) {
        let is_of_address = matches!(error.errno, libc::ENODEV | libc::EADDRNOTAVAIL | libc::EINVAL);
        return if is_of_address { Ok(None) } else { Err(error) };
    }
    let Some(context) = id.context() else { return Ok(None) };
    let (port, gid) = id.source();
    let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_held = contexts().is_ok_and(|first| first.contains(&context))
        || late.iter().any(|id| id.context() == Some(context));
    if !is_held {
        late.push(id);
    }
    Ok(Some(Binding { context, port, gid }))
}
