//! io_uring under a socket: one multishot receive into buffers that the kernel picks.
//!
//! The ring belongs to the thread that created it, and the kernel completes work only when that thread enters it
//! (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1). Three rules follow, so that no sleeper misses a datagram:
//! I1. A datagram leaves the socket only inside [`Ring::receive`], which is called under the endpoint's lock. Until
//!     then it makes the socket readable, which sleepers watch.
//! I2. A datagram that has left it is returned by the same call, or waits in the ring's completions, which
//!     [`Ring::holds`] reports.
//! I3. Another thread reads the existing completions, and then the socket by a system call, so it does not depend on
//!     the owner.
//!
//! The owner's check of an idle socket costs two loads and no system call.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use io_uring::types::{BufRingEntry, CancelBuilder, Fd, RecvMsgOut, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::local::{CONTROL, Control};
use super::segments::{self, GroBatch};
use crate::sockaddr::{empty_storage, from_storage};
use ofi_core::pages::Pages;

/// Buffers of a ring; a power of two.
const BUFFERS: u16 = 32;
/// Maximum number of buffers that the kernel owns while messages are long, so that they stay in the processor's cache.
const LONG_BUFFERS: u16 = 6;
/// Minimum length in bytes of a long message.
const LONG: usize = 16 << 10;
/// Size of one buffer in bytes: io_uring's message header, the name, the control messages, and a message of any length.
const BUFFER: usize = 68 << 10;
/// The id of the buffer group.
const GROUP: u16 = 0;
/// `IORING_ENTER_GETEVENTS`: makes the kernel run pending work.
const GETEVENTS: u32 = 1;
/// Maximum number of checks for the end of the receive.
const END_LOOKS: u32 = 100;

#[derive(Clone, Copy)]
struct Datagram {
    buffer: u16,
    start: u32,
    end: u32,
    /// The end of the last datagram of the same message.
    last: u32,
    from: Option<SocketAddr>,
    local: Option<IpAddr>,
    marked: bool,
}

/// An io_uring with one multishot receive, and its buffers. The ring is dropped before the memory that the kernel uses.
pub struct Ring {
    ring: IoUring,
    /// The ring that passes buffers to the kernel, and the buffers.
    entries: Pages,
    buffers: Pages,
    /// Buffers ever passed to the kernel (wrapping), and the number that it owns now.
    tail: u16,
    given: u16,
    /// The metadata requested for each message; the kernel reads this when the receive starts.
    template: Box<libc::msghdr>,
    receiving: bool,
    owner: u64,
    datagrams: Vec<Datagram>,
    /// Buffers that this end owns: those of the last batch, and free ones.
    here: Vec<u16>,
    /// The last batch had long messages.
    long: bool,
    failed: bool,
    /// Number of kernel entries.
    pub calls: u64,
}

// SAFETY: the pointers inside lead to memory of this value. The kernel lets one thread enter the ring, which is asked
// before each entry; everything else about it is memory, used by whoever holds the value.
unsafe impl Send for Ring {}

impl Ring {
    /// Creates a ring of this thread that receives from `socket`.
    ///
    /// # Errors
    /// The reason why there is no ring: the kernel is too old, or forbids it.
    pub fn new(socket: &UdpSocket) -> std::io::Result<Self> {
        let pages = |len| Pages::new(len, false).map_err(|_| std::io::ErrorKind::OutOfMemory);
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(4 * u32::from(BUFFERS))
            .build(4)?;
        let entries = pages(usize::from(BUFFERS) * size_of::<BufRingEntry>())?;
        let buffers = pages(usize::from(BUFFERS) * BUFFER)?;
        let mut template = Box::new(super::empty_header().msg_hdr);
        template.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        template.msg_controllen = CONTROL;
        // SAFETY: the pages are mapped, hold as many entries, and outlive the ring.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries.base() as u64, BUFFERS, GROUP, 0)?;
        }
        let mut new = Self {
            ring,
            entries,
            buffers,
            tail: 0,
            given: 0,
            template,
            receiving: false,
            owner: this_thread(),
            datagrams: Vec::with_capacity(usize::from(BUFFERS)),
            here: (0..BUFFERS).collect(),
            long: false,
            failed: false,
            calls: 0,
        };
        new.begin(socket)?;
        Ok(new)
    }

    /// Whether the calling thread may enter the ring.
    pub fn is_own(&self) -> bool {
        self.owner == this_thread()
    }

    /// Whether completed messages are unread.
    pub fn holds(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Whether the kernel has work for this ring that its owner must trigger.
    fn is_due(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Reads the completed messages. Returns the number of datagrams, and whether there may be more. `None` if the
    /// socket must be read by a system call: the caller is not the owner, or the ring has failed
    /// ([`Ring::has_failed`]).
    ///
    /// # Errors
    /// Errors that the socket reports, such as `ECONNREFUSED`.
    pub fn receive(&mut self, socket: &UdpSocket) -> Option<Result<(usize, bool), i32>> {
        if !self.holds() {
            if self.failed || !self.is_own() {
                return None;
            }
            if self.receiving && !self.is_due() {
                return Some(Ok((0, false)));
            }
            let moved = if self.receiving { self.enter() } else { self.begin(socket) };
            if moved.is_err() {
                self.failed = true;
                return None;
            }
        }
        self.give();
        let mut error = None;
        while let Some((result, flags)) = self.completion() {
            self.receiving &= cqueue::more(flags);
            if let Some(buffer) = cqueue::buffer_select(flags).filter(|&buffer| buffer < BUFFERS) {
                self.given -= 1;
                self.here.push(buffer);
                if let Ok(len) = usize::try_from(result) {
                    self.take(buffer, len.min(BUFFER));
                }
            } else if result < 0 {
                error = Some(-result);
            }
        }
        match error {
            // The receive ended for lack of buffers, or was cancelled: restart it.
            None | Some(libc::ENOBUFS | libc::ECANCELED | libc::EINTR) => {}
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM | libc::ENOSYS) => {
                self.failed = true;
            }
            Some(errno) if self.datagrams.is_empty() => return Some(Err(errno)),
            Some(_) => {}
        }
        Some(Ok((self.datagrams.len(), !self.receiving || self.is_due())))
    }

    /// The next completion's result and flags.
    fn completion(&mut self) -> Option<(i32, u32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.result(), entry.flags()))
    }

    /// Whether the kernel refused the receive.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns this end's buffers to the kernel, which ends the last batch.
    fn give(&mut self) {
        self.datagrams.clear();
        let most = if std::mem::take(&mut self.long) { LONG_BUFFERS } else { BUFFERS };
        let entries = self.entries.base().cast::<BufRingEntry>();
        let before = self.tail;
        while self.given < most
            && let Some(buffer) = self.here.pop()
        {
            let at = usize::from(self.tail & (BUFFERS - 1));
            // SAFETY: inside the pages, which are zeroed at first and so hold entries; the kernel does not look at
            // entries that are not below the tail.
            let entry = unsafe { &mut *entries.wrapping_add(at) };
            entry.set_addr(self.buffers.base().wrapping_add(usize::from(buffer) * BUFFER) as u64);
            entry.set_len(BUFFER as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            self.given += 1;
        }
        if self.tail != before {
            // SAFETY: the address of the first entry.
            let tail = unsafe { BufRingEntry::tail(entries) };
            // SAFETY: two bytes of the pages, which the kernel only reads, and which nothing here borrows.
            unsafe { &*tail.cast::<AtomicU16>() }.store(self.tail, Ordering::Release);
        }
    }

    /// Starts to receive.
    fn begin(&mut self, socket: &UdpSocket) -> std::io::Result<()> {
        self.give();
        // A submission that the kernel had no room for is still queued.
        if self.ring.submission().is_empty() {
            let entry = opcode::RecvMsgMulti::new(Fd(socket.as_raw_fd()), &raw const *self.template, GROUP);
            // SAFETY: the template lives as long as this value, and the socket is open in every call that comes here.
            unsafe { self.ring.submission().push(&entry.build()) }
                .map_err(|_| std::io::ErrorKind::WouldBlock)?;
        }
        self.enter()?;
        self.receiving = self.ring.submission().is_empty();
        Ok(())
    }

    /// Makes the kernel read submissions and run its pending work.
    fn enter(&mut self) -> std::io::Result<()> {
        self.give();
        let submitted = self.ring.submission().len() as u32;
        self.calls += 1;
        // SAFETY: no argument; what is submitted holds as `begin` says.
        match unsafe { self.ring.submitter().enter::<()>(submitted, 0, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            // Temporary: the work is still pending.
            Err(error)
                if [Some(libc::EINTR), Some(libc::EAGAIN), Some(libc::EBUSY)]
                    .contains(&error.raw_os_error()) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Splits the message of `len` bytes in `buffer`.
    fn take(&mut self, buffer: u16, len: usize) {
        let base = self.buffers.base().wrapping_add(usize::from(buffer) * BUFFER);
        // SAFETY: a buffer that the kernel has handed over, which is ours until it is given back.
        let bytes = unsafe { std::slice::from_raw_parts(base, len) };
        let Ok(message) = RecvMsgOut::parse(bytes, &self.template) else { return };
        let payload = message.payload_data();
        let start = payload.as_ptr() as usize - base as usize;
        let mut name = empty_storage();
        let name_len = message.name_data().len().min(size_of_val(&name));
        // SAFETY: as many bytes of each; any bytes are a socket address's storage.
        unsafe {
            std::ptr::copy_nonoverlapping(
                message.name_data().as_ptr(),
                (&raw mut name).cast::<u8>(),
                name_len,
            );
        }
        let mut control = Control::EMPTY;
        let control_len = message.control_data().len().min(CONTROL);
        control.0[..control_len].copy_from_slice(&message.control_data()[..control_len]);
        let told = control.read(control_len);
        let from = from_storage(&name);
        self.long |= payload.len() >= LONG;
        let len = payload.len();
        self.datagrams.extend(segments::cut(len, told.segment).map(|(first, end)| Datagram {
            buffer,
            start: (start + first) as u32,
            end: (start + end) as u32,
            last: (start + len) as u32,
            from,
            local: told.local,
            marked: told.marked,
        }));
    }

    /// The datagrams of the last batch from `index` on that came in one message.
    #[inline]
    pub fn row(&mut self, index: usize) -> GroBatch<'_> {
        let Datagram { buffer, start, end, last, from, local, marked } = self.datagrams[index];
        let base = self.buffers.base().wrapping_add(usize::from(buffer) * BUFFER + start as usize);
        // SAFETY: inside a buffer that is here, so not the kernel's, and borrowed mutably along with `self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, (last - start) as usize) };
        let len = (end - start) as usize;
        let of = bytes.len().div_ceil(len.max(1));
        GroBatch { bytes, len, from, local, marked, of, placed: false }
    }

    /// Cancels the receive, so that the kernel no longer holds the socket. Returns whether that is confirmed, which
    /// only the owner can check.
    pub fn end(&mut self) -> bool {
        if !self.receiving {
            return true;
        }
        if !self.is_own() {
            return false;
        }
        let bound = Timespec::new().sec(1);
        // A receive that cannot be cancelled has ended or is about to.
        let _ = self.ring.submitter().register_sync_cancel(Some(bound), CancelBuilder::any());
        for _ in 0..END_LOOKS {
            if self.enter().is_err() {
                return false;
            }
            while let Some((_, flags)) = self.completion() {
                self.receiving &= cqueue::more(flags);
            }
            if !self.receiving {
                return true;
            }
        }
        false
    }
}

/// An id of this thread that no other thread of this process ever gets.
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}
