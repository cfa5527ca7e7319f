//! Connections by IP address: rdma_cm.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{NonNull, from_mut, null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use crate::abi::*;
use crate::cq::set_nonblocking;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{Cm, cm};
use crate::name::{from_storage, to_storage};
use crate::qp::{QueuePair, QueuePairAttr};

/// Where events of identifiers come.
pub struct EventChannel {
    channel: NonNull<rdma_event_channel>,
    cm: &'static Cm,
}

// SAFETY: functions of librdmacm may be called from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// The address leads to a device.
    AddressResolved,
    /// There is a way.
    RouteResolved,
    /// Somebody wants to connect to a listening identifier.
    Request,
    /// The connection is there.
    Established,
    /// The peer refused.
    Rejected,
    /// Nobody is there, or does not answer.
    Failed,
    /// The connection is over.
    Disconnected,
    /// The device goes away.
    DeviceRemoved,
    /// Anything else, which means nothing here.
    Other,
}

/// An event.
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// To which identifier ([`CmId::number`]): of a request, the one that listens.
    pub id: usize,
    /// The new identifier of a request.
    pub request: Option<CmId>,
    /// An error number, or the reason of a rejection.
    pub status: i32,
    /// What the peer gave along.
    pub private_data: Vec<u8>,
    /// Remote reads that the peer serves at a time.
    pub responder_resources: u8,
    /// Remote reads that the peer has outstanding at a time.
    pub initiator_depth: u8,
}

impl EventChannel {
    /// Opens one, whose descriptor does not block.
    ///
    /// # Errors
    /// Those of rdma_create_event_channel(3).
    pub fn new() -> Result<Arc<Self>> {
        let cm = cm()?;
        // SAFETY: no memory is involved.
        let channel = unsafe { (cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| Error::last("rdma_create_event_channel"))?;
        let made = Self { channel, cm };
        set_nonblocking(made.fd())?;
        Ok(Arc::new(made))
    }

    /// Readable while events wait.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel is there, and has nothing but this.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// Those of rdma_get_cm_event(3).
    pub fn next(self: &Arc<Self>) -> Result<Option<CmEvent>> {
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: the channel is there, and does not block.
        if unsafe { (self.cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if matches!(error.errno, libc::EAGAIN | libc::EINTR) { Ok(None) } else { Err(error) };
        }
        // SAFETY: an event that was not acknowledged yet; its union is that of connections for those that have one.
        let seen = unsafe { &*event };
        let kind = match seen.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::Request,
            RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Failed,
            RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoved,
            _ => CmEventKind::Other,
        };
        let is_request = kind == CmEventKind::Request;
        let carries = is_request || matches!(kind, CmEventKind::Established | CmEventKind::Rejected);
        let (mut private_data, mut resources) = (Vec::new(), (0, 0));
        if carries {
            let (data, len) = (seen.conn.private_data.cast::<u8>(), usize::from(seen.conn.private_data_len));
            if !data.is_null() {
                // SAFETY: the event has so many bytes there until it is acknowledged.
                private_data = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            }
            resources = (seen.conn.responder_resources, seen.conn.initiator_depth);
        }
        let id = if is_request { seen.listen_id } else { seen.id };
        // The identifier of a request is new, and nobody else's.
        let request = NonNull::new(seen.id).filter(|_| is_request);
        let status = seen.status;
        // SAFETY: taken above, and not used any more.
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
        }))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: made above; identifiers on it are gone, as they would hold this.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// How a connection is to be.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// What the peer is given along: 56 bytes at most of a request, 196 of an acceptance.
    pub private_data: &'a [u8],
    /// Remote reads that this end serves, and has outstanding, at a time.
    pub reads: u8,
    /// How often a packet is sent again, 7 at most.
    pub retries: u8,
    /// How often a send is tried that finds no receive; 7 means for ever.
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

/// An identifier: what sockets are to TCP. Its queue pair goes with it.
pub struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
    qp: Option<QueuePair>,
}

// SAFETY: functions of librdmacm may be called from any thread.
unsafe impl Send for CmId {}
// SAFETY: nothing is changed through a shared reference but by librdmacm, which has locks.
unsafe impl Sync for CmId {}

impl CmId {
    /// Makes one, for reliable connections.
    ///
    /// # Errors
    /// Those of rdma_create_id(3).
    pub fn new(channel: &Arc<EventChannel>) -> Result<Self> {
        let mut id: *mut rdma_cm_id = null_mut();
        // SAFETY: the channel is there.
        let failed = unsafe {
            (channel.cm.rdma_create_id)(channel.channel.as_ptr(), &mut id, null_mut(), RDMA_PS_TCP)
        };
        let id = NonNull::new(id).filter(|_| failed == 0).ok_or_else(|| Error::last("rdma_create_id"))?;
        Ok(Self { id, channel: Arc::clone(channel), qp: None })
    }

    fn check(&self, call: &'static str, failed: c_int) -> Result<()> {
        if failed == 0 { Ok(()) } else { Err(Error::last(call)) }
    }

    /// Tells it from others while it is there.
    pub fn number(&self) -> usize {
        self.id.as_ptr() as usize
    }

    /// Binds it to an address of this host.
    ///
    /// # Errors
    /// Those of rdma_bind_addr(3).
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut storage = to_storage(address);
        let name = from_mut(&mut storage).cast();
        // SAFETY: the identifier is there, and the address is as its family says.
        let failed = unsafe { (self.channel.cm.rdma_bind_addr)(self.id.as_ptr(), name) };
        self.check("rdma_bind_addr", failed)
    }

    /// Lets another identifier be bound to the same address while connections of an earlier one linger.
    ///
    /// # Errors
    /// Those of rdma_set_option(3).
    pub fn reuse_address(&self) -> Result<()> {
        let mut one: c_int = 1;
        let (value, len) = (from_mut(&mut one).cast::<c_void>(), size_of::<c_int>());
        let set = self.channel.cm.rdma_set_option;
        // SAFETY: the option has a number of this size.
        let failed = unsafe { set(self.id.as_ptr(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, value, len) };
        self.check("rdma_set_option", failed)
    }

    /// Listens.
    ///
    /// # Errors
    /// Those of rdma_listen(3).
    pub fn listen(&self, backlog: usize) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is there.
        let failed = unsafe { (self.channel.cm.rdma_listen)(self.id.as_ptr(), backlog) };
        self.check("rdma_listen", failed)
    }

    /// The address that it is bound to.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is there; librdmacm writes the field in calls on it only.
        from_storage(unsafe { &(*self.id.as_ptr()).src_addr })
    }

    /// The address of the other end of its connection.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        from_storage(unsafe { &(*self.id.as_ptr()).dst_addr })
    }

    /// Has its events come to another channel, those that wait too.
    ///
    /// # Errors
    /// Those of rdma_migrate_id(3).
    pub fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<()> {
        // SAFETY: the identifier and the channel are there; no event of it is unacknowledged, so this does not wait.
        let failed = unsafe { (self.channel.cm.rdma_migrate_id)(self.id.as_ptr(), channel.channel.as_ptr()) };
        self.check("rdma_migrate_id", failed)?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// The device that its address is of.
    pub fn context(&self) -> Option<Context> {
        // SAFETY: as above.
        Context::from_ptr(unsafe { (*self.id.as_ptr()).verbs })
    }

    /// Looks for the device that leads to an address: [`CmEventKind::AddressResolved`] follows.
    ///
    /// # Errors
    /// Those of rdma_resolve_addr(3).
    pub fn resolve_address(&self, from: Option<SocketAddr>, to: SocketAddr, limit: Duration) -> Result<()> {
        let (mut own, mut other) = (from.map(to_storage), to_storage(to));
        let own = own.as_mut().map_or(null_mut(), |own| from_mut(own).cast());
        let other = from_mut(&mut other).cast();
        let resolve = self.channel.cm.rdma_resolve_addr;
        // SAFETY: the identifier is there, and the addresses are as their families say.
        let failed = unsafe { resolve(self.id.as_ptr(), own, other, milliseconds(limit)) };
        self.check("rdma_resolve_addr", failed)
    }

    /// Looks for a way: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// Those of rdma_resolve_route(3).
    pub fn resolve_route(&self, limit: Duration) -> Result<()> {
        // SAFETY: the identifier is there.
        let failed = unsafe { (self.channel.cm.rdma_resolve_route)(self.id.as_ptr(), milliseconds(limit)) };
        self.check("rdma_resolve_route", failed)
    }

    /// Gives it a queue pair. Where the device refuses it, it is asked for with half as much inline data, and so on.
    ///
    /// # Errors
    /// Those of rdma_create_qp(3).
    pub fn create_qp(&mut self, attr: &QueuePairAttr) -> Result<()> {
        if self.context() != Some(attr.pd.context()) {
            let advice = "this address is not of the device that the domain was opened on";
            return Err(Error::with("rdma_create_qp", libc::EXDEV, advice));
        }
        if self.qp.is_some() {
            return Err(Error::with("rdma_create_qp", libc::EINVAL, "it has a queue pair"));
        }
        let mut inline = attr.inline;
        let create = |inline| {
            let mut init = attr.to_init();
            init.cap.max_inline_data = inline;
            // SAFETY: the identifier, the domain and the queues are there, and stay as long as the queue pair.
            unsafe { (self.channel.cm.rdma_create_qp)(self.id.as_ptr(), attr.pd.as_ptr(), &mut init) }
        };
        let mut failed = create(inline);
        while failed != 0 && inline > 0 {
            inline /= 2;
            failed = create(inline);
        }
        self.check("rdma_create_qp", failed)?;
        // SAFETY: the call has set it.
        let qp = unsafe { (*self.id.as_ptr()).qp };
        self.qp = Some(QueuePair { qp, attr: attr.clone(), inline });
        Ok(())
    }

    /// Its queue pair.
    pub fn qp(&self) -> Option<&QueuePair> {
        self.qp.as_ref()
    }

    /// Takes its queue pair away: when this returns, the device uses no memory of its requests any more.
    pub fn destroy_qp(&mut self) {
        if self.qp.take().is_some() {
            // SAFETY: the queue pair was made on it, and nothing refers to it any more.
            unsafe { (self.channel.cm.rdma_destroy_qp)(self.id.as_ptr()) };
        }
    }

    /// Asks for the connection: [`CmEventKind::Established`] follows, or why not.
    ///
    /// # Errors
    /// Those of rdma_connect(3).
    pub fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        // SAFETY: the identifier is there; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_connect)(self.id.as_ptr(), &mut raw) };
        self.check("rdma_connect", failed)
    }

    /// Grants a request: [`CmEventKind::Established`] follows.
    ///
    /// # Errors
    /// Those of rdma_accept(3).
    pub fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        let mut raw = param.to_raw();
        // SAFETY: the identifier is there; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_accept)(self.id.as_ptr(), &mut raw) };
        self.check("rdma_accept", failed)
    }

    /// Refuses a request. 148 bytes of data at most go along.
    ///
    /// # Errors
    /// Those of rdma_reject(3).
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = private_data.len().min(148);
        let data = if len == 0 { null() } else { private_data.as_ptr().cast() };
        // SAFETY: the identifier is there; the data is copied.
        let failed = unsafe { (self.channel.cm.rdma_reject)(self.id.as_ptr(), data, len as u8) };
        self.check("rdma_reject", failed)
    }

    /// Ends the connection: what is posted ends with [`crate::Status::FLUSHED`].
    ///
    /// # Errors
    /// Those of rdma_disconnect(3).
    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: the identifier is there.
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
        // SAFETY: made above. All events of it that were taken have been acknowledged, so this does not wait.
        unsafe { (self.channel.cm.rdma_destroy_id)(self.id.as_ptr()) };
    }
}
