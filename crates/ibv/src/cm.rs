//! Connections by IP address: rdma_cm.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{NonNull, from_mut, null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use crate::abi::*;
use crate::batch::Built;
use crate::cq::set_nonblocking;
use crate::device::{Context, Gid};
use crate::error::{Error, Result};
use crate::library::{Cm, cm};
use crate::missing;
use crate::name::{from_storage, to_storage};
use crate::qp::{QueuePair, QueuePairAttr};

/// The channel on which events of identifiers arrive.
pub struct EventChannel {
    pub(crate) channel: NonNull<rdma_event_channel>,
    pub(crate) cm: &'static Cm,
}

// SAFETY: functions of librdmacm may be called from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// The address was resolved to a device.
    AddressResolved,
    /// The route was resolved.
    RouteResolved,
    /// A peer wants to connect to a listening identifier.
    Request,
    /// The connection is established.
    Established,
    /// The peer has rejected the connection.
    Rejected,
    /// The peer does not exist, or does not answer.
    Failed,
    /// The connection is over.
    Disconnected,
    /// The device is being removed.
    DeviceRemoved,
    /// Any other event that does not end the connection, such as an address change of a bonded interface.
    Other,
}

impl CmEventKind {
    fn of(event: c_int) -> Self {
        match event {
            RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => Self::Request,
            RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            RDMA_CM_EVENT_REJECTED => Self::Rejected,
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE => Self::Failed,
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoved,
            _ => Self::Other,
        }
    }

    /// Whether the event ends the connection, or the attempt to establish one.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Rejected | Self::Failed | Self::Disconnected | Self::DeviceRemoved)
    }
}

/// The backlog for [`CmId::listen`] that selects the kernel's maximum (net.rdma_ucm.max_backlog, 1024 by default).
pub const MAX_BACKLOG: usize = 0;

/// Reasons for a rejection ([`CmEvent::status`]): `enum ib_cm_rej_reason` of Linux.
pub mod refusal {
    /// The other end's device has no room for the connection.
    pub const NO_RESOURCES: i32 = 3;
    /// The other end's kernel timed out waiting for its peer or its program.
    pub const TIMEOUT: i32 = 4;
    /// Nobody listens at the address.
    pub const NO_LISTENER: i32 = 8;
    /// The other end still has an earlier connection of the same queue pair.
    pub const STALE_CONNECTION: i32 = 10;
    /// The listening program has refused the request, or has dropped it.
    pub const BY_PROGRAM: i32 = 28;
}

/// An event.
pub struct CmEvent {
    /// The kind of the event.
    pub kind: CmEventKind,
    /// The number of the identifier ([`CmId::number`]), or of the listener for a request.
    pub id: usize,
    /// The new identifier of a request.
    pub request: Option<CmId>,
    /// An error number, or the reason for a rejection.
    pub status: i32,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// Maximum number of remote reads that the peer serves concurrently.
    pub responder_resources: u8,
    /// Maximum number of remote reads that the peer has outstanding.
    pub initiator_depth: u8,
    /// For a request: how often the peer's device resends a packet, and how often it retries a send that finds no
    /// receive.
    pub retries: [u8; 2],
}

impl EventChannel {
    /// Opens a channel, whose descriptor does not block.
    ///
    /// # Errors
    /// The errors of rdma_create_event_channel(3).
    pub fn new() -> Result<Arc<Self>> {
        let cm = cm()?;
        // SAFETY: no memory is involved.
        let channel = unsafe { (cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| {
            let error = Error::last("rdma_create_event_channel");
            // A container may lack the connection manager's device file.
            match error.errno {
                libc::ENOENT | libc::ENODEV | libc::EACCES | libc::EPERM => missing::device(error.call),
                _ => error,
            }
        })?;
        let made = Self { channel, cm };
        set_nonblocking(made.fd())?;
        Ok(Arc::new(made))
    }

    /// The descriptor that is readable while events are queued.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel exists, and this is its only field.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// The errors of rdma_get_cm_event(3).
    pub fn next(self: &Arc<Self>) -> Result<Option<CmEvent>> {
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: the channel exists, and does not block.
        if unsafe { (self.cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if matches!(error.errno, libc::EAGAIN | libc::EINTR) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event is not acknowledged yet; connection events use the union member for connections.
        let seen = unsafe { &*event };
        let kind = CmEventKind::of(seen.event);
        let is_request = kind == CmEventKind::Request;
        let carries = is_request || matches!(kind, CmEventKind::Established | CmEventKind::Rejected);
        let (mut private_data, mut resources, mut retries) = (Vec::new(), (0, 0), [0, 0]);
        if carries {
            let (data, len) = (seen.conn.private_data.cast::<u8>(), usize::from(seen.conn.private_data_len));
            if !data.is_null() {
                // SAFETY: the event has `len` bytes there until it is acknowledged.
                private_data = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            }
            resources = (seen.conn.responder_resources, seen.conn.initiator_depth);
            retries = [seen.conn.retry_count, seen.conn.rnr_retry_count];
        }
        let id = if is_request { seen.listen_id } else { seen.id };
        // A request brings a new identifier that nothing else owns.
        let request = NonNull::new(seen.id).filter(|_| is_request);
        let status = seen.status;
        // SAFETY: the event was taken above, and is no longer used.
        unsafe { (self.cm.rdma_ack_cm_event)(event) };
        let request = request.map(|id| CmId { id, channel: Arc::clone(self), qp: None });
        let (responder_resources, initiator_depth) = resources;
        Ok(Some(CmEvent {
            kind,
            id: id as usize,
            request,
            status,
            private_data,
            responder_resources,
            initiator_depth,
            retries,
        }))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: made above; no identifier on the channel exists, because identifiers hold it.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// The parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Private data for the peer: at most 56 bytes in a request, 196 in an acceptance.
    pub private_data: &'a [u8],
    /// The maximum number of remote reads that this end serves at a time, and that it has outstanding.
    pub reads: u8,
    /// How often each end resends a packet, at most 7. The connecting end decides for both.
    pub retries: u8,
    /// How often the peer retries a send that finds no receive at this end; 7 means forever.
    pub rnr_retries: u8,
}

impl ConnParam<'_> {
    fn to_raw(self) -> rdma_conn_param {
        let len = self.private_data.len().min(u8::MAX.into());
        rdma_conn_param {
            private_data: if len == 0 { null() } else { self.private_data.as_ptr().cast() },
            private_data_len: len as u8,
            responder_resources: self.reads,
            initiator_depth: self.reads,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: self.rnr_retries,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// An identifier: the counterpart of a TCP socket. Its queue pair is destroyed with it.
pub struct CmId {
    pub(crate) id: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
    qp: Option<QueuePair>,
}

// SAFETY: functions of librdmacm may be called from any thread.
unsafe impl Send for CmId {}
// SAFETY: only librdmacm changes it through a shared reference, and librdmacm has locks.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an identifier for reliable connections.
    ///
    /// # Errors
    /// The errors of rdma_create_id(3).
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self> {
        Self::with(channel, RDMA_PS_TCP)
    }

    /// Creates an identifier in a port space.
    pub(crate) fn with(channel: &Arc<EventChannel>, space: c_int) -> Result<Self> {
        let mut id: *mut rdma_cm_id = null_mut();
        // SAFETY: the channel exists.
        let failed =
            unsafe { (channel.cm.rdma_create_id)(channel.channel.as_ptr(), &mut id, null_mut(), space) };
        let id = NonNull::new(id).filter(|_| failed == 0).ok_or_else(|| Error::last("rdma_create_id"))?;
        Ok(Self { id, channel: Arc::clone(channel), qp: None })
    }

    pub(crate) fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    fn check(&self, call: &'static str, failed: c_int) -> Result<()> {
        if failed == 0 { Ok(()) } else { Err(Error::last(call)) }
    }

    /// Distinguishes the identifier from others while it exists.
    pub fn number(&self) -> usize {
        self.id.as_ptr() as usize
    }

    /// Binds it to an address of this host.
    ///
    /// # Errors
    /// The errors of rdma_bind_addr(3).
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut storage = to_storage(address);
        let name = from_mut(&mut storage).cast();
        // SAFETY: the identifier exists, and the address has the form of its family.
        let failed = unsafe { (self.channel.cm.rdma_bind_addr)(self.id.as_ptr(), name) };
        self.check("rdma_bind_addr", failed)
    }

    /// Allows binding to an address while connections of an earlier identifier linger.
    ///
    /// # Errors
    /// The errors of rdma_set_option(3).
    pub fn reuse_address(&self) -> Result<()> {
        let mut one: c_int = 1;
        let (value, len) = (from_mut(&mut one).cast::<c_void>(), size_of::<c_int>());
        let set = self.channel.cm.rdma_set_option;
        // SAFETY: the option has a number of this size.
        let failed = unsafe { set(self.id.as_ptr(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, value, len) };
        self.check("rdma_set_option", failed)
    }

    /// Sets how long the queue pair waits for an acknowledgement before it resends: 4.096 µs × 2^`code`, with `code`
    /// from 1 to 31. Has an effect only before [`CmId::connect`] and [`CmId::accept`]; by default the kernel chooses 19
    /// on RoCE.
    ///
    /// # Errors
    /// `ENOSYS` from kernels before Linux 5.2; else the errors of rdma_set_option(3).
    pub fn set_ack_timeout(&self, mut code: u8) -> Result<()> {
        const CALL: &str = "rdma_set_option";
        let set = self.channel.cm.rdma_set_option;
        let value = from_mut(&mut code).cast::<c_void>();
        // SAFETY: the option has a number of one byte.
        let failed = unsafe { set(self.id.as_ptr(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, value, 1) };
        self.check(CALL, failed).map_err(|error| match error.errno {
            libc::ENOSYS => Error::with(
                CALL,
                error.errno,
                "this kernel sets no acknowledgement time: Linux 5.2 or newer does",
            ),
            _ => error,
        })
    }

    /// Listens. The kernel drops requests that exceed a backlog of unread events, and their senders repeat them.
    ///
    /// # Errors
    /// The errors of rdma_listen(3).
    pub fn listen(&self, backlog: usize) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier exists.
        let failed = unsafe { (self.channel.cm.rdma_listen)(self.id.as_ptr(), backlog) };
        self.check("rdma_listen", failed)
    }

    /// The address to which the identifier is bound.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists; librdmacm writes the field only in calls on it.
        from_storage(unsafe { &(*self.id.as_ptr()).src_addr })
    }

    /// The address of the connection's other end.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        from_storage(unsafe { &(*self.id.as_ptr()).dst_addr })
    }

    /// Moves the identifier's events, including queued ones, to another channel.
    ///
    /// # Errors
    /// The errors of rdma_migrate_id(3).
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<()> {
        // SAFETY: the identifier and the channel exist. Every event of the identifier is acknowledged, so the call does
        // not wait.
        let failed = unsafe { (self.channel.cm.rdma_migrate_id)(self.id.as_ptr(), channel.channel.as_ptr()) };
        self.check("rdma_migrate_id", failed)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// The device of its address.
    pub fn context(&self) -> Option<Context> {
        // SAFETY: as above.
        Context::from_ptr(unsafe { (*self.id.as_ptr()).verbs })
    }

    /// The local port, and its GID for the local address.
    pub(crate) fn source(&self) -> (u8, Gid) {
        // SAFETY: as above.
        let port = unsafe { (*self.id.as_ptr()).port_num };
        // SAFETY: as above.
        (port, Gid(unsafe { (*self.id.as_ptr()).sgid }))
    }

    /// Resolves an address to a device: [`CmEventKind::AddressResolved`] follows.
    ///
    /// # Errors
    /// The errors of rdma_resolve_addr(3).
    pub fn resolve_address(&self, from: Option<SocketAddr>, to: SocketAddr, limit: Duration) -> Result<()> {
        let (mut own, mut other) = (from.map(to_storage), to_storage(to));
        let own = own.as_mut().map_or(null_mut(), |own| from_mut(own).cast());
        let other = from_mut(&mut other).cast();
        let resolve = self.channel.cm.rdma_resolve_addr;
        // SAFETY: the identifier exists, and the addresses have the forms of their families.
        let failed = unsafe { resolve(self.id.as_ptr(), own, other, milliseconds(limit)) };
        self.check("rdma_resolve_addr", failed)
    }

    /// Resolves the route: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// The errors of rdma_resolve_route(3).
    pub fn resolve_route(&self, limit: Duration) -> Result<()> {
        // SAFETY: the identifier exists.
        let failed = unsafe { (self.channel.cm.rdma_resolve_route)(self.id.as_ptr(), milliseconds(limit)) };
        self.check("rdma_resolve_route", failed)
    }

    /// Creates its queue pair. If the device refuses it, the inline size is halved until the device accepts.
    ///
    /// # Errors
    /// The errors of rdma_create_qp(3).
    pub fn create_qp(&mut self, attr: &QueuePairAttr) -> Result<()> {
        let create = |inline| {
            let mut init = attr.to_init();
            init.cap.max_inline_data = inline;
            // SAFETY: the identifier, the domain and the queues exist, and outlive the queue pair.
            unsafe { (self.channel.cm.rdma_create_qp)(self.id.as_ptr(), attr.pd.as_ptr(), &mut init) }
        };
        let (qp, inline) = self.make_qp("rdma_create_qp", attr, create)?;
        self.qp = Some(QueuePair { qp, built: None, attr: attr.clone(), inline });
        Ok(())
    }

    /// As [`CmId::create_qp`], with builders ([`QueuePair::requests`]).
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `EINVAL` if the device has no builders; else the errors of rdma_create_qp_ex(3).
    pub fn create_built_qp(&mut self, attr: &QueuePairAttr) -> Result<()> {
        let create = |inline| {
            let mut init = attr.to_init_ex();
            init.cap.max_inline_data = inline;
            // SAFETY: the identifier, the domain and the queues exist, and outlive the queue pair.
            unsafe { (self.channel.cm.rdma_create_qp_ex)(self.id.as_ptr(), &mut init) }
        };
        let (qp, inline) = self.make_qp("rdma_create_qp_ex", attr, create)?;
        let made = NonNull::new(qp).ok_or_else(|| Error::of("rdma_create_qp_ex", libc::EIO))?;
        // SAFETY: created with builders, and destroyed when the value made here is dropped.
        match unsafe { Built::of(made, false) } {
            Ok(built) => self.qp = Some(QueuePair { qp, built: Some(built), attr: attr.clone(), inline }),
            Err(error) => {
                // SAFETY: the queue pair was created on the identifier, and nothing refers to it.
                unsafe { (self.channel.cm.rdma_destroy_qp)(self.id.as_ptr()) };
                return Err(error);
            }
        }
        Ok(())
    }

    /// Creates the queue pair by `create`, which takes the inline size. Returns it with the size that the device
    /// accepted.
    fn make_qp(
        &self,
        call: &'static str,
        attr: &QueuePairAttr,
        create: impl Fn(u32) -> c_int,
    ) -> Result<(*mut ibv_qp, u32)> {
        if self.context() != Some(attr.pd.context()) {
            let advice = "this address does not belong to the domain's device";
            return Err(Error::with(call, libc::EXDEV, advice));
        }
        if self.qp.is_some() {
            return Err(Error::with(call, libc::EINVAL, "the identifier already has a queue pair"));
        }
        let mut inline = attr.inline;
        let mut failed = create(inline);
        while failed != 0 && inline > 0 {
            inline /= 2;
            failed = create(inline);
        }
        self.check(call, failed)?;
        // SAFETY: the call has set it.
        Ok((unsafe { (*self.id.as_ptr()).qp }, inline))
    }

    /// Its queue pair.
    pub fn qp(&self) -> Option<&QueuePair> {
        self.qp.as_ref()
    }

    /// Destroys its queue pair. When this returns, the device no longer uses the memory of its requests.
    pub fn destroy_qp(&mut self) {
        if self.qp.take().is_some() {
            // SAFETY: the queue pair was created on the identifier, and nothing refers to it any more.
            unsafe { (self.channel.cm.rdma_destroy_qp)(self.id.as_ptr()) };
        }
    }

    /// Sends the connection request: [`CmEventKind::Established`] follows, or a failure event.
    ///
    /// # Errors
    /// The errors of rdma_connect(3).
    pub fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        // SAFETY: the identifier exists; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_connect)(self.id.as_ptr(), &mut raw) };
        self.check("rdma_connect", failed)
    }

    /// Accepts a request: [`CmEventKind::Established`] follows.
    ///
    /// # Errors
    /// The errors of rdma_accept(3).
    pub fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        // SAFETY: the identifier exists; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_accept)(self.id.as_ptr(), &mut raw) };
        self.check("rdma_accept", failed)
    }

    /// Rejects a request, with at most 148 bytes of data.
    ///
    /// # Errors
    /// The errors of rdma_reject(3).
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = private_data.len().min(148);
        let data = if len == 0 { null() } else { private_data.as_ptr().cast() };
        // SAFETY: the identifier exists; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_reject)(self.id.as_ptr(), data, len as u8) };
        self.check("rdma_reject", failed)
    }

    /// Disconnects: posted requests end with [`crate::Status::FLUSHED`].
    ///
    /// # Errors
    /// The errors of rdma_disconnect(3).
    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: the identifier exists.
        let failed = unsafe { (self.channel.cm.rdma_disconnect)(self.id.as_ptr()) };
        self.check("rdma_disconnect", failed)
    }
}

fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: made above. Every event of it that was read has been acknowledged, so this does not wait.
        unsafe { (self.channel.cm.rdma_destroy_id)(self.id.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_address_ends_nothing() {
        let ends = |event| CmEventKind::of(event).is_end();
        for event in [
            RDMA_CM_EVENT_DISCONNECTED,
            RDMA_CM_EVENT_TIMEWAIT_EXIT,
            RDMA_CM_EVENT_DEVICE_REMOVAL,
            RDMA_CM_EVENT_REJECTED,
            RDMA_CM_EVENT_UNREACHABLE,
            RDMA_CM_EVENT_CONNECT_ERROR,
        ] {
            assert!(ends(event), "{event}");
        }
        for event in [RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_MULTICAST_JOIN, 99]
        {
            assert!(!ends(event), "{event}");
        }
    }
}
