//! Peers of provider `tcp` that use plain sockets and C libfabric's packets: the bytes on the wire, and the handling of
//! peers that break the protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use ofi_core::atomic::Executor;
use ofi_tcp::wire::cm::{CmKind, CmMessage, Extras};
use ofi_tcp::wire::{Identity, Order, Packet, Pieces, RemotePiece};
use ofi_testkit::prelude::*;

struct Tcp;

impl Kit for Tcp {
    fn hints(&self) -> Hints {
        ofi_tests::tcp_atomics();
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("tcp").ep_type(EpType::Rdm).src_addr(loopback)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC | Caps::SOURCE
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint with what these peers exchange with it.
pub fn side() -> TestEndpoint {
    let kit: &dyn Kit = &Tcp;
    kit.side()
}

/// The same with other hints.
pub fn side_with(change: impl FnOnce(Hints) -> Hints) -> TestEndpoint {
    let kit: &dyn Kit = &Tcp;
    kit.opening().hints(change).open()
}

/// One that counts the accesses of its peers in these ways.
pub fn counting(accesses: BindFlags) -> TestEndpoint {
    let kit: &dyn Kit = &Tcp;
    let opening = kit.opening().hints(|hints| hints.caps(Caps::RMA | Caps::ATOMIC | Caps::RMA_EVENT));
    opening.counter(CntrAttr::default(), accesses).open()
}

/// Two of them.
pub fn pair() -> Pair {
    let kit: &dyn Kit = &Tcp;
    kit.pair()
}

/// The same with a queue on which a thread can block.
pub fn sleeper() -> TestEndpoint {
    let kit: &dyn Kit = &Tcp;
    kit.opening().wait_obj(WaitObj::Unspec).open()
}

fn address_of(side: &TestEndpoint) -> SocketAddr {
    side.name().to_socket_addr().expect("an address of IP")
}

/// A plain socket as a peer.
pub struct Raw {
    pub stream: TcpStream,
    /// The address behind its name.
    listener: TcpListener,
    order: Order,
    /// Bytes read beyond the last packet.
    pub read: Vec<u8>,
}

fn loopback(ip: &str) -> TcpListener {
    TcpListener::bind((ip, 0)).expect("a listener")
}

impl Raw {
    pub fn of(stream: TcpStream, listener: TcpListener) -> Self {
        stream.set_nonblocking(true).expect("a socket that does not block");
        stream.set_nodelay(true).expect("a socket that does not wait");
        Self { stream, listener, order: Order::Own, read: Vec::new() }
    }

    pub fn dial(side: &TestEndpoint) -> Self {
        Self::of(TcpStream::connect(address_of(side)).expect("a connection"), loopback("127.0.0.1"))
    }

    /// Connects, and is accepted.
    pub fn meet(side: &TestEndpoint) -> Self {
        Self::meet_in(side, Order::Own)
    }

    fn meet_in(side: &TestEndpoint, order: Order) -> Self {
        Self::meet_by(side, order, Extras::default())
    }

    /// As a peer of this library, which takes refusals.
    pub fn meet_as_ours(side: &TestEndpoint) -> Self {
        Self::meet_by(side, Order::Own, Extras::OURS)
    }

    pub fn meet_by(side: &TestEndpoint, order: Order, extras: Extras) -> Self {
        let mut raw = Self::dial(side);
        raw.order = order;
        let identity = Identity::new(raw.port(), 77).encode();
        raw.say(&CmMessage { order, extras, ..CmMessage::new(CmKind::Request, &identity) }.encode());
        let answer = raw.hear(&[side], 40);
        let (message, _) = CmMessage::parse(&answer).expect("an answer").expect("a whole one");
        assert!(message.kind == CmKind::Response && message.extras.refusals && message.extras.atomics);
        let identity = Identity::parse(message.payload).expect("an identity");
        assert_eq!((identity.version, identity.port), (0x81, raw.port()));
        raw
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    pub fn name(&self) -> Address {
        Address::from(self.listener.local_addr().expect("an address"))
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("room in the socket");
    }

    /// Sends a packet and its payload.
    pub fn send(&mut self, packet: &Packet, payload: &[u8]) {
        self.say(&self.bytes(packet, payload));
    }

    pub fn bytes(&self, packet: &Packet, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        packet.encode(self.order, 0, &mut bytes);
        bytes.extend(payload);
        bytes
    }

    /// Reads the available bytes. Returns whether the other end still sends.
    pub fn listen(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) => self.read.extend(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    /// Reads this many bytes.
    pub fn hear(&mut self, sides: &[&TestEndpoint], len: usize) -> Vec<u8> {
        wait::drive(sides, "bytes from the endpoint", || {
            let open = self.listen();
            assert!(open || self.read.len() >= len, "closed after {} of {len} bytes", self.read.len());
            (self.read.len() >= len).then_some(())
        });
        self.read.drain(..len).collect()
    }

    /// Reads the header of a packet.
    pub fn hear_packet(&mut self, sides: &[&TestEndpoint]) -> Packet {
        let mut bytes = self.hear(sides, 16);
        bytes.extend(self.hear(sides, usize::from(bytes[6]) - 16));
        Packet::parse(&bytes, self.order).expect("a packet").expect("a whole header").0
    }

    /// Ends the connection by a reset.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (from, len) = (std::ptr::from_ref(&linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.stream);
        // SAFETY: the structure of this option.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, len) };
        assert_eq!(set, 0);
    }

    /// Waits until the endpoint closes the connection.
    pub fn is_closed(&mut self, sides: &[&TestEndpoint]) {
        wait::drive(sides, "the end of the connection", || (!self.listen()).then_some(()));
    }
}

/// A message without a tag.
pub fn message(len: u64) -> Packet {
    Packet::Message { tag: None, data: None, confirm: false, len }
}

/// Adds a number of 8 bytes to remote memory, and fetches the old one.
fn sum() -> Executor {
    Executor::find(AtomicKind::Fetch, FiOp::Sum, Datatype::Uint64).expect("an operation")
}

fn atomic(addr: u64, key: u64, len: u64) -> Packet {
    Packet::Atomic { what: sum().to_wire(), remote: pieces(&[(addr, 8, key)]), len }
}

pub fn pieces(all: &[(u64, u64, u64)]) -> Pieces {
    Pieces::new(all.iter().map(|&(addr, len, key)| RemotePiece { addr, len, key })).expect("pieces")
}

/// An honest peer is served.
fn serves(side: &TestEndpoint) {
    let mut raw = Raw::meet(side);
    let buffer = Memory::new(64);
    side.receive(&buffer).context(9).post().expect("a receive");
    raw.send(&message(64), &[7; 64]);
    let entry = wait::drive(&[side], "a message", || side.next_of(9)).done();
    assert_eq!((entry.len, buffer.bytes()), (64, vec![7; 64]));
}

#[test]
fn whoever_sends_another_connection_message_is_refused() {
    let side = side();
    let identity = Identity::new(9, 9).encode();
    let good = CmMessage::new(CmKind::Request, &identity).encode();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    for (what, bytes) in [
        ("version", with(0, 2)),
        ("kind", with(1, 9)),
        ("length", with(2, 2)),
        ("an answer", CmMessage::new(CmKind::Response, &identity).encode()),
        ("no identity", CmMessage::new(CmKind::Request, &[]).encode()),
        ("no port", CmMessage::new(CmKind::Request, &Identity::new(0, 9).encode()).encode()),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
    ] {
        println!("{what}");
        let broken = side.statistic("broken");
        let mut raw = Raw::dial(&side);
        raw.say(&bytes);
        raw.is_closed(&[&side]);
        assert_eq!((raw.read.len(), side.statistic("broken")), (0, broken + 1));
    }
    serves(&side);
}

#[test]
fn whoever_breaks_the_protocol_loses_its_connection_and_nobody_else_does() {
    let side = side();
    let memory = Memory::new(64);
    let region = side.register(&memory, MrAccess::REMOTE_READ).expect("a region");
    let own = remote(&region);
    let mut other = Raw::meet(&side);
    let raw = Raw::meet(&side);
    let changed = |packet: Packet, at: usize, value: u8| {
        let mut bytes = raw.bytes(&packet, &[]);
        bytes[at] = value;
        bytes
    };
    let plain = |packet: Packet| raw.bytes(&packet, &[]);
    let write = |addr, len, key| Packet::Write {
        remote: pieces(&[(addr, len, key)]),
        data: None,
        confirm: false,
        len,
    };
    let announces = |tag| Packet::Rts { number: 1, tag, data: None, confirm: false, len: 10 };
    let (rts, untagged) = (announces(Some(5)), announces(None));
    for (what, bytes) in [
        ("operation 13", changed(message(0), 1, 13)),
        ("a grant that was not agreed on", plain(Packet::Grant { bytes: 1 })),
        ("an announcement without a tag that was not agreed on", plain(untagged)),
        (
            "an atomic operation, which was not agreed on",
            [plain(atomic(own.addr, own.key, 8)), vec![0; 8]].concat(),
        ),
        ("a note, which was not agreed on", plain(Packet::Note { words: [0; 4], len: 0 })),
        ("a header of 121 bytes", changed(message(0), 6, 121)),
        ("a header of 15 bytes", changed(message(0), 6, 15)),
        ("a packet of 15 bytes", changed(message(0), 8, 15)),
        ("an endless packet", changed(message(0), 15, 0xFF)),
        ("no remote pieces", changed(write(0, 8, 1), 5, 0)),
        ("five remote pieces", changed(write(0, 8, 1), 5, 5)),
        ("an acknowledgement of nothing", plain(Packet::Ack)),
        ("an answer to no read", plain(Packet::ReadAnswer { len: 0 })),
        ("a request for nothing", plain(Packet::Cts { number: 1 })),
        ("data that was not announced", plain(Packet::Data { number: 1, len: 0 })),
        ("two announcements by one number", [plain(rts), plain(rts)].concat()),
        ("data that was not asked for", [plain(rts), plain(Packet::Data { number: 1, len: 10 })].concat()),
        ("an unknown key", plain(write(0, 8, own.key ^ 1))),
        (
            "an unknown key of a write that wants an acknowledgement",
            plain(Packet::Write {
                remote: pieces(&[(0, 8, own.key ^ 1)]),
                data: None,
                confirm: true,
                len: 8,
            }),
        ),
        ("a write to what may be read", plain(write(own.addr, 8, own.key))),
        ("a read beyond the end", plain(Packet::Read { remote: pieces(&[(own.addr + 60, 8, own.key)]) })),
    ] {
        println!("{what}");
        let broken = side.statistic("broken");
        let mut raw = Raw::meet(&side);
        raw.say(&bytes);
        raw.is_closed(&[&side]);
        assert!(raw.read.is_empty() || !what.contains("key"), "{what}: it was answered {:?}", raw.read);
        assert_eq!(side.statistic("broken"), broken + 1, "{what}");
    }
    serves(&side);
    let buffer = Memory::new(8);
    side.receive(&buffer).context(3).post().expect("a receive");
    other.send(&message(8), &[5; 8]);
    wait::drive(&[&side], "a message on the old connection", || side.next_of(3)).done();
}

/// Between ends of this library an access that is not allowed is refused in its place, and the connection goes on.
#[test]
fn a_peer_that_takes_refusals_keeps_its_connection() {
    let side = side();
    let memory = Memory::patterned(64, 1);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).expect("a region");
    let own = remote(&region);
    let (broken, lost) = (side.statistic("broken"), side.statistic("connections_lost"));
    let mut raw = Raw::meet_as_ours(&side);
    let write =
        |len, key| Packet::Write { remote: pieces(&[(own.addr, len, key)]), data: None, confirm: true, len };
    // Of three writes the second is refused, and so is the second of three reads; none waits for another.
    for (len, key) in [(8, own.key), (20_000, own.key ^ 1), (0, own.key)] {
        for part in raw.bytes(&write(len, key), &vec![9; len as usize]).chunks(7000) {
            raw.say(part);
            side.poll();
        }
    }
    for (addr, key) in [(own.addr, own.key), (own.addr + 60, own.key), (own.addr + 8, own.key)] {
        raw.send(&Packet::Read { remote: pieces(&[(addr, 8, key)]) }, &[]);
    }
    let refused = |packet, of_read| match packet {
        Packet::Refusal { of_read: found, errno } => assert!(found == of_read && errno > 0, "{packet:?}"),
        _ => panic!("{packet:?}"),
    };
    assert_eq!(raw.hear_packet(&[&side]), Packet::Ack);
    refused(raw.hear_packet(&[&side]), false);
    assert_eq!(raw.hear_packet(&[&side]), Packet::Ack);
    assert_eq!(raw.hear_packet(&[&side]), Packet::ReadAnswer { len: 8 });
    assert_eq!(raw.hear(&[&side], 8), [9; 8]);
    refused(raw.hear_packet(&[&side]), true);
    assert_eq!(raw.hear_packet(&[&side]), Packet::ReadAnswer { len: 8 });
    assert_eq!(raw.hear(&[&side], 8), memory.bytes()[8..16]);
    assert_eq!((side.statistic("broken"), side.statistic("connections_lost")), (broken, lost));
    // A write without an acknowledgement has no place for a refusal.
    raw.send(
        &Packet::Write { remote: pieces(&[(own.addr, 1, own.key ^ 1)]), data: None, confirm: false, len: 1 },
        &[1],
    );
    raw.is_closed(&[&side]);
    serves(&side);
}

#[test]
fn a_refusal_is_the_error_of_its_operation_and_nobody_else_sends_one() {
    let side = side();
    let mut raw = Raw::meet_as_ours(&side);
    let peer = side.insert_address(&raw.name());
    let (payload, into) = (Memory::patterned(64, 1), Memory::new(64));
    let place = ofi::raw::RemotePiece { addr: 0x10, len: 64, key: 0x20 };
    side.out(peer, &payload).context(1).write(&[place]).expect("a write");
    side.out(peer, &into).context(2).read(&[place]).expect("a read");
    let refusal = |of_read| Packet::Refusal { of_read, errno: Errno::EKEYREJECTED.get() as u16 };
    raw.send(&refusal(true), &[]);
    assert_eq!(
        wait::drive(&[&side], "the read's error", || side.next_of(2)).failed().err,
        Errno::EKEYREJECTED
    );
    assert!(side.next_of(1).is_none(), "the write is not answered");
    raw.send(&refusal(false), &[]);
    assert_eq!(
        wait::drive(&[&side], "the write's error", || side.next_of(1)).failed().err,
        Errno::EKEYREJECTED
    );
    // Nothing is left to refuse.
    raw.send(&refusal(true), &[]);
    raw.is_closed(&[&side]);
    // C's ends send none, and 0 is no error.
    let mut c = Raw::meet(&side);
    c.send(&refusal(true), &[]);
    c.is_closed(&[&side]);
    let mut ours = Raw::meet_as_ours(&side);
    ours.send(&Packet::Refusal { of_read: true, errno: 0 }, &[]);
    ours.is_closed(&[&side]);
    serves(&side);
}

/// Atomic operations of a peer are executed, answered in their order, and refused in their place.
#[test]
fn a_peer_of_this_library_changes_memory_atomically() {
    let side = side();
    let memory = Memory::new(64);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).expect("a region");
    let (own, what) = (remote(&region), sum().to_wire());
    let mut raw = Raw::meet_as_ours(&side);
    for part in raw.bytes(&atomic(own.addr, own.key, 8), &5u64.to_ne_bytes()).chunks(3) {
        raw.say(part);
        side.poll();
    }
    let unknown = Packet::Atomic { what: !0, remote: pieces(&[(own.addr, 8, own.key)]), len: 0 };
    raw.send(&atomic(own.addr, own.key ^ 1, 8), &[0; 8]);
    raw.send(&atomic(own.addr + 60, own.key, 8), &[0; 8]);
    raw.send(&atomic(own.addr, own.key, 16), &[0; 16]);
    raw.send(&unknown, &[]);
    raw.send(&atomic(own.addr, own.key, 8), &2u64.to_ne_bytes());
    assert_eq!(raw.hear_packet(&[&side]), Packet::ReadAnswer { len: 8 });
    assert_eq!(raw.hear(&[&side], 8), 0u64.to_ne_bytes());
    for what in ["a wrong key", "beyond the end", "too many operands", "no such operation"] {
        let answer = raw.hear_packet(&[&side]);
        assert!(matches!(answer, Packet::Refusal { of_read: true, .. }), "{what}: {answer:?}");
    }
    assert_eq!(raw.hear_packet(&[&side]), Packet::ReadAnswer { len: 8 });
    assert_eq!(raw.hear(&[&side], 8), 5u64.to_ne_bytes());
    assert_eq!(memory.bytes()[..8], 7u64.to_ne_bytes());
    // More than one operation can have.
    let pieces = pieces(&[(own.addr, 5000, own.key)]);
    let mut bytes = raw.bytes(&Packet::Atomic { what, remote: pieces, len: 8 << 10 }, &[]);
    bytes[9] += 1;
    raw.say(&bytes);
    raw.is_closed(&[&side]);
    serves(&side);
}

/// C's end takes no atomic operations: they fail, before the connection is there and afterwards, and nothing else does.
#[test]
fn an_atomic_operation_for_an_end_of_c_fails_alone() {
    let side = side();
    let listener = loopback("127.0.0.1");
    listener.set_nonblocking(true).expect("a listener that does not block");
    let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    let (payload, result) = (Memory::patterned(8, 1), Memory::new(8));
    let there = [ofi::raw::RemotePiece { addr: 0x10, len: 8, key: 0x20 }];
    let out = |context| side.out(peer, &payload).context(context);
    out(1).atomic(FiOp::Sum, Datatype::Uint64, &there).expect("an atomic operation that waits");
    out(2).fetch(FiOp::Sum, Datatype::Uint64, &result, &there).expect("another");
    let again = out(3).send().expect_err("a message does not pass them");
    assert!(again.is_again(), "{again}");
    let fenced = out(3)
        .msg(OpFlags::FENCE)
        .atomic(FiOp::Sum, Datatype::Uint64, &there)
        .expect_err("one that waits for them");
    assert!(fenced.is_again(), "{fenced}");
    let stream = wait::drive(&[&side], "a connection", || listener.accept().ok()).0;
    let mut raw = Raw::of(stream, listener);
    let asked = raw.hear(&[&side], 40);
    let (request, _) = CmMessage::parse(&asked).expect("a request").expect("a whole one");
    assert!(request.extras.atomics);
    let identity = Identity::parse(request.payload).expect("an identity");
    raw.say(&CmMessage::new(CmKind::Response, &identity.answer(5).encode()).encode());
    for context in [1, 2] {
        let failed = wait::drive(&[&side], "its error", || side.next_of(context)).failed();
        assert_eq!(failed.err, Errno::EOPNOTSUPP);
    }
    let refused = out(4).atomic(FiOp::Sum, Datatype::Uint64, &there).expect_err("C takes none");
    assert!(refused.errno() == Errno::EOPNOTSUPP && refused.to_string().contains("C libfabric"), "{refused}");
    out(5).send().expect("a message");
    assert_eq!(raw.hear_packet(&[&side]), message(8));
    assert_eq!(side.statistic("connections_lost"), 0);
}

#[test]
fn packets_may_be_cut_anywhere() {
    let side = side();
    let memory = Memory::new(64);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).expect("a region");
    let at = remote(&region);
    for step in [1, 3, 7] {
        let mut raw = Raw::meet(&side);
        let (plain, tagged, long) = (Memory::new(20), Memory::new(10), Memory::new(20_000));
        side.receive(&plain).context(1).post().expect("a receive");
        side.receive(&tagged).tag(0x77).context(2).post().expect("a receive");
        side.receive(&long).tag(0x78).context(3).post().expect("a receive");
        let tagged_packet = |tag, len| Packet::Message { tag: Some(tag), data: Some(5), confirm: true, len };
        let one = pieces(&[(at.addr, 32, at.key)]);
        let bytes = [
            raw.bytes(&message(20), &[1; 20]),
            raw.bytes(&tagged_packet(0x77, 10), &[2; 10]),
            raw.bytes(&Packet::Write { remote: one, data: None, confirm: true, len: 32 }, &[3; 32]),
            raw.bytes(&tagged_packet(0x78, 20_000), &[4; 20_000]),
            raw.bytes(&Packet::Read { remote: one }, &[]),
        ]
        .concat();
        // The headers byte by byte, and the long payload in larger steps.
        let mut sent = 0;
        while sent < bytes.len() {
            let len = if bytes.len() - sent > 18_000 || bytes.len() - sent < 200 { step } else { 1000 };
            let len = len.min(bytes.len() - sent);
            raw.say(&bytes[sent..sent + len]);
            sent += len;
            side.poll();
        }
        for (context, len) in [(1, 20), (2, 10), (3, 20_000)] {
            let entry = wait::drive(&[&side], "a message", || side.next_of(context)).done();
            assert_eq!(entry.len, len);
        }
        assert_eq!(
            (plain.bytes(), tagged.bytes(), long.bytes()),
            (vec![1; 20], vec![2; 10], vec![4; 20_000])
        );
        for _ in 0..3 {
            assert_eq!(raw.hear_packet(&[&side]), Packet::Ack);
        }
        assert_eq!(raw.hear_packet(&[&side]), Packet::ReadAnswer { len: 32 });
        assert_eq!(raw.hear(&[&side], 32), [3; 32]);
    }
}

/// A peer of the other byte order is answered in its own.
#[test]
fn a_peer_of_the_other_byte_order_is_understood() {
    let side = side();
    let mut raw = Raw::meet_in(&side, Order::Swapped);
    let peer = side.insert_address(&raw.name());
    let buffer = Memory::new(64);
    side.receive(&buffer).context(1).post().expect("a receive");
    raw.send(&Packet::Message { tag: None, data: Some(0x0102_0304), confirm: true, len: 5 }, b"hello");
    let entry = wait::drive(&[&side], "a message", || side.next_of(1)).done();
    assert_eq!((entry.len, entry.data), (5, 0x0102_0304));
    assert_eq!(
        raw.hear(&[&side], 16)[6..],
        [16, 0, 0, 0, 0, 0, 0, 0, 0, 16],
        "an acknowledgement, big end first"
    );
    side.out(peer, &Memory::patterned(9, 1)).tag(0xABCD).context(2).send().expect("a send");
    assert_eq!(
        raw.hear_packet(&[&side]),
        Packet::Message { tag: Some(0xABCD), data: None, confirm: false, len: 9 }
    );
}

/// What this end sends to a peer that it connects to is what C's provider sends.
#[test]
fn what_is_sent_is_what_c_sends() {
    let side = side();
    let listener = loopback("127.0.0.1");
    listener.set_nonblocking(true).expect("a listener that does not block");
    let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    let payload = Memory::patterned(64, 1);
    side.out(peer, &payload).context(1).send().expect("a send");
    let stream = wait::drive(&[&side], "a connection", || listener.accept().ok()).0;
    let mut raw = Raw::of(stream, listener);
    let asked = raw.hear(&[&side], 40);
    let (request, _) = CmMessage::parse(&asked).expect("a request").expect("a whole one");
    let identity = Identity::parse(request.payload).expect("an identity");
    assert_eq!(
        (request.kind, identity.version, identity.port),
        (CmKind::Request, 1, address_of(&side).port())
    );
    assert!(!raw.listen() || raw.read.is_empty(), "nothing follows before the answer");
    raw.say(&CmMessage::new(CmKind::Response, &identity.answer(5).encode()).encode());
    let base = |op, flags: u8, count, header: u8, number: u8, size: u8| {
        vec![3, op, flags, 0, 0, count, header, number, size, 0, 0, 0, 0, 0, 0, 0]
    };
    let word = |value: u64| value.to_le_bytes();
    assert_eq!(raw.hear(&[&side], 16), base(0, 0, 0, 16, 0, 0x50));
    assert_eq!(raw.hear(&[&side], 64), payload.bytes());
    wait::drive(&[&side], "the end of the send", || side.next_of(1)).done();
    side.out(peer, &payload).tag(0x77).data(5).context(2).send().expect("a send");
    assert_eq!(raw.hear(&[&side], 16), base(1, 1, 0, 32, 1, 0x60));
    assert_eq!(raw.hear(&[&side], 16), [word(5), word(0x77)].concat());
    raw.hear(&[&side], 64);
    wait::drive(&[&side], "the end of the send", || side.next_of(2)).done();
    // A write ends with the peer's acknowledgement, and a read with its answer.
    let place = ofi::raw::RemotePiece { addr: 0x10, len: 64, key: 0x20 };
    side.out(peer, &payload).data(6).context(3).write(&[place]).expect("a write");
    assert_eq!(raw.hear(&[&side], 16), base(4, 5, 1, 48, 2, 0x70));
    assert_eq!(raw.hear(&[&side], 32), [word(6), word(0x10), word(64), word(0x20)].concat());
    raw.hear(&[&side], 64);
    side.out(peer, &Memory::new(64)).context(4).read(&[place]).expect("a read");
    assert_eq!(raw.hear(&[&side], 16), base(2, 0, 1, 40, 3, 0x28));
    raw.hear(&[&side], 24);
    assert!(side.next_of(3).is_none(), "it is not acknowledged");
    raw.send(&Packet::Ack, &[]);
    wait::drive(&[&side], "the end of the write", || side.next_of(3)).done();
    raw.send(&Packet::ReadAnswer { len: 64 }, &[9; 64]);
    wait::drive(&[&side], "the end of the read", || side.next_of(4)).done();
    // Its next read is lost with the connection.
    side.out(peer, &Memory::new(64)).context(5).read(&[place]).expect("a read");
    raw.hear(&[&side], 40);
    drop(raw);
    let error = wait::drive(&[&side], "the loss of the read", || side.next_of(5)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
}

#[test]
fn an_announced_message_is_asked_for_when_there_is_a_receive() {
    let side = side();
    let mut raw = Raw::meet(&side);
    let len = 100_000u64;
    raw.send(&Packet::Rts { number: 3, tag: Some(7), data: None, confirm: true, len }, &[]);
    raw.send(&message(4), &[1; 4]);
    let (first, long) = (Memory::new(4), Memory::new(len as usize));
    side.receive(&first).context(1).post().expect("a receive");
    wait::drive(&[&side], "what follows the announcement", || side.next_of(1)).done();
    assert!(raw.listen() && raw.read.is_empty());
    side.receive(&long).tag(7).context(2).post().expect("a receive");
    assert_eq!(raw.hear_packet(&[&side]), Packet::Cts { number: 3 });
    let bytes = raw.bytes(&Packet::Data { number: 3, len }, &vec![6; len as usize]);
    for part in bytes.chunks(10_000) {
        raw.say(part);
        side.poll();
    }
    assert_eq!(wait::drive(&[&side], "the message", || side.next_of(2)).done().len, len as usize);
    assert_eq!(long.bytes(), vec![6; len as usize]);
    assert_eq!(raw.hear_packet(&[&side]), Packet::Ack);
}

#[test]
fn what_is_longer_than_its_receive_is_cut_and_what_follows_arrives() {
    let side = side();
    let mut raw = Raw::meet(&side);
    let (short, next) = (Memory::new(10), Memory::new(64));
    side.receive(&short).context(1).post().expect("a receive");
    side.receive(&next).context(2).post().expect("a receive");
    raw.send(&Packet::Message { tag: None, data: None, confirm: true, len: 20_000 }, &[1; 20_000]);
    raw.send(&message(64), &[2; 64]);
    let error = wait::drive(&[&side], "the error", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ETRUNC);
    wait::drive(&[&side], "the next message", || side.next_of(2)).done();
    assert_eq!((raw.hear_packet(&[&side]), next.bytes()), (Packet::Ack, vec![2; 64]));
}

/// Of two simultaneous requests, the one from the greater address survives, and posted messages arrive.
#[test]
fn of_two_requests_at_the_same_time_one_survives() {
    let (mut greater, mut lesser) = (0, 0);
    while greater == 0 || lesser == 0 {
        let side = side();
        let listener = loopback("127.0.0.1");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let name = listener.local_addr().expect("an address");
        let peer_is_greater = name.port().to_be_bytes() > address_of(&side).port().to_be_bytes();
        *(if peer_is_greater { &mut greater } else { &mut lesser }) += 1;
        let peer = side.insert_address(&Address::from(name));
        side.out(peer, &Memory::patterned(8, 1)).context(1).send().expect("a send");
        let (theirs, _) = wait::drive(&[&side], "a connection", || listener.accept().ok());
        let mut theirs = Raw::of(theirs, loopback("127.0.0.1"));
        let asked = theirs.hear(&[&side], 40);
        // The request of this end is in flight when the other one's arrives.
        let mut own = Raw::of(TcpStream::connect(address_of(&side)).expect("a connection"), listener);
        let identity = Identity::new(name.port(), 77).encode();
        own.say(&CmMessage::new(CmKind::Request, &identity).encode());
        let answer = own.hear(&[&side], 40);
        let kind = CmMessage::parse(&answer).expect("an answer").expect("a whole one").0.kind;
        if peer_is_greater {
            assert_eq!(kind, CmKind::Response);
            theirs.is_closed(&[&side]);
            assert_eq!(own.hear_packet(&[&side]), message(8));
            continue;
        }
        assert_eq!(kind, CmKind::Refusal);
        let (request, _) = CmMessage::parse(&asked).expect("a request").expect("a whole one");
        let identity = Identity::parse(request.payload).expect("an identity");
        theirs.say(&CmMessage::new(CmKind::Response, &identity.answer(77).encode()).encode());
        assert_eq!(theirs.hear_packet(&[&side]), message(8));
    }
}

/// A restarted peer with the same name replaces the former one.
#[test]
fn a_restarted_peer_takes_the_place_of_the_one_before() {
    let side = side();
    let old = Raw::meet(&side);
    let peer = side.insert_address(&old.name());
    let mut new = Raw::of(
        TcpStream::connect(address_of(&side)).expect("a connection"),
        old.listener.try_clone().expect("a socket"),
    );
    new.say(&CmMessage::new(CmKind::Request, &Identity::new(old.port(), 78).encode()).encode());
    new.hear(&[&side], 40);
    let mut old = old;
    old.is_closed(&[&side]);
    side.out(peer, &Memory::patterned(8, 1)).context(1).send().expect("a send");
    assert_eq!(new.hear_packet(&[&side]), message(8));
}
