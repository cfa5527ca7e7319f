//! One side of a measurement: an endpoint with its queues, and the few calls that measurements need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Caps, CompletionQueue, Context, CqAttr, CqBuffer,
    CqTaggedEntry, Domain, Endpoint, EpOption, EpType, EqAttr, Event, EventKind, EventQueue, FiAddr,
    GetinfoFlags, Hints, Info, Lent, MrMode, Piece, Progress, ReceiveOp, SendOp, TagMatch, Threading,
    Version, WaitObj,
};

use super::{Job, Memory, Provider, Test};
use crate::{Error, Result, link::Link};

/// Time without progress after which a measurement fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Node {
    pub endpoint: Arc<dyn Endpoint>,
    pub tx: Arc<dyn CompletionQueue>,
    pub rx: Arc<dyn CompletionQueue>,
    pub domain: Arc<dyn Domain>,
    pub peer: FiAddr,
    pub av: Arc<dyn AddressVector>,
    /// Present for collectives.
    events: Option<Arc<dyn EventQueue>>,
}

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// Memory of one side, which is never freed.
pub struct Arena {
    pub base: *mut u8,
    pub len: usize,
}

impl Node {
    /// Opens this side, with `more` than the usual capabilities, and inserts the other's address.
    pub fn open(more: Caps, job: &Job, link: &mut Link, wait: WaitObj) -> Result<Self> {
        let mut node = Self::alone(&Self::hints(job, more)?, more, job, wait)?;
        let name = node.endpoint.name().map_err(stack)?;
        let theirs: String = link.exchange(&name.to_string())?;
        node.insert(&theirs.parse().map_err(stack)?)?;
        Ok(node)
    }

    /// The hints of a job, with `more` than the usual capabilities.
    pub fn hints(job: &Job, more: Caps) -> Result<Hints> {
        let hints = Hints::new()
            .caps(Caps::MSG | Caps::TAGGED | Caps::RMA | more)
            .mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY)
            .threading(match job.threading {
                super::Threading::Domain => Threading::Domain,
                super::Threading::Safe => Threading::Safe,
            })
            .rx_size(if job.posted() > 1024 { job.posted() + 64 } else { 0 });
        let hints = match job.provider {
            Provider::Shm => hints.provider("shm"),
            Provider::Udp | Provider::UdpSealed | Provider::UdpNearby => {
                let own = Address::from(crate::bare::own_address(0)?);
                let hints = hints.provider("udp").ep_type(EpType::Rdm).src_addr(own);
                if job.provider == Provider::UdpSealed { hints.auth_key(*b"a measurement") } else { hints }
            }
            Provider::Tcp | Provider::TcpSealed => {
                let own = Address::from(crate::bare::own_address(0)?);
                let hints = hints.provider("tcp").ep_type(EpType::Rdm).src_addr(own);
                if job.provider == Provider::TcpSealed { hints.auth_key(*b"a measurement") } else { hints }
            }
        };
        Ok(if job.test == Test::IdleAuto { hints.progress(Progress::Auto) } else { hints })
    }

    /// Opens a side for these hints, without a peer.
    pub fn alone(hints: &Hints, more: Caps, job: &Job, wait: WaitObj) -> Result<Self> {
        let infos =
            ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints)).map_err(stack)?;
        let info = infos.first().ok_or_else(|| Error::Stack("no info".into()))?;
        let fabric = ofi::open_fabric(info).map_err(stack)?;
        let domain = fabric.open_domain(info).map_err(stack)?;
        let endpoint = domain.open_endpoint(info).map_err(stack)?;
        let over_device = matches!(info.fabric_attr.prov_name.as_str(), "efa" | "verbs")
            && info.ep_attr.ep_type == EpType::Rdm;
        let over_sockets = !matches!(job.provider, Provider::Shm | Provider::UdpNearby);
        if over_device || over_sockets {
            endpoint.set_option(EpOption::SharedMemoryPermitted, 0).map_err(stack)?;
        }
        let queue = || domain.open_cq(&CqAttr { wait_obj: wait, ..CqAttr::default() }).map_err(stack);
        let (tx, rx) = (queue()?, queue()?);
        let av = domain.open_av(&AvAttr::default()).map_err(stack)?;
        endpoint.bind_cq(&tx, BindFlags::TRANSMIT).map_err(stack)?;
        endpoint.bind_cq(&rx, BindFlags::RECV).map_err(stack)?;
        endpoint.bind_av(&av).map_err(stack)?;
        let events = match more.contains(Caps::COLLECTIVE) {
            true => Some(fabric.open_eq(&EqAttr::default()).map_err(stack)?),
            false => None,
        };
        events.iter().try_for_each(|events| endpoint.bind_eq(events)).map_err(stack)?;
        endpoint.enable().map_err(stack)?;
        Ok(Self { endpoint, tx, rx, domain, peer: FiAddr::NOTAVAIL, av, events })
    }

    /// Two endpoints of a connection in this process, for these hints.
    pub fn connected(hints: &Hints) -> Result<[Self; 2]> {
        let infos =
            ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints)).map_err(stack)?;
        let info = infos.first().ok_or_else(|| Error::Stack("no info".into()))?;
        let fabric = ofi::open_fabric(info).map_err(stack)?;
        let open = |info: &Info| {
            let domain = fabric.open_domain(info).map_err(stack)?;
            let endpoint = domain.open_endpoint(info).map_err(stack)?;
            let queue = || domain.open_cq(&CqAttr::default()).map_err(stack);
            let (tx, rx) = (queue()?, queue()?);
            endpoint.bind_cq(&tx, BindFlags::TRANSMIT).map_err(stack)?;
            endpoint.bind_cq(&rx, BindFlags::RECV).map_err(stack)?;
            let events = fabric.open_eq(&EqAttr::default()).map_err(stack)?;
            endpoint.bind_eq(&events).map_err(stack)?;
            let av = domain.open_av(&AvAttr::default()).map_err(stack)?;
            Ok::<_, Error>(Self { endpoint, tx, rx, domain, peer: FiAddr::UNSPEC, av, events: Some(events) })
        };
        let requests = fabric.open_eq(&EqAttr::default()).map_err(stack)?;
        let listener = fabric.open_passive(info).map_err(stack)?;
        listener.bind_eq(&requests).map_err(stack)?;
        listener.listen().map_err(stack)?;
        let caller = open(info)?;
        caller.endpoint.connect(&listener.name().map_err(stack)?, &[]).map_err(stack)?;
        let request = caller.event_of(&requests, EventKind::ConnReq)?;
        let asked = request.info.ok_or_else(|| Error::Stack("a request without an info".into()))?;
        let answerer = open(&asked)?;
        answerer.endpoint.accept(&[]).map_err(stack)?;
        for node in [&caller, &answerer] {
            node.wait_event(EventKind::Connected)?;
        }
        Ok([caller, answerer])
    }

    /// Makes the endpoint at this address the other side.
    pub fn insert(&mut self, theirs: &Address) -> Result<()> {
        self.peer = self.av.insert(std::slice::from_ref(theirs)).remove(0).map_err(stack)?;
        Ok(())
    }

    /// Waits for the other side, and meanwhile makes progress here: the other side's last message may need an
    /// acknowledgement.
    pub fn meet(&self, link: &mut Link) -> Result<()> {
        link.barrier(|| _ = self.rx.read(&mut CqBuffer::new(&mut [] as &mut [CqTaggedEntry])))
    }

    /// Allocates and touches memory of the job's kind. It is never freed.
    pub fn memory(&self, job: &Job, len: usize) -> Result<Arena> {
        let base = match job.memory {
            Memory::Application => {
                let layout = std::alloc::Layout::from_size_align(len.max(1), 4096)
                    .map_err(|error| Error::Stack(error.to_string()))?;
                // SAFETY: the size is not zero.
                unsafe { std::alloc::alloc_zeroed(layout) }
            }
            Memory::Huge => {
                const PAGE: usize = 2 << 20;
                let size = len.max(1).next_multiple_of(PAGE);
                let layout = std::alloc::Layout::from_size_align(size, PAGE)
                    .map_err(|error| Error::Stack(error.to_string()))?;
                // SAFETY: the size is not zero.
                let base = unsafe { std::alloc::alloc(layout) };
                // SAFETY: the range was just allocated; the advice changes nothing that it holds.
                unsafe { libc::madvise(base.cast(), size, libc::MADV_HUGEPAGE) };
                base
            }
            Memory::Library => {
                let memory = self.domain.alloc(len.max(1), ofi::raw::Placement::default()).map_err(stack)?;
                let base = memory.as_ptr();
                std::mem::forget(memory);
                base
            }
        };
        // SAFETY: `len` bytes were just allocated, and no other code knows of them.
        unsafe { base.write_bytes(1, len) };
        Ok(Arena { base, len })
    }

    /// Posts a send, and reads the transmit queue while there is no room.
    #[inline]
    pub fn send(&self, piece: Piece, tag: Option<u64>) -> Result<()> {
        let pieces = [piece];
        // SAFETY: arenas live as long as the process, and a measurement does not look at what is in flight.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let op = SendOp::new(lent, self.peer, Context(1));
        let mut since = None;
        loop {
            let sent = match tag {
                None => self.endpoint.send(&op),
                Some(tag) => self.endpoint.send_tagged(&op, tag),
            };
            match sent {
                Ok(()) => return Ok(()),
                Err(error) if error.is_again() => self.patient(&mut since)?,
                Err(error) => return Err(stack(error)),
            }
        }
    }

    /// Posts a receive.
    #[inline]
    pub fn receive(&self, piece: Piece, tag: Option<u64>, context: usize) -> Result<()> {
        let pieces = [piece];
        // SAFETY: as in `send`.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let op = ReceiveOp::new(lent, Context(context));
        match tag {
            None => self.endpoint.receive(&op),
            Some(tag) => self.endpoint.receive_tagged(&op, TagMatch { tag, ignore: 0 }),
        }
        .map_err(stack)
    }

    /// Reads up to `entries.len()` completions; 0 if there are none.
    #[inline]
    pub fn poll(&self, queue: &Arc<dyn CompletionQueue>, entries: &mut [CqTaggedEntry]) -> Result<usize> {
        match queue.read(&mut CqBuffer::new(entries)) {
            Ok(count) => Ok(count),
            Err(error) if error.is_again() => Ok(0),
            Err(error) => Err(self.failed(queue, error)),
        }
    }

    #[cold]
    fn failed(&self, queue: &Arc<dyn CompletionQueue>, error: ofi::raw::Error) -> Error {
        match queue.read_error() {
            Ok(entry) => Error::Stack(format!("{error}: {entry:?}")),
            Err(_) => stack(error),
        }
    }

    /// Waits for one completion. Returns its context.
    #[inline]
    pub fn wait_one(&self, queue: &Arc<dyn CompletionQueue>) -> Result<CqTaggedEntry> {
        let mut entry = [CqTaggedEntry::EMPTY];
        let mut since = None;
        let mut looks = 0u32;
        loop {
            if self.poll(queue, &mut entry)? == 1 {
                return Ok(entry[0]);
            }
            looks += 1;
            if looks.is_multiple_of(1 << 20) {
                self.patient(&mut since)?;
            }
        }
    }

    /// Waits for an event.
    pub fn wait_event(&self, kind: EventKind) -> Result<()> {
        let Some(events) = &self.events else { return Err(Error::Stack("no event queue".into())) };
        self.event_of(events, kind).map(drop)
    }

    /// The next event of a queue, which must be of this kind.
    fn event_of(&self, events: &Arc<dyn EventQueue>, kind: EventKind) -> Result<Event> {
        let mut since = None;
        loop {
            match events.read() {
                Ok(event) if event.kind == kind => return Ok(event),
                Ok(event) => return Err(Error::Stack(format!("an event of another kind: {event:?}"))),
                Err(error) if error.is_again() => {}
                Err(error) => return Err(stack(error)),
            }
            self.poll(&self.rx, &mut [])?;
            self.patient(&mut since)?;
        }
    }

    #[cold]
    fn patient(&self, since: &mut Option<Instant>) -> Result<()> {
        if since.get_or_insert_with(Instant::now).elapsed() > PROGRESS_TIMEOUT {
            return Err(Error::Stack(format!(
                "no progress for {PROGRESS_TIMEOUT:?}: {:?}",
                self.endpoint.statistics()
            )));
        }
        Ok(())
    }
}
