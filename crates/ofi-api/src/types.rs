//! Enumerations with C's numbers and names.

use crate::c_enum::c_enum;

c_enum! {
    /// How an endpoint talks to its peers (fi_endpoint(3)).
    #[non_exhaustive]
    pub enum EpType {
        /// Any.
        Unspec = 0 => "FI_EP_UNSPEC",
        /// Connected and reliable.
        Msg = 1 => "FI_EP_MSG",
        /// Connectionless and unreliable.
        Dgram = 2 => "FI_EP_DGRAM",
        /// Connectionless and reliable.
        Rdm = 3 => "FI_EP_RDM",
    }
}

c_enum! {
    /// How an address vector numbers its addresses (fi_av(3)).
    pub enum AvType {
        /// Any.
        Unspec = 0 => "FI_AV_UNSPEC",
        /// Deprecated; treated as a table.
        Map = 1 => "FI_AV_MAP",
        /// Indices from zero in the order of insertion.
        Table = 2 => "FI_AV_TABLE",
    }
}

c_enum! {
    /// The calls that the application serialises (fi_domain(3)).
    pub enum Threading {
        /// The provider's choice.
        Unspec = 0 => "FI_THREAD_UNSPEC",
        /// None: all calls may run concurrently.
        Safe = 1 => "FI_THREAD_SAFE",
        /// Deprecated; refused from API 2.0.
        Fid = 2 => "FI_THREAD_FID",
        /// All calls below one domain.
        Domain = 3 => "FI_THREAD_DOMAIN",
        /// Calls on one endpoint and on the queues and counters that it is bound to.
        Completion = 4 => "FI_THREAD_COMPLETION",
        /// Deprecated; refused from API 2.0.
        Endpoint = 5 => "FI_THREAD_ENDPOINT",
    }
}

c_enum! {
    /// Manual or automatic progress (fi_domain(3)).
    pub enum Progress {
        /// The provider's choice.
        Unspec = 0 => "FI_PROGRESS_UNSPEC",
        /// The provider drives progress, without calls from the application.
        Auto = 1 => "FI_PROGRESS_AUTO",
        /// The application drives progress by reading queues and counters.
        Manual = 2 => "FI_PROGRESS_MANUAL",
        /// As `Manual`, and the application also serialises control calls.
        ControlUnified = 3 => "FI_PROGRESS_CONTROL_UNIFIED",
    }
}

c_enum! {
    /// Whether the provider keeps queues and contexts from overrunning (fi_domain(3)).
    pub enum ResourceMgmt {
        /// The provider's choice.
        Unspec = 0 => "FI_RM_UNSPEC",
        /// The application must.
        Disabled = 1 => "FI_RM_DISABLED",
        /// The provider does.
        Enabled = 2 => "FI_RM_ENABLED",
    }
}

c_enum! {
    /// The fields of a completion entry (fi_cq(3)). Each format adds to the one before.
    pub enum CqFormat {
        /// The provider's choice.
        Unspec = 0 => "FI_CQ_FORMAT_UNSPEC",
        /// The context: 8 bytes.
        Context = 1 => "FI_CQ_FORMAT_CONTEXT",
        /// Adds flags and length: 24 bytes.
        Msg = 2 => "FI_CQ_FORMAT_MSG",
        /// Adds buffer and remote CQ data: 40 bytes.
        Data = 3 => "FI_CQ_FORMAT_DATA",
        /// Adds the tag: 48 bytes.
        Tagged = 4 => "FI_CQ_FORMAT_TAGGED",
    }
}

c_enum! {
    /// How a thread may block on a queue (fi_cq(3), fi_eq(3)).
    #[non_exhaustive]
    pub enum WaitObj {
        /// Not at all.
        None = 0 => "FI_WAIT_NONE",
        /// Only through the blocking calls.
        Unspec = 1 => "FI_WAIT_UNSPEC",
        /// A wait set. Deprecated.
        Set = 2 => "FI_WAIT_SET",
        /// A file descriptor.
        Fd = 3 => "FI_WAIT_FD",
        /// A mutex and a condition variable. Deprecated.
        MutexCond = 4 => "FI_WAIT_MUTEX_COND",
        /// The blocking calls spin and yield.
        Yield = 5 => "FI_WAIT_YIELD",
        /// An array for `poll`.
        Pollfd = 6 => "FI_WAIT_POLLFD",
    }
}

c_enum! {
    /// When a blocking read of a completion queue should wake (fi_cq(3)). Only a hint.
    #[non_exhaustive]
    pub enum WaitCond {
        /// At the first entry.
        None = 0 => "FI_CQ_COND_NONE",
        /// At a number of entries.
        Threshold = 1 => "FI_CQ_COND_THRESHOLD",
    }
}

c_enum! {
    /// The unit of a counter (fi_cntr(3)).
    #[non_exhaustive]
    pub enum CntrEvents {
        /// Completed operations.
        Comp = 0 => "FI_CNTR_EVENTS_COMP",
        /// Bytes of completed operations.
        Bytes = 1 => "FI_CNTR_EVENTS_BYTES",
    }
}

c_enum! {
    /// How an address is laid out (fi_getinfo(3), "Addressing formats").
    #[non_exhaustive]
    pub enum AddrFormat {
        /// The provider's choice; opaque to the application.
        Unspec = 0 => "FI_FORMAT_UNSPEC",
        /// Any `struct sockaddr`.
        Sockaddr = 1 => "FI_SOCKADDR",
        /// `struct sockaddr_in`.
        SockaddrIn = 2 => "FI_SOCKADDR_IN",
        /// `struct sockaddr_in6`.
        SockaddrIn6 = 3 => "FI_SOCKADDR_IN6",
        /// `struct sockaddr_ib` of the Linux kernel.
        SockaddrIb = 4 => "FI_SOCKADDR_IB",
        /// PSM; deprecated.
        Psmx = 5 => "FI_ADDR_PSMX",
        /// Cray GNI.
        Gni = 6 => "FI_ADDR_GNI",
        /// Blue Gene/Q.
        Bgq = 7 => "FI_ADDR_BGQ",
        /// Mellanox MXM and UCX, old.
        Mlx = 8 => "FI_ADDR_MLX",
        /// A string that ends in NUL, in the form of a URI.
        Str = 9 => "FI_ADDR_STR",
        /// PSM2.
        Psmx2 = 10 => "FI_ADDR_PSMX2",
        /// InfiniBand unreliable datagram: GID, QPN, LID, partition key and service level.
        IbUd = 11 => "FI_ADDR_IB_UD",
        /// AWS EFA: GID, QPN and connection id, 32 bytes.
        Efa = 12 => "FI_ADDR_EFA",
        /// PSM3.
        Psmx3 = 13 => "FI_ADDR_PSMX3",
        /// Omni-Path.
        Opx = 14 => "FI_ADDR_OPX",
        /// Slingshot.
        Cxi = 15 => "FI_ADDR_CXI",
        /// UCX.
        Ucx = 16 => "FI_ADDR_UCX",
        /// `struct sockaddr_in` or `struct sockaddr_in6`.
        SockaddrIp = 17 => "FI_SOCKADDR_IP",
    }
}

c_enum! {
    /// The kind of memory behind an address (fi_mr(3)).
    #[non_exhaustive]
    pub enum HmemIface {
        /// The host's.
        System = 0 => "FI_HMEM_SYSTEM",
        /// NVIDIA.
        Cuda = 1 => "FI_HMEM_CUDA",
        /// AMD.
        Rocr = 2 => "FI_HMEM_ROCR",
        /// Intel Level Zero.
        Ze = 3 => "FI_HMEM_ZE",
        /// AWS Neuron.
        Neuron = 4 => "FI_HMEM_NEURON",
        /// Intel Gaudi.
        Synapseai = 5 => "FI_HMEM_SYNAPSEAI",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_enumeration_converts_to_c_and_back() {
        assert!(AddrFormat::VALUES.iter().all(|&value| AddrFormat::from_c(value.as_c()) == Some(value)));
        assert_eq!(EpType::try_from(4).unwrap_err(), crate::Errno::EINVAL);
        assert_eq!(EpType::Rdm.to_string(), "FI_EP_RDM");
    }
}
