//! Accesses to device memory of a peer's process, which the driver maps here (CUDA IPC): one copy of a device's, in
//! place of four through memory of the host.
//!
//! A grant of such memory is one like others (`region.rs`), and ends with its registration. Its owner then tells the
//! peers, which close their mappings.

use std::sync::Arc;

use ofi_api::{Errno, Error, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::hmem::{DeviceHandle, MappedPeerDevice};
use ofi_core::log::Limit;

use crate::common::Common;
use crate::control::Terms;
use crate::peer::Peer;
use crate::peer::grants::{KeyState, MappedDevice};

/// The maximum number of mappings of peers' device memory of one endpoint.
const MAX_MAPPED_DEVICES: usize = 256;

impl Peer {
    /// Takes the peer's answer to a request: the handle of a device's memory. If it cannot be mapped, the owner
    /// executes accesses.
    pub fn granted_device(&mut self, common: &Common, key: u64, terms: Terms, handle: &DeviceHandle) {
        if !matches!(self.grants.known.get(&key), Some(KeyState::Asked)) {
            return; // nobody has asked
        }
        let state = match self.map_device(common, terms, handle) {
            Ok(device) => KeyState::Device(device),
            Err(error) => {
                static LIMIT: Limit = Limit::new();
                if let Some(more) = LIMIT.pass() {
                    tracing::info!(
                        target: "ofi::shm::ep_data", %error, more,
                        "device memory of a peer is not mapped: its owner copies it"
                    );
                }
                KeyState::Refused
            }
        };
        self.insert_grant(key, state);
    }

    fn map_device(&mut self, common: &Common, terms: Terms, handle: &DeviceHandle) -> Result<MappedDevice> {
        if !common.shared.maps_devices() {
            return Err(Error::with(Errno::EOPNOTSUPP, "this endpoint maps none (FI_OPT_FI_HMEM_P2P)"));
        }
        if Arc::strong_count(&common.mapped_devices) > MAX_MAPPED_DEVICES && !self.unmap_oldest_device() {
            return Err(Error::with(Errno::ENOSPC, "the endpoint has too many mappings of device memory"));
        }
        let memory = MappedPeerDevice::open(handle, terms.len)?;
        let (used, _counted) = (self.grants.uses, Arc::clone(&common.mapped_devices));
        Ok(MappedDevice { terms, memory, used, _counted })
    }

    /// Closes the mapping of this peer's that was not used for the longest time. Its key is asked for again. Mappings
    /// of the access that waits first stay: otherwise its keys could drive each other out for ever.
    fn unmap_oldest_device(&mut self) -> bool {
        let waits = |key| self.parked.queue.front().is_some_and(|parked| parked.names(key));
        let devices = self.grants.known.iter().filter_map(|(&key, state)| match state {
            KeyState::Device(device) if !waits(key) => Some((device.used, key)),
            _ => None,
        });
        let oldest = devices.min().map(|(_, key)| key);
        oldest.is_some_and(|key| self.grants.known.remove(&key).is_some())
    }

    /// Closes the mapping of device memory whose registration the peer has closed.
    pub fn unmap_device(&mut self, key: u64) {
        let is_void = match self.grants.known.get(&key) {
            // Another registration may have the key by now.
            Some(KeyState::Device(device)) => self.up().is_none_or(|up| !device.terms.hold(up)),
            // The next registration under the key may be mapped.
            Some(KeyState::Refused) => true,
            _ => false,
        };
        if is_void {
            self.grants.known.remove(&key);
        }
    }

    /// Whether any of this memory is a device's that is mapped here.
    pub fn is_of_device(&self, remote: &[RemotePiece]) -> bool {
        remote.iter().any(|piece| matches!(self.grants.known.get(&piece.key), Some(KeyState::Device(_))))
    }

    /// Copies between `run` bytes of the pieces from byte `done` on, and a device's memory at `target`. Returns `false`
    /// if the grant was withdrawn.
    ///
    /// # Errors
    /// `FI_EIO` if the driver's copy fails.
    ///
    /// # Safety
    /// `run` bytes at `target` belong to the mapping, and the pieces are lent.
    pub(super) unsafe fn copy_device(
        &self,
        device: &MappedDevice,
        write: bool,
        pieces: &[Piece],
        (done, run): (usize, usize),
        target: u64,
    ) -> Result<bool, Errno> {
        let mut copied = Ok(());
        let holds = self.while_granted(&device.terms, || {
            let mut skip = 0;
            for (local, part) in copy::runs(pieces, done, run) {
                let (here, there) = (local.expose_provenance() as u64, target + skip);
                let (from, to) = if write { (here, there) } else { (there, here) };
                // SAFETY: the caller's promise; the grant holds now.
                copied = unsafe { device.memory.copy(to, from, part) };
                if copied.is_err() {
                    return;
                }
                skip += part as u64;
            }
        });
        copied.map_err(|error| {
            tracing::warn!(target: "ofi::shm::ep_data", %error, "a copy to or from a peer's device memory fails");
            Errno::EIO
        })?;
        Ok(holds)
    }
}
