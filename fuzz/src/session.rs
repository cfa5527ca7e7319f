//! An endpoint over sockets, and a hostile peer inside a session with it, in the clear or sealed. The input chooses the
//! peer's frames and records, of any kind and order, for operations and regions that exist.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Call, Caps, CompletionQueue, Context, CqAttr, CqBuffer,
    CqTaggedEntry, FiAddr, GetinfoFlags, Hints, Lent, MemoryRegion, MrAccess, MrAttr, MrMode, OpFlags, Piece,
    ReceiveOp, RemotePiece, RmaOp, SendOp, TagMatch, Version,
};
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Frame, Params, Record, record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Limits, Lost, Security, Sender, Stream, suites};

use super::Input;

/// Length of each buffer.
const BUFFER: usize = 40 << 10;
/// Keys of the registered buffers, which a hostile peer therefore knows: one that it may write and read, and one that
/// it may only read.
const KEYS: [u64; 2] = [1, 2];
/// The contents of the read-only buffer.
const UNCHANGED: u8 = 0xA5;
/// The authorization key of the sealed session.
const SHARED: &[u8] = b"fuzzing";
/// Polls that establish a session on any machine.
const MEETING: u32 = 10_000;

type AnyEndpoint = Arc<dyn ofi::raw::Endpoint>;

struct Victim {
    endpoint: AnyEndpoint,
    queue: Arc<dyn CompletionQueue>,
    _addresses: Arc<dyn AddressVector>,
    _regions: [Arc<dyn MemoryRegion>; 2],
    peer: FiAddr,
    /// Its address, and the socket of its hostile peer.
    address: SocketAddr,
    socket: UdpSocket,
    is_sealed: bool,
}

thread_local! {
    /// Unencrypted, and encrypted.
    static VICTIMS: RefCell<[Option<Victim>; 2]> = const { RefCell::new([None, None]) };
}

/// Memory that is never freed, so that a late write does no harm. The sanitizer finds writes outside of it.
/// The first and the second part are registered; the third is the buffer of all operations.
fn memory() -> &'static [Piece; 3] {
    static MEMORY: OnceLock<[Piece; 3]> = OnceLock::new();
    let leaked = |_| Piece::new(Box::leak(vec![UNCHANGED; BUFFER].into_boxed_slice()).as_mut_ptr(), BUFFER);
    MEMORY.get_or_init(|| std::array::from_fn(leaked))
}

impl Victim {
    fn open(is_sealed: bool) -> ofi::raw::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket that does not block");
        let own = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        let caps = Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC;
        let mut hints = Hints::new().caps(caps).provider("udp").src_addr(own).mr_mode(MrMode::empty());
        if is_sealed {
            hints = hints.auth_key(SHARED);
        }
        let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))?;
        let domain = ofi::open_fabric(&infos[0])?.open_domain(&infos[0])?;
        let endpoint = domain.open_endpoint(&infos[0])?;
        let queue = domain.open_cq(&CqAttr::default())?;
        let addresses = domain.open_av(&AvAttr::default())?;
        endpoint.bind_cq(&queue, BindFlags::TRANSMIT | BindFlags::RECV)?;
        endpoint.bind_av(&addresses)?;
        endpoint.enable()?;
        let register = |number: usize, access| {
            // SAFETY: the memory is never freed, and nothing refers to it.
            let mut attr = unsafe { MrAttr::new(&memory()[number..=number], access) };
            attr.requested_key = KEYS[number];
            domain.register(&attr)
        };
        let regions = [
            register(0, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)?,
            register(1, MrAccess::REMOTE_READ)?,
        ];
        let address = endpoint.name()?.to_socket_addr().expect("a socket address");
        let peer = Address::from(socket.local_addr().expect("an address"));
        let peer = addresses.insert(std::slice::from_ref(&peer)).remove(0)?;
        Ok(Self {
            endpoint,
            queue,
            _addresses: addresses,
            _regions: regions,
            peer,
            address,
            socket,
            is_sealed,
        })
    }

    /// Polls, and reads all completions.
    fn poll(&self) {
        let mut entries = [CqTaggedEntry::EMPTY; 16];
        for _ in 0..2 {
            match self.queue.read(&mut CqBuffer::new(&mut entries)) {
                Ok(count) => {
                    assert!(
                        entries[..count].iter().all(|entry| entry.len <= BUFFER),
                        "more than there is room for"
                    )
                }
                Err(_) => while self.queue.read_error().is_ok() {},
            }
        }
    }

    /// Posts one of each operation, so that replies can refer to an operation in flight.
    fn post(&self, len: usize) {
        let piece = memory()[2];
        let pieces = [Piece::new(piece.addr, len.min(BUFFER))];
        // SAFETY: the memory is never freed, and nothing refers to it.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let remote = [RemotePiece { addr: 0, len: len.min(BUFFER), key: 7 }];
        // FI_EAGAIN is fine.
        let _ = self.endpoint.receive(&ReceiveOp::new(lent, Context(1)));
        let _ = self.endpoint.receive_tagged(&ReceiveOp::new(lent, Context(2)), TagMatch::default());
        let _ = self.endpoint.send(&SendOp::new(lent, self.peer, Context(3)));
        let rma = |context| RmaOp {
            buf: lent,
            remote: &remote,
            peer: self.peer,
            context: Context(context),
            data: 0,
            flags: OpFlags::empty(),
            call: Call::Plain,
        };
        let _ = self.endpoint.write(&rma(4));
        let _ = self.endpoint.read(&rma(5));
    }
}

/// The first words of the records that the hostile end received; they identify operations.
#[derive(Default)]
struct Heard {
    words: Vec<u64>,
    lost: bool,
}

impl Driver for Heard {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}

    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, record: Record<'_>) -> Flow {
        if let Some(word) = record.body.first_chunk() {
            self.words.push(u64::from_be_bytes(*word));
        }
        Flow::Next
    }

    fn lost(&mut self, _peer: u32, _reason: Lost) {
        self.lost = true;
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(0);
    }
}

struct Hostile<'a> {
    victim: &'a Victim,
    endpoint: Endpoint,
    heard: Heard,
    start: Instant,
    buf: Vec<u8>,
    /// The next offsets of its streams.
    at: [u64; 2],
}

impl<'a> Hostile<'a> {
    /// A new incarnation at the same address, with a session.
    fn meet(victim: &'a Victim, secret: u64) -> Option<Self> {
        let window = 1 << 16;
        let params = Params { window, in_flight: 1 << 20, max_packet: 9_000, liveness_port: 0, flags: 0 };
        let config = Config {
            params,
            congestion: Congestion::Fixed,
            patience: Duration::from_secs(60),
            ack_delay: Duration::from_micros(50),
            max_peers: 4,
            max_of_host: 4,
            idle: Duration::from_secs(600),
            warm_peers: 4,
        };
        let mut endpoint = Endpoint::new(config, [secret, std::process::id().into()]);
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&secret.to_le_bytes());
        let (suites, key) =
            if victim.is_sealed { (suites::ENCRYPTED, SHARED.to_vec()) } else { (suites::ALL, Vec::new()) };
        let security = Security { suites, key, seed, translated: false, limits: Limits::RFC_9001 };
        endpoint.secure(&security).expect("feature `encryption`");
        endpoint.set_addresses(victim.socket.local_addr());
        let (heard, start) = (Heard::default(), Instant::now());
        let mut hostile = Self { victim, endpoint, heard, start, buf: vec![0; 65_536], at: [0, 16] };
        while hostile.victim.socket.recv_from(&mut hostile.buf).is_ok() {} // what is left of the one before
        let (peer, now) = (hostile.endpoint.peer(victim.address).0, hostile.now());
        // A record kind without effect, because payloads need no announcement.
        hostile.endpoint.sender(now, peer)?.bulk.record(20, 0, &[0; 8], 0, None);
        for _ in 0..MEETING {
            hostile.behave();
            victim.poll();
            if hostile.endpoint.is_open(0) && hostile.endpoint.is_drained() {
                return Some(hostile);
            }
        }
        None
    }

    fn now(&self) -> ofi_rdm::Instant {
        ofi_rdm::Instant::from_nanos(1 + self.start.elapsed().as_nanos() as u64)
    }

    /// Acts as an honest peer: receives packets, acknowledges them, and sends its queue.
    fn behave(&mut self) {
        while let Ok((len, from)) = self.victim.socket.recv_from(&mut self.buf) {
            let now = self.now();
            self.endpoint.handle(now, from, &mut self.buf[..len], &mut self.heard);
        }
        let now = self.now();
        self.endpoint.hasten();
        self.endpoint.handle_time(now, &mut self.heard);
        while let Some(sent) = self.endpoint.poll_transmit(now, &mut self.buf, &mut self.heard) {
            let _ = self.victim.socket.send_to(&self.buf[..sent.len], sent.to);
        }
    }

    /// A packet of the session with these frames.
    fn send(&mut self, frames: &[u8]) {
        if let Some(packet) = self.endpoint.forge(0, frames, &mut self.buf) {
            let _ = self.victim.socket.send_to(&self.buf[..packet.len], packet.to);
        }
    }

    /// A packet with bytes of a stream, from `offset` on.
    fn stream(&mut self, stream: Stream, offset: u64, bytes: &[u8]) {
        let mut frame = vec![0u8; bytes.len() + 16];
        if let Some(len) = (Frame::Data { stream, offset, bytes }).write(&mut frame) {
            self.send(&frame[..len]);
        }
    }

    /// A word of a record, usually a meaningful one.
    fn word(&self, input: &mut Input<'_>) -> u64 {
        let which = input.byte();
        match which % 8 {
            0 => input.word(),
            1 | 2 => KEYS[usize::from(which / 8) % KEYS.len()],
            3 | 4 => {
                let heard = &self.heard.words;
                heard.len().checked_sub(1 + usize::from(which / 8) % 8).map_or(1, |at| heard[at])
            }
            5 => u64::from(which / 8),
            6 => input.short() as u64,
            _ => (BUFFER as u64).wrapping_sub(u64::from(which / 8)),
        }
    }
}

/// All record kinds of both streams.
const KINDS: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20];

/// Runs an input. Returns whether there was a session.
pub fn session(input: &[u8]) -> bool {
    let mut input = Input(input);
    let sealed = usize::from(input.byte() & 1);
    VICTIMS.with_borrow_mut(|victims| {
        let victim = victims[sealed].get_or_insert_with(|| Victim::open(sealed == 1).expect("an endpoint"));
        static INCARNATIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let number = INCARNATIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let Some(mut hostile) = Hostile::meet(victim, number) else { return false };
        attack(&mut hostile, input);
        victim.poll();
        let kept = memory()[1];
        for at in 0..BUFFER {
            // SAFETY: a byte of memory that is never freed and never written.
            let byte = unsafe { kept.addr.wrapping_add(at).read_volatile() };
            assert_eq!(byte, UNCHANGED, "byte {at} of a region that may only be read");
        }
        true
    })
}

fn attack(hostile: &mut Hostile<'_>, mut input: Input<'_>) {
    for _ in 0..128 {
        if input.0.is_empty() || hostile.heard.lost {
            return;
        }
        let what = input.byte();
        let stream = if what & 1 == 0 { Stream::Commands } else { Stream::Bulk };
        match what / 2 % 8 {
            0 => hostile.victim.poll(),
            1 => {
                let len = if what & 16 == 0 { input.byte().into() } else { input.short() };
                hostile.victim.post(len);
            }
            2 => hostile.behave(),
            3 => {
                let len = input.short() % 2_000;
                hostile.send(input.bytes(len));
            }
            4 => {
                let (ahead, len) = (input.short() as u64, input.byte());
                let offset = hostile.at[stream as usize] + ahead;
                let bytes = input.bytes(len.into()).to_vec();
                hostile.stream(stream, offset, &bytes);
            }
            _ => {
                let (kind, flags) = (input.byte(), input.byte() & 31);
                let kind = if kind & 128 == 0 { KINDS[usize::from(kind) % KINDS.len()] } else { kind };
                let (words, len) = (input.byte() % 16, input.short() % 9_000);
                let mut body = Vec::new();
                for _ in 0..words {
                    body.extend_from_slice(&hostile.word(&mut input).to_be_bytes());
                }
                body.extend_from_slice(input.bytes(len & 63));
                body.resize(body.len() + (len >> 6 << 6), what); // without a byte of input for each
                let mut bytes = record::head(kind, flags, body.len()).to_vec();
                bytes.extend_from_slice(&body);
                let offset = hostile.at[stream as usize];
                hostile.at[stream as usize] += bytes.len() as u64;
                for (number, part) in bytes.chunks(1_100).enumerate() {
                    hostile.stream(stream, offset + 1_100 * number as u64, part);
                }
            }
        }
    }
}
