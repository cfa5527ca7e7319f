//! Waits until an address is free that a ring holds slightly longer than its socket does.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The limit of the wait.
const BOUND: Duration = Duration::from_millis(500);
/// Time between two checks.
const STEP: Duration = Duration::from_micros(200);

/// Dropped after the socket.
pub struct Vacancy {
    address: SocketAddr,
    wanted: Cell<bool>,
}

impl Vacancy {
    /// Creates the guard for the socket at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, wanted: Cell::new(false) }
    }

    /// Makes the drop wait.
    pub fn await_it(&self) {
        self.wanted.set(true);
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        let end = Instant::now() + BOUND;
        while self.wanted.get() && Instant::now() < end {
            // This socket binds the address only for a moment, and no peer knows it.
            if UdpSocket::bind(self.address).is_ok() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }
}
