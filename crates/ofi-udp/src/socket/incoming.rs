//! Receives datagrams in batches, by recvmmsg(2). Many datagrams may arrive as one message, which is split here.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use ofi_api::Result;

use super::local::{CONTROL, Control, Told};
use super::placed::{Came, Expected, Placed, Received};
use super::segments::{self, GroBatch};
use crate::sockaddr::{empty_storage, from_storage};
use ofi_core::pages::Pages;

/// Maximum number of messages that one system call receives.
const RECEIVE: usize = 32;
/// The same for long messages, whose buffers must stay in the processor's cache.
pub const RECEIVE_LONG: usize = 4;
/// Minimum length in bytes of a long message.
const LONG: usize = 16 << 10;
/// Size in bytes of a buffer that any message fits into.
pub const MESSAGE: usize = 65_536;

/// The location of a datagram.
#[derive(Clone, Copy)]
struct Span {
    message: u32,
    start: u32,
    end: u32,
    /// The end of the last datagram that came in the same message.
    last: u32,
}

/// The buffers and headers of recvmmsg(2). The pointers in `headers` lead to the other fields' heap memory, which
/// stays where it is.
pub struct Incoming {
    pages: Pages,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[Control]>,
    /// The local address that each arrived at, if the kernel reports it.
    locals: [Option<IpAddr>; RECEIVE],
    /// Whether each was marked for congestion on the way.
    marked: [bool; RECEIVE],
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Number of messages of the last batch, whose headers the kernel has changed.
    used: usize,
    /// Whether the last batch had long messages.
    long: bool,
    /// Whether the last call found nothing. The next one then requests a single datagram, which arrives sooner at a
    /// busy-polling thread because the kernel does not look for a second.
    idle: bool,
    spans: Vec<Span>,
    placed: Placed,
    /// Whether the destination of payloads was not writable. The later copy reports that error.
    faulted: bool,
}

// SAFETY: the pointers lead to memory of this value, which belongs to no thread.
unsafe impl Send for Incoming {}

impl Incoming {
    /// Allocates the buffers of a batch.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new() -> Result<Self> {
        let mut new = Self {
            pages: Pages::new(RECEIVE * MESSAGE, false)?,
            names: (0..RECEIVE).map(|_| empty_storage()).collect(),
            locals: [None; RECEIVE],
            marked: [false; RECEIVE],
            controls: vec![Control::EMPTY; RECEIVE].into(),
            vectors: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RECEIVE].into(),
            headers: (0..RECEIVE).map(|_| super::empty_header()).collect(),
            used: RECEIVE,
            long: false,
            idle: false,
            spans: Vec::with_capacity(RECEIVE),
            placed: Placed::new(),
            faulted: false,
        };
        for index in 0..RECEIVE {
            let base = new.pages.base().wrapping_add(index * MESSAGE);
            new.vectors[index] = libc::iovec { iov_base: base.cast(), iov_len: MESSAGE };
            let header = &mut new.headers[index].msg_hdr;
            header.msg_name = std::ptr::from_mut(&mut new.names[index]).cast();
            header.msg_iov = &mut new.vectors[index];
            header.msg_iovlen = 1;
        }
        Ok(new)
    }

    /// Receives the available datagrams that fit. Returns their number, and whether there may be more. `expected`
    /// payloads are received in place. If the kernel reports an error instead, its number is returned.
    ///
    /// # Errors
    /// Errors that the socket reports, such as `ECONNREFUSED`; there may be datagrams nevertheless.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        expected: Option<&mut Expected>,
    ) -> Result<(usize, bool), i32> {
        for index in 0..self.used {
            let header = &mut self.headers[index].msg_hdr;
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
        }
        self.used = 0;
        self.spans.clear();
        self.placed.clear();
        let mut expected = expected.filter(|_| !self.faulted);
        let alone = std::mem::take(&mut self.idle);
        let most = match (alone, self.long || expected.is_some()) {
            (true, _) => 1,
            (false, true) => RECEIVE_LONG,
            (false, false) => RECEIVE,
        };
        if let Some(expected) = &expected {
            let buffers: [_; RECEIVE_LONG] = std::array::from_fn(|index| self.buffer(index));
            self.placed.lay_out(expected, &buffers[..most], &mut self.headers);
        }
        // SAFETY: the headers lead to buffers, addresses and controls of this batch, of the lengths that they say.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                most as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if expected.is_some() {
            for (header, vector) in self.headers.iter_mut().zip(&mut self.vectors).take(RECEIVE_LONG) {
                (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (vector, 1);
            }
        }
        let Ok(got) = usize::try_from(got) else {
            return match std::io::Error::last_os_error().raw_os_error() {
                None | Some(libc::EAGAIN | libc::EINTR) => {
                    self.idle = true;
                    Ok((0, false))
                }
                Some(errno) => {
                    self.faulted |= errno == libc::EFAULT;
                    Err(errno)
                }
            };
        };
        self.used = got;
        self.long = false;
        for message in 0..got {
            let header = &self.headers[message];
            let len = (header.msg_len as usize).min(MESSAGE);
            self.long |= len >= LONG;
            let told = match header.msg_hdr.msg_controllen {
                0 => Told::default(),
                len => self.controls[message].read(len),
            };
            (self.locals[message], self.marked[message]) = (told.local, told.marked);
            if let Some(expected) = &mut expected {
                let came = Came { step: told.segment.unwrap_or(len), from: self.sender(message) };
                let received = self.received(message);
                // SAFETY: the kernel has just put it there, and its memory may be used until the batch is taken.
                unsafe { self.placed.check(&mut expected.foresight, message, received, came) };
            }
            self.spans.extend(segments::cut(len, told.segment).map(|(start, end)| Span {
                message: message as u32,
                start: start as u32,
                end: end as u32,
                last: len as u32,
            }));
        }
        // The next call receives the rest, and later datagrams.
        Ok((self.spans.len(), got == most && !alone))
    }

    /// Number of mispredicted payloads so far.
    pub fn undone(&self) -> u64 {
        self.placed.undone
    }

    fn buffer(&self, message: usize) -> *mut u8 {
        self.pages.base().wrapping_add(message * MESSAGE)
    }

    fn received(&self, message: usize) -> Received {
        let len = (self.headers[message].msg_len as usize).min(MESSAGE);
        Received { buffer: self.buffer(message), len }
    }

    fn sender(&self, message: usize) -> Option<SocketAddr> {
        from_storage(&self.names[message]).map(crate::address::canonical)
    }

    /// The datagrams from `index` on that arrived in one message, with payloads that are either all in its buffer or
    /// all in place.
    #[inline]
    pub fn row(&mut self, index: usize) -> GroBatch<'_> {
        let Span { message, start, end, last } = self.spans[index];
        let (message, step, start) = (message as usize, (end - start) as usize, start as usize);
        debug_assert!(message < RECEIVE && last as usize <= MESSAGE);
        let gaps = self.placed.count(message) * step;
        let placed = start < gaps;
        let of = (last as usize).div_ceil(step.max(1));
        let last = if placed { gaps } else { last as usize };
        let base = self.buffer(message).wrapping_add(start);
        // SAFETY: inside the mapping, which is borrowed mutably along with `self`; no call uses it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, last - start) };
        let (from, local) = (from_storage(&self.names[message]), self.locals[message]);
        GroBatch { bytes, len: step, from, local, marked: self.marked[message], of, placed }
    }

    /// Moves payloads that were received in place back into the buffer, starting with that of datagram `index`.
    ///
    /// # Safety
    /// The places that the batch was received with may still be used, and nothing else was put there since.
    #[cold]
    pub unsafe fn bring_back(&mut self, index: usize) {
        let Some(&Span { message, start, end, .. }) = self.spans.get(index) else { return };
        let (first, at) = (message as usize, (start / (end - start).max(1)) as usize);
        for message in first..self.used.min(RECEIVE_LONG) {
            let received = self.received(message);
            // SAFETY: the caller's promise.
            unsafe { self.placed.bring_back(message, received, if message == first { at } else { 0 }) };
        }
    }
}
