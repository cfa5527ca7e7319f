//! One side's endpoint and queue, and the few calls that measurements need.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ofi::raw::{
    AddrFormat, Address, AddressVector, AvAttr, BindFlags, Call, Caps, CompletionFlags, CompletionQueue,
    Context, CqAttr, CqBuffer, CqFormat, CqMsgEntry, Domain, Endpoint, EpType, Errno, Error, FiAddr,
    GetinfoFlags, Hints, Info, Lent, MemoryRegion, MrMode, OpFlags, Progress, ReceiveOp, RemotePiece, RmaOp,
    SendOp, TagMatch, Threading, Version, WaitObj,
};

use super::lent::{self, Arena, Slots};
use super::message::{Hello, MAX_WINDOW, SPEAKS, Setup};
use super::options::{Kind, Level, Memory};
use crate::failure::{Failure, Result};
use crate::output;

/// The tag of tagged messages; its value is arbitrary.
const TAG: u64 = 0xC0DE;

/// Registration modes that this program supports.
const MR_MODES: MrMode = MrMode::LOCAL.union(MrMode::BASIC_BITS);

/// One side.
pub struct Node {
    // Fields drop in order: the endpoint is closed before the memory that was lent to it is freed.
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn CompletionQueue>,
    av: Arc<dyn AddressVector>,
    /// The newest is in use; older and smaller ones are kept for I1 of `lent.rs`.
    arenas: RefCell<Vec<Rc<Arena>>>,
    domain: Arc<dyn Domain>,
    info: Info,
    peer: FiAddr,
    kind: Kind,
    /// Whether waiting must yield the core.
    pub crowded: bool,
}

/// The offers of getinfo for `setup`, best first.
///
/// # Errors
/// The error of getinfo, with an explanation for an endpoint type that no transport has.
pub fn offers(setup: &Setup) -> Result<Vec<Info>> {
    let [provider, fabric, domain] = &setup.names;
    let message = match setup.kind {
        Kind::Msg => Caps::MSG,
        Kind::Tagged => Caps::TAGGED,
    };
    let threading = match setup.threading {
        Some(Level::Safe) => Threading::Safe,
        Some(Level::Domain) | None => Threading::Domain,
    };
    let ep_type = EpType::from_c(setup.ep_type).unwrap_or_default();
    let mut hints = Hints::new()
        .caps(if setup.rma { message | Caps::RMA } else { message })
        .ep_type(ep_type)
        .provider(provider)
        .fabric(fabric)
        .domain(domain)
        .threading(threading)
        .progress(Progress::Manual)
        .mr_mode(MR_MODES);
    if let Some(source) = &setup.source {
        hints = hints.src_addr(source_address(source)?);
    }
    let get = |hints: &Hints| ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints));
    if ep_type != EpType::Rdm {
        let wanted = "FI_EP_RDM, whose peers this program finds by their addresses";
        let error = Error::wanted(Errno::ENODATA, "endpoint type", wanted, ep_type.to_string(), "use -e rdm");
        return Err(Failure::Stack { doing: "fi_getinfo", error });
    }
    get(&hints).map_err(|error| Failure::Stack { doing: "fi_getinfo", error })
}

/// Parses an address for `-s`: a transport's own form, or a host.
fn source_address(text: &str) -> Result<Address> {
    if text.contains("://") {
        return text.parse().map_err(Failure::stack("reading the source address"));
    }
    let doing = || format!("resolving the source address {text:?}");
    let mut found =
        std::net::ToSocketAddrs::to_socket_addrs(&(text, 0)).map_err(|e| Failure::system(doing(), e))?;
    found
        .next()
        .map(Address::from)
        .ok_or_else(|| Failure::system(doing(), std::io::ErrorKind::NotFound.into()))
}

impl Node {
    /// Opens an endpoint as `info` describes.
    ///
    /// # Errors
    /// The library's error.
    pub fn open(info: &Info, setup: &Setup) -> Result<Node> {
        let fabric = ofi::open_fabric(info).map_err(Failure::stack("fi_fabric"))?;
        let domain = fabric.open_domain(info).map_err(Failure::stack("fi_domain"))?;
        let endpoint = domain.open_endpoint(info).map_err(Failure::stack("fi_endpoint"))?;
        let attr =
            CqAttr { size: 2 * MAX_WINDOW, format: CqFormat::Msg, wait_obj: WaitObj::None, wait_set: None };
        let cq = domain.open_cq(&attr).map_err(Failure::stack("fi_cq_open"))?;
        let av = domain.open_av(&AvAttr::default()).map_err(Failure::stack("fi_av_open"))?;
        endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV).map_err(Failure::stack("fi_ep_bind"))?;
        endpoint.bind_av(&av).map_err(Failure::stack("fi_ep_bind"))?;
        endpoint.enable().map_err(Failure::stack("fi_enable"))?;
        Ok(Node {
            endpoint,
            cq,
            av,
            arenas: RefCell::default(),
            domain,
            info: info.clone(),
            peer: FiAddr::UNSPEC,
            kind: setup.kind,
            crowded: setup.crowded,
        })
    }

    /// The info that the endpoint was opened with.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// This side's first message.
    ///
    /// # Errors
    /// The endpoint does not know its address.
    pub fn hello(&self) -> Result<Hello> {
        let address = self.endpoint.name().map_err(Failure::stack("fi_getname"))?;
        Ok(Hello {
            speaks: SPEAKS,
            host: host(),
            provider: self.info.fabric_attr.prov_name.clone(),
            protocol: self.info.ep_attr.protocol.as_c(),
            kind: self.kind,
            format: address.format().as_c(),
            address: address.bytes().to_vec(),
        })
    }

    /// Prints the nonzero counters of the endpoint and of the path to the peer.
    pub fn tell_counters(&self) {
        let of_peer = self.endpoint.peer_statistics(self.peer).unwrap_or_default();
        for (whose, all) in [("endpoint", self.endpoint.statistics()), ("peer", of_peer)] {
            for counter in all.iter().filter(|counter| counter.value > 0) {
                output::tell(&format!(
                    "{whose}  {:<24} {:>14}  {}",
                    counter.name, counter.value, counter.help
                ));
            }
        }
    }

    /// Inserts the peer's address.
    ///
    /// # Errors
    /// The two sides are incompatible.
    pub fn meet(&mut self, theirs: &Hello) -> Result<()> {
        let ours = self.hello()?;
        let local_only = !self.info.caps.contains(Caps::REMOTE_COMM);
        let mismatch =
            |what: &str, ours: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug, advice: &str| {
                Err(Failure::Peer(format!(
                    "the two sides are incompatible: {what} is {ours:?} here and {theirs:?} there; {advice}"
                )))
            };
        if theirs.speaks != ours.speaks {
            return mismatch(
                "the control protocol",
                &ours.speaks,
                &theirs.speaks,
                "use the same version of both",
            );
        }
        if theirs.protocol != ours.protocol {
            return mismatch("the provider", &ours.provider, &theirs.provider, "give both the same -p");
        }
        if theirs.kind != ours.kind {
            return mismatch("the kind of message", &ours.kind, &theirs.kind, "give both the same -m");
        }
        if local_only && !ours.host.is_empty() && theirs.host != ours.host {
            let advice = format!("provider {} connects only processes of one host", ours.provider);
            return mismatch("the host", &ours.host, &theirs.host, &advice);
        }
        let unknown = || {
            Failure::Peer(format!(
                "this side does not know the format of the peer's address, {}",
                theirs.format
            ))
        };
        let address =
            theirs.address().filter(|address| address.format() != AddrFormat::Unspec).ok_or_else(unknown)?;
        let inserted = self.av.insert(&[address]).pop();
        self.peer = inserted.unwrap_or(Err(Errno::EINVAL.into())).map_err(Failure::stack("fi_av_insert"))?;
        Ok(())
    }

    /// Slots for a job; see [`Slots`].
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn slots(&self, memory: Memory, size: usize, count: usize) -> Result<Slots> {
        Ok(Slots::new(self.arena(memory, lent::room(size, count))?, size, count))
    }

    /// Opens `len` bytes to the peer.
    ///
    /// # Errors
    /// There is not enough memory, or it cannot be registered.
    pub fn expose(&self, memory: Memory, len: usize) -> Result<Arc<dyn MemoryRegion>> {
        self.arena(memory, len)?.expose(&*self.domain)
    }

    fn arena(&self, memory: Memory, len: usize) -> Result<Rc<Arena>> {
        let mut arenas = self.arenas.borrow_mut();
        let fits = |arena: &&Rc<Arena>| arena.kind().0 == memory && arena.kind().1 >= len;
        if let Some(arena) = arenas.iter().find(fits) {
            return Ok(Rc::clone(arena));
        }
        let register = self.info.domain_attr.mr_mode.contains(MrMode::LOCAL);
        // Double the size each time, so that the kept arenas have at most twice the needed memory.
        let len = len.checked_next_power_of_two().unwrap_or(len);
        let arena = Rc::new(Arena::new(&*self.domain, memory, len, register)?);
        arenas.push(Rc::clone(&arena));
        Ok(arena)
    }

    /// Posts a send; `false` if there is no room.
    ///
    /// # Errors
    /// The library's error.
    #[inline]
    pub fn send(&self, buf: Lent<'_>) -> Result<bool> {
        let op = SendOp::new(buf, self.peer, Context(0));
        accepted(match self.kind {
            Kind::Msg => self.endpoint.send(&op),
            Kind::Tagged => self.endpoint.send_tagged(&op, TAG),
        })
    }

    /// Posts a receive, which completes with `context`.
    ///
    /// # Errors
    /// The library's error; a window never fills a receive queue.
    #[inline]
    pub fn receive(&self, buf: Lent<'_>, context: usize) -> Result<()> {
        let op = ReceiveOp::new(buf, Context(context));
        match self.kind {
            Kind::Msg => self.endpoint.receive(&op),
            Kind::Tagged => self.endpoint.receive_tagged(&op, TagMatch { tag: TAG, ignore: 0 }),
        }
        .map_err(Failure::stack("fi_recv"))
    }

    /// Posts a write to the peer's memory, or a read from it; `false` if there is no room.
    ///
    /// # Errors
    /// The library's error.
    #[inline]
    pub fn access(&self, buf: Lent<'_>, remote: &[RemotePiece], write: bool) -> Result<bool> {
        let (context, flags, call) = (Context(0), OpFlags::empty(), Call::Plain);
        let op = RmaOp { buf, remote, peer: self.peer, context, data: 0, flags, call };
        accepted(if write { self.endpoint.write(&op) } else { self.endpoint.read(&op) })
    }

    /// Reads completions; 0 if there are none.
    ///
    /// # Errors
    /// A failed operation.
    #[inline]
    pub fn poll(&self, entries: &mut [CqMsgEntry]) -> Result<usize> {
        match self.cq.read(&mut CqBuffer::new(entries)) {
            Ok(count) => Ok(count),
            Err(error) if error.is_again() => Ok(0),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Drives progress without reading completions.
    ///
    /// # Errors
    /// A failed operation.
    pub fn progress(&self) -> Result<()> {
        self.poll(&mut []).map(drop)
    }

    #[cold]
    fn failed(&self, error: Error) -> Failure {
        let Ok(entry) = self.cq.read_error() else { return Failure::Stack { doing: "fi_cq_read", error } };
        let what = if entry.flags.contains(CompletionFlags::RECV) { "a receive" } else { "a transfer" };
        let why = self.cq.error_text(entry.prov_errno);
        let error = Error::with(entry.err, format!("{what} failed: {why}"));
        Failure::Stack { doing: "fi_cq_readerr", error }
    }
}

#[inline]
fn accepted(answer: ofi::raw::Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.is_again() => Ok(false),
        Err(error) => Err(Failure::Stack { doing: "posting an operation", error }),
    }
}

/// A string that identifies this boot of this host; empty if the system does not report it.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
