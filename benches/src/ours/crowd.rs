//! One endpoint with very many peers: the cost of a message to each in turn, and the memory of an idle peer.
//!
//! The peers are sockets of one process, each with an `ofi-rdm` endpoint that echoes messages. An endpoint of the whole
//! stack has batch buffers and queues; ten thousand of them would measure the machine's memory.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{Address, CqTaggedEntry, FiAddr};
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Params, Record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Lost, MAX_PACKET_LEN, Sender, Stream};

use super::node::{Arena, Node};
use super::run::{check, slot, stack};
use super::{Job, Role};
use crate::{Error, Figures, Result, link::Link, sys};

/// Messages in flight.
const WINDOW: usize = 64;
/// Distance between consecutive peers of a round: no lookup benefits from the neighbourhood of the previous peer.
const STRIDE: usize = 61;
/// Peers that connect first and are not counted. With them an endpoint sizes its queues and buffers as for many.
const FIRST: usize = 500;
/// The time that an endpoint needs for the last acknowledgements after a round.
const QUIET: Duration = Duration::from_millis(500);
/// Silence after which a peer counts as lost.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of checks for silent peers.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Echoes every command.
#[derive(Default)]
struct Echo {
    /// Set when the session is over.
    lost: Option<Lost>,
}

impl Driver for Echo {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}

    fn record(&mut self, _peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow {
        if stream == Stream::Commands {
            sender.commands.record(record.kind, record.flags, record.body, 0, None);
        }
        Flow::Next
    }

    fn lost(&mut self, _peer: u32, reason: Lost) {
        self.lost = Some(reason);
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(0);
    }
}

/// One of the peers.
struct Member {
    socket: UdpSocket,
    endpoint: Endpoint,
    echo: Echo,
    due: Option<ofi_rdm::Instant>,
}

impl Member {
    fn new(number: usize) -> Result<Self> {
        let socket = UdpSocket::bind(crate::bare::own_address(0)?).map_err(Error::io("binding a socket"))?;
        socket.set_nonblocking(true).map_err(Error::io("setting a socket up"))?;
        // The kernel's default socket buffer exceeds anything that is sent here at once.
        let window = 128 << 10;
        let params = Params {
            window,
            in_flight: window / 2,
            max_packet: MAX_PACKET_LEN as u32,
            liveness_port: 0,
            flags: 0,
        };
        let config = Config {
            params,
            congestion: Congestion::Reno,
            patience: PEER_TIMEOUT,
            ack_delay: Duration::from_micros(50),
            max_peers: 16,
            max_of_host: 1 << 20,
            idle: Duration::from_secs(600),
            warm_peers: 1,
        };
        let secret = [number as u64, u64::from(std::process::id())];
        Ok(Self { socket, endpoint: Endpoint::new(config, secret), echo: Echo::default(), due: None })
    }

    /// Processes received datagrams, and sends pending ones.
    fn work(&mut self, now: ofi_rdm::Instant, buffer: &mut [u8]) -> Result<()> {
        while let Ok((len, from)) = self.socket.recv_from(buffer) {
            self.endpoint.handle(now, from, &mut buffer[..len], &mut self.echo);
        }
        self.endpoint.handle_time(now, &mut self.echo);
        while let Some(out) = self.endpoint.poll_transmit(now, buffer, &mut self.echo) {
            match self.socket.send_to(&buffer[..out.len], out.to) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {} // lost, like any other
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    out.peer.into_iter().for_each(|peer| self.endpoint.too_long(peer, out.len));
                }
                Err(error) => return Err(Error::io("sending")(error)),
            }
        }
        self.due = self.endpoint.poll_timeout();
        match self.echo.lost {
            // The other side closes when it is done.
            None | Some(Lost::Closed) => Ok(()),
            Some(reason) => Err(Error::Stack(format!("a peer's session was lost: {reason:?}"))),
        }
    }
}

/// Runs the peers: reports their addresses, and answers until the other side is done.
fn serve(peers: usize, link: &mut Link) -> Result<()> {
    let allowed = sys::raise_descriptors().map_err(Error::io("asking for descriptors"))?;
    if allowed < peers as u64 + 64 {
        return Err(Error::Stack(format!("{peers} sockets need a limit of descriptors above {allowed}")));
    }
    let mut members = (0..=FIRST + peers).map(Member::new).collect::<Result<Vec<_>>>()?;
    let epoll = sys::Epoll::new().map_err(Error::io("making an epoll"))?;
    let mut names = Vec::with_capacity(members.len());
    for (number, member) in members.iter().enumerate() {
        epoll.add(member.socket.as_fd(), number as u64).map_err(Error::io("watching a socket"))?;
        names.push(member.socket.local_addr().map_err(Error::io("naming a socket"))?);
    }
    let _: String = link.exchange(&Address::from(names[0]).to_string())?;
    link.send(&names[1..])?;
    let mut buffer = vec![0; 1 << 16];
    let start = Instant::now();
    let now = || ofi_rdm::Instant::from_nanos(start.elapsed().as_nanos() as u64 + 1_000_000_000);
    let mut looked = Instant::now();
    link.barrier_with(|| {
        for number in epoll.wait(1).map_err(Error::io("waiting for datagrams"))? {
            members[number as usize].work(now(), &mut buffer)?;
        }
        if looked.elapsed() > CHECK_INTERVAL {
            looked = Instant::now();
            let time = now();
            for member in members.iter_mut().filter(|member| member.due.is_some_and(|due| due <= time)) {
                member.work(time, &mut buffer)?;
            }
        }
        Ok(())
    })
}

/// Sends a message to each of `peers` and waits until all echoes have arrived.
fn round(node: &mut Node, arena: &Arena, peers: &[FiAddr]) -> Result<()> {
    let (mut sent, mut done, mut back) = (0, 0, 0);
    let mut at = 0;
    let mut entries = [CqTaggedEntry::EMPTY; 64];
    let mut since = Instant::now();
    while done < peers.len() || back < peers.len() {
        while sent < peers.len() && sent - done.min(back) < WINDOW {
            node.receive(slot(arena, arena.len, 0), None, 0)?;
            node.peer = peers[at];
            node.send(slot(arena, arena.len, 0), None)?;
            sent += 1;
            at = (at + STRIDE) % peers.len();
        }
        let (tx, rx) = (Arc::clone(&node.tx), Arc::clone(&node.rx));
        let finished = node.poll(&tx, &mut entries)?;
        let came = node.poll(&rx, &mut entries)?;
        (done, back) = (done + finished, back + came);
        if finished + came == 0 {
            check(&mut since)?;
        }
    }
    Ok(())
}

/// Begins a session with each of `names`, discovers the packet sizes of their paths, and waits until all are idle.
fn meet(node: &mut Node, arena: &Arena, names: &[SocketAddr], into: &mut Vec<FiAddr>) -> Result<()> {
    for name in names {
        into.push(node.av.insert(&[Address::from(*name)]).remove(0).map_err(stack)?);
    }
    for _ in 0..3 {
        round(node, arena, into)?;
    }
    let begin = Instant::now();
    while begin.elapsed() < QUIET {
        node.poll(&node.rx, &mut [])?;
    }
    Ok(())
}

/// Runs one role of the measurement. The client's figures are the time per message and its answer, and the memory of
/// an idle peer.
pub fn run(job: &Job, peers: usize, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    if role == Role::Server {
        return serve(peers, link).map(|()| None);
    }
    if peers.is_multiple_of(STRIDE) {
        return Err(Error::Stack(format!("{peers} peers are a multiple of {STRIDE}")));
    }
    let mut node = Node::open(ofi::raw::Caps::empty(), job, link, ofi::raw::WaitObj::None)?;
    let arena = node.memory(job, job.size)?;
    let one = [node.peer];
    for _ in 0..100 {
        round(&mut node, &arena, &one)?;
    }
    let names: Vec<SocketAddr> = link.recv()?;
    let (first, names) = names.split_at(FIRST);
    let mut addresses = Vec::with_capacity(peers);
    meet(&mut node, &arena, first, &mut addresses)?;
    addresses.clear();
    let before = sys::resident_bytes().map_err(Error::io("looking at memory"))?;
    meet(&mut node, &arena, names, &mut addresses)?;
    let after = sys::resident_bytes().map_err(Error::io("looking at memory"))?;
    let rounds = (job.iterations as usize).div_ceil(peers);
    let begin = Instant::now();
    for _ in 0..rounds {
        round(&mut node, &arena, &addresses)?;
    }
    let each = begin.elapsed().as_secs_f64() * 1e6 / (rounds * peers) as f64;
    let bytes_each = Some(after.saturating_sub(before) as f64 / peers as f64);
    node.meet(link)?;
    Ok(Some(Figures { bytes_each, ..Figures::from_latency(job.size, each) }))
}
