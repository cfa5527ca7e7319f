//! A stand-in for an RDMA device, for counting the library's work above one: reliable datagrams here, connected
//! endpoints in [`super::bare_verbs_msg`], unreliable datagrams in [`super::bare_verbs_ud`]. Its requests complete when
//! they are posted, in this thread, with few instructions. It says nothing about a device's speed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use ofi_verbs::rc::{
    Access, AsyncEvent, CmEventKind, ConnParam, Connection, Device, DeviceLimits, Error, Event, Events,
    Opcode, Post, Queues, Region, Remote, Result, Segment, Sizes, Status, WorkCompletion, msg, ud,
};

/// The name of the device and of its domain.
pub const NAME: &str = "bare-verbs0";
/// Its address, which no interface needs: nothing leaves this thread.
const IP: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);
/// Inline bytes of a request.
pub const INLINE: usize = 256;

/// An endpoint's queues.
#[derive(Default)]
struct Queue {
    port: u16,
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<WorkCompletion>,
    events: VecDeque<Event>,
}

/// One end of a connection.
struct End {
    /// The queues of its endpoint.
    queue: usize,
    /// The other end, once there is one.
    other: Option<usize>,
    /// The address of the other end.
    far: SocketAddr,
}

/// All queues and all ends of connections, by their numbers.
#[derive(Default)]
struct Wires {
    queues: Vec<Queue>,
    ends: Vec<End>,
}

thread_local! {
    /// A path has one thread.
    static WIRES: RefCell<Wires> = const { RefCell::new(Wires { queues: Vec::new(), ends: Vec::new() }) };
}

/// Adds the device to those that provider `verbs` offers.
pub fn add() {
    ofi_verbs::rc::add(Arc::new(Bare));
}

/// The device.
pub struct Bare;

/// A registration. All memory counts as registered.
struct Registered;

// SAFETY: requests are done while they are posted, and no peer's touches anything later.
unsafe impl Region for Registered {
    fn lkey(&self) -> u32 {
        1
    }

    fn rkey(&self) -> u32 {
        1
    }
}

pub fn error(call: &'static str, errno: i32) -> Error {
    Error { call, errno, advice: "this device is a stand-in".into() }
}

/// The ends of a pipe that is never written.
pub fn silent() -> Result<[OwnedFd; 2]> {
    let pipe = std::io::pipe().map_err(|_| error("pipe", libc::EMFILE))?;
    Ok([pipe.0.into(), pipe.1.into()])
}

// SAFETY: a path registers what it uses, and no record is longer than a receive.
unsafe impl Device for Bare {
    fn name(&self) -> String {
        NAME.into()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        vec![IP.into()]
    }

    fn limits(&self) -> Result<DeviceLimits> {
        Ok(DeviceLimits { connections: 1 << 16, requests: 1024, receives: 4096, completions: 1 << 16 })
    }

    unsafe fn register(&self, _addr: *mut u8, _len: usize, _access: Access) -> Result<Box<dyn Region>> {
        Ok(Box::new(Registered))
    }

    fn open(&self, _sizes: Sizes) -> Result<Box<dyn Queues>> {
        let silent = silent()?;
        let number = WIRES.with_borrow_mut(|wires| {
            wires.queues.push(Queue::default());
            wires.queues.len() - 1
        });
        Ok(Box::new(Opened { number, silent }))
    }

    fn events(&self) -> Result<Box<dyn Events>> {
        Ok(Box::new(Quiet))
    }

    fn connects(&self) -> Option<&dyn msg::Connects> {
        Some(self)
    }

    fn datagrams(&self) -> Option<&dyn ud::Datagrams> {
        Some(self)
    }
}

/// No events.
struct Quiet;

impl Events for Quiet {
    fn next(&self) -> Result<Option<AsyncEvent>> {
        Ok(None)
    }

    fn fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

struct Opened {
    number: usize,
    /// Never become readable.
    silent: [OwnedFd; 2],
}

// SAFETY: a receive is written when a send to it is posted, and its completion is reported once, with what was written.
unsafe impl Queues for Opened {
    fn listen(&mut self, _at: SocketAddr) -> Result<SocketAddr> {
        let port = 1 + self.number as u16;
        WIRES.with_borrow_mut(|wires| wires.queues[self.number].port = port);
        Ok(SocketAddr::new(IP.into(), port))
    }

    fn call(&self, _from: SocketAddr, to: SocketAddr, _limit: Duration) -> Result<Box<dyn Connection>> {
        WIRES.with_borrow_mut(|wires| {
            wires.ends.push(End { queue: self.number, other: None, far: to });
            let number = wires.ends.len() - 1;
            wires.tell(number, CmEventKind::AddressResolved, &[]);
            Ok(Box::new(Id(number)) as Box<dyn Connection>)
        })
    }

    fn event(&self) -> Result<Option<Event>> {
        Ok(WIRES.with_borrow_mut(|wires| wires.queues[self.number].events.pop_front()))
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.queues[self.number].receives.push_back((id, into)));
        Ok(())
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        WIRES.with_borrow_mut(|wires| {
            let done = &mut wires.queues[self.number].done;
            let count = done.len();
            into.extend(done.drain(..));
            Ok(count)
        })
    }

    fn arm(&self) -> Result<()> {
        Ok(())
    }

    fn quiet(&self) {}

    fn fd(&self) -> RawFd {
        self.silent[0].as_raw_fd()
    }

    fn event_fd(&self) -> RawFd {
        self.silent[1].as_raw_fd()
    }

    fn has_queue(&self, _number: usize) -> bool {
        false
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The memory of its receives goes next.
        WIRES.with_borrow_mut(|wires| wires.queues[self.number] = Queue::default());
    }
}

/// An end of a connection, by its number.
struct Id(usize);

impl Drop for Id {
    fn drop(&mut self) {
        WIRES.with_borrow_mut(|wires| {
            wires.tell_other(self.0, CmEventKind::Disconnected, &[]);
            if let Some(other) = wires.ends[self.0].other.take() {
                wires.ends[other].other = None;
            }
        });
    }
}

// SAFETY: a request is done, and its memory left alone, when it is posted.
unsafe impl Connection for Id {
    fn number(&self) -> usize {
        self.0
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        WIRES.with_borrow(|wires| Some(wires.ends[self.0].far))
    }

    fn resolve_route(&self, _limit: Duration) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell(self.0, CmEventKind::RouteResolved, &[]));
        Ok(())
    }

    fn create_qp(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_ack_timeout(&self, _code: u8) -> Result<()> {
        Ok(())
    }

    fn set_rnr_timer(&self, _code: u8) -> Result<()> {
        Ok(())
    }

    fn qp(&self) -> Option<(u32, usize)> {
        Some((self.0 as u32, INLINE))
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            let far = wires.ends[self.0].far;
            let Some(queue) = wires.queues.iter().position(|queue| queue.port == far.port()) else {
                return Err(error("rdma_connect", libc::ECONNREFUSED));
            };
            let number = wires.ends.len();
            wires.ends.push(End { queue, other: Some(self.0), far: SocketAddr::new(IP.into(), 0) });
            wires.ends[self.0].other = Some(number);
            let request: Box<dyn Connection> = Box::new(Self(number));
            let private_data = param.private_data.to_vec();
            let event = Event {
                kind: CmEventKind::Request,
                status: 0,
                id: number,
                request: Some(request),
                private_data,
            };
            wires.queues[queue].events.push_back(event);
            Ok(())
        })
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            wires.tell(self.0, CmEventKind::Established, &[]);
            wires.tell_other(self.0, CmEventKind::Established, param.private_data);
        });
        Ok(())
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell_other(self.0, CmEventKind::Rejected, private_data));
        Ok(())
    }

    fn disconnect(&self) -> Result<()> {
        WIRES.with_borrow_mut(|wires| wires.tell_other(self.0, CmEventKind::Disconnected, &[]));
        Ok(())
    }

    unsafe fn send(&self, id: u64, from: Segment, how: Post) -> Result<()> {
        WIRES.with_borrow_mut(|wires| {
            let Some(other) = wires.ends[self.0].other else { return Err(error("a send", libc::ENOTCONN)) };
            let peer = &mut wires.queues[wires.ends[other].queue];
            let Some((receive, into)) = peer.receives.pop_front() else {
                return Err(error("a send without a receive", libc::ENOMEM));
            };
            // SAFETY: both are lent to this request and that receive, and a record fits.
            unsafe { from.addr.copy_to_nonoverlapping(into.addr, from.len as usize) };
            let len = from.len as usize;
            peer.done.push_back(completion(receive, Opcode::Receive, other as u32, len));
            wires.end(self.0, id, how);
            Ok(())
        })
    }

    unsafe fn write(&self, id: u64, from: Segment, to: Remote, how: Post) -> Result<()> {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(to.addr as usize);
        // SAFETY: the paths name memory that they have registered, of that length.
        unsafe { from.addr.copy_to_nonoverlapping(at, from.len as usize) };
        WIRES.with_borrow_mut(|wires| wires.end(self.0, id, how));
        Ok(())
    }

    unsafe fn read(&self, id: u64, into: Segment, from: Remote) -> Result<()> {
        let at = std::ptr::with_exposed_provenance::<u8>(from.addr as usize);
        // SAFETY: as above.
        unsafe { at.copy_to_nonoverlapping(into.addr, into.len as usize) };
        WIRES.with_borrow_mut(|wires| wires.end(self.0, id, Post::default()));
        Ok(())
    }
}

impl Wires {
    /// An event for the endpoint of an end.
    fn tell(&mut self, end: usize, kind: CmEventKind, private_data: &[u8]) {
        let event = Event { kind, status: 0, id: end, request: None, private_data: private_data.to_vec() };
        self.queues[self.ends[end].queue].events.push_back(event);
    }

    fn tell_other(&mut self, end: usize, kind: CmEventKind, private_data: &[u8]) {
        if let Some(other) = self.ends[end].other {
            self.tell(other, kind, private_data);
        }
    }

    /// Completes a request.
    fn end(&mut self, end: usize, id: u64, how: Post) {
        if !how.quiet {
            let queue = self.ends[end].queue;
            self.queues[queue].done.push_back(completion(id, Opcode::Request, end as u32, 0));
        }
    }
}

/// The completion of a request, or of a receive of `len` bytes, of queue pair `qp`.
pub fn completion(id: u64, opcode: Opcode, qp: u32, len: usize) -> WorkCompletion {
    WorkCompletion {
        id,
        status: Status::SUCCESS,
        opcode,
        len,
        qp,
        data: None,
        source_qp: 0,
        lid: 0,
        has_route: false,
    }
}
