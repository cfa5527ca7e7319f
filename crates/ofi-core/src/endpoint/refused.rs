//! Calls that special kinds of endpoints refuse: shared receive contexts cannot send, scalable endpoints cannot
//! transfer.

use ofi_api::{Errno, Error};

/// The error of a call that this kind of endpoint lacks.
#[cold]
pub fn refused(call: &str, kind: &str) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        call.to_string(),
        "an endpoint that has this call",
        kind.to_string(),
        "see fi_endpoint(3), \"Scalable endpoints\" and \"Shared contexts\"",
    )
}

/// Calls of [`ofi_api::Endpoint`] that a kind of endpoint does not have.
macro_rules! refuse {
    ($kind:literal: $($call:ident($($arg:ty),*) -> $answer:ty;)+) => {
        $(fn $call(&self $(, _: $arg)*) -> ofi_api::Result<$answer> {
            Err($crate::endpoint::refused::refused(stringify!($call), $kind))
        })+
    };
}

/// Calls that send data, for [`refuse`].
macro_rules! refuse_transmit {
    ($kind:literal) => {
        $crate::endpoint::refused::refuse! { $kind:
            send(&ofi_api::SendOp<'_>) -> ();
            send_tagged(&ofi_api::SendOp<'_>, u64) -> ();
            write(&ofi_api::RmaOp<'_>) -> ();
            read(&ofi_api::RmaOp<'_>) -> ();
            atomic(&ofi_api::AtomicOp<'_>) -> ();
            atomic_valid(ofi_api::AtomicKind, ofi_api::FiOp, ofi_api::Datatype) -> usize;
        }
    };
}

/// Calls of connections, collectives and triggered operations.
macro_rules! refuse_others {
    ($kind:literal) => {
        $crate::endpoint::refused::refuse! { $kind:
            connect(&ofi_api::Address, &[u8]) -> ();
            accept(&[u8]) -> ();
            shutdown() -> ();
            peer_name() -> ofi_api::Address;
            join_collective(ofi_api::FiAddr, &dyn ofi_api::AvSet, ofi_api::Context) -> ofi_api::Group;
            join_multicast(&ofi_api::Address, ofi_api::BindFlags, ofi_api::Context) -> ofi_api::Multicast;
            collective(&ofi_api::CollectiveOp<'_>) -> ();
            trigger(&ofi_api::Threshold<'_>, &ofi_api::DeferredOp<'_>) -> ();
        }
    };
}

pub(super) use {refuse, refuse_others, refuse_transmit};
