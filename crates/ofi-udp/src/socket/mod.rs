//! An endpoint's socket, its batches of datagrams, and the descriptor that sleeping threads wait on.
//!
//! Outgoing: a packet is built in a buffer of `outgoing.rs`, with gaps for payloads in lent memory; packets of one
//! length to one peer become one message (`segments.rs`). Incoming: `driver.rs` chooses between system calls
//! (`incoming.rs`) and io_uring (`ring.rs`), which split messages again. Incoming datagrams
//! are read from the socket only in [`Socket::receive`].

mod bind;
mod driver;
mod errors;
mod incoming;
pub mod local;
mod outgoing;
mod placed;
mod ring;
mod segments;
mod vacancy;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::{Timer, WaitSet};
use ofi_rdm::{Instant, Transmit};

use bind::{Bound, bind};
use driver::Driver;
use local::Locals;
use outgoing::Outgoing;
use segments::GroBatch;
use vacancy::Vacancy;

use crate::settings::Choice;

pub use errors::Report;
pub use outgoing::{Gaps, LEAST_GAP};
pub use placed::{Expected, PlacementBuffer};
pub use segments::MAX_GSO_BYTES;

/// The outcome of sending.
pub enum Sent {
    /// Everything was sent.
    All,
    /// The socket is full. The rest waits.
    Full,
    /// A datagram is too long for the path to this peer. The rest waits.
    TooLong(Option<u32>, usize),
}

/// An endpoint's socket, with its outgoing and incoming batches.
pub struct Socket {
    /// Declared before the socket, so that it is dropped first.
    driver: Driver,
    socket: UdpSocket,
    /// The granted receive buffer in bytes.
    pub granted: usize,
    /// The address that it is bound to.
    pub address: SocketAddr,
    outgoing: Outgoing,
    /// The local addresses that peers use, for a socket bound to all addresses of the host.
    locals: Option<Locals>,
    /// Addresses that ICMP reported as unreachable.
    pub refused: Vec<Report>,
    set: WaitSet,
    /// Whether the socket is in the poll set. There, each datagram costs its sender more, so the socket is added only
    /// when a thread may sleep.
    watched: AtomicBool,
    timer: Timer,
    timer_set: Option<Instant>,
    /// Datagrams that the system refused to send.
    pub unsendable: u64,
    /// Number of system calls that sent datagrams, and of those that received some.
    pub calls: [u64; 2],
    /// Declared after the socket, so that it is dropped last.
    vacancy: Vacancy,
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: integers and pointers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

impl Socket {
    /// Binds a socket with buffers of about `buffer` bytes and the receive driver `choice`. `segments`: as for
    /// [`bind`].
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`, `FI_ENOMEM`.
    pub fn new(address: SocketAddr, buffer: usize, segments: bool, choice: Choice) -> Result<Self> {
        let Bound { socket, granted, joins } = bind(address, buffer, segments)?;
        let address = socket.local_addr().map_err(|_| ofi_core::sys::os_error("getsockname"))?;
        let (set, timer) = (WaitSet::new()?, Timer::new()?);
        set.add(timer.fd())?;
        Ok(Self {
            driver: Driver::new(&socket, choice)?,
            socket,
            granted,
            address,
            outgoing: Outgoing::new(joins)?,
            locals: address.ip().is_unspecified().then(Locals::default),
            refused: Vec::new(),
            set,
            watched: AtomicBool::new(false),
            timer,
            timer_set: None,
            unsendable: 0,
            calls: [0; 2],
            vacancy: Vacancy::new(address),
        })
    }

    /// Sets the traffic class of all sent datagrams.
    ///
    /// # Errors
    /// Those of [`crate::class::mark`].
    pub fn mark(&self, class: ofi_api::TrafficClass, ecn: bool) -> Result<()> {
        crate::class::mark(&self.socket, class, ecn)
    }

    /// Receives a batch. Returns the number of datagrams, and whether there may be more.
    pub fn receive(&mut self) -> (usize, bool) {
        self.receive_into(None)
    }

    /// Whether payloads can be received in place, which io_uring cannot do: its buffers hold whole messages.
    pub fn takes_places(&self) -> bool {
        !self.driver.has_ring()
    }

    /// As [`Socket::receive`], but receives `expected` payloads in place.
    pub fn receive_into(&mut self, expected: Option<&mut Expected>) -> (usize, bool) {
        match self.driver.receive(&self.socket, expected) {
            Ok((0, _)) => (0, false),
            Ok(got) => {
                self.calls[1] += 1;
                got
            }
            Err(_) => {
                self.take_errors();
                (0, true)
            }
        }
    }

    /// The bytes of datagram `index` of the last batch, and its sender.
    #[inline]
    pub fn datagram(&mut self, index: usize) -> (&mut [u8], Option<SocketAddr>) {
        self.row(index).first()
    }

    /// The datagrams of the last batch from `index` on that arrived in one message.
    #[inline]
    pub fn row(&mut self, index: usize) -> GroBatch<'_> {
        let row = self.driver.row(index);
        if let (Some(locals), Some(from), Some(local)) = (&mut self.locals, row.from, row.local) {
            locals.note(crate::address::canonical(from), local);
        }
        row
    }

    /// Moves payloads that were received in place back into the buffer, starting with that of datagram `index` of the
    /// last batch.
    ///
    /// # Safety
    /// The places that the batch was received with may still be used, and nothing else was put there since.
    pub unsafe fn bring_back(&mut self, index: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.driver.bring_back(index) };
    }

    /// The address by which peers know the socket: the bound one, or for a wildcard the one that others most likely
    /// reach.
    pub fn name(&self) -> SocketAddr {
        let mut name = crate::address::canonical(self.address);
        if name.ip().is_unspecified() {
            name.set_ip(crate::address::host_ip(name.is_ipv6()));
        }
        name
    }

    /// The address by which the peer at `from` knows the socket.
    pub fn name_towards(&self, from: SocketAddr) -> SocketAddr {
        let mut name = self.name();
        if let Some(locals) = &self.locals
            && let Some(ip) = locals.of(from).or_else(|| crate::address::route(from))
        {
            name.set_ip(ip);
        }
        name
    }

    /// All known addresses by which the socket is reachable.
    pub fn names(&self) -> Vec<SocketAddr> {
        if self.locals.is_none() {
            return vec![self.name()];
        }
        let v6 = self.address.is_ipv6();
        let mine =
            ofi_core::ip::interface::all().into_iter().map(|found| found.ip).filter(|ip| ip.is_ipv6() == v6);
        mine.map(|ip| SocketAddr::new(ip, self.address.port())).collect()
    }

    /// Sends one datagram of `bytes`, an address and a length.
    ///
    /// # Errors
    /// Errors of sendmsg(2).
    ///
    /// # Safety
    /// The bytes may be read; others may change them meanwhile.
    #[inline]
    pub unsafe fn send_to(&mut self, bytes: (*const u8, usize), to: SocketAddr) -> std::io::Result<usize> {
        let local = self.locals.as_ref().and_then(|locals| locals.of(to));
        // SAFETY: the caller's promise.
        match unsafe { local::send_raw(&self.socket, bytes, to, local) } {
            // The local address is gone.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && self.locals.as_mut().is_some_and(Locals::forget) =>
            {
                // SAFETY: as above.
                unsafe { local::send_raw(&self.socket, bytes, to, None) }
            }
            sent => sent,
        }
    }

    #[cold]
    fn take_errors(&mut self) {
        let refused = &mut self.refused;
        errors::drain(&self.socket, |report| {
            if !refused.contains(&report) {
                refused.push(report);
            }
        });
    }

    /// The buffer of the next datagram to send, with the list of its gaps, unless the batch is full.
    #[inline]
    pub fn next(&mut self) -> Option<(&mut [u8], &mut Gaps)> {
        self.outgoing.next()
    }

    /// Maximum number of datagrams of a row in such a buffer, which also ends within [`MAX_GSO_BYTES`].
    #[inline]
    pub fn longest_row(&self) -> usize {
        self.outgoing.longest_row()
    }

    /// Queues the datagram, or the row of them, in the buffer of [`Socket::next`].
    #[inline]
    pub fn push(&mut self, transmit: &Transmit) {
        self.outgoing.push(transmit);
    }

    /// Whether datagrams are queued.
    pub fn has_waiting(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends the queued datagrams. Afterwards, those that remain have no gaps.
    pub fn flush(&mut self) -> Sent {
        while !self.outgoing.is_empty() {
            let errno = match send(&self.socket, self.outgoing.describe(self.locals.as_ref())) {
                Ok(messages) => {
                    self.calls[0] += 1;
                    self.outgoing.sent(messages);
                    continue;
                }
                Err(errno) => errno,
            };
            match errno {
                libc::EAGAIN | libc::ENOBUFS | libc::EINTR => {
                    self.outgoing.settle();
                    return Sent::Full;
                }
                // An ICMP error about an earlier datagram: this one was not sent.
                libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH => {
                    self.take_errors();
                    if !self.outgoing.is_again() {
                        continue;
                    }
                }
                libc::EMSGSIZE => self.take_errors(), // it is in the error queue, too
                // A local address that peers have sent to may be gone.
                libc::EINVAL if self.locals.as_mut().is_some_and(Locals::forget) => continue,
                _ => {}
            }
            // A message that the device cannot segment, or a datagram that is too long.
            let Some((peer, len)) = self.outgoing.refused() else { continue };
            if errno == libc::EMSGSIZE {
                self.outgoing.settle();
                return Sent::TooLong(peer, len);
            }
            // No route, or forbidden: the protocol resends it until its timeout.
            self.unsendable += 1;
        }
        Sent::All
    }

    /// Makes the descriptor readable at `time`.
    pub fn wake_at(&mut self, now: Instant, time: Option<Instant>) {
        if self.timer_set.is_none() && time.is_none() {
            return;
        }
        if self.timer_set != time || time.is_some_and(|time| time <= now) {
            self.timer.set(time.map(|time| time.since(now).max(Duration::from_nanos(1))));
            self.timer_set = time;
        }
    }

    /// The descriptor that is readable when a datagram has arrived or the timer is due.
    pub fn fd(&self) -> RawFd {
        if !self.watched.load(Ordering::Relaxed) {
            match self.set.add(self.socket.as_raw_fd()) {
                Ok(()) => self.watched.store(true, Ordering::Relaxed),
                Err(error) => {
                    tracing::error!(target: "ofi::udp::ep_ctrl", "datagrams will not wake sleepers: {error}");
                }
            }
        }
        self.set.fd()
    }

    /// The socket itself.
    pub fn raw(&self) -> &UdpSocket {
        &self.socket
    }

    /// Makes the descriptor readable whenever `fd` is.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub fn watch(&self, fd: RawFd) -> Result<()> {
        self.set.add(fd)
    }

    /// Reads the ICMP errors of the socket.
    pub fn take_refused(&mut self) -> Vec<Report> {
        self.take_errors();
        std::mem::take(&mut self.refused)
    }

    /// Whether datagrams or ICMP errors are unread. An unread error would keep the socket readable forever.
    pub fn is_readable(&mut self) -> bool {
        if self.driver.holds() {
            return true;
        }
        let readable = |socket: &UdpSocket| ofi_core::sys::is_readable(socket.as_raw_fd());
        if !readable(&self.socket) {
            return false;
        }
        self.take_errors();
        !self.refused.is_empty() || readable(&self.socket)
    }

    /// Blocks until something may have arrived, for at most `time`.
    pub fn wait(&mut self, time: Duration) {
        let deadline = std::time::Instant::now() + time;
        if !self.driver.holds() {
            ofi_core::sys::wait_readable(&[self.socket.as_raw_fd()], Some(deadline));
        }
    }

    /// Whether datagrams have left the socket that no call has returned yet.
    pub fn holds(&mut self) -> bool {
        self.driver.holds()
    }

    /// Number of mispredicted payloads so far.
    pub fn undone(&self) -> u64 {
        self.driver.undone()
    }

    /// Whether io_uring is in use, and the number of its kernel entries.
    pub fn ring(&self) -> (bool, u64) {
        (self.driver.has_ring(), self.driver.entries())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.driver.end() {
            self.vacancy.await_it();
        }
    }
}

/// Sends messages. Returns how many were sent, or the error number of the first.
fn send(socket: &UdpSocket, headers: &mut [libc::mmsghdr]) -> Result<usize, i32> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let fd = socket.as_raw_fd();
    let sent = match headers {
        [one] => {
            // SAFETY: the header leads to names, vectors and controls that hold until the batch is described anew, of
            // the lengths that it says; the vectors to the batch's buffers, and to memory that is lent during this
            // call.
            let sent = unsafe { libc::sendmsg(fd, &one.msg_hdr, flags) };
            if sent < 0 { -1 } else { 1 }
        }
        // SAFETY: as above.
        many => unsafe { libc::sendmmsg(fd, many.as_mut_ptr(), many.len() as libc::c_uint, flags) },
    };
    usize::try_from(sent).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests;
