//! Errors: the call that failed, the reason, and advice.

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A call of rdma-core that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {} ({advice})", std::io::Error::from_raw_os_error(*errno))]
pub struct Error {
    /// The name of the call.
    pub call: &'static str,
    /// Its error number.
    pub errno: i32,
    /// Advice on what to do.
    pub advice: String,
}

impl Error {
    /// An error from `errno`, after a call that sets it.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::of(call, std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// An error from an error number.
    pub(crate) fn of(call: &'static str, errno: i32) -> Self {
        Self { call, errno, advice: advice(call, errno).into() }
    }

    /// An error with its own advice.
    pub(crate) fn with(call: &'static str, errno: i32, advice: impl Into<String>) -> Self {
        Self { call, errno, advice: advice.into() }
    }
}

/// The advice for an error number of a call.
fn advice(call: &str, errno: i32) -> &'static str {
    match errno {
        libc::ENOMEM if call == "ibv_reg_mr" => {
            "the limit of locked memory is too low: raise `ulimit -l`, or memlock in /etc/security/limits.conf"
        }
        libc::EOPNOTSUPP | libc::ENOSYS if call == "ibv_reg_dmabuf_mr" => {
            "this device, or its driver in rdma-core, takes no dma-buf (soft-RoCE takes none): register host memory, or \
             load the module that lets the device address the GPU's memory directly (nvidia-peermem)"
        }
        libc::EINVAL | libc::EBADF if call == "ibv_reg_dmabuf_mr" => {
            "the descriptor must be of a dma-buf, and the range must lie inside it"
        }
        libc::ETIMEDOUT if call == "rdma_join_multicast" => {
            "the network did not grant the multicast group in time: check that the subnet manager runs (InfiniBand), \
             and that the interface is up"
        }
        libc::EOPNOTSUPP if call == "ibv_alloc_mw" => {
            "this device, or its driver in rdma-core, has no memory windows: give peers the keys of registrations"
        }
        libc::ENOMEM => "out of memory, or the device holds no more of these objects",
        libc::EACCES | libc::EPERM => "the user needs access to /dev/infiniband/uverbs* and rdma_cm",
        libc::ENODEV if call.starts_with("rdma_") => {
            "no RDMA device has this address: `rdma link` shows which interfaces have one"
        }
        libc::ENOSYS if call == "ibv_get_device_list" => {
            "this kernel has no RDMA devices: load the device's kernel module and ib_uverbs"
        }
        libc::ENODEV => "load the device's kernel module and ib_uverbs",
        libc::ENOENT if call == "rdma_create_event_channel" => "load the kernel module rdma_ucm",
        libc::EADDRINUSE => "choose another port, or 0 for any",
        libc::EADDRNOTAVAIL => "choose an address that an interface of this host has",
        libc::EINVAL if call == "ibv_reg_mr" => {
            "the memory must be mapped, and writable if peers write to it"
        }
        _ => "see the kernel's log (dmesg)",
    }
}
