//! Reports of closed ports (ICMP) with Linux's rate limit for each destination.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Net, What};
use ofi_rdm::Instant;

/// The interval of reports to one destination (icmp(7), `icmp_ratelimit`).
const INTERVAL: Duration = Duration::from_secs(1);
/// Reports that may follow each other at once after a pause.
const BURST: u32 = 6;

/// The reports that a host may still send. It has one budget for all destinations, so it reports less than Linux does.
#[derive(Debug, Default)]
pub(super) struct Reports {
    saved: Duration,
    last: Option<Instant>,
}

impl Reports {
    fn may(&mut self, now: Instant) -> bool {
        let passed = self.last.map_or(INTERVAL * BURST, |last| now.since(last));
        self.last = Some(now);
        self.saved = (self.saved + passed).min(INTERVAL * BURST);
        let Some(rest) = self.saved.checked_sub(INTERVAL) else { return false };
        self.saved = rest;
        true
    }
}

impl Net {
    /// Whether a datagram to this address is answered with a report.
    pub(super) fn is_refused(&self, to: SocketAddr) -> bool {
        self.link.reports.is_some() && self.index(to).is_some_and(|host| self.hosts[host].endpoint.is_none())
    }

    /// The host of `to` reports that its port is closed. The report crosses the same network.
    pub(super) fn report(&mut self, from: SocketAddr, to: SocketAddr) {
        let (Some(source), Some(target)) = (self.index(from), self.index(to)) else { return };
        let limited = self.link.reports == Some(true);
        if limited && !self.hosts[target].reports.may(self.now) {
            return;
        }
        let is_cut = self.cut.contains(&(source, target))
            || self.cut.contains(&(target, source))
            || self.mute.contains(&(target, source));
        if !is_cut && !self.random.chance(self.link.loss) {
            let at = self.now + self.link.delay;
            self.schedule(at, What::Refusal { host: source, address: to });
        }
    }

    /// A report reaches a host, which reads it when it is awake.
    pub fn refuse(&mut self, host: usize, address: SocketAddr) {
        let here = &mut self.hosts[host];
        if here.asleep > self.now {
            let at = here.asleep;
            return self.schedule(at, What::Refusal { host, address });
        }
        let now = here.clock.at(self.now);
        if let Some(endpoint) = &mut here.endpoint {
            endpoint.refused(now, address);
            self.turn(host);
        }
    }
}
