//! Joins of multicast groups through C's calls, against a simulated device that delays its answers.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::ptr::{from_mut, null_mut};
use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

use super::join;
use crate::abi::{fi_eq_entry, fi_eq_err_entry, fid, fid_ep, fid_eq, fid_mc};
use crate::object::{self, Users};
use crate::{endpoint, eq, fabric};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 192, 81, 1);

/// An endpoint and an event queue, as a C program has them.
struct Program {
    device: Arc<SimulatedDevice>,
    ep: *mut fid_ep,
    eq: *mut fid_eq,
    _side: TestEndpoint,
}

impl Program {
    fn new() -> Self {
        let device = SimulatedDevice::new("capi0", Plan::default());
        device.hold_joins(true);
        ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
        // Refused if the provider is already registered.
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
        let hints = Hints::new().provider("verbs").domain("capi0").ep_type(EpType::Dgram);
        let opening = Opening::new(hints.addr_format(AddrFormat::IbUd).caps(Caps::MSG | Caps::MULTICAST));
        let side = opening.open_disabled().unwrap();
        let (mut fabric, mut eq) = (null_mut(), null_mut());
        let attr = side.info.fabric_attr.clone();
        // SAFETY: the result is on the stack.
        unsafe { fabric::open_of(attr, None, &mut fabric, null_mut()) }.unwrap();
        // SAFETY: the fabric was opened above, and the result is on the stack.
        assert_eq!(unsafe { eq::open(fabric, null_mut(), &mut eq, null_mut()) }, 0);
        // SAFETY: opened above.
        let queue = unsafe { object::body(eq) }.unwrap();
        side.ep.bind_eq(&queue.eq).unwrap();
        side.ep.enable().unwrap();
        let ep = endpoint::wrap(Arc::clone(&side.ep), &side.info, Users::default().hold(), null_mut());
        Self { device, ep, eq, _side: side }
    }

    /// `fi_join`, of [`GROUP`].
    fn join(&self, context: &mut u8) -> *mut fid_mc {
        let mut name = [0u8; 32]; // struct ofi_ib_ud_ep_name: GID, queue pair
        name[..16].copy_from_slice(&GROUP.to_ipv6_mapped().octets());
        name[16..20].copy_from_slice(&0xFF_FFFFu32.to_ne_bytes());
        let mut mc = null_mut();
        let context = from_mut(context).cast();
        // SAFETY: the endpoint is open, and the address and the result are on the stack.
        let answer = unsafe { join(self.ep, name.as_ptr().cast(), 0, &mut mc, context) };
        assert_eq!((answer, mc.is_null()), (0, false));
        mc
    }

    /// `fi_eq_read`: its answer, the event's kind, and the event.
    fn read(&self) -> (isize, u32, fi_eq_entry) {
        let mut entry = fi_eq_entry { fid: null_mut(), context: null_mut(), data: 0 };
        let mut kind = 0;
        let to: *mut c_void = from_mut(&mut entry).cast();
        // SAFETY: the queue is open.
        let ops = unsafe { (*self.eq).ops };
        // SAFETY: an open object's table.
        let read = unsafe { (*ops).read };
        // SAFETY: the queue is open, and the results are on the stack.
        let answer = unsafe { read(self.eq, &mut kind, to, size_of::<fi_eq_entry>(), 0) };
        (answer, kind, entry)
    }

    /// `fi_eq_readerr`.
    fn read_error(&self) -> fi_eq_err_entry {
        // SAFETY: numbers and pointers.
        let mut entry: fi_eq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open.
        let ops = unsafe { (*self.eq).ops };
        // SAFETY: an open object's table.
        let readerr = unsafe { (*ops).readerr };
        // SAFETY: the queue is open, and the result is on the stack.
        let answer = unsafe { readerr(self.eq, &mut entry, 0) };
        assert_eq!(answer, size_of::<fi_eq_err_entry>() as isize);
        entry
    }

    /// Reads until there is an event or an error.
    fn wait(&self) -> (isize, u32, fi_eq_entry) {
        const AGAIN: isize = -(libc::EAGAIN as isize);
        wait::drive(&[], "an event", || Some(self.read()).filter(|(answer, ..)| *answer != AGAIN))
    }

    fn answer(&self, answer: Result<(), i32>) {
        assert_eq!(self.device.answer_join(IpAddr::V4(GROUP), answer), 1);
    }
}

/// `fi_close`.
fn close(handle: *mut fid) -> c_int {
    // SAFETY: the object is open.
    let ops = unsafe { (*handle).ops };
    // SAFETY: an open object's table.
    let close = unsafe { (*ops).close };
    // SAFETY: the object is open, and is not used afterwards.
    unsafe { close(handle) }
}

#[test]
fn the_end_of_a_join_is_an_event_or_an_error_of_the_event_queue() {
    const AVAIL: isize = -(Errno::EAVAIL.get() as isize);
    let program = Program::new();
    let (mut first, mut second) = (1, 2);

    let mc = program.join(&mut first);
    assert_eq!(program.read().0, -(libc::EAGAIN as isize), "the network has not answered");
    program.answer(Err(libc::EACCES));
    assert_eq!(program.wait().0, AVAIL);
    let error = program.read_error();
    assert_eq!((error.fid, error.context), (mc.cast(), from_mut(&mut first).cast()));
    assert_eq!(error.err, libc::EACCES);
    assert_eq!(close(mc.cast()), 0);

    let mc = program.join(&mut second);
    // SAFETY: just opened.
    let address = unsafe { (*mc).fi_addr };
    assert_ne!(address, u64::MAX, "fi_mc_addr is known at once");
    program.answer(Ok(()));
    let (answer, kind, entry) = program.wait();
    assert_eq!((answer, kind), (size_of::<fi_eq_entry>() as isize, EventKind::JoinComplete.as_c()));
    assert_eq!((entry.fid, entry.context), (mc.cast(), from_mut(&mut second).cast()));

    assert_eq!(close(program.ep.cast()), -libc::EBUSY, "it has a group");
    assert_eq!(close(mc.cast()), 0);

    // A group that is closed before the network has answered.
    let mc = program.join(&mut first);
    assert_eq!(close(mc.cast()), 0);
    assert_eq!(program.device.joins(), 0);
    assert_eq!(program.read().0, -(libc::EAGAIN as isize));
    assert_eq!(close(program.ep.cast()), 0);
}
