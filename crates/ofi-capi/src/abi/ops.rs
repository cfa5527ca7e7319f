//! Operation tables, and for each of them a complete table of unsupported operations.

use std::ffi::{c_char, c_int, c_void};

use super::types::*;

type Ptr = *mut c_void;
type Const = *const c_void;
type Iov = *const libc::iovec;

/// A callback of the program for events of a profile, or null.
#[allow(non_camel_case_types)]
pub(crate) type fi_profile_callback =
    Option<unsafe extern "C" fn(*mut fid_profile, *mut fi_profile_desc, Ptr, usize, Ptr) -> c_int>;

/// The return value of an unsupported operation.
trait NotSupported {
    const ANSWER: Self;
}
impl NotSupported for isize {
    const ANSWER: Self = -(libc::ENOSYS as isize);
}
impl NotSupported for c_int {
    const ANSWER: Self = -libc::ENOSYS;
}
impl NotSupported for () {
    const ANSWER: Self = ();
}
impl NotSupported for u64 {
    const ANSWER: Self = 0;
}
impl NotSupported for *const c_char {
    const ANSWER: Self = c"function not implemented".as_ptr();
}

/// Declares operation tables of C: a leading size, and functions. `NOSYS` is a complete table whose functions return
/// `-FI_ENOSYS` (or no value, if they return no number). Other tables take their unsupported operations from it.
macro_rules! c_ops {
    ($($(#[$meta:meta])* struct $name:ident { $($op:ident($($arg:ty),* $(,)?) -> $ret:ty;)* })+) => {
        $($(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct $name {
            pub size: usize,
            $(pub $op: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl $name {
            pub(crate) const NOSYS: Self = {
                $(unsafe extern "C" fn $op($(_: $arg),*) -> $ret { <$ret as NotSupported>::ANSWER })*
                Self { size: size_of::<Self>(), $($op),* }
            };

            /// A pointer for a field of C's structure. C declares the table writable, but never writes it.
            pub(crate) const fn table(&'static self) -> *mut Self {
                std::ptr::from_ref(self).cast_mut()
            }
        })+

        #[cfg(test)]
        pub(super) fn layouts() -> Vec<crate::abi::layout::Layout> {
            vec![$(crate::abi::layout::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![
                    ("size", 0, size_of::<usize>()),
                    $((stringify!($op), std::mem::offset_of!($name, $op), size_of::<usize>()),)*
                ],
            },)+]
        }
    };
}

c_ops! {
    /// Operations of every object.
    struct fi_ops {
        close(*mut fid) -> c_int;
        bind(*mut fid, *mut fid, u64) -> c_int;
        control(*mut fid, c_int, Ptr) -> c_int;
        ops_open(*mut fid, *const c_char, u64, *mut Ptr, Ptr) -> c_int;
        tostr(*const fid, *mut c_char, usize) -> c_int;
        ops_set(*mut fid, *const c_char, u64, Ptr, Ptr) -> c_int;
    }
    struct fi_profile_ops {
        reset(*mut fid_profile, u64) -> ();
        query_vars(*mut fid_profile, *mut fi_profile_desc, *mut usize) -> isize;
        query_events(*mut fid_profile, *mut fi_profile_desc, *mut usize) -> isize;
        read_var(*mut fid_profile, u32, Ptr, *mut usize) -> isize;
        reg_callback(*mut fid_profile, u32, fi_profile_callback, Ptr) -> c_int;
        start_reads(*mut fid_profile, u64) -> ();
        end_reads(*mut fid_profile, u64) -> ();
    }
    struct fi_ops_fabric {
        domain(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, Ptr) -> c_int;
        passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, Ptr) -> c_int;
        eq_open(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, Ptr) -> c_int;
        wait_open(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int;
        trywait(*mut fid_fabric, *mut *mut fid, c_int) -> c_int;
        domain2(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, Ptr) -> c_int;
    }
    struct fi_ops_domain {
        av_open(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, Ptr) -> c_int;
        cq_open(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, Ptr) -> c_int;
        endpoint(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, Ptr) -> c_int;
        scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, Ptr) -> c_int;
        cntr_open(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, Ptr) -> c_int;
        poll_open(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int;
        stx_ctx(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, Ptr) -> c_int;
        srx_ctx(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, Ptr) -> c_int;
        query_atomic(*mut fid_domain, u32, u32, Ptr, u64) -> c_int;
        query_collective(*mut fid_domain, u32, *mut fi_collective_attr, u64) -> c_int;
        endpoint2(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, Ptr) -> c_int;
        xpu_ctx(*mut fid_domain, Ptr, *mut Ptr, Ptr) -> c_int;
    }
    struct fi_ops_mr {
        reg(*mut fid, Const, usize, u64, u64, u64, u64, *mut *mut fid_mr, Ptr) -> c_int;
        regv(*mut fid, Iov, usize, u64, u64, u64, u64, *mut *mut fid_mr, Ptr) -> c_int;
        regattr(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int;
    }
    struct fi_ops_ep {
        cancel(*mut fid, Ptr) -> isize;
        getopt(*mut fid, c_int, c_int, Ptr, *mut usize) -> c_int;
        setopt(*mut fid, c_int, c_int, Const, usize) -> c_int;
        tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, Ptr) -> c_int;
        rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, Ptr) -> c_int;
        rx_size_left(*mut fid_ep) -> isize;
        tx_size_left(*mut fid_ep) -> isize;
        export_xpu(*mut fid_ep, u64, Ptr) -> c_int;
    }
    struct fi_ops_cm {
        setname(*mut fid, Ptr, usize) -> c_int;
        getname(*mut fid, Ptr, *mut usize) -> c_int;
        getpeer(*mut fid_ep, Ptr, *mut usize) -> c_int;
        connect(*mut fid_ep, Const, Const, usize) -> c_int;
        listen(*mut fid_pep) -> c_int;
        accept(*mut fid_ep, Const, usize) -> c_int;
        reject(*mut fid_pep, *mut fid, Const, usize) -> c_int;
        shutdown(*mut fid_ep, u64) -> c_int;
        join(*mut fid_ep, Const, u64, *mut *mut fid_mc, Ptr) -> c_int;
    }
    struct fi_ops_msg {
        recv(*mut fid_ep, Ptr, usize, Ptr, u64, Ptr) -> isize;
        recvv(*mut fid_ep, Iov, *mut Ptr, usize, u64, Ptr) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        send(*mut fid_ep, Const, usize, Ptr, u64, Ptr) -> isize;
        sendv(*mut fid_ep, Iov, *mut Ptr, usize, u64, Ptr) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg, u64) -> isize;
        inject(*mut fid_ep, Const, usize, u64) -> isize;
        senddata(*mut fid_ep, Const, usize, Ptr, u64, u64, Ptr) -> isize;
        injectdata(*mut fid_ep, Const, usize, u64, u64) -> isize;
    }
    struct fi_ops_tagged {
        recv(*mut fid_ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize;
        recvv(*mut fid_ep, Iov, *mut Ptr, usize, u64, u64, u64, Ptr) -> isize;
        recvmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        send(*mut fid_ep, Const, usize, Ptr, u64, u64, Ptr) -> isize;
        sendv(*mut fid_ep, Iov, *mut Ptr, usize, u64, u64, Ptr) -> isize;
        sendmsg(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
        inject(*mut fid_ep, Const, usize, u64, u64) -> isize;
        senddata(*mut fid_ep, Const, usize, Ptr, u64, u64, u64, Ptr) -> isize;
        injectdata(*mut fid_ep, Const, usize, u64, u64, u64) -> isize;
    }
    struct fi_ops_rma {
        read(*mut fid_ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize;
        readv(*mut fid_ep, Iov, *mut Ptr, usize, u64, u64, u64, Ptr) -> isize;
        readmsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        write(*mut fid_ep, Const, usize, Ptr, u64, u64, u64, Ptr) -> isize;
        writev(*mut fid_ep, Iov, *mut Ptr, usize, u64, u64, u64, Ptr) -> isize;
        writemsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize;
        inject(*mut fid_ep, Const, usize, u64, u64, u64) -> isize;
        writedata(*mut fid_ep, Const, usize, Ptr, u64, u64, u64, u64, Ptr) -> isize;
        injectdata(*mut fid_ep, Const, usize, u64, u64, u64, u64) -> isize;
    }
    struct fi_ops_atomic {
        write(*mut fid_ep, Const, usize, Ptr, u64, u64, u64, u32, u32, Ptr) -> isize;
        writev(*mut fid_ep, Const, *mut Ptr, usize, u64, u64, u64, u32, u32, Ptr) -> isize;
        writemsg(*mut fid_ep, Const, u64) -> isize;
        inject(*mut fid_ep, Const, usize, u64, u64, u64, u32, u32) -> isize;
        readwrite(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u64, u64, u32, u32, Ptr) -> isize;
        readwritev(
            *mut fid_ep, Const, *mut Ptr, usize, Ptr, *mut Ptr, usize, u64, u64, u64, u32, u32, Ptr,
        ) -> isize;
        readwritemsg(*mut fid_ep, Const, Ptr, *mut Ptr, usize, u64) -> isize;
        compwrite(
            *mut fid_ep, Const, usize, Ptr, Const, Ptr, Ptr, Ptr, u64, u64, u64, u32, u32, Ptr,
        ) -> isize;
        compwritev(
            *mut fid_ep, Const, *mut Ptr, usize, Const, *mut Ptr, usize, Ptr, *mut Ptr, usize, u64, u64, u64, u32,
            u32, Ptr,
        ) -> isize;
        compwritemsg(
            *mut fid_ep, Const, Const, *mut Ptr, usize, Ptr, *mut Ptr, usize, u64,
        ) -> isize;
        writevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
        readwritevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
        compwritevalid(*mut fid_ep, u32, u32, *mut usize) -> c_int;
    }
    struct fi_ops_av_set {
        set_union(*mut fid_av_set, *const fid_av_set) -> c_int;
        intersect(*mut fid_av_set, *const fid_av_set) -> c_int;
        diff(*mut fid_av_set, *const fid_av_set) -> c_int;
        insert(*mut fid_av_set, u64) -> c_int;
        remove(*mut fid_av_set, u64) -> c_int;
        addr(*mut fid_av_set, *mut u64) -> c_int;
    }
    struct fi_ops_collective {
        barrier(*mut fid_ep, u64, Ptr) -> isize;
        broadcast(*mut fid_ep, Ptr, usize, Ptr, u64, u64, u32, u64, Ptr) -> isize;
        alltoall(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u32, u64, Ptr) -> isize;
        allreduce(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u32, u32, u64, Ptr) -> isize;
        allgather(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u32, u64, Ptr) -> isize;
        reduce_scatter(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u32, u32, u64, Ptr) -> isize;
        reduce(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u64, u32, u32, u64, Ptr) -> isize;
        scatter(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u64, u32, u64, Ptr) -> isize;
        gather(*mut fid_ep, Const, usize, Ptr, Ptr, Ptr, u64, u64, u32, u64, Ptr) -> isize;
        msg(*mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut Ptr, usize, u64) -> isize;
        barrier2(*mut fid_ep, u64, u64, Ptr) -> isize;
    }
    struct fi_ops_cq {
        read(*mut fid_cq, Ptr, usize) -> isize;
        readfrom(*mut fid_cq, Ptr, usize, *mut u64) -> isize;
        readerr(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize;
        sread(*mut fid_cq, Ptr, usize, Const, c_int) -> isize;
        sreadfrom(*mut fid_cq, Ptr, usize, *mut u64, Const, c_int) -> isize;
        signal(*mut fid_cq) -> c_int;
        strerror(*mut fid_cq, c_int, Const, *mut c_char, usize) -> *const c_char;
        export_xpu(*mut fid_cq, u64, Ptr) -> c_int;
    }
    struct fi_ops_cntr {
        read(*mut fid_cntr) -> u64;
        readerr(*mut fid_cntr) -> u64;
        add(*mut fid_cntr, u64) -> c_int;
        set(*mut fid_cntr, u64) -> c_int;
        wait(*mut fid_cntr, u64, c_int) -> c_int;
        adderr(*mut fid_cntr, u64) -> c_int;
        seterr(*mut fid_cntr, u64) -> c_int;
        export_xpu(*mut fid_cntr, u64, Ptr) -> c_int;
    }
    struct fi_ops_wait {
        wait(*mut fid_wait, c_int) -> c_int;
    }
    struct fi_ops_poll {
        poll(*mut fid_poll, *mut Ptr, c_int) -> c_int;
        poll_add(*mut fid_poll, *mut fid, u64) -> c_int;
        poll_del(*mut fid_poll, *mut fid, u64) -> c_int;
    }
    struct fi_ops_eq {
        read(*mut fid_eq, *mut u32, Ptr, usize, u64) -> isize;
        readerr(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize;
        write(*mut fid_eq, u32, Const, usize, u64) -> isize;
        sread(*mut fid_eq, *mut u32, Ptr, usize, c_int, u64) -> isize;
        strerror(*mut fid_eq, c_int, Const, *mut c_char, usize) -> *const c_char;
    }
    struct fi_ops_av {
        insert(*mut fid_av, Const, usize, *mut u64, u64, Ptr) -> c_int;
        insertsvc(*mut fid_av, *const c_char, *const c_char, *mut u64, u64, Ptr) -> c_int;
        insertsym(*mut fid_av, *const c_char, usize, *const c_char, usize, *mut u64, u64, Ptr) -> c_int;
        remove(*mut fid_av, *mut u64, usize, u64) -> c_int;
        lookup(*mut fid_av, u64, Ptr, *mut usize) -> c_int;
        straddr(*mut fid_av, Const, *mut c_char, *mut usize) -> *const c_char;
        av_set(*mut fid_av, *mut fi_av_set_attr, *mut *mut fid_av_set, Ptr) -> c_int;
        insert_auth_key(*mut fid_av, Const, usize, *mut u64, u64) -> c_int;
        lookup_auth_key(*mut fid_av, u64, Ptr, *mut usize) -> c_int;
        set_user_id(*mut fid_av, u64, u64, u64) -> c_int;
        lookup2(*mut fid_av, u64, Ptr, *mut usize, u64, Ptr) -> c_int;
    }
}
