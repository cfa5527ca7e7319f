//! Operations of this end on device memory (`FI_HMEM`): the transport moves a buffer of the host, and the core copies
//! between the two. Sends and writes are copied out when they are posted; receives and reads are copied in before they
//! are reported. Memory that the transport's device accesses itself is not copied ([`TransportEndpoint::reaches`]).
//!
//! Endpoints without the capability have no [`Devices`](crate::hmem::Devices), and never get here.

use ofi_api::{CqErrorEntry, Errno, Error, FiAddr, OpFlags, Piece, ReceiveOp, Result, RmaOp, SendOp};

use super::State;
use super::endpoint_core::EndpointCore;
use super::queue::{Filling, Special, SpecialKind};
use super::staging::{DeviceOp, Route};
use crate::cntr::Kind;
use crate::cq::Credit;
use crate::hmem::{Found, Parts, Staged};
use crate::slots::SlotId;
use crate::transport::{CompletionInfo, CounterTarget, Fault, Transport, TransportEndpoint};

/// The error for a call that does not accept device memory.
#[cold]
pub(super) fn not_of_device(call: &'static str) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        call,
        "memory of the host",
        "memory that is registered as a device's",
        "copy through memory of the host",
    )
}

/// Neither the transport's device accesses this memory in the operation, nor does a driver copy it.
#[cold]
fn beyond_reach() -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        "memory of an operation that is registered by its dma-buf (FI_MR_DMABUF)",
        "an operation that the provider's device executes on it alone",
        "one for which the processor would have to copy",
        "copy through memory of the host",
    )
}

/// A copy of the driver's has failed.
fn not_copied(error: &Error) -> Error {
    let todo = "look for errors of the device (nvidia-smi, dmesg)";
    Error::wanted(Errno::EIO, "the memory of an operation", "a copy of the device's", error.to_string(), todo)
}

impl<T: Transport> EndpointCore<T> {
    /// Checks that none of this memory is a device's, for a call that cannot use device memory.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if it is.
    #[inline]
    pub fn only_host(&self, call: &'static str, pieces: &[&[Piece]]) -> Result<()> {
        match &self.devices {
            None => Ok(()),
            Some(devices) => {
                let is_host = |pieces: &&[Piece]| matches!(Parts::of(devices, pieces), Found::Host);
                if pieces.iter().all(is_host) { Ok(()) } else { Err(not_of_device(call)) }
            }
        }
    }

    /// Ends the staging of an operation that has succeeded: copies what a read has fetched. The ticket then names the
    /// counter that it would name without staging.
    ///
    /// # Errors
    /// The operation's error if the driver's copy has failed.
    #[cold]
    pub fn unstage(&mut self, ticket: &mut CompletionInfo) -> Result<(), Errno> {
        let routes = &mut self.sender(ticket.at).1.routes;
        let id = SlotId::from_wire(ticket.route.0);
        if !matches!(routes.get(id), Some(Route::Device(_))) {
            return Ok(());
        }
        let Some(Route::Device(mut device)) = routes.remove(id) else { return Ok(()) };
        ticket.route = device.route;
        if !device.reads {
            return Ok(());
        }
        // SAFETY: the memory was lent for writing until the operation's end, which is reported after this; the
        // transport has ended the operation, so it does not use the buffer.
        unsafe { device.staged.empty(ticket.len) }.map_err(|error| {
            tracing::warn!(target: "ofi::core::hmem", %error, "a read does not reach memory of a device");
            Errno::EIO
        })
    }

    /// Ends the staging of an operation that has failed. Keeps its buffer, because the transport may still write to it.
    /// Returns the counter that the ticket would name without staging.
    #[cold]
    pub fn keep_buffer(&mut self, ticket: &CompletionInfo) -> CounterTarget {
        let routes = &mut self.sender(ticket.at).1.routes;
        let id = SlotId::from_wire(ticket.route.0);
        if ticket.route == CounterTarget::ENDPOINT || !matches!(routes.get(id), Some(Route::Device(_))) {
            return ticket.route;
        }
        let Some(Route::Device(device)) = routes.remove(id) else { return ticket.route };
        let DeviceOp { staged, route, .. } = *device;
        self.unsettled.push(staged);
        route
    }

    /// Reports a receive that failed while a transport filled it. Keeps its buffer, which the transport may still write
    /// to.
    #[cold]
    pub fn fail_filling(&mut self, mut filling: Filling, fault: Fault) {
        self.unsettled.extend(filling.staged.take().map(|staged| *staged));
        self.receiver(filling.at).fail(&filling, fault);
    }

    /// Detaches the device memory from an operation that continues without it: a read then ends in its buffer.
    #[cold]
    pub fn give_up_memory(&mut self, ticket: &CompletionInfo) {
        let id = SlotId::from_wire(ticket.route.0);
        if let Some(Route::Device(device)) = self.sender(ticket.at).1.routes.get_mut(id) {
            device.reads = false;
        }
    }

    /// Accounts for an operation that ended in the call that posted it, and that not only the endpoint counts.
    #[cold]
    pub fn done_routed(&mut self, mut ticket: CompletionInfo) {
        if let Err(errno) = self.unstage(&mut ticket) {
            return self.not_unstaged(&ticket, errno);
        }
        let staging = self.sender(ticket.at).1;
        staging.ended(Kind::of(ticket.flags), ticket.len, ticket.route);
        if ticket.signal {
            staging.sent(ticket.context, ticket.flags);
        }
    }

    /// The same, if its copy has failed.
    fn not_unstaged(&mut self, ticket: &CompletionInfo, errno: Errno) {
        let (tx, staging) = self.sender(ticket.at);
        tx.counts.failed += 1;
        staging.credits[Credit::Transmit as usize] -= 1;
        let mut error = CqErrorEntry::new(ticket.context, ticket.flags, errno);
        error.prov_errno = errno.get();
        staging.transmit_failed(error, ticket.route);
    }
}

impl<T: Transport> State<T> {
    /// The memory of an operation to post, if any of it is a device's.
    #[inline]
    pub(super) fn device_parts(&mut self, pieces: &[Piece]) -> Option<DeviceMemory> {
        if !self.ends.unsettled.is_empty() {
            self.settle_buffers();
        }
        match Parts::of(self.ends.devices.as_ref()?, pieces) {
            Found::Host => None,
            Found::Device(parts) => Some(DeviceMemory(Some(parts))),
            Found::Opaque => Some(DeviceMemory(None)),
        }
    }

    /// Whether the transport's device itself accesses this memory: for an operation with a peer, or for a receive.
    fn reaches(&mut self, at: Option<FiAddr>, pieces: &[Piece], accesses: bool) -> bool {
        let peer = match at {
            None => None,
            Some(at) => match self.dest(at) {
                Ok((peer, _)) => Some(peer),
                Err(_) => return false,
            },
        };
        self.split().is_some_and(|(transport, host)| transport.reaches(host, peer, pieces, accesses))
    }

    /// Frees the buffers of operations that have failed.
    #[cold]
    fn settle_buffers(&mut self) {
        let buffers = std::mem::take(&mut self.ends.unsettled);
        if let Some((transport, host)) = self.split() {
            transport.settle_receives(host);
        }
        drop(buffers);
    }

    /// Posts an operation of transmit context `at` with a buffer in place of its memory: `post` gets the buffer, and
    /// the route for its ticket.
    fn post_staged(
        &mut self,
        at: u16,
        mut staged: Staged,
        reads: bool,
        post: impl FnOnce(&mut Self, &[Piece], CounterTarget) -> Result<()>,
    ) -> Result<()> {
        if self.ends.no_transmit_credit(at) {
            return Err(self.no_credit()); // before the copy, which a retry would repeat
        }
        if !reads {
            // SAFETY: the memory is lent for reading until the operation has ended, and the buffer is not lent yet.
            unsafe { staged.fill() }.map_err(|error| not_copied(&error))?;
        }
        let (tx, staging) = self.ends.sender(at);
        let piece = staged.piece();
        let device = DeviceOp { staged, reads, route: tx.route };
        let id = staging.routes.insert(Route::Device(Box::new(device)));
        let posted = post(self, &[piece], CounterTarget(id.to_wire()));
        if posted.is_err() {
            self.ends.sender(at).1.routes.remove(id);
        }
        posted
    }

    /// As [`State::send`], of a device's memory.
    #[cold]
    pub(super) fn send_device<const TAGGED: bool>(
        &mut self,
        at: u16,
        op: &SendOp<'_>,
        tag: u64,
        memory: DeviceMemory,
    ) -> Result<()> {
        let tx = self.ends.sender(at).0;
        let (checked, route, pieces) = (tx.check_send::<TAGGED>(op)?, tx.route, op.buf.pieces());
        if !checked.0.contains(OpFlags::INJECT) && self.reaches(Some(op.dest), pieces, false) {
            match self.checked_send::<TAGGED>(at, op, pieces, tag, checked, route) {
                // The device does not read this one: it is copied, if that is possible.
                Err(error) if error.errno() == Errno::EOPNOTSUPP && memory.0.is_some() => {}
                posted => return posted,
            }
        }
        let parts = memory.copied()?;
        let len = parts.len();
        self.post_staged(at, parts.staged(len), false, |state, pieces, route| {
            state.checked_send::<TAGGED>(at, op, pieces, tag, checked, route)
        })
    }

    /// As [`State::checked_rma`], of a device's memory.
    #[cold]
    pub(super) fn rma_device(
        &mut self,
        at: u16,
        op: &RmaOp<'_>,
        write: bool,
        checked: (OpFlags, bool, usize),
        memory: DeviceMemory,
    ) -> Result<()> {
        let (route, pieces) = (self.ends.sender(at).0.route, op.buf.pieces());
        if memory.0.is_some()
            && let Some(posted) = self.mapped_rma(at, op, write, checked)
        {
            return posted;
        }
        if !checked.0.contains(OpFlags::INJECT) && self.reaches(Some(op.peer), pieces, true) {
            match self.routed_rma(at, op, pieces, write, checked, route) {
                // The device does not execute this one: it is copied, if that is possible.
                Err(error) if error.errno() == Errno::EOPNOTSUPP && memory.0.is_some() => {}
                posted => return posted,
            }
        }
        let parts = memory.copied()?;
        let len = parts.len();
        self.post_staged(at, parts.staged(len), !write, |state, pieces, route| {
            state.routed_rma(at, op, pieces, write, checked, route)
        })
    }

    /// The special part of a receive into device memory, of receive context `at`. `None` if the transport's device
    /// writes the message into that memory.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a multi-receive buffer, and for memory that nobody copies.
    #[cold]
    pub(super) fn receive_device(
        &mut self,
        at: u16,
        op: &ReceiveOp<'_>,
        flags: OpFlags,
        memory: DeviceMemory,
    ) -> Result<Option<Special>> {
        if flags.contains(OpFlags::MULTI_RECV) {
            return Err(not_of_device("a receive with FI_MULTI_RECV"));
        }
        if self.ends.receiver(at).rx.claimed && self.reaches(None, op.buf.pieces(), false) {
            return Ok(None);
        }
        let parts = memory.copied()?;
        let rx = self.ends.receiver(at).rx;
        super::post_receive::check_pieces(op, rx.iov_limit)?;
        let signal = rx.reports(flags);
        Ok(Some(Special { signal, route: CounterTarget::ENDPOINT, kind: SpecialKind::Device(parts) }))
    }
}

/// The memory of an operation, of which at least one piece is a device's; `None` if no driver copies it.
pub(super) struct DeviceMemory(Option<Parts>);

impl DeviceMemory {
    /// Its parts, for copies.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if no driver copies it.
    pub(super) fn copied(self) -> Result<Parts> {
        self.0.ok_or_else(beyond_reach)
    }
}
