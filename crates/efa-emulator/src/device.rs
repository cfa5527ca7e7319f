//! The device of this process: its objects, under the numbers that programs and peers use.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::formats::{Completion, Gid, RECEIVE, Receive, SendRequest};
use crate::mapping::Mapping;
use crate::memory::SharedMapping;
use crate::packet::Packet;
use crate::random::Random;
use crate::settings::Settings;

/// Maximum number of queue pairs. libefa finds them by their number modulo this.
pub const QUEUE_PAIRS: usize = 256;

/// The device.
pub struct Device {
    pub settings: Settings,
    pub gid: Gid,
    pub socket: UnixDatagram,
    pub random: Random,
    /// Open descriptors of the device.
    pub open: Vec<RawFd>,
    /// Domains, and the descriptor that each belongs to.
    pub domains: HashMap<u32, RawFd>,
    pub regions: HashMap<u32, DeviceRegion>,
    /// The mappings of registered dma-bufs, by key.
    pub mapped: HashMap<u32, Mapping>,
    pub channels: HashMap<RawFd, Channel>,
    /// The channels for asynchronous events.
    pub reports: Vec<RawFd>,
    pub queues: HashMap<u32, CompletionQueue>,
    pub pairs: HashMap<u16, QueuePair>,
    pub handles: HashMap<u32, PeerHandle>,
    /// Mappable memory, by offset in the device's file.
    pub maps: HashMap<u64, Arc<SharedMapping>>,
    /// The last assigned number of an object or offset.
    pub next: u32,
    /// Requests that the peer has not answered, by number.
    pub requests: HashMap<u64, Pending>,
    pub next_token: u64,
    /// Outgoing packets, by peer.
    pub routes: HashMap<Gid, Route>,
    /// Partly received writes: the number of bytes received.
    pub writes: HashMap<(Gid, u64), u64>,
    /// Packets that are delivered late, to reorder them.
    pub late: Vec<(Instant, Vec<u8>)>,
    /// Number of packets in and out.
    pub packets: u64,
    /// Whether the device was mute when last checked, at the time `looked`.
    pub is_mute: bool,
    /// Number of requests so far.
    pub count: u64,
    /// When requests were last checked for timeouts.
    pub looked: Instant,
}

/// Registered memory.
#[derive(Clone, Copy)]
pub struct DeviceRegion {
    pub domain: u32,
    pub start: u64,
    pub len: u64,
    /// The address of its first byte in requests.
    pub named: u64,
    pub access: u32,
}

/// A completion channel: the end that the device writes, and a copy of the end that the program reads.
pub struct Channel {
    pub write: OwnedFd,
    pub read: OwnedFd,
}

/// A completion queue.
pub struct CompletionQueue {
    pub owner: RawFd,
    pub ring: Arc<SharedMapping>,
    pub doorbell: Arc<SharedMapping>,
    pub entries: u32,
    pub entry: usize,
    pub written: u32,
    pub channel: Option<RawFd>,
    /// The number by which events name it to the program.
    pub name: u64,
    pub events: u32,
    /// The doorbell's value for which the last event was sent.
    pub told: u32,
}

/// A queue pair.
pub struct QueuePair {
    pub owner: RawFd,
    pub domain: u32,
    pub state: State,
    pub qkey: u32,
    /// How often a request to a peer without a receive is retried; 7 means without limit.
    pub rnr_retry: u8,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub unsolicited: bool,
    /// Whether it sends and receives unreliable datagrams (UD), and not messages (SRD).
    pub datagrams: bool,
    pub doorbell: Arc<SharedMapping>,
    pub sends: Ring,
    pub receives: Ring,
    /// The limits that were returned to the program.
    pub limits: [u32; 5],
}

/// A queue of descriptors in shared memory.
pub struct Ring {
    pub shared: Option<Arc<SharedMapping>>,
    pub entries: u32,
    /// Bytes of a descriptor.
    pub entry: usize,
    /// Number of descriptors that the program has written, and that the device has read; both wrap.
    pub posted: u16,
    pub taken: u16,
}

/// The offsets of the doorbells in their page.
pub const SEND_DOORBELL: usize = 0;
pub const RECEIVE_DOORBELL: usize = 64;

/// The used states of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Reset,
    Init,
    Receiving,
    Sending,
    Error,
}

/// An address handle. All handles of one domain for one peer have the same number.
pub struct PeerHandle {
    pub domain: u32,
    pub gid: Gid,
    pub number: u16,
}

/// A request that waits for its peer's answer.
pub struct Pending {
    pub pair: u16,
    pub to: Gid,
    pub request: SendRequest,
    /// Bytes of a read that have arrived.
    pub received: u64,
    pub repeats: u32,
    /// When the request was sent, and when the peer was last probed for it.
    pub sent: Instant,
    pub probed: Instant,
    /// When the request will be resent.
    pub again: Option<Instant>,
}

/// Outgoing packets for a peer, in order.
#[derive(Default)]
pub struct Route {
    pub queue: VecDeque<Outgoing>,
    /// Whether any packet of the peer has arrived.
    pub heard: bool,
}

/// An outgoing packet, or several.
pub enum Outgoing {
    /// A packet without payload.
    Packet(Packet),
    /// A datagram, with its header.
    Datagram(Vec<u8>),
    /// The rest of a request, from `offset` on.
    SendRequest { token: u64, offset: u64 },
    /// The rest of a read's answer, from `packet.offset` on. The memory was checked.
    Data { packet: Packet, from: u64 },
}

impl Device {
    /// Creates a device with an address, and a socket of that name.
    ///
    /// # Errors
    /// A text that names what failed, and the reason.
    pub fn new(settings: Settings) -> Result<Self, String> {
        fs::create_dir_all(&settings.dir).map_err(|error| format!("{}: {error}", settings.dir.display()))?;
        let mut random = Random::new(settings.seed ^ u64::from(std::process::id()) << 32);
        let mut chosen = settings.gid;
        for _ in 0..100 {
            let gid = chosen.take().unwrap_or_else(|| local(random.fresh()));
            let path = socket_path(&settings.dir, &gid);
            match bind(&path) {
                Ok(socket) => {
                    return Ok(Self {
                        settings,
                        gid,
                        socket,
                        random,
                        open: Vec::new(),
                        domains: HashMap::new(),
                        regions: HashMap::new(),
                        mapped: HashMap::new(),
                        channels: HashMap::new(),
                        reports: Vec::new(),
                        queues: HashMap::new(),
                        pairs: HashMap::new(),
                        handles: HashMap::new(),
                        maps: HashMap::new(),
                        next: 1,
                        requests: HashMap::new(),
                        next_token: 1,
                        routes: HashMap::new(),
                        writes: HashMap::new(),
                        late: Vec::new(),
                        packets: 0,
                        is_mute: false,
                        count: 0,
                        looked: Instant::now(),
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && settings.gid.is_none() => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Err(format!("{}: found no free address", settings.dir.display()))
    }

    /// A new number.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Creates memory that the program maps at the returned offset.
    ///
    /// # Errors
    /// The error number for the program.
    pub fn map(&mut self, len: usize) -> Result<(u64, Arc<SharedMapping>), i32> {
        let shared = Arc::new(SharedMapping::new(len).map_err(|_| libc::ENOMEM)?);
        Ok((self.name(&shared), shared))
    }

    /// Adds an offset at which this memory can be mapped.
    pub fn name(&mut self, shared: &Arc<SharedMapping>) -> u64 {
        let key = u64::from(self.number()) << 12;
        self.maps.insert(key, Arc::clone(shared));
        key
    }

    /// The address of registered memory in the process, if the whole range is registered in that domain with that
    /// right.
    pub fn find(&self, domain: u32, key: u32, addr: u64, len: u64, right: u32) -> Option<u64> {
        let region = self.regions.get(&key)?;
        let offset = addr.checked_sub(region.named)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= region.len);
        let may = region.domain == domain && region.access & right == right;
        (inside && may).then(|| region.start.wrapping_add(offset))
    }

    /// The number of a domain's address handle for a peer.
    pub fn handle_for(&self, domain: u32, gid: &Gid) -> Option<u16> {
        let mut all = self.handles.values();
        all.find(|handle| handle.domain == domain && handle.gid == *gid).map(|handle| handle.number)
    }

    /// Adds an entry to a completion queue. The queue has the length that the program requested: the program counts
    /// requests in flight.
    pub fn complete(&mut self, queue: u32, completion: &Completion) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        // The phase bit is set in the first round.
        let phase = (queue.written / queue.entries).is_multiple_of(2);
        let at = (queue.written % queue.entries) as usize * queue.entry;
        queue.ring.publish(at, &completion.encode(phase)[..queue.entry]);
        queue.written = queue.written.wrapping_add(1);
    }

    /// Reports an asynchronous event of the device, or of its port, to all programs that have it open.
    pub fn report(&self, event: u8) {
        // struct ib_uverbs_async_event_desc: the port's number and the event's.
        let words = [1, 0, u32::from(event), 0].map(u32::to_ne_bytes).concat();
        for channel in self.reports.iter().filter_map(|file| self.channels.get(file)) {
            // SAFETY: as many bytes as there are. A full pipe means that the program reads no events.
            unsafe { libc::write(channel.write.as_raw_fd(), words.as_ptr().cast(), words.len()) };
        }
    }

    /// Removes a posted receive and returns its id and pieces. `None` if none is posted.
    pub fn take_receive(&mut self, pair: u16) -> Option<(u16, Vec<Receive>)> {
        let ring = &mut self.pairs.get_mut(&pair)?.receives;
        let shared = Arc::clone(ring.shared.as_ref()?);
        let mut pieces = Vec::new();
        let mut taken = ring.taken;
        while taken != ring.posted {
            let at = (u32::from(taken) % ring.entries) as usize * RECEIVE;
            let receive = Receive::parse(&shared.read(at));
            taken = taken.wrapping_add(1);
            pieces.push(receive);
            if receive.last {
                ring.taken = taken;
                return Some((pieces[0].id, pieces));
            }
        }
        None
    }
}

impl CompletionQueue {
    /// Sends an event to the channel, if the program has armed the queue and there are new entries.
    pub fn notify(&mut self, channels: &HashMap<RawFd, Channel>) -> bool {
        let Some(channel) = self.channel.and_then(|channel| channels.get(&channel)) else { return false };
        let word = self.doorbell.load(0);
        let consumed = word as u16;
        if word & ARMED == 0 || self.told == word || consumed == self.written as u16 {
            return false;
        }
        self.told = word;
        let event = self.name.to_ne_bytes();
        // SAFETY: the event has eight bytes.
        let sent = unsafe { libc::write(channel.write.as_raw_fd(), event.as_ptr().cast(), event.len()) };
        self.events += u32::from(sent == event.len() as isize);
        true
    }
}

/// The bit of a completion queue's doorbell that requests an event.
const ARMED: u32 = 1 << 31;

/// The socket of the device with this address.
pub fn socket_path(dir: &Path, gid: &Gid) -> PathBuf {
    dir.join(format!("{:032x}", u128::from_be_bytes(*gid)))
}

fn bind(path: &Path) -> std::io::Result<UnixDatagram> {
    let bound = UnixDatagram::bind(path).or_else(|error| {
        // The socket of a process that has exited refuses the connection.
        let probe = UnixDatagram::unbound()?;
        match probe.connect(path) {
            Err(gone) if gone.kind() == std::io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
                UnixDatagram::bind(path)
            }
            _ => Err(error),
        }
    })?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

/// A link-local address.
fn local(low: u64) -> Gid {
    (0xfe80_u128 << 112 | u128::from(low)).to_be_bytes()
}
