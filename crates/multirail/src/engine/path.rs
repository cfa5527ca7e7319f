//! A path: one of our rails to one of a peer's, with its measurements.
//!
//! The time to move `len` bytes is `latency + (in flight + len) / rate`. Latency is measured as operations end; the
//! rate follows from measured bandwidths and from the links' speeds (`shares.rs`). The engine does not wait for a rail
//! that has stopped without an error: the longer no operation ends on it, the later its expected completion.
use std::time::Duration;

use ofi::Errno;
use ofi_core::budget::AccountId;

use super::Time;
use super::operations::is_path_fault;
use super::shares::{self, Share};

/// Bandwidth assumed before any measurement, in bytes per second, if the NIC reports none.
const BANDWIDTH: f64 = 1e9;
/// Latency assumed before any measurement, in seconds.
const LATENCY: f64 = 20e-6;
/// Weight of the newest measurement.
const NEWEST: f64 = 0.25;
/// Bytes and time that make a measurement of bandwidth.
const MEASURED: (u64, Duration) = (64 << 10, Duration::from_micros(20));
/// Initial and maximum time for which a failed path rests.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What the end of operations has shown of a path.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    /// Time since they were posted, or since earlier ones have ended. `None` if others have ended at the same time.
    pub(super) took: Option<Duration>,
    /// The bandwidth was measured.
    pub(super) is_bandwidth: bool,
}

/// One of our rails to one of a peer's.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// Our rail.
    pub(super) rail: usize,
    /// The peer's rail.
    pub(super) remote: usize,
    /// The peer's number in our rail's address vector; `None` until it is inserted.
    pub(super) addr: Option<u64>,
    /// The path has failed and is not used before this time.
    failed_until: Time,
    backoff: Duration,
    /// Bytes that were posted and have not ended.
    pub(super) in_flight: u64,
    /// Operations that were posted and have not ended.
    pub(super) operations: u32,
    /// The account of its address, once that is inserted.
    pub(super) account: Option<AccountId>,
    /// The number under which its session waits for the end of an operation of the account. 0: it does not.
    pub(super) turn: u64,
    /// The number that it had when it was woken, until the path has posted something. 0: there is none.
    pub(super) rank: u64,
    /// The number under which its session waits for a place of its rail. 0: it does not, or another path of the rail
    /// has the number.
    pub(super) place_turn: u64,
    /// The rail has refused work of the path, which waits ([`Stalled`](super::sink::Stalled)).
    pub(super) is_stalled: bool,
    /// The time when the last operation ended, or the first one of a busy period was posted.
    progress: Time,
    /// Start of the measurement of `gathered` bytes: bytes that end together are one measurement.
    since: Time,
    gathered: u64,
    /// The measured bandwidth.
    bandwidth: f64,
    latency: f64,
    pub(super) share: Share,
    /// Bytes of successful operations.
    pub(super) moved: u64,
    /// Operations that failed.
    pub(super) failures: u64,
    /// The timer after which the path is examined.
    pub(super) watch: Option<(Time, u64)>,
    /// Whether the peer was probed on another path since an operation ended here.
    pub(super) probed: bool,
    /// The last greeting over the path found no endpoint: the peer's endpoint is gone, and its metadata is outdated.
    pub(super) is_refused: bool,
    /// The time of the last successful completion.
    last_ended: Time,
    /// Since a rail was opened later, other paths serve its rails, and work: the path gets nothing new.
    pub(super) is_surplus: bool,
    /// The peer is being asked to close the keys of writes on the path.
    pub(super) is_fencing: bool,
    /// Accesses that were abandoned and have not ended. The rail still has them, so no new ones are posted.
    stuck: u32,
    /// The time when this end last ended the path's connection because no operation completed on it.
    pub(super) severed: Option<Time>,
}

impl Path {
    pub(super) fn new(rail: usize, remote: usize, bandwidth: Option<f64>) -> Self {
        let bandwidth = bandwidth.filter(|&rate| rate > 0.0).unwrap_or(BANDWIDTH);
        Self {
            rail,
            remote,
            addr: None,
            failed_until: Time::ZERO,
            backoff: BACKOFF.0,
            in_flight: 0,
            operations: 0,
            account: None,
            turn: 0,
            rank: 0,
            place_turn: 0,
            is_stalled: false,
            progress: Time::ZERO,
            since: Time::ZERO,
            gathered: 0,
            bandwidth,
            latency: LATENCY,
            share: Share::new(bandwidth),
            moved: 0,
            failures: 0,
            watch: None,
            probed: false,
            is_refused: false,
            last_ended: Time::ZERO,
            is_surplus: false,
            is_fencing: false,
            stuck: 0,
            severed: None,
        }
    }

    /// Whether the path is usable at `now`.
    pub(super) fn is_up(&self, now: Time) -> bool {
        self.addr.is_some() && self.failed_until <= now && !self.is_shut()
    }

    /// Whether the path is closed until some event, not until a known time.
    pub(super) fn is_shut(&self) -> bool {
        self.is_surplus || self.is_fencing || self.stuck > 0
    }

    /// Operations that the rail has or is to have, including abandoned ones.
    #[inline]
    pub(super) fn places(&self) -> u32 {
        self.operations + self.stuck
    }

    /// Takes its session, which is woken, out of the line at its account. It keeps its place until something is posted.
    pub(super) fn was_called(&mut self) {
        self.rank = std::mem::take(&mut self.turn);
    }

    /// Records that a message was sent.
    pub(super) fn sent(&mut self, now: Time) {
        self.posted(1, 0, now);
    }

    /// Measured bytes per second.
    pub(super) fn bandwidth(&self) -> f64 {
        self.bandwidth
    }

    /// Seconds until `len` more bytes have been moved.
    pub(super) fn finish(&self, len: u64, now: Time) -> f64 {
        let modelled = self.latency + (self.in_flight + len) as f64 / self.share.rate();
        if self.operations == 0 {
            return modelled;
        }
        modelled.max(2.0 * now.saturating_sub(self.progress).as_secs_f64())
    }

    /// The cost by which a path is chosen for `len` bytes, in seconds.
    pub(super) fn cost(&self, len: u64, now: Time) -> f64 {
        self.finish(len, now) + self.share.owed()
    }

    /// Whether the path is slow and idle, and is to be tried.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.operations == 0 && self.share.is_due(now)
    }

    /// The time from which this path, if no operation ends on it, costs more than `seconds`. `None` if only the end of
    /// an operation changes that.
    pub(super) fn behind(&self, seconds: f64) -> Option<Time> {
        let after = Duration::try_from_secs_f64((seconds - self.share.owed()).max(0.0) / 2.0).ok()?;
        (self.operations > 0).then(|| self.progress.saturating_add(after))
    }

    /// The time until which the path rests.
    pub(super) fn rests_until(&self) -> Time {
        self.failed_until
    }

    /// Whether `len` more bytes may be in flight.
    pub(super) fn has_room(&self, len: u64, largest: u64) -> bool {
        self.operations == 0 || len <= self.room(largest)
    }

    /// The number of further bytes that may be in flight.
    pub(super) fn room(&self, largest: u64) -> u64 {
        self.window(largest).saturating_sub(self.in_flight)
    }

    /// The limit of bytes in flight: what the path carries in two milliseconds, and at least two accesses.
    fn window(&self, largest: u64) -> u64 {
        ((self.share.rate() * 2e-3) as u64).max(2 * largest)
    }

    /// Records that `operations` operations of `len` bytes together were posted.
    pub(super) fn posted(&mut self, operations: u32, len: u64, now: Time) {
        if self.operations == 0 {
            (self.progress, self.since, self.gathered) = (now, now, 0);
        }
        self.in_flight += len;
        self.operations += operations;
        self.rank = 0;
    }

    /// Records that `count` operations that were posted at `since` (nanoseconds) have ended successfully: `bytes` in
    /// total, about `len` each. Returns whether they were measured.
    pub(super) fn ended(&mut self, len: u64, bytes: u64, count: u32, since: u64, now: Time) -> Measured {
        self.gathered += bytes;
        // Operations that end together are measured once.
        let is_first = now != self.last_ended;
        let is_bandwidth = is_first && self.measure(len, since, now);
        let began = self.last_ended.max(Duration::from_nanos(since));
        let took = is_first.then(|| now.saturating_sub(began));
        self.left(bytes, count, now);
        self.moved += bytes;
        (self.last_ended, self.probed) = (now, false);
        self.backoff = BACKOFF.0;
        Measured { took, is_bandwidth }
    }

    /// Takes the measurements that are due. Returns whether the bandwidth is among them.
    fn measure(&mut self, len: u64, since: u64, now: Time) -> bool {
        let busy = now.saturating_sub(self.since);
        let is_bandwidth = self.gathered >= MEASURED.0 && busy >= MEASURED.1;
        if is_bandwidth {
            let rate = self.gathered as f64 / busy.as_secs_f64();
            self.bandwidth += NEWEST * (rate - self.bandwidth);
            (self.since, self.gathered) = (now, 0);
        }
        if len < 4096 {
            let latency = now.saturating_sub(Duration::from_nanos(since)).as_secs_f64();
            self.latency += NEWEST * (latency.min(1.0) - self.latency);
        }
        is_bandwidth
    }

    /// Records that an operation of `len` bytes has failed; `path` says whether it was the path's fault.
    pub(super) fn failed(&mut self, len: u64, path: bool, now: Time) {
        self.left(len, 1, now);
        self.failures += 1;
        if path {
            self.rest(now);
        }
    }

    /// The time since which the path has had operations and none has ended. `None` without operations.
    pub(super) fn busy_since(&self) -> Option<Time> {
        (self.operations > 0).then_some(self.progress)
    }

    pub(super) fn last_ended(&self) -> Time {
        self.last_ended
    }

    /// Lets the path rest for some time, because no operation ends on it.
    pub(super) fn fence(&mut self, now: Time) {
        self.failures += 1;
        self.progress = now;
        self.rest(now);
    }

    /// The rail cannot be driven until `until`: posts nothing on the path before.
    pub(super) fn rest_until(&mut self, until: Time) {
        self.failures += 1;
        self.failed_until = self.failed_until.max(until);
    }

    /// Records that an access of `len` bytes was abandoned.
    pub(super) fn abandoned(&mut self, len: u64) {
        self.in_flight = self.in_flight.saturating_sub(len);
        self.operations = self.operations.saturating_sub(1);
        self.stuck += 1;
    }

    /// Records that an access of `len` bytes was given up because its transfer has ended.
    pub(super) fn given_up(&mut self, len: u64) {
        self.in_flight = self.in_flight.saturating_sub(len);
    }

    /// Records the end of such an access. That the rail has cancelled it says nothing about the path.
    pub(super) fn given_up_ended(&mut self, result: Result<(), Errno>, now: Time) {
        self.left(0, 1, now);
        match result {
            Ok(()) => (self.last_ended, self.probed) = (now, false),
            Err(errno) if errno != Errno::ECANCELED && is_path_fault(errno) => {
                self.failures += 1;
                self.rest(now);
            }
            Err(_) => {}
        }
    }

    /// Records the end of an abandoned access. The path works again, unless the access ended with an error of the path.
    pub(super) fn abandoned_ended(&mut self, error: Option<Errno>, now: Time) {
        self.stuck -= 1;
        if error.is_some_and(is_path_fault) {
            self.rest(now);
        }
    }

    fn rest(&mut self, now: Time) {
        if now < self.failed_until {
            return; // what fails now was posted before, and fails for the same reason
        }
        self.failed_until = now + self.backoff;
        self.backoff = (2 * self.backoff).min(BACKOFF.1);
    }

    fn left(&mut self, bytes: u64, count: u32, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.operations = self.operations.saturating_sub(count);
        self.progress = now;
    }
}

/// Pairs our rails with a peer's rails of the same provider and address format: each rail of the longer side once, the
/// rails of the shorter side in turn.
pub(super) fn pair(ours: &[super::RailSpec], theirs: &[crate::wire::RailInfo]) -> Vec<Path> {
    let mut kinds: Vec<(&str, u32)> =
        ours.iter().map(|rail| (rail.info.provider.as_str(), rail.info.format)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut paths = Vec::new();
    for kind in kinds {
        let here: Vec<usize> = (0..ours.len())
            .filter(|&at| (ours[at].info.provider.as_str(), ours[at].info.format) == kind)
            .collect();
        let there: Vec<usize> = (0..theirs.len())
            .filter(|&at| (theirs[at].provider.as_str(), theirs[at].format) == kind)
            .collect();
        if there.is_empty() {
            continue;
        }
        for nth in 0..here.len().max(there.len()) {
            let (rail, remote) = (here[nth % here.len()], there[nth % there.len()]);
            paths.push(Path::new(rail, remote, ours[rail].bandwidth));
        }
    }
    paths.shrink_to_fit(); // an agent may have very many sessions
    shares::classify(&mut paths, ours);
    paths
}
