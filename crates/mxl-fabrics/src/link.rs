//! An endpoint of one provider, with its queue, its address vector and the receives that messages come in by.
//!
//! The endpoint is closed before the memory of its operations is freed, and before the maps of rings go.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ofi::raw::{
    AddressVector, AvAttr, BindFlags, Call, Caps, CompletionFlags, CompletionQueue, Context, CqAttr,
    CqBuffer, CqFormat, CqTaggedEntry, Domain, Endpoint, EpType, Fabric, GetinfoFlags, Lent, MemoryRegion,
    MrAccess, MrAttr, MrMode, OpFlags, Piece, ReceiveOp, RemotePiece, RmaOp, SendOp, Serialization,
    Threading, Version, WaitObj,
};
use ofi::{AddrFormat, Address, Buffer, Errno, FiAddr, Hints, RawBuffer};

use crate::message::{LONGEST, LONGEST_ADDRESS, Message, Remote};
use crate::shape::Span;
use crate::{Error, Provider, Result};

/// Receives that wait for messages.
const RECEIVES: usize = 32;
/// Entries of one queue read.
const BATCH: usize = 16;

/// What registrations may need.
pub(crate) const MR_MODE: MrMode =
    MrMode::VIRT_ADDR.union(MrMode::ALLOCATED).union(MrMode::PROV_KEY).union(MrMode::LOCAL);

/// Names an operation of this end.
pub(crate) type OpId = u64;

/// What happened on a link.
pub(crate) enum Happened {
    /// A write or a message of ours ended.
    Ended(OpId, Result<(), Errno>),
    /// Somebody said something.
    Message(Message),
    /// A peer's write is complete.
    Arrived(u64),
    /// Bytes that are no message.
    Nonsense,
}

/// Memory that the endpoint may touch: a part of a flow's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub addr: *mut u8,
    pub len: usize,
}

// SAFETY: an address and a length. What is done with them, the places that do it promise.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A registration that peers may write, until it is dropped.
pub(crate) struct Window(Arc<dyn MemoryRegion>);

impl Window {
    pub fn remote(&self) -> Remote {
        Remote { addr: self.0.base(), key: self.0.key() }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // It waits until no peer's access is under way.
        if let Err(error) = self.0.close() {
            tracing::warn!(target: "mxl::fabrics", %error, "memory that peers may write could not be withdrawn");
        }
    }
}

/// An endpoint and what belongs to it.
pub(crate) struct Link {
    endpoint: Option<Arc<dyn Endpoint>>,
    cq: Arc<dyn CompletionQueue>,
    av: Arc<dyn AddressVector>,
    domain: Arc<dyn Domain>,
    _fabric: Arc<dyn Fabric>,
    /// The format of its address, and the address.
    pub name: (u32, Vec<u8>),
    needs_desc: bool,
    receives: Vec<Option<RawBuffer>>,
    unposted: VecDeque<usize>,
    sends: HashMap<OpId, RawBuffer>,
    /// Registrations of memory that is written from, where the provider needs them.
    local: HashMap<usize, Arc<dyn MemoryRegion>>,
    next: OpId,
}

impl Link {
    /// Opens the first endpoint that the provider offers for a node and a service of this host, which may be left open.
    pub fn open(provider: Provider, node: Option<&str>, service: Option<&str>) -> Result<Self> {
        let mut hints = Hints::default();
        let wanted = &mut hints.info;
        wanted.fabric_attr.prov_name = provider.of_stack().into();
        wanted.ep_attr.ep_type = EpType::Rdm;
        wanted.caps = Caps::MSG | Caps::RMA;
        wanted.domain_attr.threading = Threading::Safe;
        wanted.domain_attr.mr_mode = MR_MODE;
        let is_bound = node.is_some() || service.is_some();
        let flags = if is_bound { GetinfoFlags::SOURCE } else { GetinfoFlags::empty() };
        let infos = ofi::getinfo(Version::API, node, service, flags, Some(&hints))
            .map_err(Error::stack("getinfo"))?;
        let info = infos.into_iter().next();
        let info = info.ok_or_else(|| Error::Argument(format!("provider {provider} offers nothing here")))?;
        let fabric = ofi::open_fabric(&info).map_err(Error::stack("open the fabric"))?;
        let domain =
            fabric.open_domain(&info, Serialization::LIBRARY).map_err(Error::stack("open the domain"))?;
        let endpoint = domain.open_endpoint(&info).map_err(Error::stack("open the endpoint"))?;
        let attr = CqAttr { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::None, wait_set: None };
        let cq = domain.open_cq(&attr).map_err(Error::stack("open the queue"))?;
        let attr = AvAttr { av_type: info.domain_attr.av_type, ..AvAttr::default() };
        let av = domain.open_av(&attr).map_err(Error::stack("open the address vector"))?;
        let bound = endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV);
        bound.and_then(|()| endpoint.bind_av(&av)).map_err(Error::stack("bind the endpoint"))?;
        endpoint.enable().map_err(Error::stack("enable the endpoint"))?;
        let name = endpoint.name().map_err(Error::stack("name the endpoint"))?;
        if name.bytes().len() > LONGEST_ADDRESS {
            let len = name.bytes().len();
            return Err(Error::Argument(format!("an address of {len} bytes; {LONGEST_ADDRESS} fit")));
        }
        let mut link = Self {
            name: (name.format().as_c(), name.bytes().to_vec()),
            needs_desc: info.domain_attr.mr_mode.contains(MrMode::LOCAL),
            endpoint: Some(endpoint),
            cq,
            av,
            domain,
            _fabric: fabric,
            receives: (0..RECEIVES).map(|_| Some(vec![0_u8; LONGEST].into_raw())).collect(),
            unposted: (0..RECEIVES).collect(),
            sends: HashMap::new(),
            local: HashMap::new(),
            next: 0,
        };
        link.post_receives()?;
        Ok(link)
    }

    fn endpoint(&self) -> Result<Arc<dyn Endpoint>, ofi::Error> {
        self.endpoint.clone().ok_or_else(|| ofi::Error::new(Errno::EOPBADSTATE))
    }

    fn id(&mut self) -> OpId {
        // Contexts of receives are small numbers, and are told apart by their flags; 0 is none.
        self.next += 1;
        self.next
    }

    fn post_receives(&mut self) -> Result<()> {
        while let Some(&index) = self.unposted.front() {
            let Some(raw) = &self.receives[index] else { break };
            let pieces = [Piece::new(raw.addr(), raw.len())];
            // SAFETY: the buffer is this table's until the receive has ended, or the endpoint is closed.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            let op = ReceiveOp {
                flags: OpFlags::COMPLETION,
                call: Call::Msg,
                ..ReceiveOp::new(lent, Context(index + 1))
            };
            match self.endpoint().and_then(|endpoint| endpoint.receive(&op)) {
                Ok(()) => drop(self.unposted.pop_front()),
                Err(error) if error.is_again() => break,
                Err(error) => return Err(Error::stack("post a receive")(error)),
            }
        }
        Ok(())
    }

    /// Takes in a peer's address.
    pub fn insert(&self, format: u32, address: &[u8]) -> Result<FiAddr, ofi::Error> {
        let format = AddrFormat::from_c(format).ok_or_else(|| ofi::Error::new(Errno::EINVAL))?;
        let inserted = self.av.insert(&[Address::new(format, address)]).pop();
        inserted.unwrap_or_else(|| Err(ofi::Error::new(Errno::EINVAL)))
    }

    /// Forgets it.
    pub fn remove(&self, peer: FiAddr) {
        if let Err(error) = self.av.remove(&[peer]) {
            tracing::debug!(target: "mxl::fabrics", %error, "an address that cannot be removed");
        }
    }

    /// Says something to a peer. `None` if there is no room now.
    pub fn send(&mut self, peer: FiAddr, message: &Message) -> Result<Option<OpId>, ofi::Error> {
        let endpoint = self.endpoint()?;
        let raw = message.encode().into_raw();
        let pieces = [Piece::new(raw.addr(), raw.len())];
        let id = self.id();
        // SAFETY: the buffer is the table's until the send has ended, or the endpoint is closed; on an error it was not lent.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        let op = SendOp { flags, call: Call::Msg, ..SendOp::new(lent, peer, Context(id as usize)) };
        match endpoint.send(&op) {
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

    /// Lets peers write memory, until the window is dropped.
    ///
    /// # Safety
    /// The memory stays mapped as long as the window, and this program has no references to it.
    pub unsafe fn open_window(&self, memory: Memory) -> Result<Window> {
        let pieces = [Piece::new(memory.addr, memory.len)];
        // SAFETY: the caller's promise.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_WRITE) };
        let region = self.domain.register(&attr).map_err(Error::stack("register a part of the ring"))?;
        Ok(Window(region))
    }

    /// Writes parts of `source` to a peer's memory, with CQ data. `None` if there is no room now.
    ///
    /// # Safety
    /// The source stays mapped until the write has ended or the link is closed. Others may change it meanwhile.
    pub unsafe fn write(
        &mut self,
        peer: FiAddr,
        source: Memory,
        to: Remote,
        spans: &[Span],
        data: u64,
    ) -> Result<Option<OpId>, ofi::Error> {
        let inside =
            |span: &Span| span.from.checked_add(span.len).is_some_and(|end| end <= source.len as u64);
        if !spans.iter().all(inside) {
            return Err(ofi::Error::new(Errno::EFAULT));
        }
        let endpoint = self.endpoint()?;
        let piece = |span: &Span| Piece::new(source.addr.wrapping_add(span.from as usize), span.len as usize);
        let pieces: Vec<Piece> = spans.iter().map(piece).collect();
        let remote = |span: &Span| RemotePiece {
            addr: to.addr.wrapping_add(span.to),
            len: span.len as usize,
            key: to.key,
        };
        let remote: Vec<RemotePiece> = spans.iter().map(remote).collect();
        let descs =
            if self.needs_desc { vec![self.register(source)?.desc(); pieces.len()] } else { Vec::new() };
        let id = self.id();
        // SAFETY: the caller's promise.
        let lent = unsafe { Lent::new(&pieces, &descs) };
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE | OpFlags::REMOTE_CQ_DATA;
        let context = Context(id as usize);
        let op = RmaOp { buf: lent, remote: &remote, peer, context, data, flags, call: Call::Msg };
        match endpoint.write(&op) {
            Ok(()) => Ok(Some(id)),
            Err(error) if error.is_again() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The registration of memory that is written from.
    fn register(&mut self, source: Memory) -> Result<Arc<dyn MemoryRegion>, ofi::Error> {
        if let Some(there) = self.local.get(&(source.addr as usize)) {
            return Ok(there.clone());
        }
        let pieces = [Piece::new(source.addr, source.len)];
        // SAFETY: the memory is mapped as long as the flow is open, which is longer than the link; no peer may touch it.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::WRITE) };
        let region = self.domain.register(&attr)?;
        self.local.insert(source.addr as usize, region.clone());
        Ok(region)
    }

    /// Drives the endpoint and tells what has happened. Whether there was anything.
    pub fn poll(&mut self, happened: &mut Vec<Happened>) -> Result<bool> {
        let mut entries = [CqTaggedEntry::EMPTY; BATCH];
        let before = happened.len();
        match self.cq.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => {
                for entry in &entries[..count] {
                    self.take(entry.op_context, entry.flags, Ok((entry.len, entry.data)), happened);
                }
            }
            Err(error) if error.is_again() => {}
            Err(error) if error == Errno::EAVAIL => {
                let error = self.cq.read_error().map_err(Error::stack("read an error"))?;
                self.take(error.op_context, error.flags, Err(error.err), happened);
            }
            Err(error) => return Err(Error::stack("read the queue")(error)),
        }
        self.post_receives()?;
        Ok(happened.len() > before)
    }

    fn take(
        &mut self,
        context: Context,
        flags: CompletionFlags,
        result: Result<(usize, u64), Errno>,
        happened: &mut Vec<Happened>,
    ) {
        if context.is_null() || flags.contains(CompletionFlags::REMOTE_WRITE) {
            if let Ok((_, data)) = result
                && flags.contains(CompletionFlags::REMOTE_CQ_DATA)
            {
                happened.push(Happened::Arrived(data));
            }
            return;
        }
        if flags.contains(CompletionFlags::RECV) {
            let index = context.0 - 1;
            let Some(Some(raw)) = self.receives.get(index) else { return };
            // One that failed, or was longer than the buffer, was not ours.
            let message = result.ok().and_then(|(len, _)| {
                // SAFETY: the receive has ended, so the buffer is the table's alone; it is initialised, being of a vector.
                let bytes = unsafe { std::slice::from_raw_parts(raw.addr(), len.min(raw.len())) };
                Message::parse(bytes)
            });
            happened.push(message.map_or(Happened::Nonsense, Happened::Message));
            self.unposted.push_back(index);
            return;
        }
        let id = context.0 as OpId;
        if let Some(raw) = self.sends.remove(&id) {
            // SAFETY: the send has ended.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
        happened.push(Happened::Ended(id, result.map(|_| ())));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing it ends all operations; only then is their memory freed.
        drop(self.endpoint.take());
        let sends = self.sends.drain().map(|(_, raw)| raw);
        for raw in self.receives.iter_mut().filter_map(Option::take).chain(sends) {
            // SAFETY: of a vector, taken apart when it was posted; the endpoint is closed.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
    }
}
