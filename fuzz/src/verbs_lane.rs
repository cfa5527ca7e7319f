//! Two endpoints of provider `verbs` on a simulated device that do what the input says, and a stranger on another host
//! that connects to them with the input's greetings, sends its records and accesses memory by its keys. Whatever the
//! stranger does, all operations between the two end with the right bytes.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ofi::raw::{AddrFormat, EpType, Hints, Info, MrMode};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, TestEndpoint};
use ofi_verbs::rc::{
    Access, CmEventKind, ConnParam, Connection, Device, Post, Queues, Region, Remote, Segment, Sizes,
    WorkCompletion,
};

use super::Input;
use super::two::{self, MAX_OP_LEN, POLLS, STEPS, Two};

/// Length of the stranger's longest record, which exceeds the receive slots of the two endpoints.
const RECORD: usize = 9000;
/// Receives and requests of the stranger.
const RECEIVES: usize = 32;
const REQUESTS: usize = 64;
/// Connections of the stranger.
const CONNECTIONS: usize = 4;
/// Length of a greeting.
const GREETING: usize = 40;

struct Driven;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        let modes = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED;
        let hints = Hints::new().provider("verbs").ep_type(EpType::Rdm).domain("fuzzed0");
        hints.addr_format(AddrFormat::SockaddrIn).mr_mode(modes)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// The device, one input at a time.
pub fn device() -> (Arc<SimulatedDevice>, MutexGuard<'static, ()>) {
    static DEVICE: OnceLock<Arc<SimulatedDevice>> = OnceLock::new();
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = DEVICE.get_or_init(|| {
        let device = SimulatedDevice::driven("fuzzed0", Plan::default());
        ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
        // Fails if the library has it already.
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
        device
    });
    (Arc::clone(device), alone)
}

fn open() -> TestEndpoint {
    static INFO: OnceLock<Info> = OnceLock::new();
    two::open(&Driven, &INFO)
}

/// A connection of the stranger, with the greeting of its request.
struct Call {
    connection: Box<dyn Connection>,
    greeting: Vec<u8>,
    is_open: bool,
}

/// The stranger. Fields drop in order: the device accesses the memory until connections, queues and the region are
/// destroyed.
struct Stranger {
    calls: VecDeque<Call>,
    queues: Box<dyn Queues>,
    region: Box<dyn Region>,
    /// A record for each receive, and then for each request.
    memory: Vec<u8>,
    /// Requests that may be posted, by the slots of their records.
    free: Vec<usize>,
    came: VecDeque<WorkCompletion>,
    /// The two endpoints.
    to: [SocketAddr; 2],
    attempts: u32,
}

impl Stranger {
    fn new(device: &Handle, two: &Two) -> Self {
        let sizes = Sizes { requests: REQUESTS, receives: RECEIVES, completions: 4096, inline: 0 };
        let queues = device.open(sizes).expect("queues");
        let to = [&two.a, &two.b].map(|side| side.name().to_socket_addr().expect("an address"));
        let mut memory = vec![0; (RECEIVES + REQUESTS) * RECORD];
        // SAFETY: the region is dropped before the memory.
        let region = unsafe { device.register(memory.as_mut_ptr(), memory.len(), Access::RemoteReadWrite) };
        let region = region.expect("a registration");
        let free = (RECEIVES..RECEIVES + REQUESTS).collect();
        let (calls, came) = (VecDeque::new(), VecDeque::new());
        let mut stranger = Self { calls, queues, region, memory, free, came, to, attempts: 0 };
        (0..RECEIVES).for_each(|id| stranger.receive(id));
        stranger
    }

    /// The slot of a record.
    fn segment(&mut self, at: usize, len: usize) -> Segment {
        let addr = self.memory[at * RECORD..][..RECORD].as_mut_ptr();
        Segment { addr, len: len as u32, lkey: self.region.lkey() }
    }

    fn receive(&mut self, id: usize) {
        let into = self.segment(id, RECORD);
        // SAFETY: registered, and used by nothing else.
        unsafe { self.queues.receive(id as u64, into) }.expect("a receive");
    }

    /// Requests a connection with a correct greeting, with that of one of the two endpoints, or with the input's.
    fn call(&mut self, whom: usize, how: u8, bytes: &[u8]) {
        if self.calls.len() == CONNECTIONS {
            self.calls.pop_front();
        }
        let host = IpAddr::from([10, 9, 0, 1 + how / 64]);
        let mut greeting = bytes[..bytes.len().min(56)].to_vec();
        if !how.is_multiple_of(4) {
            let claimed = if how % 4 == 3 {
                self.to[1 - whom]
            } else {
                SocketAddr::new(host, 1 + u16::from(how / 4 % 4))
            };
            let SocketAddr::V4(claimed) = claimed else { return };
            greeting.resize(GREETING, 0);
            greeting[..4].copy_from_slice(b"ofv1");
            greeting[4..20].copy_from_slice(&claimed.ip().to_ipv6_mapped().octets());
            greeting[20..22].copy_from_slice(&claimed.port().to_be_bytes());
            greeting[22..26].fill(0);
            if how % 4 == 1 {
                self.attempts += 1;
                greeting[26..28].copy_from_slice(&64u16.to_be_bytes());
                greeting[36..40].copy_from_slice(&self.attempts.to_be_bytes());
            }
        }
        let from = SocketAddr::new(host, 0);
        let connection = self.queues.call(from, self.to[whom], Duration::from_secs(1)).expect("a call");
        self.calls.push_back(Call { connection, greeting, is_open: false });
    }

    /// Drops received records, reclaims the slots of sent ones, and advances connections.
    fn poll(&mut self) {
        while let Some(event) = self.queues.event().expect("a device that works") {
            let Some(at) = self.calls.iter().position(|call| call.connection.number() == event.id) else {
                continue;
            };
            let call = &mut self.calls[at];
            let went = match event.kind {
                CmEventKind::AddressResolved => call.connection.resolve_route(Duration::from_secs(1)).is_ok(),
                CmEventKind::RouteResolved => {
                    let param =
                        ConnParam { private_data: &call.greeting, reads: 1, retries: 7, rnr_retries: 7 };
                    call.connection.create_qp().is_ok() && call.connection.connect(param).is_ok()
                }
                CmEventKind::Established => {
                    call.is_open = true;
                    true
                }
                _ => false,
            };
            if !went {
                self.calls.remove(at);
            }
        }
        self.queues.poll(&mut self.came).expect("a device that works");
        while let Some(completion) = self.came.pop_front() {
            match completion.id as usize {
                id if id < RECEIVES => self.receive(id),
                id => self.free.push(id),
            }
        }
    }

    /// Sends bytes, or writes them to or reads them from where the input says, over the latest connection or an earlier
    /// one.
    fn post(&mut self, which: usize, bytes: &[u8], at: Option<(bool, Remote)>) {
        let open = self.calls.iter().rev().filter(|call| call.is_open).count();
        if open == 0 || bytes.len() > RECORD {
            return;
        }
        let Some(id) = self.free.pop() else { return };
        self.memory[id * RECORD..][..bytes.len()].copy_from_slice(bytes);
        let segment = self.segment(id, bytes.len());
        let Some(call) = self.calls.iter().rev().filter(|call| call.is_open).nth(which % open) else {
            return;
        };
        let (id, how) = (id as u64, Post::default());
        let connection = &call.connection;
        let posted = match at {
            // SAFETY: registered, and not accessed until the request has completed.
            None => unsafe { connection.send(id, segment, how) },
            // SAFETY: as above.
            Some((true, to)) => unsafe { connection.write(id, segment, to, how) },
            // SAFETY: as above.
            Some((false, from)) => unsafe { connection.read(id, segment, from) },
        };
        if posted.is_err() {
            self.free.push(id as usize);
        }
    }
}

/// Runs an input. Returns how many operations between the two endpoints have completed.
pub fn verbs_lane(input: &[u8]) -> usize {
    let mut input = Input(input);
    let (device, _alone) = device();
    let flags = input.byte();
    device.begin(Plan {
        seed: u64::from(input.byte()) + 1,
        not_ready: if flags & 1 == 0 { 0 } else { 30 },
        late: if flags & 2 == 0 { 0 } else { 50 },
        slow: if flags & 4 == 0 { 0 } else { 50 },
        inline: if flags & 8 == 0 { 256 } else { 0 },
        cleans: flags & 16 != 0,
        receives: if flags & 32 == 0 { 4096 } else { 64 },
        ..Plan::default()
    });
    let mut two = Two::new(open(), open());
    let mut stranger = Stranger::new(&Handle(Arc::clone(&device)), &two);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        let what = input.byte();
        match what % 8 {
            0..=2 => {
                let (len, times) = (input.short(), usize::from(what / 8 % 4) + 1);
                two.begin(what % 8, (len * times).min(MAX_OP_LEN));
            }
            3 => {
                for _ in 0..=input.byte() {
                    two.poll();
                    stranger.poll();
                }
            }
            4 => {
                let (how, len) = (input.byte(), usize::from(input.byte()));
                stranger.call(usize::from(how / 16 % 2), how, input.bytes(len));
            }
            5 => {
                let (how, len) = (input.byte(), input.short());
                let mut bytes = input.bytes(len).to_vec();
                if how & 1 == 0
                    && let Some(head) = bytes.first_chunk_mut::<8>()
                {
                    // A valid header.
                    (head[1], head[4], head[5], head[6], head[7]) = (head[1] & 31, 0, 0, 0, 0);
                }
                for _ in 0..=how >> 6 {
                    stranger.post(usize::from(how >> 1), &bytes, None);
                }
            }
            6 => {
                let (how, rkey, addr, len) =
                    (input.byte(), input.byte(), input.word(), usize::from(input.byte()));
                let at = Remote { addr, rkey: rkey.into() };
                stranger.post(usize::from(how >> 1), &vec![how; len], Some((how & 1 == 0, at)));
            }
            _ => drop(stranger.calls.pop_back()),
        }
    }
    for _ in 0..POLLS {
        if two.open.is_empty() {
            break;
        }
        two.poll();
        stranger.poll();
    }
    assert!(two.open.is_empty(), "{} operations of the two have not ended", two.open.len());
    let begun = two.begun;
    two.regions.iter().for_each(|region| region.close().expect("closing a registration"));
    drop(stranger);
    // Notifies the two endpoints, so that they do not wait for its replies when they close.
    (0..200).for_each(|_| two.poll());
    drop(two);
    begun
}
