//! What both roles of the C++ SDK's protocol need of a provider: a domain of connected endpoints with its queues, and
//! one connection ([`Line`]).
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ofi::raw::{
    BindFlags, Call, Caps, CompletionFlags, CompletionQueue, Context, CqAttr, CqBuffer, CqFormat,
    CqTaggedEntry, Domain, Endpoint, EpType, EqAttr, EqErrorEntry, Event, EventQueue, Fabric, Fid,
    GetinfoFlags, Info, Lent, MemoryRegion, Mode, MrAccess, MrAttr, MrMode, OpFlags, Piece, ReceiveOp,
    RemotePiece, RmaOp, Threading, Version, WaitObj,
};
use ofi::{AddrFormat, Address, Buffer, Errno, FiAddr, Hints, RawBuffer};
use ofi_core::fork::Born;

use crate::link::{MR_MODE, Memory, OpId, Window, pieces_of};
use crate::message::Remote;
use crate::shape::{Limits, PIECES, Span};
use crate::{Error, Options, Provider, Result};

/// Entries of one queue read.
const BATCH: usize = 16;
/// Receives of a connection whose provider consumes one for each write with CQ data. A peer's writes wait while there
/// is none.
const RECEIVES: usize = 64;

/// Whether the provider has the connected endpoints that this protocol uses.
pub(crate) const fn carries(provider: Provider) -> bool {
    matches!(provider, Provider::Tcp | Provider::Verbs)
}

/// A domain for connected endpoints of one end of a flow.
pub(crate) struct Plant {
    pub info: Info,
    pub cq: Arc<dyn CompletionQueue>,
    pub eq: Arc<dyn EventQueue>,
    pub domain: Arc<dyn Domain>,
    pub fabric: Arc<dyn Fabric>,
    limits: Limits,
    /// Receives that a connection keeps posted for the peer's CQ data: none where the provider needs none.
    receives: usize,
    /// Whether the provider's device reads the memory of this end itself.
    reads_memory: bool,
    /// Registrations of the source's memory by address; `None` where the system has refused one.
    sources: HashMap<usize, Option<Arc<dyn MemoryRegion>>>,
    next: OpId,
}

/// What a poll found.
#[derive(Default)]
pub(crate) struct Found {
    /// Operations of this end, and whether they succeeded.
    pub ended: Vec<(OpId, bool)>,
    /// CQ data of a peer's writes, in order.
    pub data: Vec<u64>,
    /// Events of connections, or their errors.
    pub events: Vec<Result<Event, EqErrorEntry>>,
}

impl Plant {
    /// Opens the provider's connected endpoints at a node and a service of this host.
    pub fn open(provider: Provider, place: (Option<&str>, Option<&str>), options: &Options) -> Result<Self> {
        let (node, service) = place;
        let mut hints = Hints::default();
        hints.info.fabric_attr.prov_name = provider.of_stack().into();
        hints.info.ep_attr.ep_type = EpType::Msg;
        hints.info.domain_attr.threading = Threading::Safe;
        hints.info.domain_attr.mr_mode = MR_MODE.difference(MrMode::LOCAL);
        hints.info.mode = Mode::RX_CQ_DATA;
        hints.info.caps = Caps::MSG | Caps::RMA;
        let is_bound = node.is_some() || service.is_some();
        let flags = if is_bound { GetinfoFlags::SOURCE } else { GetinfoFlags::empty() };
        let infos = ofi::getinfo(Version::API, node, service, flags, Some(&hints));
        let mut info =
            infos.map_err(Error::stack("getinfo for connected endpoints"))?.into_iter().next().ok_or_else(
                || Error::Argument(format!("provider {provider} offers no connected endpoints here")),
            )?;
        let longest = info.ep_attr.max_msg_size.min(options.max_message.unwrap_or(usize::MAX));
        info.ep_attr.max_msg_size = longest;
        info.tx_attr.inject_size = info.tx_attr.inject_size.min(longest);
        let limits = Limits { pieces: info.tx_attr.iov_limit.clamp(1, PIECES), bytes: longest as u64 };
        let fabric = ofi::open_fabric(&info).map_err(Error::stack("open the fabric"))?;
        let domain = fabric.open_domain(&info).map_err(Error::stack("open the domain"))?;
        let attr = EqAttr { wait_obj: WaitObj::Fd, ..EqAttr::default() };
        let eq = fabric.open_eq(&attr).map_err(Error::stack("open the event queue"))?;
        let attr = CqAttr { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::Fd, wait_set: None };
        let cq = domain.open_cq(&attr).map_err(Error::stack("open the queue"))?;
        let receives = match info.mode | info.rx_attr.mode {
            mode if mode.contains(Mode::RX_CQ_DATA) => RECEIVES.min(info.rx_attr.size),
            _ => 0,
        };
        let (reads_memory, sources) = (provider == Provider::Verbs, HashMap::new());
        Ok(Self { info, cq, eq, domain, fabric, limits, receives, reads_memory, sources, next: 0 })
    }

    /// The limits of one write.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Lets peers write memory, until the window is dropped.
    ///
    /// # Safety
    /// The memory stays mapped as long as the window, and this program has no references to it.
    pub unsafe fn open_window(&self, memory: Memory) -> Result<Window> {
        let pieces = [Piece::new(memory.addr, memory.len)];
        // SAFETY: the caller's promise.
        let mut attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_WRITE) };
        attr.requested_key = getrandom::u64().unwrap_or(0);
        let region = self.domain.register(&attr).map_err(Error::stack("register memory for a peer"))?;
        Ok(Window(region))
    }

    /// Registers memory of the source once, if the provider's device reads it. The system may refuse; then the provider
    /// registers, or copies, parts of it for each write.
    fn register(&mut self, source: Memory) {
        let key = source.addr as usize;
        if !self.reads_memory || source.len == 0 || self.sources.contains_key(&key) {
            return;
        }
        let pieces = [Piece::new(source.addr, source.len)];
        // SAFETY: the memory is mapped as long as the flow is open, which is longer than this; no peer may touch it.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::WRITE) };
        let region = self.domain.register(&attr);
        if let Err(error) = &region {
            tracing::debug!(target: "mxl::fabrics", %error, "memory of the source is not registered");
        }
        self.sources.insert(key, region.ok());
    }

    /// An endpoint for a connection: of a request, or one that will connect.
    pub fn line(&self, request: Option<&Info>) -> Result<Line, ofi::Error> {
        let endpoint = self.domain.open_endpoint(request.unwrap_or(&self.info))?;
        endpoint.bind_eq(&self.eq)?;
        endpoint.bind_cq(&self.cq, BindFlags::TRANSMIT | BindFlags::RECV)?;
        Ok(Line {
            fid: endpoint.fid(),
            endpoint: Some(endpoint),
            sends: HashMap::new(),
            since: Instant::now(),
            born: Born::here(),
        })
    }

    /// Reads both queues. Returns whether there was anything.
    pub fn poll(&self, found: &mut Found) -> Result<bool> {
        let mut was_busy = false;
        loop {
            match self.eq.read() {
                Ok(event) => found.events.push(Ok(event)),
                Err(error) if error == Errno::EAVAIL => match self.eq.read_error() {
                    Ok(entry) => found.events.push(Err(entry)),
                    Err(_) => break,
                },
                Err(error) if error.is_again() => break,
                Err(error) => return Err(Error::stack("read the event queue")(error)),
            }
            was_busy = true;
        }
        let mut entries = [CqTaggedEntry::EMPTY; BATCH];
        match self.cq.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => {
                was_busy |= count > 0;
                for entry in &entries[..count] {
                    take(found, entry.op_context, entry.flags, Ok(entry.data));
                }
            }
            Err(error) if error.is_again() => {}
            Err(error) if error == Errno::EAVAIL => {
                let error = self.cq.read_error().map_err(Error::stack("read an error"))?;
                take(found, error.op_context, error.flags, Err(error.err));
                was_busy = true;
            }
            Err(error) => return Err(Error::stack("read the queue")(error)),
        }
        Ok(was_busy)
    }
}

fn take(found: &mut Found, context: Context, flags: CompletionFlags, result: Result<u64, Errno>) {
    if context.is_null() || flags.contains(CompletionFlags::REMOTE_WRITE) {
        if let Ok(data) = result
            && flags.contains(CompletionFlags::REMOTE_CQ_DATA)
        {
            found.data.push(data);
        }
    } else {
        found.ended.push((context.0 as OpId, result.is_ok()));
    }
}

/// An address of an info, for this provider.
pub(crate) fn address(format: u32, bytes: &[u8]) -> Result<Address, ofi::Error> {
    let format = AddrFormat::from_c(format).ok_or_else(|| ofi::Error::new(Errno::EINVAL))?;
    let address = Address::new(format, bytes);
    let socket: Option<SocketAddr> = address.to_socket_addr();
    let usable = socket.is_some_and(|socket| socket.port() != 0 && !socket.ip().is_unspecified());
    if usable { Ok(address) } else { Err(ofi::Error::new(Errno::EINVAL)) }
}

/// A connection. Dropping it ends it, and all of its operations.
pub(crate) struct Line {
    /// There until the line is dropped.
    endpoint: Option<Arc<dyn Endpoint>>,
    pub fid: Fid,
    /// Headers in flight.
    sends: HashMap<OpId, RawBuffer>,
    /// When it was opened.
    pub since: Instant,
    /// The process that opened it.
    born: Born,
}

/// One write of this end.
pub(crate) struct Write<'a> {
    /// Bytes before the pieces of the source.
    pub header: &'a [u8],
    pub source: Memory,
    pub spans: &'a [Span],
    /// The place of the header, or of the first piece.
    pub to: Remote,
    pub data: Option<u32>,
}

impl Line {
    fn endpoint(&self) -> Result<&Arc<dyn Endpoint>, ofi::Error> {
        self.endpoint.as_ref().ok_or_else(|| ofi::Error::new(Errno::EOPBADSTATE))
    }

    pub fn connect(&self, to: &Address) -> Result<(), ofi::Error> {
        self.endpoint()?.connect(to, &[])
    }

    /// Accepts as the C++ SDK does: with one byte.
    pub fn accept(&self, plant: &Plant) -> Result<(), ofi::Error> {
        self.endpoint()?.accept(&[0])?;
        self.post_receives(plant.receives)
    }

    /// Replaces the receives that this many writes with CQ data have consumed.
    pub fn replace_receives(&self, plant: &Plant, consumed: usize) -> Result<(), ofi::Error> {
        self.post_receives(consumed.min(plant.receives))
    }

    fn post_receives(&self, count: usize) -> Result<(), ofi::Error> {
        for _ in 0..count {
            // SAFETY: there is no memory.
            let lent = unsafe { Lent::new(&[], &[]) };
            let receive = ReceiveOp { call: Call::Msg, ..ReceiveOp::new(lent, Context(0)) };
            self.endpoint()?.receive(&receive)?;
        }
        Ok(())
    }

    /// Writes to the peer's memory. `None` if there is no room now.
    ///
    /// # Safety
    /// The source stays mapped until the write has ended or the line is dropped. Other processes may change it.
    pub unsafe fn write(&mut self, plant: &mut Plant, write: Write<'_>) -> Result<Option<OpId>, ofi::Error> {
        let Write { header, source, spans, to, data } = write;
        let endpoint = Arc::clone(self.endpoint()?);
        let mut pieces = pieces_of(source, spans)?;
        let raw = header.to_vec().into_raw();
        if !raw.is_empty() {
            pieces.insert(0, Piece::new(raw.addr(), raw.len()));
        }
        let len: usize = raw.len() + spans.iter().map(|span| span.len as usize).sum::<usize>();
        if !spans.is_empty() {
            plant.register(source);
        }
        plant.next += 1;
        let id = plant.next;
        // The providers that `carries` names take memory without a descriptor.
        // SAFETY: the header belongs to the table until its write has ended, or the endpoint is closed; on an error it
        // was not lent. The rest is the caller's promise.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let remote = [RemotePiece { addr: to.addr, len, key: to.key }];
        let mut flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        if data.is_some() {
            flags |= OpFlags::REMOTE_CQ_DATA;
        }
        let op = RmaOp {
            buf,
            remote: &remote,
            peer: FiAddr(0),
            context: Context(id as usize),
            data: data.unwrap_or(0).into(),
            flags,
            call: Call::Msg,
        };
        match endpoint.write(&op) {
            Ok(()) => {
                self.sends.insert(id, raw);
                Ok(Some(id))
            }
            Err(error) => {
                // SAFETY: taken apart above, and not posted.
                drop(unsafe { Vec::<u8>::from_raw(raw) });
                if error.is_again() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Frees what an operation of this line used. Returns whether it was one.
    pub fn ended(&mut self, op: OpId) -> bool {
        let Some(raw) = self.sends.remove(&op) else { return false };
        // SAFETY: the write has ended.
        drop(unsafe { Vec::<u8>::from_raw(raw) });
        true
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(endpoint) = self.endpoint.take() else { return };
        // This ends the connection and all of its operations: nothing is read from the source or placed here any more.
        let ended = endpoint.shutdown();
        let (sends, born) = (std::mem::take(&mut self.sends), self.born);
        let closing = Closing { endpoint: Some(endpoint), sends, born };
        match ended {
            Ok(()) => closing.elsewhere(),
            // Not connected, so nothing is left to send; or it could not be ended, and closing it does that.
            Err(error) => tracing::trace!(target: "mxl::fabrics", %error, "there was no connection to end"),
        }
    }
}

/// An endpoint whose connection has ended. Closing it waits until the peer's host has its last bytes: for a second
/// with a peer that reads nothing.
struct Closing {
    /// There until this is dropped.
    endpoint: Option<Arc<dyn Endpoint>>,
    sends: HashMap<OpId, RawBuffer>,
    born: Born,
}

/// Endpoints that are being closed by threads.
static CLOSING: AtomicUsize = AtomicUsize::new(0);
/// The most of them.
const MAX_CLOSING: usize = 16;

impl Closing {
    /// Closes the endpoint on a thread, so that the caller, who drives other connections, does not wait.
    fn elsewhere(self) {
        if CLOSING.fetch_add(1, Ordering::Relaxed) >= MAX_CLOSING {
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!(target: "mxl::fabrics", "many endpoints are being closed: this thread waits for one");
            return;
        }
        let close = move || {
            drop(self);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the closure is dropped here, and the endpoint with it.
        if let Err(error) = std::thread::Builder::new().name("mxl-close".into()).spawn(close) {
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(target: "mxl::fabrics", %error, "no thread to close an endpoint: this one waited for it");
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return; // the parent's endpoint uses the memory
        }
        // Closing it ends all operations that are left; only then is their memory freed.
        self.endpoint = None;
        for (_, raw) in self.sends.drain() {
            // SAFETY: the parts are those of a vector, from when it was posted; the endpoint is closed.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
    }
}
