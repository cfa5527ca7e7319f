//! Completions of work requests.

use std::ffi::CStr;

use crate::abi::IBV_WC_RECV;
use crate::abi_ex::IBV_WC_RECV_RDMA_WITH_IMM;
use crate::library::verbs;

/// The kind of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A receive.
    Receive,
    /// A peer's write with immediate data has consumed a receive, whose memory was not written.
    WriteArrived,
    /// A send, a read, or a write.
    Request,
}

/// The status of a completed work request (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// The request succeeded.
    pub const SUCCESS: Self = Self(0);
    /// A message is longer than its receive.
    pub const TOO_LONG: Self = Self(1);
    /// The queue pair was in error, so the request was not executed.
    pub const FLUSHED: Self = Self(5);
    /// A memory window cannot be bound with these attributes.
    pub const BIND: Self = Self(6);
    /// The peer does not allow the access.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer has no receive posted.
    pub const NO_RECEIVE: Self = Self(13);

    /// `IBV_WC_TM_RNDV_INCOMPLETE`.
    const LAST: u32 = 23;

    /// A status from its number, for simulations.
    pub const fn from_raw(status: u32) -> Self {
        Self(status)
    }

    /// The number of the status.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Whether rdma-core defines the status.
    pub const fn is_known(self) -> bool {
        self.0 <= Self::LAST
    }
}

impl Opcode {
    pub(crate) const fn of(opcode: u32) -> Self {
        match opcode {
            IBV_WC_RECV_RDMA_WITH_IMM => Self::WriteArrived,
            opcode if opcode & IBV_WC_RECV != 0 => Self::Receive,
            _ => Self::Request,
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ok(verbs) = verbs() else { return write!(f, "status {}", self.0) };
        // SAFETY: the function returns a constant string for any number.
        let text = unsafe { (verbs.ibv_wc_status_str)(self.0) };
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion {
    /// The id of the request.
    pub id: u64,
    /// The status of the request.
    pub status: Status,
    /// The kind of the request. It is undefined if the request failed.
    pub opcode: Opcode,
    /// Number of bytes received.
    pub len: usize,
    /// The number of the queue pair.
    pub qp: u32,
    /// Immediate data.
    pub data: Option<u32>,
    /// The sending queue pair, for a datagram.
    pub source_qp: u32,
    /// For a datagram, its sender's LID (InfiniBand).
    pub lid: u16,
    /// Whether a route header precedes the payload, for a datagram.
    pub has_route: bool,
}
