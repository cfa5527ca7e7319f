//! Datagrams on their way in, received in batches; many of them may come as one message and are taken apart here.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

use ofi_api::Result;

use super::local::{CONTROL, Control, Told};
use super::segments::{self, Row};
use crate::sockaddr::{empty_storage, from_storage};
use ofi_core::pages::Pages;

/// Messages received by one system call.
const RECEIVE: usize = 32;
/// And when they are long: so few that their buffers stay in the processor's cache.
const RECEIVE_LONG: usize = 4;
/// From how many bytes on a message is long.
const LONG: usize = 16 << 10;
/// Room for one message of any length.
const MESSAGE: usize = 65_536;
/// Where a datagram lies.
#[derive(Clone, Copy)]
struct Span {
    message: u32,
    start: u32,
    end: u32,
    /// The end of the last datagram that came in the same message.
    last: u32,
}

/// See the module. The pointers in `headers` lead to the other fields' heap memory, which stays where it is.
pub struct Incoming {
    pages: Pages,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[Control]>,
    /// Where each came to, if the kernel tells.
    locals: [Option<IpAddr>; RECEIVE],
    /// Which were marked for congestion on their way.
    marked: [bool; RECEIVE],
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Messages of the last batch, whose headers the kernel has changed.
    used: usize,
    /// The last batch had long ones.
    long: bool,
    /// The last call found nothing. The next one asks for a single datagram: a busy-polling thread has it sooner, as
    /// the kernel does not look for a second.
    idle: bool,
    spans: Vec<Span>,
}

// SAFETY: the pointers lead to memory of this value, which belongs to no thread.
unsafe impl Send for Incoming {}

impl Incoming {
    /// Room for a batch.
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

    /// Receives as many datagrams as there are, and room for: how many, and whether there may be more. An error that
    /// the kernel reports instead is answered as its number.
    ///
    /// # Errors
    /// What the socket has to report, such as `ECONNREFUSED`; there may be datagrams nevertheless.
    pub fn receive(&mut self, socket: &UdpSocket) -> Result<(usize, bool), i32> {
        for index in 0..self.used {
            let header = &mut self.headers[index].msg_hdr;
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
        }
        self.used = 0;
        self.spans.clear();
        let alone = std::mem::take(&mut self.idle);
        let most = match (alone, self.long) {
            (true, _) => 1,
            (false, true) => RECEIVE_LONG,
            (false, false) => RECEIVE,
        };
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
        let Ok(got) = usize::try_from(got) else {
            return match std::io::Error::last_os_error().raw_os_error() {
                None | Some(libc::EAGAIN | libc::EINTR) => {
                    self.idle = true;
                    Ok((0, false))
                }
                Some(errno) => Err(errno),
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
            self.spans.extend(segments::cut(len, told.segment).map(|(start, end)| Span {
                message: message as u32,
                start: start as u32,
                end: end as u32,
                last: len as u32,
            }));
        }
        // What else there is, the next look takes along with what comes meanwhile.
        Ok((self.spans.len(), got == most && !alone))
    }

    /// The datagrams from `index` on that came in one message: their bytes, the length of each but the last, and their
    /// sender.
    #[inline]
    pub fn row(&mut self, index: usize) -> Row<'_> {
        let Span { message, start, end, last } = self.spans[index];
        let (message, len) = (message as usize, (last - start) as usize);
        debug_assert!(message < RECEIVE && last as usize <= MESSAGE);
        let base = self.pages.base().wrapping_add(message * MESSAGE + start as usize);
        // SAFETY: inside the mapping, which is borrowed mutably along with `self`; no call uses it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base, len) };
        let (from, local) = (from_storage(&self.names[message]), self.locals[message]);
        Row { bytes, len: (end - start) as usize, from, local, marked: self.marked[message] }
    }
}
