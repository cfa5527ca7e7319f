//! Remote CQ data, as the immediate data of a request.

use ofi_api::{Errno, Error, OpFlags, Result};

/// Remote CQ data of an operation with these flags, as the 4 bytes of immediate data.
pub fn immediate(flags: OpFlags, data: u64) -> Result<Option<u32>> {
    let data = flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(data);
    data.map(u32::try_from).transpose().map_err(|_| {
        Error::wanted(
            Errno::EINVAL,
            "remote CQ data",
            "at most 4 bytes (domain_attr.cq_data_size)",
            data.map_or_else(String::new, |data| format!("{data:#x}")),
            "send it inside the message",
        )
    })
}
