//! Two endpoints of provider `efa` on a simulated device that do what the input says, and a third queue pair whose
//! packets are the input's. Whatever that one sends, all operations between the two end with the right bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ofi::raw::{EpType, Hints, Info, MrMode};
use ofi_efa::srd::{Access, Action, Completion, Device, QueuePair, Region, Segment, Sizes, To, WorkRequest};
use ofi_efa::wire::{Origin, Packet, RawAddress, parse};
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, TestEndpoint};

use super::Input;
use super::two::{self, MAX_OP_LEN, POLLS, STEPS, Two};

/// Length of the longest packet.
const MTU: usize = 8760;
/// Receives and sends of the third queue pair.
const RECEIVES: usize = 32;
const SENDS: usize = 64;

struct Driven;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        let modes = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED;
        Hints::new().provider("efa").ep_type(EpType::Rdm).domain("fuzzed0-rdm").mr_mode(modes)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// The device, one input at a time.
fn device() -> (Arc<SimulatedDevice>, MutexGuard<'static, ()>) {
    static DEVICE: OnceLock<Arc<SimulatedDevice>> = OnceLock::new();
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = DEVICE.get_or_init(|| {
        let device = SimulatedDevice::driven("fuzzed0", Plan::default());
        ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
        // Fails if the library has it already.
        let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
        device
    });
    (Arc::clone(device), alone)
}

fn open() -> TestEndpoint {
    static INFO: OnceLock<Info> = OnceLock::new();
    two::open(&Driven, &INFO)
}

/// The third queue pair. Fields drop in order: the device accesses the memory until the queue pair and the region are
/// destroyed.
struct Stranger {
    qp: Box<dyn QueuePair>,
    region: Box<dyn Region>,
    /// A packet for each receive, and then for each send.
    memory: Vec<u8>,
    /// Sends that may be posted, by the slots of their packets.
    free: Vec<usize>,
    came: VecDeque<Completion>,
    address: RawAddress,
    /// The two endpoints.
    to: [(RawAddress, To); 2],
    /// Message numbers, one sequence for each endpoint.
    numbers: [u32; 2],
}

impl Stranger {
    fn new(device: &Handle, two: &Two) -> Self {
        let mut qp = device
            .open(
                Sizes {
                    sends: SENDS,
                    receives: RECEIVES,
                    inline: 32,
                    unsolicited: device.limits().unsolicited,
                },
                None,
            )
            .expect("a queue pair");
        let address = RawAddress { gid: device.gid(), qpn: qp.qpn(), connid: qp.qkey() };
        let to = [&two.a, &two.b].map(|side| {
            let peer = RawAddress::from_bytes(side.name().bytes()).expect("an address");
            let handle = qp.attach(&peer.gid).expect("a device");
            (peer, To { handle, qpn: peer.qpn, qkey: peer.connid })
        });
        let mut memory = vec![0; (RECEIVES + SENDS) * MTU];
        // SAFETY: the region is dropped before the memory.
        let region = unsafe { device.register(memory.as_mut_ptr(), memory.len(), Access::Local) };
        let region = region.expect("a registration");
        let free = (RECEIVES..RECEIVES + SENDS).collect();
        let came = VecDeque::new();
        let mut stranger = Self { qp, region, memory, free, came, address, to, numbers: [0; 2] };
        (0..RECEIVES).for_each(|id| stranger.receive(id));
        stranger
    }

    /// The slot of a packet.
    fn segment(&mut self, at: usize, len: usize) -> Segment {
        let addr = self.memory[at * MTU..][..MTU].as_mut_ptr();
        Segment { addr, len, lkey: self.region.lkey() }
    }

    fn receive(&mut self, id: usize) {
        let into = self.segment(id, MTU);
        // Some simulated devices accept fewer.
        // SAFETY: registered, and used by nothing else.
        let _ = unsafe { self.qp.receive(&[(id as u64, into)]) };
    }

    /// Drops received packets, and reclaims the slots of sent ones.
    fn poll(&mut self) {
        self.qp.poll(&mut self.came).expect("a device that works");
        while let Some(completion) = self.came.pop_front() {
            match completion {
                Completion::Received { id, .. } => self.receive(id as usize),
                Completion::Sent { id, .. } => self.free.push(id as usize),
                Completion::Written { .. } | Completion::Returned { .. } => {}
            }
        }
    }

    fn send(&mut self, whom: usize, bytes: &[u8]) {
        if bytes.is_empty() || bytes.len() > MTU {
            return;
        }
        let Some(at) = self.free.pop() else { return };
        self.memory[at * MTU..][..bytes.len()].copy_from_slice(bytes);
        let from = self.segment(at, bytes.len());
        let action = Action::Send { from, inline: false, data: None };
        let request = WorkRequest { id: at as u64, to: self.to[whom].1, action };
        // SAFETY: registered, and not accessed until the send has completed.
        unsafe { self.qp.post(&[request]) }.expect("a send");
    }

    /// Sends a packet from the input: unchanged, with its own source, with its own source and next number, or with the
    /// other endpoint's source.
    fn say(&mut self, whom: usize, how: u8, bytes: &[u8]) {
        let Ok((origin, mut packet)) = parse(bytes) else { return self.send(whom, bytes) };
        let origin = match how % 4 {
            0 => return self.send(whom, bytes),
            1 => Origin::Address(self.address),
            2 => {
                if let Packet::Message(message) = &mut packet {
                    message.msg_id = self.numbers[whom];
                    self.numbers[whom] += 1;
                }
                Origin::Address(self.address)
            }
            _ if origin == Origin::Unsaid => origin,
            _ => Origin::Address(self.to[1 - whom].0),
        };
        self.send(whom, &packet.to_vec(origin));
    }
}

/// Runs an input. Returns how many operations between the two endpoints have completed.
pub fn efa_lane(input: &[u8]) -> usize {
    let mut input = Input(input);
    let (device, _alone) = device();
    let flags = input.byte();
    device.begin(Plan {
        seed: u64::from(input.byte()) + 1,
        not_ready: if flags & 1 == 0 { 0 } else { 30 },
        late: if flags & 2 == 0 { 0 } else { 50 },
        rdma: flags & 4 == 0,
        unsolicited: flags & 8 == 0,
        receives: if flags & 16 == 0 { 4096 } else { 16 },
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
                }
            }
            4..=6 => {
                let (how, len) = (input.byte(), input.short());
                stranger.say(usize::from(how / 4 % 2), how, input.bytes(len));
            }
            _ => stranger.poll(),
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
    drop(two);
    drop(stranger);
    begun
}
