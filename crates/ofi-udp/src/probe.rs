//! Checks whether a port is in use. The kernel reports an unused port of the peer's host to a connected datagram
//! socket, but not to the endpoint's socket, which has many peers.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ofi_rdm::Instant;
use ofi_rdm::wire::header::flag;
use ofi_rdm::wire::{Header, Kind, header};

/// Time between the first two checks; it doubles.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time between two checks.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A check of whether a peer's port is in use, repeated at growing intervals.
pub struct Probe {
    socket: UdpSocket,
    /// The port.
    pub to: SocketAddr,
    /// The time of the next check.
    pub next: Instant,
    gap: Duration,
}

impl Probe {
    /// Starts the checks, from address `from`. `None` if no socket can be opened: then only the timeout detects the
    /// absence.
    pub fn new(from: IpAddr, to: SocketAddr, now: Instant) -> Option<Self> {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.connect(to).ok()?;
        Some(Self { socket, to, next: now, gap: FIRST_CHECK_INTERVAL })
    }

    /// Checks if a check is due. Returns whether the port is unused.
    pub fn is_refused(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        (self.next, self.gap) = (now + self.gap, (self.gap * 2).min(MAX_CHECK_INTERVAL));
        let mut buffer = [0u8; 64];
        for _ in 0..16 {
            match self.socket.recv(&mut buffer) {
                Ok(_) => {} // an answer: the port is in use
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return true,
                Err(_) => break,
            }
        }
        // A liveness question about an endpoint that does not exist. Its answer does not matter.
        let mut packet = [0u8; header::LEN];
        Header { flags: flag::CHECKED, ..Header::new(Kind::Ask, 0, 0) }.write(&mut packet);
        self.socket.send(&packet).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(probe: &mut Probe, bound: Duration) -> bool {
        let start = std::time::Instant::now();
        while start.elapsed() < bound {
            if probe.is_refused(crate::time::now()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn a_port_that_nobody_has_is_told_from_one_that_somebody_has() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let mut probe = Probe::new(to.ip(), to, crate::time::now()).unwrap();
        assert!(!look(&mut probe, Duration::from_millis(50)));
        drop(socket);
        assert!(look(&mut probe, Duration::from_secs(5)));
    }
}
