//! Detects peers whose hosts are gone.
//!
//! On an idle connection, the kernel detects this by keepalive; with data in flight, only after a quarter of an hour.
//! `TCP_USER_TIMEOUT` would shorten that, but it also ends connections to live peers that have no room, for instance
//! because their application computes. So the endpoint checks itself whether the other host still acknowledges.

use std::os::fd::AsFd;
use std::time::Instant;

use ofi_api::Errno;
use ofi_core::transport::Upcalls;

use super::TcpEndpoint;
use crate::conn::Phase;
use crate::{Tcp, sys};

impl TcpEndpoint {
    /// Whether any connection must be checked.
    pub(super) fn needs_look(&self) -> bool {
        !self.conns.is_empty()
    }

    /// Gives up peers whose hosts have been silent for too long.
    pub(super) fn look_for_silence<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        // The clock is read once in many polls.
        if !self.polls.is_multiple_of(64) && self.found.iter().all(|found| found.number != super::TIMER) {
            return;
        }
        let now = Instant::now();
        if now < self.look {
            return;
        }
        self.look = now + self.peer_timeout / 4;
        let timeout = self.peer_timeout;
        self.close_idle_bulk(now);
        for main in self.stuck_mains() {
            self.lose(host, main, Errno::ECONNRESET);
        }
        let ids = self
            .conns
            .ids(|conn| conn.as_deref().is_some_and(|conn| conn.phase == Phase::Ready && conn.expects()));
        for id in ids {
            let socket = self.conn(id).and_then(|conn| conn.socket.as_ref());
            let silence = socket.and_then(|socket| sys::silence(socket.as_fd()));
            if silence.is_some_and(|silence| silence.asked && silence.since > timeout) {
                self.lose(host, id, Errno::ETIMEDOUT);
            }
        }
    }
}
