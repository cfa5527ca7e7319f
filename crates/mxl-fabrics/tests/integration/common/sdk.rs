//! The C++ SDK's ends of a flow, written from what it does with libfabric: connected endpoints of provider `tcp`
//! or `verbs`, the same calls in the same order, and its trust in what arrives.
#![allow(unsafe_code, dead_code, reason = "each test uses a part")]

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ofi::raw::{
    BindFlags, Call, Caps, CompletionFlags, CompletionQueue, Context, CqAttr, CqBuffer, CqFormat,
    CqTaggedEntry, Domain, Endpoint, EpType, EqAttr, Event, EventKind, EventQueue, Fabric, GetinfoFlags,
    Info, Lent, MemoryRegion, Mode, MrAccess, MrAttr, MrMode, OpFlags, PassiveEndpoint, Piece, ReceiveOp,
    RemotePiece, RmaOp, Version, WaitObj,
};
use ofi::{AddrFormat, Address, Errno, FiAddr, Hints};
use serde_json::{Value, json};

/// Bytes of a slot before the payload.
pub const HEADER: usize = 8192;
/// Pieces of one write, as C's tcp has.
const IOV_LIMIT: usize = 4;

/// A fabric with a domain, as each end opens them.
struct Base {
    info: Info,
    fabric: Arc<dyn Fabric>,
    domain: Arc<dyn Domain>,
}

/// Where a provider has an address in the tests.
pub fn node(provider: &str) -> &'static str {
    if provider == "verbs" { "10.77.0.1" } else { "127.0.0.1" }
}

impl Base {
    fn open(provider: &str, service: Option<&str>, caps: Caps) -> Self {
        let mut hints = Hints::default();
        hints.info.fabric_attr.prov_name = provider.into();
        hints.info.ep_attr.ep_type = EpType::Msg;
        hints.info.domain_attr.mr_mode =
            MrMode::VIRT_ADDR | MrMode::LOCAL | MrMode::ALLOCATED | MrMode::PROV_KEY;
        hints.info.mode = Mode::RX_CQ_DATA;
        hints.info.caps = caps;
        let infos =
            ofi::getinfo(Version::API, Some(node(provider)), service, GetinfoFlags::SOURCE, Some(&hints))
                .unwrap();
        let info = infos.into_iter().next().unwrap();
        let fabric = ofi::open_fabric(&info).unwrap();
        let domain = fabric.open_domain(&info).unwrap();
        Self { info, fabric, domain }
    }

    fn eq(&self) -> Arc<dyn EventQueue> {
        self.fabric.open_eq(&EqAttr { wait_obj: WaitObj::Fd, ..EqAttr::default() }).unwrap()
    }

    fn cq(&self) -> Arc<dyn CompletionQueue> {
        let attr = CqAttr { size: 8, format: CqFormat::Tagged, wait_obj: WaitObj::Fd, wait_set: None };
        self.domain.open_cq(&attr).unwrap()
    }
}

/// Memory of an end, which lives as long as the process: a peer may write it at any time.
#[derive(Clone, Copy)]
pub struct Room {
    addr: *mut u8,
    len: usize,
}

impl Room {
    pub fn new(len: usize) -> Self {
        let all: &'static mut [u8] = Box::leak(vec![0_u8; len].into_boxed_slice());
        Self { addr: all.as_mut_ptr(), len }
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: inside; both ends are driven by this thread, so nobody writes meanwhile.
        (0..len).map(|byte| unsafe { self.addr.wrapping_add(at + byte).read_volatile() }).collect()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (byte, value) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.addr.wrapping_add(at + byte).write_volatile(*value) };
        }
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at, 8).try_into().unwrap())
    }

    pub fn all(&self) -> Piece {
        self.piece(0, self.len)
    }

    fn piece(&self, at: usize, len: usize) -> Piece {
        assert!(at + len <= self.len);
        Piece::new(self.addr.wrapping_add(at), len)
    }
}

fn event(eq: &Arc<dyn EventQueue>) -> Option<Result<Event, Errno>> {
    match eq.read() {
        Ok(event) => Some(Ok(event)),
        Err(error) if error.is_again() => None,
        Err(error) if error == Errno::EAVAIL => Some(Err(eq.read_error().unwrap().err)),
        Err(error) => panic!("{error}"),
    }
}

fn completion(cq: &Arc<dyn CompletionQueue>) -> Option<Result<CqTaggedEntry, Errno>> {
    let mut entries = [CqTaggedEntry::EMPTY; 1];
    match cq.read(&mut CqBuffer::new(&mut entries)) {
        Ok(1) => Some(Ok(entries[0])),
        Ok(_) => None,
        Err(error) if error.is_again() => None,
        Err(error) if error == Errno::EAVAIL => Some(Err(cq.read_error().unwrap().err)),
        Err(error) => panic!("{error}"),
    }
}

/// What a target's queues hold.
enum State {
    Listening { pep: Arc<dyn PassiveEndpoint>, eq: Arc<dyn EventQueue> },
    Accepted { ep: Arc<dyn Endpoint>, eq: Arc<dyn EventQueue>, cq: Arc<dyn CompletionQueue> },
    Connected { ep: Arc<dyn Endpoint>, eq: Arc<dyn EventQueue>, cq: Arc<dyn CompletionQueue> },
    Moving,
}

/// `RCTarget`: one initiator at a time; a new listener after each.
pub struct SdkTarget {
    state: State,
    regions: Vec<Arc<dyn MemoryRegion>>,
    pub rooms: Vec<Room>,
    base: Base,
    is_audio: bool,
    id: u64,
    name: Address,
    provider: String,
}

impl SdkTarget {
    /// With memory for grains of `len` bytes, or, with `entry`, for entries of a bounce buffer.
    pub fn open(id: u64, service: Option<&str>, count: usize, len: usize, is_audio: bool) -> Self {
        Self::open_over("tcp", id, service, (count, len), is_audio)
    }

    /// The same over a provider.
    pub fn open_over(
        provider: &str,
        id: u64,
        service: Option<&str>,
        (count, len): (usize, usize),
        is_audio: bool,
    ) -> Self {
        let base = Base::open(provider, service, Caps::RMA | Caps::REMOTE_WRITE);
        let rooms: Vec<Room> = (0..count).map(|_| Room::new(len)).collect();
        let register = |room: &Room| {
            let pieces = [room.piece(0, len)];
            // SAFETY: it is never freed.
            let mut attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_WRITE) };
            attr.requested_key = getrandom::u64().unwrap();
            base.domain.register(&attr).unwrap()
        };
        let regions = rooms.iter().map(register).collect();
        let mut target = Self {
            state: State::Moving,
            regions,
            rooms,
            name: Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0))),
            base,
            is_audio,
            id,
            provider: provider.into(),
        };
        target.listen();
        target
    }

    fn listen(&mut self) {
        let (pep, eq) = (self.base.fabric.open_passive(&self.base.info).unwrap(), self.base.eq());
        pep.bind_eq(&eq).unwrap();
        pep.listen().unwrap();
        self.name = pep.name().unwrap();
        self.state = State::Listening { pep, eq };
    }

    /// The info, with the keys in the SDK's order.
    pub fn info(&self) -> String {
        let regions: Vec<Value> = self.regions.iter().zip(&self.rooms).map(|(region, room)| {
            json!({ "addr": region.base().to_string(), "len": room.len.to_string(), "rkey": region.key().to_string() })
        }).collect();
        let mut info = json!({
            "addressFormat": self.name.format().as_c(),
            "fabricAddress": STANDARD.encode(self.name.bytes()),
            "id": self.id.to_string(),
            "provider": self.provider,
            "regions": regions,
        });
        if self.is_audio {
            let (count, len) = (self.rooms.len().to_string(), self.rooms[0].len.to_string());
            info["bounceBufferInfo"] = json!({ "entryCount": count, "entrySize": len });
        }
        info.to_string()
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// Posts the receive that the next CQ data consumes, where the provider asks for one.
    fn post_receive(&self, ep: &Arc<dyn Endpoint>) {
        if self.base.info.rx_attr.mode.contains(Mode::RX_CQ_DATA) {
            // SAFETY: there is no memory.
            let lent = unsafe { Lent::new(&[], &[]) };
            ep.receive(&ReceiveOp { call: Call::Msg, ..ReceiveOp::new(lent, Context(9)) }).unwrap();
        }
    }

    /// One step of `readNext`: the CQ data of a completion.
    pub fn read(&mut self) -> Option<u32> {
        let mut data = None;
        self.state = match std::mem::replace(&mut self.state, State::Moving) {
            State::Listening { pep, eq } => match event(&eq) {
                Some(Ok(Event { kind: EventKind::ConnReq, info: Some(info), conn_data, .. })) => {
                    assert!(conn_data.is_empty(), "the SDK connects without data");
                    let (ep, eq, cq) =
                        (self.base.domain.open_endpoint(&info).unwrap(), self.base.eq(), self.base.cq());
                    ep.bind_cq(&cq, BindFlags::RECV).unwrap();
                    ep.bind_eq(&eq).unwrap();
                    match ep.accept(&[0]) {
                        Ok(()) => State::Accepted { ep, eq, cq },
                        Err(_) => State::Listening { pep, eq },
                    }
                }
                _ => State::Listening { pep, eq },
            },
            State::Accepted { ep, eq, cq } => match event(&eq) {
                Some(Ok(event)) if event.kind == EventKind::Connected => {
                    self.post_receive(&ep);
                    State::Connected { ep, eq, cq }
                }
                _ => State::Accepted { ep, eq, cq },
            },
            State::Connected { ep, eq, cq } => {
                if let Some(Ok(entry)) = completion(&cq) {
                    assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA), "{entry:?}");
                    data = Some(u32::try_from(entry.data).unwrap());
                    self.post_receive(&ep);
                    State::Connected { ep, eq, cq }
                } else if matches!(event(&eq), Some(Ok(event)) if event.kind == EventKind::Shutdown) {
                    State::Moving
                } else {
                    State::Connected { ep, eq, cq }
                }
            }
            State::Moving => State::Moving,
        };
        if matches!(self.state, State::Moving) {
            self.listen();
        }
        data
    }

    /// `ReadGrain`: the index and the valid slices, which are written into the header.
    pub fn read_grain(&mut self) -> Option<(u64, u16)> {
        let data = self.read()?;
        let (slot, end) = (data as u16 as usize, (data >> 16) as u16);
        self.rooms[slot].put(26, &end.to_le_bytes());
        Some((self.rooms[slot].u64_at(8), end))
    }

    /// `ReadSamples`: index and count, and the samples of each channel.
    pub fn read_samples(&mut self, channels: usize) -> Option<(u64, u64, Vec<Vec<u8>>)> {
        let entry = self.read()? as usize;
        let (index, count) = (self.rooms[entry].u64_at(0), self.rooms[entry].u64_at(8));
        let len = count as usize * 4;
        let all = (0..channels).map(|channel| self.rooms[entry].get(16 + channel * len, len)).collect();
        Some((index, count, all))
    }
}

/// Where an initiator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Connecting,
    Connected,
    Refused,
    Gone,
}

/// `RCInitiatorEndpoint` with its initiator.
pub struct SdkInitiator {
    ep: Arc<dyn Endpoint>,
    eq: Arc<dyn EventQueue>,
    cq: Arc<dyn CompletionQueue>,
    base: Base,
    regions: Vec<(u64, u64, u64)>,
    pub entry_size: Option<usize>,
    entry: usize,
    pub pending: usize,
    pub stands: Stands,
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_str().unwrap().parse().unwrap()
}

impl SdkInitiator {
    /// Parses an info as the SDK does, and connects.
    pub fn connect(info: &str) -> Self {
        let info: Value = serde_json::from_str(info).unwrap();
        let format = AddrFormat::from_c(info["addressFormat"].as_u64().unwrap() as u32).unwrap();
        let address = STANDARD.decode(info["fabricAddress"].as_str().unwrap()).unwrap();
        let regions = info["regions"].as_array().unwrap();
        let regions =
            regions.iter().map(|of| (number(of, "addr"), number(of, "len"), number(of, "rkey"))).collect();
        let entry_size = info.get("bounceBufferInfo").map(|of| number(of, "entrySize") as usize);
        let base = Base::open(info["provider"].as_str().unwrap(), None, Caps::RMA | Caps::WRITE);
        let (eq, cq) = (base.eq(), base.cq());
        let ep = base.domain.open_endpoint(&base.info).unwrap();
        ep.bind_eq(&eq).unwrap();
        ep.bind_cq(&cq, BindFlags::TRANSMIT).unwrap();
        ep.connect(&Address::new(format, &address), &[]).unwrap();
        Self { ep, eq, cq, base, regions, entry_size, entry: 0, pending: 0, stands: Stands::Connecting }
    }

    pub fn slots(&self) -> usize {
        self.regions.len()
    }

    /// `makeProgress`.
    pub fn progress(&mut self) {
        match event(&self.eq) {
            Some(Ok(event)) if event.kind == EventKind::Connected => self.stands = Stands::Connected,
            Some(Ok(event)) if event.kind == EventKind::Shutdown => self.stands = Stands::Gone,
            Some(Err(_)) if self.stands == Stands::Connecting => self.stands = Stands::Refused,
            Some(Err(_)) => self.stands = Stands::Gone,
            _ => {}
        }
        if let Some(result) = completion(&self.cq) {
            self.pending = self.pending.saturating_sub(usize::from(result.is_ok()));
        }
    }

    /// `fi_writemsg` with the SDK's flags, to offset `to` of a region.
    pub fn write(&mut self, region: usize, to: u64, pieces: &[Piece], data: Option<u64>) {
        let (addr, _, key) = self.regions[region];
        let len = pieces.iter().map(|piece| piece.len).sum();
        let remote = [RemotePiece { addr: addr.wrapping_add(to), len, key }];
        // SAFETY: the pieces are of a `Room`, which is never freed.
        let buf = unsafe { Lent::new(pieces, &[]) };
        let mut flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        if data.is_some() {
            flags |= OpFlags::REMOTE_CQ_DATA;
        }
        let op = RmaOp {
            buf,
            remote: &remote,
            peer: FiAddr(0),
            context: Context(1),
            data: data.unwrap_or(0),
            flags,
            call: Call::Msg,
        };
        // The SDK tells its program, which tries again.
        while let Err(error) = self.ep.write(&op) {
            assert!(error.is_again(), "{error}");
            self.progress();
        }
        self.pending += 1;
    }

    /// `transferGrain`: `from` is the source's slot, header and payload; `planes` the bytes of a slice of each.
    pub fn transfer_grain(
        &mut self,
        from: Room,
        index: u64,
        (start, end): (u16, u16),
        total: u16,
        planes: &[usize],
    ) {
        let slot = (index % self.slots() as u64) as usize;
        if start == 0 && end == total {
            let data = slot as u64 | u64::from(total) << 16;
            return self.write(slot, 0, &[from.piece(0, from.len)], Some(data));
        }
        let mut base = HEADER;
        for (plane, size) in planes.iter().enumerate() {
            let len = usize::from(end - start) * size;
            let (at, len) = match plane {
                0 if start == 0 => (0, len + HEADER),
                _ => (base + usize::from(start) * size, len),
            };
            let is_last = plane + 1 == planes.len();
            let data = slot as u64 | u64::from(end) << 16;
            self.write(slot, at as u64, &[from.piece(at, len)], is_last.then_some(data));
            base += usize::from(total) * size;
        }
    }

    /// `transferSamples`: `channels` are pieces of each channel, in order.
    pub fn transfer_samples(&mut self, index: u64, count: u64, channels: &[(Room, usize, usize)]) {
        let header = Room::new(16);
        header.put(0, &index.to_le_bytes());
        header.put(8, &count.to_le_bytes());
        let mut pieces = vec![header.piece(0, 16)];
        pieces.extend(channels.iter().map(|(room, at, len)| room.piece(*at, *len)));
        let entry = self.entry;
        self.entry = (entry + 1) % self.slots();
        let (mut to, chunks) = (0, pieces.chunks(IOV_LIMIT).count());
        for (at, chunk) in pieces.chunks(IOV_LIMIT).enumerate() {
            self.write(entry, to, chunk, (at + 1 == chunks).then_some(entry as u64));
            to += chunk.iter().map(|piece| piece.len as u64).sum::<u64>();
        }
    }
}
