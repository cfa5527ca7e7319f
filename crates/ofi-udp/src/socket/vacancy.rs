//! Waits until an address is free again that a ring held a moment longer than its socket.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long, at most.
const BOUND: Duration = Duration::from_millis(500);
/// Between looks.
const STEP: Duration = Duration::from_micros(200);

/// Dropped behind a socket.
pub struct Vacancy {
    address: SocketAddr,
    wanted: Cell<bool>,
}

impl Vacancy {
    /// Of the socket at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, wanted: Cell::new(false) }
    }

    /// Has the drop wait.
    pub fn await_it(&self) {
        self.wanted.set(true);
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        let end = Instant::now() + BOUND;
        while self.wanted.get() && Instant::now() < end {
            // Bound for a moment, by a socket of which nobody knows.
            if UdpSocket::bind(self.address).is_ok() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }
}
