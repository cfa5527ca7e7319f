//! Memory behind a descriptor (dma-buf). libibverbs registers it by ioctl alone (`RDMA_VERBS_IOCTL`).

use std::os::fd::RawFd;

use crate::device::{Device, DeviceRegion};
use crate::mapping::Mapping;
use crate::memory::{peek, poke};
use crate::send::LOCAL_WRITE;

/// `RDMA_VERBS_IOCTL` of `rdma_user_ioctl_cmds.h`.
pub const REQUEST: libc::c_ulong = 0xc018_1b01;
/// Length of `struct ib_uverbs_ioctl_hdr`, and of each `struct ib_uverbs_attr` after it.
const HEADER: usize = 24;
const ATTRIBUTE: usize = 16;
/// `UVERBS_OBJECT_MR`, `UVERBS_METHOD_REG_DMABUF_MR`.
const METHOD: (u16, u16) = (7, 4);
/// Attributes of the method, by their numbers.
const ATTRIBUTES: usize = 9;

/// The header of an ioctl.
struct Call {
    at: u64,
    count: usize,
}

impl Call {
    /// Reads the header. `None` for another method.
    fn read(at: u64) -> Option<Self> {
        let mut header = [0; HEADER];
        if !peek(at, &mut header) {
            return None;
        }
        let two = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        ((two(2), two(4)) == METHOD).then(|| Self { at, count: usize::from(two(6)).min(2 * ATTRIBUTES) })
    }

    /// The addresses of the attributes, by number, and their data.
    fn attributes(&self) -> Result<[Option<(u64, u64)>; ATTRIBUTES], i32> {
        let mut found = [None; ATTRIBUTES];
        for index in 0..self.count {
            let at = self.at + (HEADER + index * ATTRIBUTE) as u64;
            let mut bytes = [0; ATTRIBUTE];
            if !peek(at, &mut bytes) {
                return Err(libc::EFAULT);
            }
            let number = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
            let data = u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 + byte]));
            if let Some(place) = found.get_mut(number) {
                *place = Some((at, data));
            }
        }
        Ok(found)
    }
}

impl Device {
    /// Executes an ioctl on the device's file. The emulated kernel supports only one method; for other commands
    /// libibverbs falls back to writing them.
    ///
    /// # Errors
    /// The error number for the program: `ENOTTY` for all other methods.
    pub fn ioctl(&mut self, file: RawFd, at: u64) -> Result<(), i32> {
        let call = Call::read(at).ok_or(libc::ENOTTY)?;
        let found = call.attributes()?;
        let data = |number: usize| found[number].map(|(_, data)| data).ok_or(libc::EINVAL);
        let domain = self.owned(file, data(1)? as u32)?;
        let (offset, len, named, fd, access) = (data(2)?, data(3)?, data(4)?, data(5)?, data(6)? as u32);
        if named.checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        let fd = RawFd::try_from(fd as i64).map_err(|_| libc::EBADF)?;
        let (mapping, start) = Mapping::new(fd, offset, len, access & LOCAL_WRITE != 0)?;
        let key = self.add_region(DeviceRegion { domain, start, len, named, access })?;
        self.mapped.insert(key, mapping);
        let handle = found[0].map(|(at, _)| at + 8).ok_or(libc::EINVAL)?;
        let answered = poke(handle, &u64::from(key).to_ne_bytes())
            && [7, 8].into_iter().all(|number| data(number).is_ok_and(|to| poke(to, &key.to_ne_bytes())));
        if answered {
            return Ok(());
        }
        self.remove_region(key);
        Err(libc::EFAULT)
    }
}
