//! The socket of a passive endpoint. Its sessions carry only connection management packets.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ofi_api::{AddrFormat, Address, Error, Info, Result};
use ofi_core::auth::AuthKey;
use ofi_core::transport::{MAX_PACKET, Port};
use ofi_rdm::wire::Record;
use ofi_rdm::{Config, Driver, Endpoint, Flow, Lost, Sender, Stream};

use crate::command::kind;
use crate::config::{config, secret, secure};
use crate::liveness::Alive;
use crate::settings::Choice;
use crate::socket::{Report, Sent, Socket};
use crate::time::now;
use crate::{address, settings};

/// Maximum packets that wait for the event queue. Beyond it, their senders' streams stop.
const INBOX: usize = 1024;
/// Maximum bytes queued for one peer.
const STREAM_LIMIT: usize = 64 << 10;
/// Maximum clients with a session.
const CLIENTS: usize = 1 << 16;
/// Pause before sending again on a full socket.
const FULL: Duration = Duration::from_millis(1);
/// Maximum number of batches that one call receives, so that a flood keeps no call forever.
const ROUNDS: usize = 8;

/// Events of the protocol, for the port to process.
#[derive(Default)]
struct Desk {
    inbox: VecDeque<(u32, Vec<u8>)>,
    fresh: Vec<u32>,
    lost: Vec<u32>,
}

impl Driver for Desk {
    fn introduce(&mut self, peer: u32, _address: SocketAddr) {
        self.fresh.push(peer);
    }

    fn record(&mut self, peer: u32, _sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow {
        if stream != Stream::Commands || record.kind != kind::CONNECTION || record.body.len() > MAX_PACKET {
            return Flow::Broken;
        }
        if self.inbox.len() >= INBOX {
            return Flow::Stop;
        }
        self.inbox.push_back((peer, record.body.to_vec()));
        Flow::Next
    }

    fn lost(&mut self, peer: u32, _reason: Lost) {
        self.lost.push(peer);
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(0); // passive endpoints have no payloads
    }
}

struct Inner {
    endpoint: Endpoint,
    socket: Socket,
    desk: Desk,
    alive: Alive,
    /// Peers that were sent to and whose sessions are not open yet: `Endpoint::is_drained` disregards them.
    opening: BTreeSet<u32>,
}

/// A passive endpoint: its socket, and the connection requests that arrive on it.
pub struct UdpPort {
    address: Address,
    fd: RawFd,
    inner: Mutex<Inner>,
}

impl UdpPort {
    /// Binds the socket to `name`, or to the configured address and any port.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`.
    pub fn open(info: &Info, name: Option<&Address>) -> Result<Self> {
        let name = name.map(address::socket).transpose()?;
        let wanted = address::to_bind(name, None, info.addr_format == AddrFormat::SockaddrIn6)?;
        let socket =
            Socket::new(wanted, settings::SOCKET_BUFFER.get(), settings::SEGMENTS.get(), Choice::Calls)?;
        let mut alive = Alive::new(wanted)?;
        let config = Config { max_peers: CLIENTS, ..config(socket.granted, alive.port) };
        let mut endpoint = Endpoint::new(config, secret()?);
        secure(&mut endpoint, &AuthKey::of(info))?;
        endpoint.set_addresses(socket.names());
        alive.set_epoch(endpoint.epoch());
        alive.watch(socket.raw())?;
        let address = Address::from(socket.name());
        let fd = socket.fd();
        let inner = Inner { endpoint, socket, desk: Desk::default(), alive, opening: BTreeSet::new() };
        Ok(Self { address, fd, inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Processes received packets, and sends due ones.
    fn drive(&mut self) {
        if self.endpoint.is_stopped() {
            self.endpoint.resume(now(), &mut self.desk);
        }
        for _ in 0..ROUNDS {
            let (got, more) = self.socket.receive();
            for index in 0..got {
                let (bytes, from) = self.socket.datagram(index);
                if let Some(from) = from {
                    self.endpoint.handle(now(), address::canonical(from), bytes, &mut self.desk);
                }
            }
            if !more {
                break;
            }
        }
        for Report { to, is_port } in std::mem::take(&mut self.socket.refused) {
            if is_port { self.endpoint.refused(now(), to) } else { self.endpoint.unreachable(now(), to) }
        }
        // A peer that does not answer pings is removed, which bounds the time for which it occupies a slot.
        for peer in std::mem::take(&mut self.desk.fresh) {
            self.endpoint.expect(now(), peer, true);
        }
        self.endpoint.handle_time(now(), &mut self.desk);
        self.forget();
        self.endpoint.hasten();
        self.send();
    }

    /// Whether packets wait for a session to open.
    fn owes(&mut self) -> bool {
        let endpoint = &self.endpoint;
        self.opening.retain(|&peer| !endpoint.is_open(peer) && !endpoint.is_idle(peer));
        !self.opening.is_empty()
    }

    fn forget(&mut self) {
        let lost = std::mem::take(&mut self.desk.lost);
        // Requests of lost peers need no answer.
        self.desk.inbox.retain(|(peer, _)| !lost.contains(peer));
        for peer in lost {
            self.opening.remove(&peer);
            self.endpoint.forget(peer);
        }
    }

    fn send(&mut self) {
        loop {
            while let Some((buffer, _)) = self.socket.next() {
                match self.endpoint.poll_transmit(now(), buffer, &mut self.desk) {
                    Some(transmit) => self.socket.push(&transmit),
                    None => break,
                }
            }
            if !self.socket.has_waiting() {
                break;
            }
            match self.socket.flush() {
                Sent::All => {}
                Sent::Full => break,
                Sent::TooLong(peer, len) => {
                    if let Some(peer) = peer {
                        self.endpoint.too_long(peer, len);
                    }
                }
            }
        }
        let full = self.socket.has_waiting().then(|| now() + FULL);
        let next = [self.endpoint.poll_timeout(), full].into_iter().flatten().min();
        self.socket.wake_at(now(), next);
    }
}

impl Port for UdpPort {
    fn address(&self) -> &Address {
        &self.address
    }

    fn address_towards(&self, from: &Address) -> Address {
        match address::socket(from) {
            Ok(from) => Address::from(self.inner().socket.name_towards(from)),
            Err(_) => self.address.clone(),
        }
    }

    fn send(&self, to: &Address, packet: &[u8]) -> Result<()> {
        let to = address::socket(to)?;
        let mut inner = self.inner();
        let inner = &mut *inner;
        let (peer, _) = inner.endpoint.peer(to);
        let sender = inner.endpoint.sender(now(), peer).ok_or(Error::AGAIN)?;
        if sender.commands.buffered() > STREAM_LIMIT {
            return Err(Error::AGAIN);
        }
        sender.commands.record(kind::CONNECTION, 0, packet, 0, None);
        if !inner.endpoint.is_open(peer) {
            inner.owes(); // forgets those that are open by now
            inner.opening.insert(peer);
        }
        inner.endpoint.expect(now(), peer, true);
        inner.endpoint.handle_time(now(), &mut inner.desk);
        inner.forget();
        inner.send();
        Ok(())
    }

    fn receive(&self) -> Option<(Address, Vec<u8>)> {
        let mut inner = self.inner();
        if inner.desk.inbox.is_empty() {
            inner.drive();
        }
        while let Some((peer, packet)) = inner.desk.inbox.pop_front() {
            if let Some(from) = inner.endpoint.address(peer) {
                return Some((Address::from(from), packet));
            }
        }
        None
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.fd)
    }
}

impl Drop for Inner {
    /// Waits up to `LINGER_MS` for the acknowledgement of rejections, then closes the sessions.
    fn drop(&mut self) {
        self.alive.unwatch();
        let end = now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        self.drive();
        while (!self.endpoint.is_drained() || self.owes()) && now() < end {
            let wait = self.endpoint.poll_timeout().map_or(end, |time| time.min(end)).since(now());
            self.socket.wait(wait.min(Duration::from_millis(10)));
            self.drive();
        }
        for peer in 0..self.endpoint.peers() as u32 {
            if let Some((buffer, _)) = self.socket.next()
                && let Some(transmit) = self.endpoint.close(peer, buffer)
            {
                self.socket.push(&transmit);
            }
            let _ = self.socket.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::sys;

    /// A port of loopback.
    fn port() -> UdpPort {
        let info = Info { addr_format: AddrFormat::SockaddrIn, ..Info::default() };
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        UdpPort::open(&info, Some(&loopback)).unwrap()
    }

    /// Regression test: the packet for the first peer, which begins to poll late, was lost when the second one had its
    /// own.
    #[test]
    fn a_closing_port_waits_for_each_peer_that_it_has_sent_to() {
        let (from, late, prompt) = (port(), port(), port());
        from.send(late.address(), b"first").unwrap();
        from.send(prompt.address(), b"second").unwrap();
        let poll = |port: &UdpPort, until: Duration| {
            let end = now() + until;
            while now() < end {
                if let Some((_, packet)) = port.receive() {
                    return Some(packet);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            None
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(40));
                assert_eq!(poll(&late, Duration::from_secs(2)).as_deref(), Some(&b"first"[..]));
                poll(&late, Duration::from_millis(20)); // acknowledges
            });
            scope.spawn(|| {
                assert_eq!(poll(&prompt, Duration::from_secs(2)).as_deref(), Some(&b"second"[..]));
                poll(&prompt, Duration::from_millis(20));
            });
            drop(from);
        });
    }

    /// Regression test: a call received until the socket was empty, which it never is under a flood.
    #[test]
    fn a_call_ends_while_strangers_flood_the_port() {
        const FLOOD: Duration = Duration::from_secs(2);
        let port = port();
        let to = address::socket(port.address()).unwrap();
        let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                // One call sends 64 datagrams, so a single stranger is faster than the port.
                assert!(sys::set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 8));
                let end = now() + FLOOD;
                while now() < end && !over.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[0x5a; 64 * 8], to);
                    begun.store(true, Ordering::Relaxed);
                }
            });
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let begin = now();
            for _ in 0..20 {
                port.receive();
            }
            let took = now().since(begin);
            over.store(true, Ordering::Relaxed);
            assert!(took < FLOOD / 2, "20 calls took {took:?}");
        });
    }
}
