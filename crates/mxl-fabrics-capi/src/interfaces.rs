//! The interfaces by which this host can be reached.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use mxl::Status;
use mxl_fabrics::interfaces::interfaces;
use mxl_ffi::border::{Outcome, out, status};
use mxl_ffi::object::Object;

use crate::instance::{Instance, instance};
use crate::types::{
    Address, BLOCKING, Caps, Interface, List, REMOTE_WRITE, SEND_RECEIVE, given, number, optional, provider,
};

/// A text for C, which [`free`] releases. It is cut at a zero byte.
fn own(text: &str) -> *const c_char {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default().into_raw().cast_const()
}

/// `mxlFabricsGetInterfaces`. A query selects only by its provider and its node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsGetInterfaces(
    handle: *const Object<Instance>,
    query: *const Interface,
    list: *mut *mut List,
) -> c_int {
    status(|| {
        let place = out(list)?;
        instance(handle)?;
        let query = if query.is_null() { None } else { Some(given(query)?) };
        let found = match &query {
            None => interfaces(None, None),
            Some(query) => interfaces(provider(query.provider)?, optional(query.address.node)?),
        };
        let mut next = ptr::null_mut();
        for entry in found.iter().rev() {
            let caps = Caps {
                version: 0,
                flags: BLOCKING | REMOTE_WRITE | SEND_RECEIVE,
                max_message: entry.max_message,
            };
            let attr = serde_json::to_string(&entry.attributes).map_err(|_| Status::Unknown)?;
            let interface = Interface {
                version: 0,
                provider: number(entry.provider),
                caps,
                address: Address { node: own(&entry.node), service: ptr::null() },
                attr: own(&attr),
            };
            next = Box::into_raw(Box::new(List { next, interface }));
        }
        place.set(next);
        Ok(())
    })
}

/// Frees a text of [`own`].
fn free(text: *const c_char) {
    if !text.is_null() {
        // SAFETY: from `CString::into_raw`; the C caller's promise: the list is unchanged.
        drop(unsafe { CString::from_raw(text.cast_mut()) });
    }
}

/// `mxlFabricsFreeInterfaceList`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsFreeInterfaceList(list: *mut List) -> c_int {
    status(|| -> Outcome {
        let mut next = list;
        while !next.is_null() {
            // SAFETY: from `Box::into_raw`; the C caller's promise: the list is unchanged, and not in use now.
            let entry = unsafe { Box::from_raw(next) };
            free(entry.interface.address.node);
            free(entry.interface.attr);
            next = entry.next;
        }
        Ok(())
    })
}
