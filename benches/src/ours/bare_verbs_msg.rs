//! The stand-in of [`super::bare_verbs`] for connected endpoints.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use ofi_verbs::rc::msg::{
    Abilities, Channel, Completions, Connects, IdEvent, Identifier, Pair, PairAttr, Receives, SharedQueue,
};
use ofi_verbs::rc::{CmEventKind, ConnParam, Opcode, Post, Remote, Result, Segment, Work, WorkCompletion};

use super::bare_verbs::{Bare, INLINE, completion, error, silent};

/// An event, with the number of a request's identifier.
struct Told {
    kind: CmEventKind,
    id: usize,
    request: Option<usize>,
    data: Vec<u8>,
}

/// An identifier.
struct Named {
    channel: usize,
    own: SocketAddr,
    far: SocketAddr,
    listens: bool,
    /// The other end, once there is one.
    other: Option<usize>,
    /// The completion queue of its queue pair.
    queue: usize,
    receives: VecDeque<(u64, Segment)>,
}

/// All objects, by their numbers.
#[derive(Default)]
struct Wires {
    channels: Vec<VecDeque<Told>>,
    queues: Vec<VecDeque<WorkCompletion>>,
    ids: Vec<Named>,
}

thread_local! {
    /// A path has one thread. The thread that drives connections finds nothing here, and so leaves them to the path.
    static WIRES: RefCell<Wires> =
        const { RefCell::new(Wires { channels: Vec::new(), queues: Vec::new(), ids: Vec::new() }) };
}

impl Wires {
    fn tell(&mut self, id: usize, kind: CmEventKind, data: &[u8]) {
        let channel = self.ids[id].channel;
        self.channels[channel].push_back(Told { kind, id, request: None, data: data.to_vec() });
    }

    fn tell_other(&mut self, id: usize, kind: CmEventKind, data: &[u8]) {
        if let Some(other) = self.ids[id].other {
            self.tell(other, kind, data);
        }
    }

    fn add(&mut self, channel: usize, own: SocketAddr, far: SocketAddr) -> usize {
        let (other, queue, receives) = (None, 0, VecDeque::new());
        self.ids.push(Named { channel, own, far, listens: false, other, queue, receives });
        self.ids.len() - 1
    }
}

impl Connects for Bare {
    fn abilities(&self) -> Result<Abilities> {
        let (queue, shared, completions) = (1024, 4096, 1 << 16);
        Ok(Abilities { queue, shared, completions, pieces: 4, longest: 1 << 30, retries: 7, atomics: false })
    }

    fn channel(&self) -> Result<Arc<dyn Channel>> {
        let number = WIRES.with_borrow_mut(|wires| {
            wires.channels.push(VecDeque::new());
            wires.channels.len() - 1
        });
        Ok(Arc::new(Events { number, silent: silent()? }))
    }

    fn completions(&self, _entries: usize) -> Result<Arc<dyn Completions>> {
        let number = WIRES.with_borrow_mut(|wires| {
            wires.queues.push(VecDeque::new());
            wires.queues.len() - 1
        });
        Ok(Arc::new(Ends { number, silent: silent()? }))
    }

    fn shared(&self, _receives: usize, _pieces: usize) -> Result<Arc<dyn SharedQueue>> {
        Err(error("ibv_create_srq", libc::EOPNOTSUPP))
    }

    fn create_pair(&self, id: &mut dyn Identifier, attr: &PairAttr) -> Result<()> {
        let any: &mut dyn Any = id;
        let completions: Arc<dyn Any + Send + Sync> = Arc::clone(&attr.completions) as _;
        match (any.downcast_mut::<Id>(), completions.downcast::<Ends>(), &attr.receives) {
            (Some(id), Ok(ends), Receives::Own(_)) => {
                WIRES.with_borrow_mut(|wires| wires.ids[id.number].queue = ends.number);
                id.pair = Some(Half(id.number));
                Ok(())
            }
            _ => Err(error("rdma_create_qp", libc::EXDEV)),
        }
    }
}

struct Events {
    number: usize,
    /// Never become readable.
    silent: [OwnedFd; 2],
}

impl Channel for Events {
    fn bind(self: Arc<Self>, at: SocketAddr) -> Result<Box<dyn Identifier>> {
        let number = WIRES.with_borrow_mut(|wires| {
            let own = SocketAddr::new(at.ip(), 1000 + wires.ids.len() as u16);
            wires.add(self.number, own, own)
        });
        Ok(Box::new(Id { number, pair: None }))
    }

    fn next(self: Arc<Self>) -> Result<Option<IdEvent>> {
        let told = WIRES.with_borrow_mut(|wires| wires.channels.get_mut(self.number)?.pop_front());
        let event = |told: Told| IdEvent {
            kind: told.kind,
            id: told.id,
            request: told.request.map(|number| Box::new(Id { number, pair: None }) as _),
            private_data: told.data,
        };
        Ok(told.map(event))
    }

    fn fd(&self) -> RawFd {
        self.silent[0].as_raw_fd()
    }
}

struct Id {
    number: usize,
    pair: Option<Half>,
}

impl Drop for Id {
    fn drop(&mut self) {
        WIRES.with_borrow_mut(|wires| {
            wires.tell_other(self.number, CmEventKind::Disconnected, &[]);
            let id = &mut wires.ids[self.number];
            id.listens = false;
            id.receives.clear();
            if let Some(other) = id.other.take() {
                wires.ids[other].other = None;
            }
        });
    }
}

// SAFETY: a request is done when it is posted, and receives go with their identifier.
unsafe impl Identifier for Id {
    fn number(&self) -> usize {
        self.number
    }

    fn listen(&self, _backlog: usize) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.ids[self.number].listens = true);
        Ok(())
    }

    fn local_address(&self) -> Option<SocketAddr> {
        WIRES.with_borrow(|wires| Some(wires.ids.get(self.number)?.own))
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        WIRES.with_borrow(|wires| Some(wires.ids.get(self.number)?.far))
    }

    fn migrate(&mut self, channel: &Arc<dyn Channel>) -> Result<()> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(channel) as _;
        let channel = any.downcast::<Events>().map_err(|_| error("rdma_migrate_id", libc::EXDEV))?;
        WIRES.with_borrow_mut(|wires| wires.ids[self.number].channel = channel.number);
        Ok(())
    }

    fn resolve_address(&self, to: SocketAddr, _limit: Duration) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            wires.ids[self.number].far = to;
            wires.tell(self.number, CmEventKind::AddressResolved, &[]);
        });
        Ok(())
    }

    fn resolve_route(&self, _limit: Duration) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell(self.number, CmEventKind::RouteResolved, &[]));
        Ok(())
    }

    fn set_ack_timeout(&self, _code: u8) -> Result<()> {
        Ok(())
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            let (own, far) = (wires.ids[self.number].own, wires.ids[self.number].far);
            let Some(listener) = wires.ids.iter().position(|id| id.listens && id.own == far) else {
                return Err(error("rdma_connect", libc::ECONNREFUSED));
            };
            let channel = wires.ids[listener].channel;
            let new = wires.add(channel, far, own);
            wires.ids[new].other = Some(self.number);
            wires.ids[self.number].other = Some(new);
            let data = param.private_data.to_vec();
            let told = Told { kind: CmEventKind::Request, id: listener, request: Some(new), data };
            wires.channels[channel].push_back(told);
            Ok(())
        })
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            wires.tell(self.number, CmEventKind::Established, &[]);
            wires.tell_other(self.number, CmEventKind::Established, param.private_data);
        });
        Ok(())
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell_other(self.number, CmEventKind::Rejected, private_data));
        Ok(())
    }

    fn disconnect(&self) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell_other(self.number, CmEventKind::Disconnected, &[]));
        Ok(())
    }

    fn pair(&self) -> Option<&dyn Pair> {
        self.pair.as_ref().map(|pair| pair as _)
    }

    fn destroy_pair(&mut self) {
        self.pair = None;
        WIRES.with_borrow_mut(|wires| wires.ids[self.number].receives.clear());
    }
}

/// A queue pair, by the number of its identifier.
struct Half(usize);

// SAFETY: a request is done, and its memory left alone, when it is posted; a receive is written when a send to it is
// posted.
unsafe impl Pair for Half {
    fn number(&self) -> u32 {
        self.0 as u32
    }

    fn inline_size(&self) -> usize {
        INLINE
    }

    fn set_rnr_timer(&self, _code: u8) -> Result<()> {
        Ok(())
    }

    unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()> {
        let here = local.first().copied().ok_or_else(|| error("a request without memory", libc::EINVAL))?;
        let len = here.len as usize;
        let place = |at: Remote| std::ptr::with_exposed_provenance_mut::<u8>(at.addr as usize);
        WIRES.with_borrow_mut(|wires| {
            match work {
                Work::Send(data) => {
                    let Some(other) = wires.ids[self.0].other else {
                        return Err(error("a send", libc::ENOTCONN));
                    };
                    let Some((receive, into)) = wires.ids[other].receives.pop_front() else {
                        return Err(error("a send without a receive", libc::ENOMEM));
                    };
                    // SAFETY: both are lent to this request and that receive, and the paths' messages fit.
                    unsafe { here.addr.copy_to_nonoverlapping(into.addr, len) };
                    let done = completion(receive, Opcode::Receive, other as u32, len);
                    let queue = wires.ids[other].queue;
                    wires.queues[queue].push_back(WorkCompletion { data, ..done });
                }
                // SAFETY: the paths name memory that they have registered, of that length.
                Work::Write(to, None) => unsafe { here.addr.copy_to_nonoverlapping(place(to), len) },
                // SAFETY: as above.
                Work::Read(from) => unsafe { place(from).copy_to_nonoverlapping(here.addr, len) },
                _ => return Err(error("an operation that no path has", libc::EOPNOTSUPP)),
            }
            if !how.quiet {
                let queue = wires.ids[self.0].queue;
                wires.queues[queue].push_back(completion(id, Opcode::Request, self.0 as u32, 0));
            }
            Ok(())
        })
    }

    unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        let into = to.first().copied().ok_or_else(|| error("a receive without memory", libc::EINVAL))?;
        WIRES.with_borrow_mut(|wires| wires.ids[self.0].receives.push_back((id, into)));
        Ok(())
    }
}

struct Ends {
    number: usize,
    /// Never become readable.
    silent: [OwnedFd; 2],
}

// SAFETY: a completion is reported once, with what was written.
unsafe impl Completions for Ends {
    fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> Result<usize> {
        WIRES.with_borrow_mut(|wires| {
            let Some(queue) = wires.queues.get_mut(self.number) else { return Ok(0) };
            let count = queue.len();
            queue.drain(..).for_each(take);
            Ok(count)
        })
    }

    fn resize(&self, _entries: usize) -> Result<()> {
        Ok(()) // it has room for any number
    }

    fn arm(&self) -> Result<()> {
        Ok(())
    }

    fn quiet(&self) {}

    fn fd(&self) -> RawFd {
        self.silent[0].as_raw_fd()
    }

    fn number(&self) -> usize {
        self.number
    }
}
