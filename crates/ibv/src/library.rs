//! Opens libibverbs, librdmacm and libefa, once per process. They stay open, because their drivers have threads and
//! handlers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi::*;
use crate::abi_ex::*;
use crate::error::{Error, Result};

/// Declares the functions of a library, and their lookup.
macro_rules! functions {
    ($table:ident: $library:literal { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $table {
            fn open() -> Result<Self> {
                let library = open($library)?;
                Ok(Self {
                    $($name: {
                        let symbol = find(library, concat!(stringify!($name), "\0"), $library)?;
                        type Function = unsafe extern "C" fn($($arg),*) $(-> $ret)?;
                        // SAFETY: the library's interface declares this function with this type (`abi.rs`).
                        unsafe { std::mem::transmute::<*mut c_void, Function>(symbol) }
                    },)*
                })
            }
        }
    };
}

functions!(Verbs: c"libibverbs.so.1" {
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_attach_mcast: fn(*mut ibv_qp, *const [u8; 16], u16) -> c_int;
    ibv_detach_mcast: fn(*mut ibv_qp, *const [u8; 16], u16) -> c_int;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
    ibv_wc_status_str: fn(c_uint) -> *const c_char;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex: fn(*mut ibv_qp) -> *mut ibv_qp_ex;
});

functions!(Efa: c"libefa.so.1" {
    efadv_query_device: fn(*mut ibv_context, *mut efadv_device_attr, u32) -> c_int;
    efadv_query_ah: fn(*mut ibv_ah, *mut efadv_ah_attr, u32) -> c_int;
    efadv_create_qp_ex: fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut efadv_qp_init_attr, u32) -> *mut ibv_qp;
    efadv_create_cq: fn(*mut ibv_context, *mut ibv_cq_init_attr_ex, *mut efadv_cq_init_attr, u32) -> *mut ibv_cq_ex;
    efadv_cq_from_ibv_cq_ex: fn(*mut ibv_cq_ex) -> *mut efadv_cq;
});

functions!(Cm: c"librdmacm.so.1" {
    rdma_create_event_channel: fn() -> *mut rdma_event_channel;
    rdma_destroy_event_channel: fn(*mut rdma_event_channel);
    rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
    rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
    rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
    rdma_bind_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_resolve_addr: fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
    rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    rdma_create_qp_ex: fn(*mut rdma_cm_id, *mut ibv_qp_init_attr_ex) -> c_int;
    rdma_destroy_qp: fn(*mut rdma_cm_id);
    rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
    rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    rdma_join_multicast: fn(*mut rdma_cm_id, *mut libc::sockaddr, *mut c_void) -> c_int;
    rdma_leave_multicast: fn(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    rdma_get_devices: fn(*mut c_int) -> *mut *mut ibv_context;
    rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
});

fn open(name: &CStr) -> Result<*mut c_void> {
    // SAFETY: the name ends with a zero. The library's constructors are those of rdma-core.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: returns the text of the failure above, which stays until the thread's next call of this kind.
        let why = unsafe { libc::dlerror() };
        let why = match why.is_null() {
            true => "the loader gives no reason".into(),
            // SAFETY: the text ends with a zero.
            false => unsafe { CStr::from_ptr(why) }.to_string_lossy(),
        };
        return Err(Error::with("dlopen", libc::ENOENT, not_opened(&name.to_string_lossy(), &why)));
    }
    Ok(library)
}

/// Explains that the loader could not open a library, and why.
fn not_opened(name: &str, why: &str) -> String {
    let install = "install rdma-core (Debian: libibverbs1 librdmacm1 ibverbs-providers)";
    match why.starts_with(name) && why.contains("No such file") {
        true => format!("{name} is not installed: {install}"),
        false => format!("{name} cannot be opened: {why}; {install}"),
    }
}

fn find(library: *mut c_void, name: &'static str, of: &CStr) -> Result<*mut c_void> {
    // SAFETY: an open library, and a name that ends with a zero.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if symbol.is_null() {
        let name = name.trim_end_matches('\0');
        let advice = format!("{} has no {name}: install rdma-core 33 or newer", of.to_string_lossy());
        return Err(Error::with("dlsym", libc::ENOSYS, advice));
    }
    Ok(symbol)
}

/// The functions of libibverbs.
pub fn verbs() -> Result<&'static Verbs> {
    static VERBS: OnceLock<Result<Verbs>> = OnceLock::new();
    VERBS.get_or_init(Verbs::open).as_ref().map_err(Clone::clone)
}

/// A function that a library may lack.
///
/// # Errors
/// `ENOSYS` if it has none of that name, which ends with a zero.
pub fn optional(library: &CStr, name: &'static str) -> Result<*mut c_void> {
    find(open(library)?, name, library)
}

/// `ibv_reg_dmabuf_mr`, which libibverbs has since rdma-core 34.
type RegDmabufMr = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// That function.
///
/// # Errors
/// `ENOSYS` if the library has none.
pub fn reg_dmabuf_mr() -> Result<RegDmabufMr> {
    static FUNCTION: OnceLock<Result<RegDmabufMr>> = OnceLock::new();
    let look = || {
        const LIBRARY: &CStr = c"libibverbs.so.1";
        let symbol = find(open(LIBRARY)?, "ibv_reg_dmabuf_mr\0", LIBRARY).map_err(|error| Error {
            advice: "libibverbs.so.1 has no ibv_reg_dmabuf_mr: install rdma-core 34 or newer".into(),
            ..error
        })?;
        // SAFETY: the library's interface declares this function with this type.
        Ok(unsafe { std::mem::transmute::<*mut c_void, RegDmabufMr>(symbol) })
    };
    FUNCTION.get_or_init(look).clone()
}

/// The functions of librdmacm.
pub fn cm() -> Result<&'static Cm> {
    static CM: OnceLock<Result<Cm>> = OnceLock::new();
    CM.get_or_init(Cm::open).as_ref().map_err(Clone::clone)
}

/// The functions of libefa.
pub fn efa() -> Result<&'static Efa> {
    static EFA: OnceLock<Result<Efa>> = OnceLock::new();
    EFA.get_or_init(Efa::open).as_ref().map_err(Clone::clone)
}

/// Whether this host has libibverbs and librdmacm.
///
/// # Errors
/// An error that says which one is missing, and what to install.
pub fn available() -> Result<()> {
    verbs().and_then(|_| cm()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_told_from_one_that_cannot_be_loaded() {
        let error = open(c"libibverbs-of-nobody.so.1").unwrap_err();
        assert!(
            error.to_string().contains("libibverbs-of-nobody.so.1 is not installed: install rdma-core"),
            "{error}"
        );
        let needs = "libnl-3.so.200: cannot open shared object file: No such file or directory";
        assert!(not_opened("libibverbs.so.1", needs).contains("cannot be opened: libnl-3.so.200: "));
    }
}
