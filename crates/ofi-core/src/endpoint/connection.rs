//! The connection of an endpoint of type `FI_EP_MSG`: connects the state in [`crate::cm`] with the endpoint and its
//! transport.

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use ofi_api::{Address, Call, CqErrorEntry, Errno, Error, OpFlags, ReceiveOp, Result, TagMatch};

use super::endpoint_core::EndpointCore;
use super::queue::CompactReceive;
use super::receive;
use super::{EpCore, State};
use crate::cm::{Connection, Ended};
use crate::eq::{Driven, EqCore};
use crate::matching::{SourceFilter, Space, Want};
use crate::source::Source as _;
use crate::transport::{Arm, Attendant, PeerId, Reaction, Transport, TransportEndpoint};
use crate::wake_fd::WakeFd;

impl<T: Transport> EndpointCore<T> {
    /// Ends a posted receive without a message.
    pub fn give_back(&mut self, space: Space, posted: &CompactReceive, errno: Errno) {
        let (flags, credit, route) = self.rx.queue.end(posted);
        let error = CqErrorEntry::new(posted.context, receive::kind_of(space) | flags, errno);
        self.staging.receive_failed(error, credit, route);
    }

    /// Handles the end of the connection: posted operations end, and no more are accepted.
    fn end(&mut self, ended: Ended) {
        if ended == Ended::Now {
            self.rx.quick = [false; 2];
            self.rx.may_receive = [false; 2]; // `may_receive_late` knows the exception
            for space in [Space::Untagged, Space::Tagged] {
                for posted in self.rx.queue.matcher.extract_posted(|want, _| want.space == space) {
                    self.give_back(space, &posted, Errno::ECANCELED);
                }
            }
        }
    }

    /// See [`crate::transport::Upcalls::packet`].
    #[cold]
    pub fn connection_packet(&mut self, from: &Address, bytes: &[u8]) -> Reaction {
        let Some(connection) = &mut self.connection else { return Reaction::Nothing };
        let (reaction, ended) = connection.packet(from, bytes);
        self.end(ended);
        reaction
    }

    /// See [`crate::transport::Upcalls::packet_lost`].
    #[cold]
    pub fn connection_packet_lost(&mut self, to: &Address, errno: Errno) {
        let ended = self.connection.as_mut().map_or(Ended::No, |connection| connection.lost(to, errno));
        self.end(ended);
    }

    /// All operations with the peer have ended.
    #[cold]
    pub fn connection_gone(&mut self, errno: Errno) {
        let ended = self.connection.as_mut().map_or(Ended::No, |connection| connection.gone(errno));
        self.end(ended);
    }
}

#[cold]
fn unconnected() -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        "a call of connection management",
        "an endpoint of FI_EP_MSG",
        "an endpoint that has no connections",
        "ask getinfo for FI_EP_MSG",
    )
}

impl<T: Transport> State<T> {
    fn connection(&mut self) -> Result<&mut Connection> {
        self.ends.connection.as_deref_mut().ok_or_else(unconnected)
    }

    /// The peer of a connected endpoint. `None` for endpoints of other types.
    #[cold]
    pub(super) fn connected_peer(&self) -> Option<Result<PeerId>> {
        self.ends.connection.as_ref().map(|connection| connection.peer())
    }

    /// Whether a receive may be posted although the connection is over, because its message has arrived: messages that
    /// arrived before the end can still be received.
    ///
    /// # Errors
    /// `FI_ESHUTDOWN` if it would wait for a message.
    #[cold]
    #[inline(never)]
    pub(super) fn may_receive_late<const TAGGED: bool>(
        &mut self,
        op: &ReceiveOp<'_>,
        tag: TagMatch,
    ) -> Result<bool> {
        if !self.ends.connection.as_ref().is_some_and(|connection| connection.is_over()) {
            return Ok(false);
        }
        let source = SourceFilter::Any;
        let want = if TAGGED { Want::tagged(source, tag.tag, tag.ignore) } else { Want::untagged(source) };
        let flags = if op.call == Call::Msg { op.flags } else { self.ends.rx.op_flags | op.flags };
        // A multi-receive waits for more.
        if flags.contains(OpFlags::MULTI_RECV) || self.ends.rx.queue.matcher.peek(&want).is_none() {
            return Err(Error::with(
                Errno::ESHUTDOWN,
                "the connection of this endpoint has ended; open a new one",
            ));
        }
        Ok(true)
    }

    /// Disconnects from the peer, if the transport has joined one.
    fn part(&mut self) {
        if let Some((transport, host)) = self.split() {
            transport.part(host, false);
        }
    }
}

impl<T: Transport> EpCore<T> {
    /// Drives the connection where that needs polls.
    fn keep(self: &Arc<Self>) -> Result<()> {
        if !T::KEEPS {
            return Ok(());
        }
        let driven: Arc<dyn Driven> = Arc::clone(self) as _;
        crate::cm::keeper::keep(&driven)
    }

    pub(super) fn connect(self: &Arc<Self>, to: &Address, data: &[u8]) -> Result<()> {
        let to = T::normalize(to)?;
        let mut guard = self.state.lock();
        let deadline = Instant::now() + crate::settings::connect_timeout();
        let packet = guard.connection()?.connect(to.clone(), data, deadline)?;
        let transport = guard.transport.as_mut().ok_or_else(|| Error::new(Errno::EOPBADSTATE))?;
        transport.packet(&to, &packet, true)?;
        drop(guard);
        self.keep()
    }

    pub(super) fn accept(self: &Arc<Self>, data: &[u8]) -> Result<()> {
        let mut guard = self.state.lock();
        let deadline = Instant::now() + crate::settings::connect_timeout();
        let (to, packet) = guard.connection()?.accept(data, deadline)?;
        let held = guard.connection()?.held().cloned();
        let (transport, host) = guard.split().ok_or_else(|| Error::new(Errno::EOPBADSTATE))?;
        if let Err(error) = held.map_or(Ok(()), |held| transport.adopt(&held)) {
            guard.connection()?.withdraw();
            return Err(error);
        }
        // The peer may start as soon as it has the packet.
        transport.join(host, &to, false)?;
        transport.packet(&to, &packet, true)?;
        drop(guard);
        self.keep()
    }

    pub(super) fn shutdown(self: &Arc<Self>) -> Result<()> {
        let mut guard = self.state.lock();
        let Some((to, packet)) = guard.connection()?.shutdown()? else {
            guard.ends.end(Ended::Now);
            return Ok(());
        };
        if let Some(transport) = &mut guard.transport {
            transport.packet(&to, &packet, false)?;
        }
        guard.part();
        guard.ends.end(Ended::Now);
        drop(guard);
        self.keep()
    }

    pub(super) fn peer_name(&self) -> Result<Address> {
        self.state.lock().connection()?.peer_name()
    }

    /// Makes an event queue drive the endpoint.
    pub(super) fn be_driven_by(self: &Arc<Self>, eq: &Arc<EqCore>) -> Result<()> {
        let driven: Arc<dyn Driven> = Arc::clone(self) as _;
        eq.add(&driven)
    }

    /// Makes the event queue of its connection drive the endpoint.
    pub(super) fn watch_connection(self: &Arc<Self>) -> Result<()> {
        let eq = self.state.lock().ends.connection.as_ref().and_then(|connection| connection.eq().cloned());
        eq.map_or(Ok(()), |eq| self.be_driven_by(&eq))
    }

    /// Makes the transport send delayed packets, because a peer waits for them and the application may never poll
    /// again.
    pub(super) fn attend(self: &Arc<Self>) {
        let attendant: Weak<dyn Attendant> = Arc::downgrade(self) as _;
        let mut guard = self.state.lock();
        if let Some(transport) = guard.transport.as_mut() {
            transport.attend(attendant);
        }
    }

    /// Reverts [`EpCore::watch_connection`] when the endpoint is closed, and drops its unread events.
    pub(super) fn forget_connection(self: &Arc<Self>) {
        let eq = self.state.lock().ends.connection.as_ref().and_then(|connection| connection.eq().cloned());
        if let Some(eq) = eq {
            let driven: Arc<dyn Driven> = Arc::clone(self) as _;
            eq.remove(&driven);
            eq.forget(self.fid);
        }
    }
}

impl<T: Transport> State<T> {
    /// Drives the connection and everything else.
    fn drive_connection(&mut self) {
        self.drive();
        let ended = self.ends.connection.as_mut().map_or(Ended::No, |connection| connection.tick());
        if ended == Ended::Now {
            self.part();
            self.ends.end(ended);
        }
    }

    /// Whether the connection is being established or ended.
    fn is_pending(&self) -> bool {
        let connection = self.ends.connection.as_ref();
        connection.is_some_and(|connection| connection.is_pending())
            || self.transport.as_ref().is_some_and(|transport| !transport.is_settled())
    }
}

impl<T: Transport> Attendant for EpCore<T> {
    fn let_out(&self) -> bool {
        let Some(mut guard) = self.state.try_lock() else { return false };
        if let Some((transport, host)) = guard.split() {
            host.staging.begin_unread();
            transport.let_out(host);
        }
        true
    }
}

impl<T: Transport> Driven for EpCore<T> {
    fn drive(&self) {
        let mut guard = self.state.lock();
        guard.drive_connection();
        guard.rest_from_joins(self);
    }

    fn drive_if_pending(&self) {
        // Checked under one lock, because an endpoint with an established connection advances only by the application's
        // calls.
        let mut guard = self.state.lock();
        if guard.is_pending() {
            guard.drive_connection();
        }
    }

    fn arm(&self, wake: &WakeFd) -> Arm {
        self.prepare_to_block(Some(wake))
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.state.lock().transport.as_ref().and_then(TransportEndpoint::wait_fd)
    }

    fn is_settling(&self) -> bool {
        self.state.lock().ends.connection.as_ref().is_some_and(|connection| connection.is_settling())
    }
    fn stop_settling(&self) {
        if let Some(connection) = &mut self.state.lock().ends.connection {
            connection.stop_settling();
        }
    }

    fn is_pending(&self) -> bool {
        self.state.lock().is_pending()
    }

    fn deadline(&self) -> Option<Instant> {
        self.state.lock().ends.connection.as_ref().and_then(|connection| connection.deadline())
    }
}
