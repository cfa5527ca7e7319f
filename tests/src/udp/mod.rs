//! Shared by the tests of UDP on real sockets: an echo in another process, a conversation with it that checks every
//! byte, and a relay that loses datagrams.

mod relay;

use std::net::{IpAddr, SocketAddr};

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};

use crate::{Naming, opening, parse, parse_region, region_text};

pub use relay::{Relay, Weather};

/// The tag that ends an echo.
const STOP: u64 = u64::MAX;
/// Maximum length of a message in bytes.
const MAX_MESSAGE_LEN: usize = 1 << 20;
/// Lengths of messages: empty, short, the longest of a command, longer, and many packets.
const LENGTHS: [usize; 8] = [0, 1, 64, 4_096, 16_384, 16_385, 100_000, MAX_MESSAGE_LEN];

/// Opens an endpoint at `address`, whose port may be 0.
pub fn open(address: SocketAddr) -> TestEndpoint {
    let side = opening(Naming::Udp).hints(|hints| hints.src_addr(address.into()));
    if address.port() == 0 { side.open() } else { side.name(&address.into()).open() }
}

/// Opens an endpoint on loopback.
pub fn local() -> TestEndpoint {
    open(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// A pair of endpoints that reach each other through a relay.
///
/// # Panics
/// If a call fails.
pub fn relayed([a, b]: [TestEndpoint; 2], weather: Weather) -> (Pair, Relay) {
    let relay = Relay::between([socket(&a.name()), socket(&b.name())], weather);
    let to_b = a.insert_address(&relay.sides[0].into());
    let to_a = b.insert_address(&relay.sides[1].into());
    (Pair { a, b, to_b, to_a }, relay)
}

/// A pair of endpoints, through a relay if `weather` is given.
///
/// # Panics
/// If a call fails.
pub fn apart([a, b]: [TestEndpoint; 2], weather: Option<Weather>) -> (Pair, Option<Relay>) {
    if let Some(weather) = weather {
        let (pair, relay) = relayed([a, b], weather);
        return (pair, Some(relay));
    }
    let (to_b, to_a) = (a.insert_address(&b.name()), b.insert_address(&a.name()));
    (Pair { a, b, to_b, to_a }, None)
}

/// The role of an echo: opens an endpoint at the address in its argument, sends its address and a region of
/// [`MAX_MESSAGE_LEN`] bytes over the line, receives the other's address, and echoes messages until told to stop.
///
/// # Panics
/// If a call fails.
pub fn echo(line: &mut Line, arguments: &[String]) {
    let side = open(arguments[0].parse().expect("an address"));
    let memory = Memory::new(MAX_MESSAGE_LEN);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).expect("a region");
    line.say(side.name());
    line.say(region_text(&region));
    let to = side.insert_address(&parse(&line.hear()));
    let buffer = Memory::new(MAX_MESSAGE_LEN);
    loop {
        side.receive(&buffer).context(1).tag_ignoring(0, u64::MAX).post().expect("a receive");
        let entry = wait::drive(&[&side], "a message", || side.next_of(1)).done();
        if entry.tag == STOP {
            return;
        }
        let out = side.out(to, buffer.slice(..entry.len)).context(2).tag(entry.tag);
        wait::drive(&[&side], "room", || out.send().ok());
        wait::drive(&[&side], "the echo", || side.next_of(2)).done();
    }
}

/// The test's view of a peer that runs [`echo`].
pub struct Echo {
    /// Its process.
    pub child: Child,
    /// Its own address.
    pub address: Address,
    region: RemotePiece,
}

impl Echo {
    /// Starts one at `address`, through `wrapper` if that is not empty.
    pub fn start(wrapper: &[&str], address: SocketAddr) -> Self {
        let mut child = Child::start_under(wrapper, "echo", &[&address.to_string()], &[]);
        let address = parse(&child.line.hear());
        let region = parse_region(&child.line.hear());
        Self { child, address, region }
    }

    /// Sends it this end's address.
    pub fn meet(&mut self, own: &Address) {
        self.child.line.say(own);
    }

    /// Sends it messages of all lengths, and receives them back; writes its memory, and reads it.
    ///
    /// # Panics
    /// If a byte is wrong, or a call fails.
    pub fn converse(&self, side: &TestEndpoint, to: FiAddr, rounds: u8) {
        for round in 0..rounds {
            for (number, len) in LENGTHS.into_iter().enumerate() {
                let tag = number as u64 * 1_000 + u64::from(round);
                let (from, into) = (Memory::patterned(len, round), Memory::new(len));
                side.receive(&into).context(1).tag(tag).post().expect("a receive");
                let out = side.out(to, &from).context(2).tag(tag);
                wait::drive(&[side], "room", || out.send().ok());
                let entry = wait::drive(&[side], "the echo", || side.next_of(1)).done();
                assert_eq!(entry.len, len);
                into.check(len, round);
                wait::drive(&[side], "the send", || side.next_of(2)).done();
            }
            let (from, into) =
                (Memory::patterned(MAX_MESSAGE_LEN, round + 100), Memory::new(MAX_MESSAGE_LEN));
            wait::drive(&[side], "room", || side.out(to, &from).context(3).write(&[self.region]).ok());
            wait::drive(&[side], "the write", || side.next_of(3)).done();
            wait::drive(&[side], "room", || side.out(to, &into).context(4).read(&[self.region]).ok());
            wait::drive(&[side], "the read", || side.next_of(4)).done();
            into.check(MAX_MESSAGE_LEN, round + 100);
        }
    }

    /// Stops it, and waits for its exit.
    pub fn end(self, side: &TestEndpoint, to: FiAddr) {
        wait::drive(&[side], "room", || side.out(to, ()).tag(STOP).inject().send().ok());
        let mut child = Some(self.child);
        // The message may have been lost, so it is sent again.
        wait::drive(&[side], "the end of the echo", || {
            let ended = child.as_mut().is_some_and(|child| child.ended_within(Duration::ZERO).is_some());
            ended.then(|| child.take().map(Child::finish))
        });
    }
}

/// The socket address in an address.
///
/// # Panics
/// If there is none.
pub fn socket(address: &Address) -> SocketAddr {
    address.to_socket_addr().expect("a socket address")
}

/// An address of this host with a port of the kernel's choosing.
pub fn any_port(ip: impl Into<IpAddr>) -> SocketAddr {
    SocketAddr::new(ip.into(), 0)
}
