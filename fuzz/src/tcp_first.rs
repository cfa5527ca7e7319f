//! What endpoints of provider `tcp` do with the bytes of strangers: one endpoint in the clear and one with an
//! authorization key, hostile sockets that say what the input chooses, and an honest peer of each, which must not
//! notice. Some strangers know the key, and misbehave after the handshake of TLS.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Call, Caps, CompletionQueue, Context, CqAttr, CqBuffer,
    CqTaggedEntry, EpOption, FiAddr, GetinfoFlags, Hints, Lent, MemoryRegion, MrAccess, MrAttr, MrMode,
    OpFlags, Piece, ReceiveOp, RemotePiece, RmaOp, Version,
};
use ofi_tcp::fuzz::Insider;
use ofi_tcp::wire::Identity;
use ofi_tcp::wire::cm::{CmKind, CmMessage};

use super::Input;

/// The authorization key of the sealed endpoints.
const SHARED: &[u8] = b"fuzzing";
/// Length of the registered buffer.
const BUFFER: usize = 64;
const KEY: u64 = 1;
/// Strangers at a time.
const STRANGERS: usize = 4;
/// Polls that find what is ready: of some that read the honest peer's connection, one looks at all others.
const ROUND_POLLS: u32 = 8;
/// Polls that do what is under way.
const SETTLE_POLLS: u32 = 128;
/// How long an honest operation may take.
const HONEST_TIMEOUT: Duration = Duration::from_secs(20);

struct Node {
    endpoint: Arc<dyn ofi::raw::Endpoint>,
    queue: Arc<dyn CompletionQueue>,
    addresses: Arc<dyn AddressVector>,
    _region: Arc<dyn MemoryRegion>,
}

struct Victim {
    node: Node,
    address: SocketAddr,
    honest: Node,
    /// The victim, as the honest peer knows it.
    peer: FiAddr,
    is_sealed: bool,
}

thread_local! {
    /// In the clear, and sealed.
    static VICTIMS: RefCell<[Option<Victim>; 2]> = const { RefCell::new([None, None]) };
}

/// Memory that is never freed, so that a late write does no harm.
fn memory() -> Piece {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    let leaked = || Box::leak(vec![0_u8; BUFFER].into_boxed_slice()).as_mut_ptr().expose_provenance();
    Piece::new(std::ptr::with_exposed_provenance_mut(*MEMORY.get_or_init(leaked)), BUFFER)
}

impl Node {
    fn open(is_sealed: bool) -> ofi::raw::Result<Self> {
        let own = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        let hints = Hints::new().caps(Caps::MSG | Caps::RMA).provider("tcp").src_addr(own);
        let hints = hints.mr_mode(MrMode::empty());
        let hints = if is_sealed { hints.auth_key(SHARED) } else { hints };
        let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints))?;
        let domain = ofi::open_fabric(&infos[0])?.open_domain(&infos[0])?;
        let endpoint = domain.open_endpoint(&infos[0])?;
        endpoint.set_option(EpOption::SharedMemoryPermitted, 0)?;
        let queue = domain.open_cq(&CqAttr::default())?;
        let addresses = domain.open_av(&AvAttr::default())?;
        endpoint.bind_cq(&queue, BindFlags::TRANSMIT | BindFlags::RECV)?;
        endpoint.bind_av(&addresses)?;
        endpoint.enable()?;
        let pieces = [memory()];
        // SAFETY: the memory is never freed, and nothing refers to it.
        let mut attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_WRITE) };
        attr.requested_key = KEY;
        let region = domain.register(&attr)?;
        Ok(Self { endpoint, queue, addresses, _region: region })
    }

    /// Polls, and reads all completions. Returns how many were successful.
    fn poll(&self) -> usize {
        let mut entries = [CqTaggedEntry::EMPTY; 16];
        match self.queue.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => count,
            Err(_) => {
                while self.queue.read_error().is_ok() {}
                0
            }
        }
    }
}

impl Victim {
    fn open(is_sealed: bool) -> ofi::raw::Result<Self> {
        let (node, honest) = (Node::open(is_sealed)?, Node::open(is_sealed)?);
        let name = node.endpoint.name()?;
        let peer = honest.addresses.insert(std::slice::from_ref(&name)).remove(0)?;
        let address = name.to_socket_addr().expect("a socket address");
        let victim = Self { node, address, honest, peer, is_sealed };
        victim.serves();
        Ok(victim)
    }

    /// What its strangers cannot change: an honest peer is served.
    fn serves(&self) {
        let pieces = [memory()];
        // SAFETY: the memory is never freed, and nothing refers to it.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let remote = [RemotePiece { addr: 0, len: BUFFER, key: KEY }];
        let op = RmaOp {
            buf,
            remote: &remote,
            peer: self.peer,
            context: Context(1),
            data: 0,
            flags: OpFlags::DELIVERY_COMPLETE | OpFlags::COMPLETION,
            call: Call::Msg,
        };
        self.honest.endpoint.write(&op).expect("room for a write");
        let begun = Instant::now();
        while self.honest.poll() == 0 {
            self.node.poll();
            assert!(begun.elapsed() < HONEST_TIMEOUT, "an honest peer is not served");
        }
    }

    fn poll(&self, times: u32) {
        for _ in 0..times {
            self.node.poll();
        }
    }

    /// Posts a receive, so that messages have a place.
    fn post(&self) {
        let pieces = [memory()];
        // SAFETY: as above.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let _ = self.node.endpoint.receive(&ReceiveOp::new(lent, Context(2))); // FI_EAGAIN is fine
    }
}

/// A stranger's connection.
struct Stranger {
    socket: TcpStream,
    insider: Option<(Insider, Vec<u8>)>,
    is_inside: bool,
}

impl Stranger {
    fn new(victim: &Victim) -> Option<Self> {
        let socket = TcpStream::connect(victim.address).ok()?;
        socket.set_nonblocking(true).ok()?;
        let insider = Insider::new(&socket, SHARED);
        Some(Self { socket, insider, is_inside: false })
    }

    fn say(&mut self, bytes: &[u8]) {
        let _ = self.socket.write(bytes);
    }

    /// Says bytes as they are, or within a record.
    fn tell(&mut self, bytes: &[u8]) {
        match &mut self.insider {
            Some((insider, _)) if self.is_inside => {
                let record = insider.record(23, bytes);
                self.say(&record);
            }
            _ => self.say(bytes),
        }
    }

    /// Ends the handshake of TLS as a peer with the key does.
    fn enter(&mut self, victim: &Victim) {
        let Some((mut insider, hello)) = self.insider.take().filter(|_| !self.is_inside) else { return };
        self.say(&hello);
        for _ in 0..200 {
            victim.poll(ROUND_POLLS);
            if insider.advance(&self.socket) {
                self.is_inside = true;
                break;
            }
        }
        self.insider = Some((insider, hello));
    }

    /// Whether the victim has answered, or has ended the connection.
    fn is_answered(&mut self) -> bool {
        let read = self.socket.read(&mut [0; 1]).map(|_is_byte| ());
        !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

/// A connection message.
fn message(input: &mut Input<'_>) -> Vec<u8> {
    let (which, port) = (input.byte(), input.short() as u16);
    let kind = [CmKind::Request, CmKind::Response, CmKind::Refusal][usize::from(which) % 3];
    let identity = Identity::new(port, u32::from(which)).encode();
    match which & 16 {
        0 => CmMessage::new(kind, &identity).encode(),
        _ => CmMessage::ours(kind, &identity).encode(),
    }
}

/// Runs an input. Returns how many strangers got an answer, or lost their connection.
pub fn tcp_first(input: &[u8]) -> usize {
    let mut input = Input(input);
    let sealed = usize::from(input.byte() & 1);
    VICTIMS.with_borrow_mut(|victims| {
        let victim = victims[sealed].get_or_insert_with(|| Victim::open(sealed == 1).expect("endpoints"));
        let mut strangers: Vec<Stranger> = Stranger::new(victim).into_iter().collect();
        for _ in 0..64 {
            if input.0.is_empty() {
                break;
            }
            act(victim, &mut strangers, &mut input);
        }
        victim.poll(SETTLE_POLLS);
        let answered = strangers.iter_mut().map(|stranger| usize::from(stranger.is_answered())).sum();
        drop(strangers);
        victim.serves();
        answered
    })
}

fn act(victim: &Victim, strangers: &mut Vec<Stranger>, input: &mut Input<'_>) {
    let what = input.byte();
    if what % 12 == 1 {
        strangers.truncate(STRANGERS - 1);
        strangers.splice(0..0, Stranger::new(victim));
        return;
    }
    let Some(stranger) = strangers.first_mut() else { return };
    match what % 12 {
        0 => victim.poll(ROUND_POLLS),
        2 => {
            let len = input.byte();
            stranger.say(input.bytes(len.into()));
        }
        3 => {
            let (message, len) = (message(input), input.byte());
            let len = if len < 128 { message.len() } else { message.len().min(usize::from(len - 128)) };
            stranger.tell(&message[..len]);
        }
        4 => {
            let at = input.short();
            let hello = stranger.insider.as_ref().map_or(Vec::new(), |(_, hello)| hello.clone());
            stranger.say(&hello[..at.min(hello.len())]);
        }
        5 => {
            // One byte of the first message is another.
            let (at, by) = (input.short(), input.byte());
            let mut hello = stranger.insider.as_ref().map_or(Vec::new(), |(_, hello)| hello.clone());
            let len = hello.len().max(1);
            hello.iter_mut().skip(at % len).take(1).for_each(|byte| *byte ^= by);
            stranger.say(&hello);
        }
        6 if victim.is_sealed => stranger.enter(victim),
        7 => {
            let (kind, len, zeros) = (input.byte(), input.byte(), input.byte());
            let mut bytes = input.bytes(len.into()).to_vec();
            bytes.resize(bytes.len() + 128 * usize::from(zeros), 0);
            if let Some((insider, _)) = stranger.insider.as_mut().filter(|_| stranger.is_inside) {
                let mut record = insider.record(kind, &bytes);
                // Or it is cut, or changed.
                let (how, at) = (input.byte(), input.short());
                match how % 4 {
                    1 => record.truncate(at),
                    2 => record.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= how),
                    _ => {}
                }
                stranger.say(&record);
            }
        }
        8 => drop(stranger.socket.shutdown(Shutdown::Write)),
        9 => drop(strangers.remove(0)),
        10 => victim.post(),
        _ => {
            let len = input.byte();
            stranger.tell(input.bytes(len.into()));
        }
    }
}
