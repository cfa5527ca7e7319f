//! The sending role: the state of targets that the C++ SDK runs, and of the connections to them
//! ([`crate::Initiator`] drives them).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi::Address;

use super::plant::{self, Line, Plant};
use super::wire::Write;
use crate::initiator::{Job, PeerState, PeerStats};
use crate::link::OpId;
use crate::message::Remote;
use crate::rest::Rest;
use crate::{Error, Histogram, Result, TargetInfo};

/// A target that takes none of the writes to it for this long is dropped, and called again.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);
/// Time in which a target must accept. The C++ SDK's accept when their program reads.
pub(crate) const ACCEPTED_WITHIN: Duration = Duration::from_secs(5);
/// Shortest and longest pause between calls.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Transfers in flight to one target. Its queue has eight entries by default, and nothing says how many it has read.
pub(crate) const IN_FLIGHT: usize = 4;

/// The connection to a target.
pub(crate) enum Call {
    /// There is none; the next call is made then.
    Idle(Instant),
    Calling(Line),
    Connected(Line),
}

/// The transfer whose writes are being posted.
pub(crate) struct Posting {
    pub job: Job,
    /// Bytes before the payload of its first write.
    pub header: Vec<u8>,
    /// The region, and the CQ data of its last write.
    pub remote: Remote,
    pub mark: u32,
    pub writes: VecDeque<Write>,
    pub sent: Sent,
}

/// A transfer with writes in flight.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub index: u64,
    /// Samples of the transfer; 0 for grains.
    pub count: u64,
    /// Samples up to this index were committed when the first write was posted.
    pub committed: u64,
    pub bytes: u64,
    /// Its writes in flight.
    pub ops: Vec<OpId>,
    pub is_posted: bool,
    /// It had a payload, which may be overwritten at the source.
    pub is_judged: bool,
    /// The part of a batch that is not its last.
    pub is_partial: bool,
    pub since: Instant,
    /// When something of it was posted or ended last.
    pub moved: Instant,
}

/// A target of the C++ SDK.
pub(crate) struct Called {
    pub info: TargetInfo,
    pub address: Address,
    pub call: Call,
    pub pause: Duration,
    pub jobs: VecDeque<Job>,
    pub posting: Option<Posting>,
    pub sent: VecDeque<Sent>,
    /// The next entry of the bounce buffer.
    pub entry: usize,
    pub rest: Rest,
    pub stats: PeerStats,
    pub latency: Histogram,
}

impl Called {
    pub fn new(info: TargetInfo) -> Result<Self> {
        let address = plant::address(info.format, &info.address)
            .map_err(|error| Error::Info(format!("the address cannot be reached: {error}")))?;
        Ok(Self {
            info,
            address,
            call: Call::Idle(Instant::now()),
            pause: PAUSE.0,
            jobs: VecDeque::new(),
            posting: None,
            sent: VecDeque::new(),
            entry: 0,
            rest: Rest::Announced,
            stats: PeerStats::default(),
            latency: Histogram::default(),
        })
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.call, Call::Connected(_))
    }

    pub fn state(&self) -> PeerState {
        if self.is_connected() { PeerState::Connected } else { PeerState::Connecting }
    }

    /// Whether nothing waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.posting.is_none() && self.sent.is_empty()
    }

    /// The connection is there.
    pub fn established(&mut self) {
        let now = Instant::now();
        if let Call::Calling(line) = std::mem::replace(&mut self.call, Call::Idle(now)) {
            self.call = Call::Connected(line);
            self.pause = PAUSE.0;
            self.stats.connected += 1;
            self.entry = 0;
        }
    }

    /// Drops the connection, and calls again after a pause. Returns the indices that are lost.
    pub fn hang_up(&mut self) -> Vec<u64> {
        self.call = Call::Idle(Instant::now() + self.pause);
        self.pause = PAUSE.1.min(self.pause * 2);
        let sent = self.sent.drain(..).filter(|sent| !sent.is_partial).map(|sent| sent.index);
        let mut lost: Vec<u64> = sent.collect();
        lost.extend(self.posting.take().map(|posting| posting.job.index));
        lost.extend(self.jobs.drain(..).map(|job| job.index));
        lost
    }

    /// The connection, whichever state it is in.
    pub fn line(&mut self) -> Option<&mut Line> {
        match &mut self.call {
            Call::Idle(_) => None,
            Call::Calling(line) | Call::Connected(line) => Some(line),
        }
    }

    /// The time of the next thing to do.
    pub fn due(&self) -> Rest {
        match &self.call {
            Call::Idle(next) => Rest::Until(*next),
            Call::Calling(line) => Rest::Until(line.since + ACCEPTED_WITHIN),
            Call::Connected(_) => self.rest,
        }
    }

    /// Whether the target has taken nothing for too long.
    pub fn is_stuck(&self) -> bool {
        match &self.call {
            Call::Idle(_) => false,
            Call::Calling(line) => line.since.elapsed() > ACCEPTED_WITHIN,
            Call::Connected(_) => self.sent.front().is_some_and(|sent| sent.moved.elapsed() > STUCK_AFTER),
        }
    }
}

/// All such targets of an initiator.
pub(crate) struct Egress {
    // Dropped before what its connections use.
    pub called: Vec<Called>,
    pub plant: Plant,
}
