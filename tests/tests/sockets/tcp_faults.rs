//! Faults on provider `tcp`: processes that are killed, peers that say nothing, that stop reading, and that reset the
//! connection at each step. Every operation with them ends with an error within a bound, and others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use ofi_tcp::wire::cm::{CmKind, CmMessage, HEADER};
use ofi_tcp::wire::{Identity, Order, Packet, Pieces};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::mesh::{Mesh, NAMING, Report};
use ofi_tests::{Naming, open, opening, parse};

/// The time within which the kernel tells of a death on this host, and the same again for a busy machine.
const BOUND: Duration = Duration::from_secs(2);
/// The times of the provider for a request and for an attempt to connect (5 s), with the same grace.
const TRY_TIMEOUT: Duration = Duration::from_secs(7);
/// Larger than the kernel's buffers.
const LARGE: usize = 32 << 20;

fn address_of(side: &TestEndpoint) -> SocketAddr {
    side.name().to_socket_addr().expect("an address of IP")
}

/// A plain socket as a peer.
struct Raw {
    stream: TcpStream,
    listener: TcpListener,
}

impl Raw {
    /// Connects, and is accepted.
    fn meet(side: &TestEndpoint) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let mut stream = TcpStream::connect(address_of(side)).expect("a connection");
        let port = listener.local_addr().expect("an address").port();
        let request = CmMessage::ours(CmKind::Request, &Identity::new(port, 77).encode()).encode();
        stream.write_all(&request).expect("room");
        let mut raw = Self { stream, listener };
        let answer = raw.hear(side, HEADER + 8);
        assert_eq!(
            CmMessage::parse(&answer).expect("an answer").expect("all of it").0.kind,
            CmKind::Response
        );
        raw
    }

    /// Waits for the call of the endpoint, and accepts it.
    fn be_called(side: &TestEndpoint, listener: TcpListener) -> Self {
        let mut raw = Self::be_connected(side, listener);
        let request = raw.hear(side, HEADER + 8);
        let identity = Identity::parse(&request[HEADER..]).expect("an identity");
        raw.say(&CmMessage::ours(CmKind::Response, &identity.answer(77).encode()).encode());
        raw
    }

    /// Waits for the connection of the endpoint, and says nothing.
    fn be_connected(side: &TestEndpoint, listener: TcpListener) -> Self {
        listener.set_nonblocking(true).expect("a listener that does not block");
        let (stream, _) = wait::drive(&[side], "a connection", || listener.accept().ok());
        Self { stream, listener }
    }

    fn name(&self) -> Address {
        Address::from(self.listener.local_addr().expect("an address"))
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("room in the socket");
    }

    fn hear(&mut self, side: &TestEndpoint, len: usize) -> Vec<u8> {
        self.stream.set_nonblocking(true).expect("a socket that does not block");
        let mut bytes = vec![0; len];
        let mut got = 0;
        wait::drive(&[side], "bytes of the endpoint", || {
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) => panic!("closed after {got} of {len} bytes"),
                Ok(more) => got += more,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            (got == len).then_some(())
        });
        self.stream.set_nonblocking(false).expect("a socket that blocks");
        bytes
    }

    /// Whether the endpoint has ended the connection.
    fn is_over(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket that does not block");
        let got = self.stream.read(&mut [0; 1]);
        matches!(got, Ok(0)) || got.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
    }

    /// Ends the connection by a reset.
    fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (from, len) = (std::ptr::from_ref(&linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.stream);
        // SAFETY: the structure of this option.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, len) };
        assert_eq!(set, 0);
    }
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Order::Own, 0, &mut bytes);
    bytes
}

fn piece(addr: u64, len: usize, key: u64) -> Pieces {
    let piece = ofi_tcp::wire::RemotePiece { addr, len: len as u64, key };
    Pieces::new(std::iter::once(piece)).expect("a piece")
}

/// An endpoint of another process, which answers each message.
struct Echo {
    child: Child,
    to: FiAddr,
}

impl Echo {
    fn of(side: &TestEndpoint) -> Self {
        let mut child = Child::start("tcp_echo", &["0"]);
        let to = side.insert_address(&parse(&child.line.hear()));
        child.line.say(side.name());
        Self { child, to }
    }

    /// A message to it and back: others are served.
    fn answers(&self, side: &TestEndpoint) {
        let (out, back) = (Memory::patterned(64, 3), Memory::new(64));
        side.receive(&back).tag(9).context(900).post().expect("a receive");
        let out = side.out(self.to, &out).tag(9).context(901);
        wait::drive(&[side], "room", || out.send().ok());
        wait::drive_for(TRY_TIMEOUT, &[side], "the answer", || side.next_of(900)).done();
        wait::drive(&[side], "the send", || side.next_of(901)).done();
        back.check(64, 3);
    }
}

/// Answers each message, until the line ends. The argument is its port.
pub fn echo(line: &mut Line, arguments: &[String]) {
    let port: u16 = arguments[0].parse().expect("a port");
    let own = Address::from(SocketAddr::from(([127, 0, 0, 1], port)));
    let side = opening(Naming::Tcp).hints(|hints| hints.src_addr(own)).open();
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let memory = Memory::new(64);
    loop {
        side.receive(&memory).tag(9).context(1).post().expect("a receive");
        while !side.next_of(1).is_some_and(|event| {
            event.done();
            true
        }) {
            if line.has_news() && line.try_hear().is_none() {
                return;
            }
            side.poll();
        }
        let out = side.out(to, &memory).tag(9).context(2);
        wait::drive(&[&side], "room", || out.send().ok());
        wait::drive(&[&side], "the answer", || side.next_of(2)).done();
    }
}

#[test]
fn processes_are_killed_at_random_under_load() {
    let mut mesh = Mesh::start(4, &[(NAMING, "tcp")]);
    for kill in 0..6u64 {
        std::thread::sleep(Duration::from_millis(100 + 37 * kill % 200));
        mesh.replace(kill as usize % 4);
    }
    mesh.expect_progress();
    assert!(mesh.end().iter().all(|Report { done, .. }| *done > 0));
}

#[test]
fn a_peer_that_is_killed_is_an_error_and_its_successor_on_the_same_port_is_met() {
    let side = open(Naming::Tcp);
    let mut first = Echo::of(&side);
    first.answers(&side);
    let port = {
        let names = side.av.lookup(first.to).expect("a name");
        names.to_socket_addr().expect("an address of IP").port()
    };
    let into = Memory::new(64);
    first.child.stop(); // it does not refuse the read any more
    let place = RemotePiece { addr: 0, len: 64, key: 1 };
    side.out(first.to, &into).context(1).read(&[place]).expect("a read");
    first.child.kill();
    let error = wait::drive_for(BOUND, &[&side], "the end of the read", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
    // Nobody listens.
    side.out(first.to, &into).tag(9).context(2).send().expect("a send");
    let error = wait::drive_for(TRY_TIMEOUT, &[&side], "the end of the send", || side.next_of(2)).failed();
    assert_eq!(error.err, Errno::ECONNREFUSED);
    let mut child = Child::start("tcp_echo", &[&port.to_string()]);
    assert_eq!(parse(&child.line.hear()), side.av.lookup(first.to).expect("a name"));
    child.line.say(side.name());
    Echo { child, to: first.to }.answers(&side);
}

#[test]
fn whoever_connects_and_says_nothing_or_half_of_it_is_dropped_in_time() {
    let side = open(Naming::Tcp);
    let other = Echo::of(&side);
    let dial = || TcpStream::connect(address_of(&side)).expect("a connection");
    let listener = || TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let mut silent = Raw { stream: dial(), listener: listener() };
    let mut half = Raw { stream: dial(), listener: listener() };
    half.say(&CmMessage::new(CmKind::Request, &Identity::new(9, 9).encode()).encode()[..37]);
    other.answers(&side);
    for raw in [&mut silent, &mut half] {
        wait::drive_for(TRY_TIMEOUT, &[&side], "the end", || raw.is_over().then_some(()));
    }
    other.answers(&side);
}

/// The kernel of the peer connects, and its program never answers.
#[test]
fn a_peer_that_never_answers_the_request_is_given_up() {
    let side = open(Naming::Tcp);
    let other = Echo::of(&side);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    side.out(peer, &Memory::new(64)).context(1).send().expect("a send");
    other.answers(&side);
    let error = wait::drive_for(TRY_TIMEOUT, &[&side], "the end of the send", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ETIMEDOUT);
    other.answers(&side);
}

/// What is sent to it stays under way, which is no error; nobody else waits for it.
#[test]
fn a_peer_that_stops_reading_holds_up_nobody_else() {
    let side = open(Naming::Tcp);
    let other = Echo::of(&side);
    let raw = Raw::meet(&side);
    let peer = side.insert_address(&raw.name());
    let payload = Memory::patterned(LARGE, 1);
    side.out(peer, &payload).context(1).send().expect("a send");
    for _ in 0..20 {
        other.answers(&side);
    }
    assert!(side.next_of(1).is_none(), "sent to a peer that does not read");
    drop(raw);
    let error = wait::drive_for(BOUND, &[&side], "the end of the send", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
    other.answers(&side);
}

/// The peer's host acknowledges bytes that are answered late (40 ms and more), and the end of a connection as well. So
/// a closing endpoint does not wait for the former before it says the latter, and a peer that hears it ends the wait.
#[test]
fn a_peer_hears_of_a_close_before_its_host_has_acknowledged_the_last_message() {
    let round = || {
        let side = open(Naming::Tcp);
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
        let (payload, answered) = (Memory::patterned(64, 3), Memory::new(64));
        side.out(peer, &payload).context(1).send().expect("a send");
        let mut raw = Raw::be_called(&side, listener);
        wait::drive(&[&side], "the send", || side.next_of(1)).done();
        let head = encoded(&Packet::Message { tag: None, data: None, confirm: false, len: 64 });
        let len = head.len() + 64;
        let message = raw.hear(&side, len);
        // Answers make the conversation an interactive one, whose acknowledgements are delayed.
        for _ in 0..20 {
            side.receive(&answered).context(2).post().expect("a receive");
            raw.say(&message);
            wait::drive(&[&side], "an answer", || side.next_of(2)).done();
            side.out(peer, &payload).context(1).send().expect("a send");
            wait::drive(&[&side], "the send", || side.next_of(1)).done();
            raw.hear(&side, len);
        }
        let hears = std::thread::spawn(move || {
            let got = raw.stream.read(&mut [0; 1]).expect("the end");
            assert_eq!(got, 0, "bytes after the last message");
        });
        let start = Instant::now();
        drop(side);
        let took = start.elapsed();
        hears.join().expect("the peer");
        took
    };
    let best = (0..8).map(|_| round()).min().expect("rounds");
    assert!(best < Duration::from_millis(20), "closing took {best:?} at best");
}

/// Nobody waits for the acknowledgement of the end alone, which a host delays as well.
#[test]
fn closing_an_idle_endpoint_waits_for_nobody() {
    let round = || {
        let side = open(Naming::Tcp);
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let peer = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
        let (payload, answered) = (Memory::patterned(64, 3), Memory::new(64));
        side.out(peer, &payload).context(1).send().expect("a send");
        let mut raw = Raw::be_called(&side, listener);
        wait::drive(&[&side], "the send", || side.next_of(1)).done();
        let len = encoded(&Packet::Message { tag: None, data: None, confirm: false, len: 64 }).len() + 64;
        let message = raw.hear(&side, len);
        side.receive(&answered).context(2).post().expect("a receive");
        raw.say(&message);
        wait::drive(&[&side], "an answer", || side.next_of(2)).done();
        std::thread::sleep(Duration::from_millis(100)); // all bytes are acknowledged
        let start = Instant::now();
        drop(side);
        start.elapsed()
    };
    let best = (0..8).map(|_| round()).min().expect("rounds");
    assert!(best < Duration::from_millis(20), "closing took {best:?} at best");
}

#[test]
fn a_reset_during_the_connect_or_the_handshake_is_an_error_in_time() {
    for answers_partly in [false, true] {
        let side = open(Naming::Tcp);
        let other = Echo::of(&side);
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let name = Address::from(listener.local_addr().expect("an address"));
        let peer = side.insert_address(&name);
        side.out(peer, &Memory::new(64)).context(1).send().expect("a send");
        let mut raw = Raw::be_connected(&side, listener.try_clone().expect("a socket"));
        if answers_partly {
            raw.hear(&side, HEADER + 8);
            raw.say(&CmMessage::new(CmKind::Response, &[0; 8]).encode()[..20]);
        }
        raw.reset();
        drop(listener);
        let error =
            wait::drive_for(TRY_TIMEOUT, &[&side], "the end of the send", || side.next_of(1)).failed();
        assert_eq!(error.err, Errno::ECONNREFUSED);
        other.answers(&side);
    }
}

#[test]
fn a_reset_between_operations_is_noticed_by_the_next_one() {
    let side = open(Naming::Tcp);
    let raw = Raw::meet(&side);
    let peer = side.insert_address(&raw.name());
    let listener = raw.listener.try_clone().expect("a socket");
    let lost = side.statistic("connections_lost");
    raw.reset();
    wait::drive_for(BOUND, &[&side], "the end", || (side.statistic("connections_lost") > lost).then_some(()));
    side.out(peer, &Memory::patterned(64, 1)).context(1).send().expect("a send");
    let mut again = Raw::be_called(&side, listener);
    again.hear(&side, 16 + 64);
    wait::drive(&[&side], "the send", || side.next_of(1)).done();
}

#[test]
fn a_reset_in_the_middle_of_a_long_message_is_an_error_at_either_end() {
    let side = open(Naming::Tcp);
    let other = Echo::of(&side);
    // Of one to the peer, which reads a part of it.
    let mut raw = Raw::meet(&side);
    let peer = side.insert_address(&raw.name());
    let payload = Memory::patterned(LARGE, 1);
    side.out(peer, &payload).context(1).send().expect("a send");
    raw.hear(&side, 1 << 20);
    raw.reset();
    let error = wait::drive_for(BOUND, &[&side], "the end of the send", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
    // Of one from a peer, which sends a part of it: into a receive, and before there is one.
    for is_posted in [true, false] {
        let into = Memory::new(LARGE);
        if is_posted {
            side.receive(&into).tag(7).context(2).post().expect("a receive");
        }
        let mut raw = Raw::meet(&side);
        let message = Packet::Message { tag: Some(7), data: None, confirm: true, len: LARGE as u64 };
        raw.say(&[encoded(&message), vec![5; 100_000]].concat());
        wait::drive_through(Duration::from_millis(50), &[&side]);
        raw.reset();
        if is_posted {
            let end = wait::drive_for(BOUND, &[&side], "the end of the receive", || side.next_of(2));
            assert_eq!(end.failed().err, Errno::ECONNRESET);
        }
        other.answers(&side);
    }
}

#[test]
fn a_reset_in_the_middle_of_an_access_is_an_error_and_leaves_the_memory_s_owner_well() {
    let side = open(Naming::Tcp);
    let other = Echo::of(&side);
    let memory = Memory::patterned(LARGE, 1);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).expect("a region");
    let own = remote(&region);
    // Reads of this end: not answered, and answered in part.
    for answers in [false, true] {
        let mut raw = Raw::meet(&side);
        let peer = side.insert_address(&raw.name());
        let into = Memory::new(LARGE);
        let place = RemotePiece { addr: 0, len: LARGE, key: 1 };
        side.out(peer, &into).context(1).read(&[place]).expect("a read");
        raw.hear(&side, 40);
        if answers {
            raw.say(&[encoded(&Packet::ReadAnswer { len: LARGE as u64 }), vec![5; 100_000]].concat());
            wait::drive_through(Duration::from_millis(50), &[&side]);
        }
        raw.reset();
        let error = wait::drive_for(BOUND, &[&side], "the end of the read", || side.next_of(1)).failed();
        assert_eq!(error.err, Errno::ECONNRESET);
    }
    // Accesses of a peer: a write of which a part comes, and a read whose answer is read in part.
    let lost = side.statistic("connections_lost");
    let mut raw = Raw::meet(&side);
    let remote = piece(own.addr, LARGE, own.key);
    let write = Packet::Write { remote, data: Some(5), confirm: true, len: LARGE as u64 };
    raw.say(&[encoded(&write), vec![5; 100_000]].concat());
    wait::drive_through(Duration::from_millis(50), &[&side]);
    raw.reset();
    let mut raw = Raw::meet(&side);
    raw.say(&encoded(&Packet::Read { remote }));
    raw.hear(&side, 1 << 20);
    raw.reset();
    wait::drive_for(BOUND, &[&side], "both ends", || {
        (side.statistic("connections_lost") == lost + 2).then_some(())
    });
    other.answers(&side);
}
