//! Conversion of `fi_info` between C and Rust. C's structures are allocated with malloc, because programs free them,
//! copy them, and replace parts.

mod copy;
mod from_c;
pub(crate) mod opened;
mod source;
mod to_c;

pub(crate) use copy::{allocate, duplicate, release};
pub(crate) use from_c::{as_it_is, domain_attr, ep_attr, fabric_attr, from_c, read, rx_attr, tx_attr};
pub(crate) use source::{forget_any, name_source};
pub(crate) use to_c::{rx_attr as rx_attr_to_c, to_c, tx_attr as tx_attr_to_c};

use ofi_api::Handle;
use std::sync::Arc;

/// An object of C that an info refers to.
pub(crate) struct FidHandle(usize);

impl FidHandle {
    /// The handle for a pointer of C; `None` for null.
    pub(crate) fn of<T>(pointer: *mut T) -> Option<Handle> {
        (!pointer.is_null()).then(|| Handle::new(Arc::new(Self(pointer.expose_provenance()))))
    }

    /// The pointer of a handle; null for `None`, and for handles that are not from C.
    pub(crate) fn pointer<T>(handle: Option<&Handle>) -> *mut T {
        let found = handle.and_then(Handle::downcast::<Self>);
        found.map_or(std::ptr::null_mut(), |fid| std::ptr::with_exposed_provenance_mut(fid.0))
    }
}
