//! An endpoint of one provider, with its queue, its address vector and the receives for its messages.
//!
//! The endpoint is closed before the memory of its operations is freed, and before the rings are unmapped.
#![allow(unsafe_code)]

mod accounts;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use ofi::raw::{
    AddressVector, AvAttr, BindFlags, Call, Caps, CompletionFlags, CompletionQueue, Context, CqAttr,
    CqBuffer, CqFormat, CqTaggedEntry, Desc, Domain, Endpoint, EpType, Fabric, GetinfoFlags, Info, Lent,
    MemoryRegion, MrAccess, MrAttr, MrMode, OpFlags, Piece, ReceiveOp, RemotePiece, RmaOp, SendOp, Threading,
    Version, WaitObj,
};
use ofi::{AddrFormat, Address, Buffer, Errno, FiAddr, Hints, RawBuffer};
use ofi_core::fork::Born;
use ofi_core::pages::Pages;

pub(crate) use self::accounts::MessageKind;
use self::accounts::{Begun, LinkAccounts};
use crate::message::{MAX_ADDRESS_LEN, MAX_MESSAGE_LEN, Message, Piece as Part, Remote, is_piece};
use crate::rest::WaitFor;
use crate::shape::{Limits, PIECES, Span};
use crate::{Error, Options, Provider, Result};

/// Receives that wait for messages.
const RECEIVES: usize = 32;
/// Maximum length of a message with a payload, in bytes.
const MAX_PIECE_LEN: usize = 64 << 10;
/// Entries of one queue read.
const BATCH: usize = 16;

/// Registration modes that the crate supports.
pub(crate) const MR_MODE: MrMode =
    MrMode::VIRT_ADDR.union(MrMode::ALLOCATED).union(MrMode::PROV_KEY).union(MrMode::LOCAL);

/// Identifies an operation of this end.
pub(crate) type OpId = u64;

/// An event on a link.
pub(crate) enum Happened {
    /// A write or a message of this end has ended.
    Ended(OpId, Result<(), Errno>),
    /// A peer has sent a message.
    Message(Message),
    /// A peer's write is complete.
    Arrived(u64),
    /// A message with a payload lies in this receive, until it is [released](Link::release).
    Piece(Receive),
    /// Bytes that are not a valid message.
    Nonsense,
}

/// A receive that holds a message, and the message's length.
#[derive(Debug)]
pub(crate) struct Receive {
    index: usize,
    len: usize,
}

/// The kind of end to which a link belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// Receives payloads.
    Target,
    /// Sends payloads.
    Initiator,
}

/// Memory that the endpoint may access: a part of a flow's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub addr: *mut u8,
    pub len: usize,
}

// SAFETY: an address and a length. The places that use them promise their validity.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A registration that peers may write, until it is closed or dropped.
pub(crate) struct Window(pub(crate) Arc<dyn MemoryRegion>);

impl Window {
    pub fn remote(&self) -> Remote {
        Remote { addr: self.0.base(), key: self.0.key() }
    }

    /// Withdraws the rights, and waits up to a second until no access of a peer is in flight. The window comes back if
    /// one still is: it may write until a later call succeeds.
    pub fn close(self) -> Result<(), Self> {
        self.0.close().map_err(|error| {
            tracing::warn!(target: "mxl::fabrics", %error, "a window that peers may write is still written");
            self
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            tracing::warn!(target: "mxl::fabrics", %error, "a window that peers may write did not close");
        }
    }
}

/// Parts of the source memory.
pub(crate) fn pieces_of(source: Memory, spans: &[Span]) -> Result<Vec<Piece>, ofi::Error> {
    let inside = |span: &Span| span.from.checked_add(span.len).is_some_and(|end| end <= source.len as u64);
    if !spans.iter().all(inside) {
        return Err(ofi::Error::new(Errno::EFAULT));
    }
    let piece = |span: &Span| Piece::new(source.addr.wrapping_add(span.from as usize), span.len as usize);
    Ok(spans.iter().map(piece).collect())
}

/// Whether a node of shared memory is an arbitrary name, as in C libfabric, and not an address of this host.
fn is_name(node: &str) -> bool {
    let is_host = || nix::unistd::gethostname().is_ok_and(|host| host == node);
    node.parse::<IpAddr>().is_err() && node != "localhost" && !is_host()
}

/// The first endpoint that the provider offers, and whether it has remote writes.
fn offer(
    provider: Provider,
    node: Option<&str>,
    service: Option<&str>,
    options: &Options,
) -> Result<(Info, bool)> {
    let mut hints = Hints::default();
    if let Some(key) = &options.key {
        hints = hints.auth_key(key.bytes());
    }
    let wanted = &mut hints.info;
    wanted.fabric_attr.prov_name = provider.of_stack().into();
    wanted.ep_attr.ep_type = EpType::Rdm;
    wanted.domain_attr.threading = Threading::Safe;
    wanted.domain_attr.mr_mode = MR_MODE;
    if provider == Provider::Shm && node.is_some_and(is_name) {
        wanted.addr_format = AddrFormat::Str;
    }
    let is_bound = node.is_some() || service.is_some();
    let flags = if is_bound { GetinfoFlags::SOURCE } else { GetinfoFlags::empty() };
    let mut ask = |caps| {
        hints.info.caps = caps;
        ofi::getinfo(Version::API, node, service, flags, Some(&hints)).map(|infos| infos.into_iter().next())
    };
    let answer = if options.messages_only { Ok(None) } else { ask(Caps::MSG | Caps::RMA) };
    if let Ok(Some(info)) = answer {
        return Ok((info, true));
    }
    match (ask(Caps::MSG), answer) {
        (Ok(Some(info)), _) => Ok((info, false)),
        // The error about remote writes explains more.
        (_, Err(error)) | (Err(error), _) => Err(Error::stack("getinfo")(error)),
        (Ok(None), _) => {
            let key = if options.key.is_some() { " with an authorization key" } else { "" };
            Err(Error::Argument(format!("provider {provider} offers no endpoint{key} here")))
        }
    }
}

/// An operation in flight.
struct Flight {
    begun: Begun,
    /// The buffer of a message.
    raw: Option<RawBuffer>,
}

/// An endpoint with its resources.
///
/// Each peer has its share of the endpoint's operations (`accounts.rs`), whatever its end calls: the operations of one
/// that does not run stay in the endpoint for as long as its process lives.
pub(crate) struct Link {
    endpoint: Option<Arc<dyn Endpoint>>,
    cq: Arc<dyn CompletionQueue>,
    av: Arc<dyn AddressVector>,
    domain: Arc<dyn Domain>,
    _fabric: Arc<dyn Fabric>,
    /// The format of its address, and the address.
    pub name: (u32, Vec<u8>),
    needs_desc: bool,
    /// Whether remote writes are available; otherwise messages carry payloads.
    pub writes: bool,
    /// Limit of one write, or one message.
    longest: usize,
    pieces: usize,
    /// The memory of all receives, side by side. From malloc it would cost an idle end more: where glibc takes it from
    /// the heap, `calloc` clears up to 132 KiB of it.
    receives: Pages,
    /// Bytes of each receive.
    pub receive: usize,
    unposted: VecDeque<usize>,
    flights: HashMap<OpId, Flight>,
    accounts: LinkAccounts,
    /// Registrations of source memory, if the provider needs them.
    local: HashMap<usize, Arc<dyn MemoryRegion>>,
    next: OpId,
    /// The process of the endpoint.
    born: Born,
}

impl Link {
    /// Opens the first endpoint that the provider offers for a node and a service of this host, both optional.
    pub fn open(
        provider: Provider,
        (node, service): (Option<&str>, Option<&str>),
        end: LinkEnd,
        options: &Options,
    ) -> Result<Self> {
        let (mut info, writes) = offer(provider, node, service, options)?;
        let longest = info.ep_attr.max_msg_size.min(options.max_message.unwrap_or(usize::MAX));
        if longest < MAX_MESSAGE_LEN {
            let what = format!(
                "messages of at most {longest} bytes, but {MAX_MESSAGE_LEN} are needed: raise max_message"
            );
            return Err(Error::Argument(what));
        }
        // The stack then enforces the limit.
        info.ep_attr.max_msg_size = longest;
        info.tx_attr.inject_size = info.tx_attr.inject_size.min(longest);
        let tx = &info.tx_attr;
        let accounts = LinkAccounts::new(tx.size);
        let pieces = if writes { tx.iov_limit.min(tx.rma_iov_limit) } else { tx.iov_limit.saturating_sub(1) };
        let receive = if end == LinkEnd::Target { longest.min(MAX_PIECE_LEN) } else { MAX_MESSAGE_LEN };
        let fabric = ofi::open_fabric(&info).map_err(Error::stack("open the fabric"))?;
        let domain = fabric.open_domain(&info).map_err(Error::stack("open the domain"))?;
        let endpoint = domain.open_endpoint(&info).map_err(Error::stack("open the endpoint"))?;
        // Waited for by all of its descriptors: a set that unites them would be one more of each end.
        let attr = CqAttr { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::Unspec, wait_set: None };
        let cq = domain.open_cq(&attr).map_err(Error::stack("open the queue"))?;
        let attr = AvAttr { av_type: info.domain_attr.av_type, ..AvAttr::default() };
        let av = domain.open_av(&attr).map_err(Error::stack("open the address vector"))?;
        let bound = endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV);
        bound.and_then(|()| endpoint.bind_av(&av)).map_err(Error::stack("bind the endpoint"))?;
        endpoint.enable().map_err(Error::stack("enable the endpoint"))?;
        let name = endpoint.name().map_err(Error::stack("name the endpoint"))?;
        if name.bytes().len() > MAX_ADDRESS_LEN {
            let len = name.bytes().len();
            return Err(Error::Argument(format!("an address of {len} bytes: at most {MAX_ADDRESS_LEN} fit")));
        }
        let mut link = Self {
            name: (name.format().as_c(), name.bytes().to_vec()),
            needs_desc: info.domain_attr.mr_mode.contains(MrMode::LOCAL),
            endpoint: Some(endpoint),
            cq,
            av,
            domain,
            _fabric: fabric,
            writes,
            longest,
            pieces: pieces.clamp(1, PIECES),
            // Pages that no message reaches are never touched.
            receives: Pages::new(RECEIVES * receive, false).map_err(Error::stack("map the receives"))?,
            receive,
            unposted: (0..RECEIVES).collect(),
            flights: HashMap::new(),
            accounts,
            local: HashMap::new(),
            next: 0,
            born: Born::here(),
        };
        link.post_receives()?;
        Ok(link)
    }

    /// Whether this is the process that opened it, and not a forked child.
    pub fn is_here(&self) -> bool {
        self.born.is_here()
    }

    /// The link's queue, to sleep on.
    pub fn queue(&self) -> Arc<dyn CompletionQueue> {
        Arc::clone(&self.cq)
    }

    fn endpoint(&self) -> Result<Arc<dyn Endpoint>, ofi::Error> {
        self.endpoint.clone().ok_or_else(|| ofi::Error::new(Errno::EOPBADSTATE))
    }

    /// Whether writes or messages of this end are under way.
    pub fn is_sending(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Operations of this end under way to a peer.
    pub fn operations(&self, peer: FiAddr) -> usize {
        self.accounts.operations(peer)
    }

    /// Whether the endpoint has no place for another operation, whatever its peer.
    pub fn is_full(&self) -> bool {
        self.accounts.are_full()
    }

    /// Whether greetings have no place, whatever their peer.
    pub fn is_full_of_greetings(&self) -> bool {
        self.accounts.are_full_of_greetings()
    }

    /// Whether there is room for a refusal or a farewell.
    pub fn takes_refusals(&self) -> bool {
        self.accounts.take_refusals()
    }

    /// Whether the answer to a peer's greeting may be under way, or wait for a place of the endpoint.
    pub fn takes_answer(&self, peer: FiAddr) -> bool {
        self.accounts.may_greet(peer)
    }

    /// What an end waits for that had no room for an operation of this kind to a peer.
    pub fn wait_for_room(&self, peer: FiAddr, kind: MessageKind) -> WaitFor {
        // The end of an operation gives back its place, and the queue announces it.
        if self.accounts.has_place(peer, kind) { WaitFor::Room } else { WaitFor::Announced }
    }

    /// Records that an operation has begun.
    fn begun(&mut self, id: OpId, (peer, kind): (FiAddr, MessageKind), raw: Option<RawBuffer>) {
        let begun = self.accounts.begin(peer, kind);
        self.flights.insert(id, Flight { begun, raw });
    }

    /// Records that an operation has ended, and frees its message.
    fn ended(&mut self, id: OpId) {
        let Some(Flight { begun, raw }) = self.flights.remove(&id) else { return };
        self.accounts.end(begun);
        if let Some(raw) = raw {
            // SAFETY: the send has ended.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
    }

    /// Operations that begin from now on have higher numbers.
    pub fn newest(&self) -> OpId {
        self.next
    }

    fn id(&mut self) -> OpId {
        // Contexts of receives are small numbers, and are distinguished by their flags; 0 stands for no operation.
        self.next += 1;
        self.next
    }

    fn post_receives(&mut self) -> Result<()> {
        while let Some(&index) = self.unposted.front() {
            let start = self.receives.base().wrapping_add(index * self.receive);
            let pieces = [Piece::new(start, self.receive)];
            // SAFETY: this part of the memory belongs to the receive until the receive has ended, or the endpoint is
            // closed.
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

    /// Inserts a peer's address.
    pub fn insert(&mut self, format: u32, address: &[u8]) -> Result<FiAddr, ofi::Error> {
        let format = AddrFormat::from_c(format).ok_or_else(|| ofi::Error::new(Errno::EINVAL))?;
        // Shared memory takes a host and port of this host as the name of an endpoint. Here both ends have names, so
        // such an address is of another provider's target, and would be greeted for ever.
        if self.name.0 == AddrFormat::Str.as_c() && format != AddrFormat::Str {
            return Err(ofi::Error::new(Errno::EINVAL));
        }
        let inserted = self.av.insert(&[Address::new(format, address)]).pop();
        let number = inserted.unwrap_or_else(|| Err(ofi::Error::new(Errno::EINVAL)))?;
        // As the vector has it: one address may be written in several ways.
        let address = self.av.lookup(number)?;
        self.accounts.insert(number, address.bytes());
        Ok(number)
    }

    /// Removes a peer's address.
    pub fn remove(&mut self, peer: FiAddr) {
        if let Err(error) = self.av.remove(&[peer]) {
            tracing::debug!(target: "mxl::fabrics", %error, "an address could not be removed");
        }
        // The vector gives the number to the next address that is inserted.
        if self.av.lookup(peer).is_err() {
            self.accounts.remove(peer);
        }
    }

    /// The limits of one remote write.
    pub fn write_limits(&self) -> Limits {
        Limits { pieces: self.pieces, bytes: self.longest as u64 }
    }

    /// The limits of one message to a target whose receives have `receive` bytes. `None` for a target that accepts no
    /// payloads in messages: shorter receives than any target has would cut a grain into millions of parts.
    pub fn piece_limits(&self, receive: u64) -> Option<Limits> {
        if receive < MAX_MESSAGE_LEN as u64 {
            return None;
        }
        let most = receive.min(self.longest as u64);
        // One piece is the header before the payload.
        let pieces = self.pieces.min(PIECES - 1);
        let bytes = most.checked_sub(Part::bytes_before(pieces) as u64).filter(|bytes| *bytes > 0)?;
        Some(Limits { pieces, bytes })
    }

    /// Sends a message to a peer. `None` if there is no room now ([`wait_for_room`](Self::wait_for_room)).
    pub fn send(&mut self, peer: FiAddr, message: &Message) -> Result<Option<OpId>, ofi::Error> {
        let is_greeting =
            matches!(message, Message::Hello { .. } | Message::Welcome { .. } | Message::Refused { .. });
        self.send_as(if is_greeting { MessageKind::Greeting } else { MessageKind::Connected }, peer, message)
    }

    /// As [`send`](Self::send), with a place of this kind.
    pub fn send_as(
        &mut self,
        kind: MessageKind,
        peer: FiAddr,
        message: &Message,
    ) -> Result<Option<OpId>, ofi::Error> {
        // SAFETY: only the message is sent.
        unsafe { self.send_bytes((peer, kind), message.encode(), &[], &[]) }
    }

    /// Sends a part of `source` in a message. `None` if there is no room now.
    ///
    /// # Safety
    /// The source stays mapped until the send has ended or the link is closed. Other processes may change it meanwhile.
    pub unsafe fn send_piece(
        &mut self,
        peer: FiAddr,
        source: Memory,
        piece: &Part,
    ) -> Result<Option<OpId>, ofi::Error> {
        if !self.accounts.has_place(peer, MessageKind::Connected) {
            return Ok(None);
        }
        let rest = pieces_of(source, &piece.spans)?;
        let descs =
            if self.needs_desc { vec![self.register(source)?.desc(); rest.len()] } else { Vec::new() };
        // SAFETY: the caller's promise.
        unsafe { self.send_bytes((peer, MessageKind::Connected), piece.encode(), &rest, &descs) }
    }

    /// # Safety
    /// `rest` stays mapped until the send has ended or the link is closed.
    unsafe fn send_bytes(
        &mut self,
        (peer, kind): (FiAddr, MessageKind),
        bytes: Vec<u8>,
        rest: &[Piece],
        descs: &[Desc],
    ) -> Result<Option<OpId>, ofi::Error> {
        let endpoint = self.endpoint()?;
        if !self.accounts.has_place(peer, kind) {
            return Ok(None);
        }
        let raw = bytes.into_raw();
        let pieces = [&[Piece::new(raw.addr(), raw.len())], rest].concat();
        let id = self.id();
        // SAFETY: the buffer belongs to the table until the send has ended, or the endpoint is closed; on an error it
        // was not lent. The rest is the caller's promise.
        let lent = unsafe { Lent::new(&pieces, descs) };
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        let op = SendOp { flags, call: Call::Msg, ..SendOp::new(lent, peer, Context(id as usize)) };
        match endpoint.send(&op) {
            Ok(()) => {
                self.begun(id, (peer, kind), Some(raw));
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
    /// The source stays mapped until the write has ended or the link is closed. Other processes may change it
    /// meanwhile.
    pub unsafe fn write(
        &mut self,
        peer: FiAddr,
        source: Memory,
        to: Remote,
        spans: &[Span],
        data: u64,
    ) -> Result<Option<OpId>, ofi::Error> {
        if !self.accounts.has_place(peer, MessageKind::Connected) {
            return Ok(None);
        }
        let pieces = pieces_of(source, spans)?;
        let endpoint = self.endpoint()?;
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
            Ok(()) => {
                self.begun(id, (peer, MessageKind::Connected), None);
                Ok(Some(id))
            }
            Err(error) if error.is_again() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The registration of source memory.
    fn register(&mut self, source: Memory) -> Result<Arc<dyn MemoryRegion>, ofi::Error> {
        if let Some(there) = self.local.get(&(source.addr as usize)) {
            return Ok(there.clone());
        }
        let pieces = [Piece::new(source.addr, source.len)];
        // SAFETY: the memory is mapped as long as the flow is open, which is longer than the link; no peer may touch
        // it.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::WRITE) };
        let region = self.domain.register(&attr)?;
        self.local.insert(source.addr as usize, region.clone());
        Ok(region)
    }

    /// Drives the endpoint and reports its events. Returns whether there were any.
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

    /// The received bytes.
    pub fn bytes(&self, receive: &Receive) -> &[u8] {
        if receive.index >= RECEIVES {
            return &[];
        }
        let start = self.receives.base().wrapping_add(receive.index * self.receive);
        // SAFETY: the receive has ended and is not posted again before it is released, so this part of the memory is
        // ours alone; pages of the kernel are initialised.
        unsafe { std::slice::from_raw_parts(start, receive.len) }
    }

    /// Permits the next use of the receive.
    pub fn release(&mut self, receive: Receive) {
        self.unposted.push_back(receive.index);
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
            // A message that failed, or was longer than the buffer, does not belong to the protocol.
            let receive = Receive { index, len: result.map_or(0, |(len, _)| len.min(self.receive)) };
            let bytes = self.bytes(&receive);
            if is_piece(bytes) {
                return happened.push(Happened::Piece(receive));
            }
            let message = Message::parse(bytes);
            self.release(receive);
            happened.push(message.map_or(Happened::Nonsense, Happened::Message));
            return;
        }
        let id = context.0 as OpId;
        self.ended(id);
        happened.push(Happened::Ended(id, result.map(|_| ())));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closing the endpoint ends all operations; only then is their memory freed.
        drop(self.endpoint.take());
        if !self.is_here() {
            return; // the parent's endpoint uses the memory, of which a child need not have a mapping
        }
        let sends = self.flights.drain().filter_map(|(_, flight)| flight.raw);
        for raw in sends {
            // SAFETY: the parts are those of a vector, from when it was posted; the endpoint is closed.
            drop(unsafe { Vec::<u8>::from_raw(raw) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    /// Regression test: a target that claimed receives with room for one byte of payload made its initiator cut each
    /// grain into as many parts as bytes, for seconds, while all other targets waited.
    #[test]
    fn a_target_cannot_make_its_initiator_cut_a_grain_into_bytes() {
        let link = Link::open(Provider::Shm, (None, None), LinkEnd::Initiator, &Options::default()).unwrap();
        let too_short = |receive: &u64| link.piece_limits(*receive).is_some();
        assert_eq!((0..MAX_MESSAGE_LEN as u64).find(too_short), None);
        let grain = Span { from: 0, to: 0, len: 5_529_600 };
        for receive in [MAX_MESSAGE_LEN as u64, 4096, 64 << 10, u64::MAX] {
            let limits = link.piece_limits(receive).expect("as long as any target's");
            let parts = shape::parts(&[grain], limits).len();
            assert!(parts <= shape::GRAIN_PARTS, "receives of {receive} bytes: {parts} parts, {limits:?}");
        }
    }
}
