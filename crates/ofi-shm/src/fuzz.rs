//! Entry points for the fuzz targets (`fuzz/`), with the input that a hostile peer can send. Not part of the interface.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ofi_api::{Address, Result};
use ofi_core::auth::Proof;
use ofi_core::cm::packet::Packet;
use ofi_core::hmem::DeviceHandle;
use ofi_ring::record::Producer;

use crate::cma::TokenPage;
use crate::command::{flag, kind};
use crate::control::{self, ControlMessage, Introduction, Terms};
use crate::layout::{LINE, doorbell, endpoint, pair};
use crate::sys::{self, ControlSocket, Mapping, Writers};

/// Lines of the rings for commands and for large payloads.
const LINES: usize = 256;

/// Parses a control datagram or a connection management packet; what parses must encode back to the same bytes. Returns
/// whether it parsed.
///
/// # Panics
/// If the bytes differ.
pub fn control_datagram(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    // 127 stands for the current version, so that a corpus outlives versions.
    if let Some(version) = bytes.get_mut(7).filter(|version| **version & 0x7F == 0x7F) {
        *version = *version & 0x80 | control::VERSION as u8;
    }
    let bytes = &bytes[..];
    let message = ControlMessage::parse(bytes);
    if let Some(message) = message {
        assert_eq!(message.encode(), bytes, "{message:?}");
    }
    let inner = control::packet_in(bytes).map_or(bytes, |(_, packet)| packet);
    let packet = Packet::parse(inner);
    if let Some(packet) = &packet {
        assert_eq!(packet.encode(), inner, "{packet:?}");
    }
    message.is_some() || packet.is_some()
}

/// Every kind of record that there is.
pub const KINDS: [u32; 18] = [
    kind::MESSAGE,
    kind::ANNOUNCE,
    kind::WRITE,
    kind::WRITE_LONG,
    kind::READ,
    kind::NOTICE,
    kind::DONE,
    kind::DONES,
    kind::SEND,
    kind::DATA,
    kind::MESSAGE_PART,
    kind::WRITE_PART,
    kind::READ_PART,
    kind::ATOMIC,
    kind::SHARE,
    kind::OFFER,
    kind::NOTE,
    kind::TAGGED_MESSAGE,
];

/// A ring that a hostile peer writes to.
#[derive(Clone, Copy, Debug)]
pub enum Ring {
    /// Commands.
    Commands,
    /// Replies.
    Replies,
    /// Parts of large payloads.
    Bulk,
}

/// Memory that a hostile peer may write.
#[derive(Clone, Copy, Debug)]
pub enum HostileTarget {
    /// Its words and replies for the victim.
    Pair,
    /// Its ring of commands.
    Commands,
    /// Its ring for large payloads.
    Bulk,
    /// Its endpoint memory: whether it sleeps, which grants hold.
    Endpoint,
    /// The victim's doorbell memory.
    Doorbell,
    /// The victim's ring of commands, which only this peer reads.
    Theirs,
    /// Memory that the victim has granted.
    Granted,
}

impl HostileTarget {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Pair, Self::Commands, Self::Bulk, Self::Endpoint, Self::Doorbell, Self::Theirs, Self::Granted];
}

/// A peer that greets correctly and then writes anything into its own memory.
#[derive(Debug)]
pub struct Hostile {
    name: String,
    socket: ControlSocket,
    victim: Vec<u8>,
    /// See [`Hostile::tempt`].
    page: Option<TokenPage>,
    /// Kept while the victim reads from their mappings.
    rings: Option<Rings>,
}

#[derive(Debug)]
struct Rings {
    commands: Producer,
    replies: Producer,
    bulk: Producer,
    pair: Mapping,
    commands_memory: Mapping,
    bulk_memory: Mapping,
    endpoint: Mapping,
    doorbell: Option<Mapping>,
    theirs: Option<Mapping>,
    granted: Option<Mapping>,
    incarnation: u64,
}

fn memory(len: usize, writers: Writers) -> Result<(OwnedFd, Mapping)> {
    let fd = sys::memfd(c"ofi-shm fuzz", len)?;
    let mapping = Mapping::new(fd.as_fd(), len, true)?;
    sys::seal(&fd, writers)?;
    Ok((fd, mapping))
}

impl Hostile {
    /// A peer of the endpoint at `victim`.
    ///
    /// # Errors
    /// Errors of the socket calls.
    pub fn new(victim: &Address) -> Result<Self> {
        let name = format!("{}hostile:{:016x}", crate::name::SCHEME, sys::random());
        let socket = ControlSocket::bind(&crate::name::socket_name(&Address::from_text(&name))?)?;
        Ok(Self { name, socket, victim: crate::name::socket_name(victim)?, page: None, rings: None })
    }

    /// Lets victims copy from and to its memory from the next greeting on. Use it in a process of its own, because
    /// victims write to that process's memory.
    pub fn tempt(&mut self) {
        self.page = TokenPage::new();
    }

    /// Its address.
    pub fn address(&self) -> Address {
        Address::from_text(&self.name)
    }

    /// Greets the victim as a new incarnation, with empty rings, and waits until it has answered.
    ///
    /// # Errors
    /// Errors of system calls; `FI_EAGAIN` if the victim is silent for a second.
    pub fn greet(&mut self) -> Result<()> {
        let incarnation = sys::random();
        let (pair_fd, pair) = memory(pair::SIZE, Writers::Present)?;
        let (commands_fd, commands_memory) = memory(LINES * LINE, Writers::Any)?;
        let (endpoint_fd, endpoint) = memory(endpoint::SIZE, Writers::Present)?;
        let (doorbell_fd, _doorbell) = memory(doorbell::SIZE, Writers::Any)?;
        let (bulk_fd, bulk_memory) = memory(LINES * 4 * LINE, Writers::Any)?;
        let who = Introduction {
            incarnation,
            command_lines: LINES as u32,
            hint: 0,
            wakes: false,
            proof: Proof::default(),
            token: self.page.as_ref().map(TokenPage::token).unwrap_or_default(),
        };
        let fds = [pair_fd.as_fd(), endpoint_fd.as_fd(), doorbell_fd.as_fd(), commands_fd.as_fd()];
        self.socket.send(&self.victim, &ControlMessage::Hello(who).encode(), &fds)?;
        let bulk = ControlMessage::Bulk { incarnation, lines: 4 * LINES as u32 };
        self.socket.send(&self.victim, &bulk.encode(), &[bulk_fd.as_fd()])?;
        // The answer to this comes after everything sent before has been processed.
        let last = ControlMessage::Request { incarnation, key: u64::MAX, write: false, devices: false };
        self.socket.send(&self.victim, &last.encode(), &[])?;
        let (_, [doorbell, theirs]) = self.await_grant()?;
        let head = pair.word(0); // a word that stays 0: these rings are filled once
        // SAFETY: the mappings stay beside the producers, and there is one for each ring.
        let lines = |memory: &Mapping, offset, count| unsafe { crate::pair::lines(memory, offset, count) };
        // SAFETY: the lines lie in mappings that stay beside the producers, and there is no other producer.
        let commands = unsafe { Producer::new(lines(&commands_memory, 0, LINES)?, head) };
        // SAFETY: as above.
        let replies = unsafe { Producer::new(lines(&pair, pair::REPLIES, pair::REPLY_LINES)?, head) };
        // SAFETY: as above.
        let bulk = unsafe { Producer::new(lines(&bulk_memory, 0, 4 * LINES)?, head) };
        let granted = None;
        self.rings = Some(Rings {
            commands,
            replies,
            bulk,
            pair,
            commands_memory,
            bulk_memory,
            endpoint,
            doorbell,
            theirs,
            granted,
            incarnation,
        });
        Ok(())
    }

    /// Sends the victim a connection management packet of any bytes. Returns whether its socket took it.
    pub fn packet(&self, bytes: &[u8]) -> bool {
        self.socket.send(&self.victim, &control::wrap_packet(Proof::default(), bytes), &[]).is_ok()
    }

    /// Reads the victim's datagrams, so that they do not pile up.
    pub fn drain(&self) {
        let mut buffer = [0; control::MAX_BYTES];
        while self.socket.receive(&mut buffer).is_some() {}
    }

    /// Requests the memory behind `key` for writing. Returns whether it was granted.
    ///
    /// # Errors
    /// As [`Hostile::greet`].
    pub fn seize(&mut self, key: u64) -> Result<bool> {
        let Some(incarnation) = self.rings.as_ref().map(|rings| rings.incarnation) else { return Ok(false) };
        let request = ControlMessage::Request { incarnation, key, write: true, devices: false };
        self.socket.send(&self.victim, &request.encode(), &[])?;
        let (granted, _) = self.await_grant()?;
        let Some(rings) = &mut self.rings else { return Ok(false) };
        rings.granted = granted;
        Ok(rings.granted.is_some())
    }

    /// Tells the victim that the memory behind `key` is a device's, `len` bytes from address `base` on, and waits until
    /// its helper has taken that.
    ///
    /// # Errors
    /// As [`Hostile::greet`].
    pub fn lend_device(&self, key: u64, (base, len): (u64, u64), device: DeviceHandle) -> Result<()> {
        let Some(Rings { incarnation, .. }) = self.rings else { return Ok(()) };
        // No such slot exists.
        let grant = Terms { len, base, slot: u32::MAX - 1, generation: 0, write: true };
        let lent = ControlMessage::Device { incarnation, key, grant, device };
        self.socket.send(&self.victim, &lent.encode(), &[])?;
        self.await_helper(incarnation)
    }

    /// Tells the victim that the registration behind `key` is closed, and waits as [`Hostile::lend_device`] does.
    ///
    /// # Errors
    /// As [`Hostile::greet`].
    pub fn withdraw(&self, key: u64) -> Result<()> {
        let Some(Rings { incarnation, .. }) = self.rings else { return Ok(()) };
        self.socket.send(&self.victim, &ControlMessage::Withdrawn { incarnation, key }.encode(), &[])?;
        self.await_helper(incarnation)
    }

    /// Waits for the answer to a request, which comes after everything sent before has been processed.
    fn await_helper(&self, incarnation: u64) -> Result<()> {
        let last = ControlMessage::Request { incarnation, key: u64::MAX, write: false, devices: false };
        self.socket.send(&self.victim, &last.encode(), &[])?;
        self.await_grant().map(drop)
    }

    /// Claims permanently to copy through the grant of `key`, or with `None` not to.
    pub fn claim(&mut self, key: Option<u64>) {
        let word = key.map_or(0, |key| key % endpoint::GRANT_SLOTS as u64 + 1);
        self.deface(HostileTarget::Pair, pair::COPYING, &word.to_ne_bytes());
    }

    /// Announces a message of `len` bytes that only this peer can copy, and claims for ever to be copying it.
    pub fn write_for_ever(&mut self, len: usize) {
        self.deface(HostileTarget::Pair, pair::WRITING, &1u64.to_ne_bytes()); // a peer's first ticket
        let body: Vec<u8> = [0, len as u64, 0, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
        self.record(Ring::Commands, kind::ANNOUNCE | flag::WRITES, &body);
    }

    /// Waits for the answer to a request: granted memory, and the victim's doorbell memory and ring of commands if they
    /// arrived meanwhile.
    fn await_grant(&self) -> Result<(Option<Mapping>, [Option<Mapping>; 2])> {
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut buffer = [0; control::MAX_BYTES];
        let mut shown = [None, None];
        loop {
            match self.socket.receive(&mut buffer) {
                Some(mut datagram) => {
                    let bytes = &buffer[..datagram.len.min(control::MAX_BYTES)];
                    match ControlMessage::parse(bytes) {
                        Some(ControlMessage::Grant { grant, .. }) => {
                            let map =
                                |fd: OwnedFd| Mapping::new(fd.as_fd(), grant.len as usize, grant.write).ok();
                            let granted = datagram.fds.pop().filter(|_| grant.write).and_then(map);
                            return Ok((granted, shown));
                        }
                        Some(ControlMessage::Welcome(who)) if datagram.fds.len() > 3 => {
                            let ring = who.command_lines as usize * LINE;
                            shown = [(2, doorbell::SIZE), (3, ring)]
                                .map(|(at, len)| Mapping::new(datagram.fds[at].as_fd(), len, true).ok());
                        }
                        _ => {}
                    }
                }
                None if Instant::now() < deadline => std::thread::yield_now(),
                None => return Err(ofi_api::Error::AGAIN),
            }
        }
    }

    /// Sends the victim a control datagram of any bytes. Returns whether its socket took it.
    pub fn datagram(&self, bytes: &[u8]) -> bool {
        self.socket.send(&self.victim, bytes, &[]).is_ok()
    }

    /// Publishes a record, if it fits.
    pub fn record(&mut self, ring: Ring, high: u32, body: &[u8]) {
        let Some(rings) = &mut self.rings else { return };
        let producer = match ring {
            Ring::Commands => &mut rings.commands,
            Ring::Replies => &mut rings.replies,
            Ring::Bulk => &mut rings.bulk,
        };
        if let Ok(mut slot) = producer.reserve(body.len()) {
            // SAFETY: as many bytes were reserved.
            unsafe { slot.body().copy_from_nonoverlapping(body.as_ptr(), body.len()) };
            slot.publish(high);
        }
    }

    /// Writes any bytes at any place of the memory behind a ring.
    pub fn scribble(&mut self, ring: Ring, offset: usize, bytes: &[u8]) {
        let place = match ring {
            Ring::Commands => HostileTarget::Commands,
            Ring::Replies => HostileTarget::Pair,
            Ring::Bulk => HostileTarget::Bulk,
        };
        self.deface(place, offset, bytes);
    }

    /// Writes any bytes at any place that it may write.
    pub fn deface(&mut self, place: HostileTarget, offset: usize, bytes: &[u8]) {
        let Some(rings) = &self.rings else { return };
        let memory = match place {
            HostileTarget::Pair => Some(&rings.pair),
            HostileTarget::Commands => Some(&rings.commands_memory),
            HostileTarget::Bulk => Some(&rings.bulk_memory),
            HostileTarget::Endpoint => Some(&rings.endpoint),
            HostileTarget::Doorbell => rings.doorbell.as_ref(),
            HostileTarget::Theirs => rings.theirs.as_ref(),
            HostileTarget::Granted => rings.granted.as_ref(),
        };
        let Some(memory) = memory else { return };
        for (index, &byte) in bytes.iter().enumerate() {
            let at: *const std::sync::atomic::AtomicU8 = memory.word((offset + index) % memory.len());
            // SAFETY: inside the mapping; the victim may be reading it, as it may with a real peer.
            unsafe { &*at }.store(byte, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
