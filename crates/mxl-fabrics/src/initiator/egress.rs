//! The sending role: the state of targets that the C++ SDK runs, and of the connections to them
//! ([`crate::Initiator`] drives them).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi::Address;

use super::begun::BegunGrains;
use super::{Job, Payload, PeerState, PeerStats, What};
use crate::link::OpId;
use crate::message::Remote;
use crate::rest::WaitFor;
use crate::sdk::plant::{self, Line, Plant};
use crate::sdk::wire::Write;
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
    pub sent: TransferInFlight,
}

/// A transfer with writes in flight.
#[derive(Clone, Debug)]
pub(crate) struct TransferInFlight {
    /// The grain, or the end of these samples.
    pub index: u64,
    /// The index that the program submitted: another one for parts of a batch.
    pub of: u64,
    /// Samples of the transfer; 0 for grains.
    pub count: u64,
    /// Samples up to this index were committed when the first write was posted.
    pub committed: u64,
    pub bytes: u64,
    /// Its writes in flight.
    pub ops: Vec<OpId>,
    /// It had a payload, which may be overwritten at the source.
    pub is_judged: bool,
    /// The part of a batch that is not its last, or a grain that the program was told about: not the end of a transfer.
    pub is_partial: bool,
    pub since: Instant,
    /// When it was posted, or any write to the target ended, whichever is later.
    pub moved: Instant,
}

/// A target of the C++ SDK.
pub(crate) struct Called {
    pub info: TargetInfo,
    pub address: Address,
    pub call: Call,
    pub pause: Duration,
    pub jobs: VecDeque<Job>,
    /// Grains that were queued in part since it was connected.
    pub begun: BegunGrains,
    pub posting: Option<Posting>,
    pub sent: VecDeque<TransferInFlight>,
    /// The batch of which a part was overwritten at the source.
    pub torn: Option<u64>,
    /// The next entry of the bounce buffer.
    pub entry: usize,
    pub rest: WaitFor,
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
            begun: BegunGrains::default(),
            posting: None,
            sent: VecDeque::new(),
            torn: None,
            entry: 0,
            rest: WaitFor::Announced,
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
        // The rest of a batch is a job.
        let posting = self.posting.take().filter(|posting| !posting.sent.is_partial);
        lost.extend(posting.map(|posting| posting.job.index));
        lost.extend(self.jobs.drain(..).filter(|job| !job.is_told()).map(|job| job.index));
        self.torn = None;
        self.begun.clear();
        lost
    }

    /// The connection, whichever state it is in.
    pub fn line(&mut self) -> Option<&mut Line> {
        match &mut self.call {
            Call::Idle(_) => None,
            Call::Calling(line) | Call::Connected(line) => Some(line),
        }
    }

    /// Notes that a write has ended: the target takes something.
    pub fn ended(&mut self, op: OpId) {
        let posting = self.posting.as_mut().map(|posting| &mut posting.sent);
        let now = Instant::now();
        for sent in self.sent.iter_mut().chain(posting) {
            sent.ops.retain(|other| *other != op);
            sent.moved = now;
        }
    }

    /// Queues a job. Returns the index of the oldest one if it is lost, because `most` wait.
    pub fn queue(&mut self, job: Job, most: usize) -> Option<u64> {
        if self.jobs.back_mut().is_some_and(|last| last.extend(&job)) {
            return None;
        }
        // The target must hear that a grain is invalid. No more of these wait than transfers were in flight.
        let oldest =
            if self.jobs.len() < most { None } else { self.jobs.iter().position(|job| !job.is_told()) };
        let lost = oldest.and_then(|at| self.jobs.remove(at)).map(|job| job.index);
        if let Some(index) = lost {
            self.begun.forget(index);
        }
        self.jobs.push_back(job);
        lost
    }

    /// Announces a grain again, as invalid: it was overwritten at the source, and the target may have published it. The
    /// program is told that the grain is torn, and no more.
    pub fn flag(&mut self, index: u64) {
        let what = What::Grain { start: 0, end: 0, payload: Payload::Retracted };
        self.jobs.push_front(Job { index, what, posted: 0, number: None, since: Instant::now() });
    }

    /// The time of the next thing to do.
    pub fn due(&self) -> WaitFor {
        match &self.call {
            Call::Idle(next) => WaitFor::Until(*next),
            Call::Calling(line) => WaitFor::Until(line.since + ACCEPTED_WITHIN),
            Call::Connected(_) => self.rest,
        }
    }

    /// Whether the target has taken nothing for too long.
    pub fn is_stuck(&self) -> bool {
        match &self.call {
            Call::Idle(_) => false,
            Call::Calling(line) => line.since.elapsed() > ACCEPTED_WITHIN,
            Call::Connected(_) => {
                let oldest = self.sent.front().or(self.posting.as_ref().map(|posting| &posting.sent));
                oldest.is_some_and(|sent| sent.moved.elapsed() > STUCK_AFTER)
            }
        }
    }
}

/// All such targets of an initiator.
pub(crate) struct Egress {
    // Dropped before what its connections use.
    pub called: Vec<Called>,
    pub plant: Plant,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Provider};

    /// A target that is connected, as far as this end knows. Its connection is one that was never made.
    fn connected(plant: &Plant) -> Called {
        let line = plant.line(None).unwrap();
        let address = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 9)));
        let (format, address) = (address.format().as_c(), address.bytes().to_vec());
        let provider = Provider::Tcp;
        let info = TargetInfo { id: 7, provider, format, address, regions: vec![], bounce: None, ours: None };
        let mut there = Called::new(info).unwrap();
        there.call = Call::Calling(line);
        there.established();
        there
    }

    fn job(index: u64) -> Job {
        let what = What::Samples { count: 48, published: true };
        Job { index, what, posted: 0, number: None, since: Instant::now() }
    }

    fn sent(index: u64, of: u64, op: OpId, is_partial: bool) -> TransferInFlight {
        let long_ago = Instant::now().checked_sub(2 * STUCK_AFTER).unwrap();
        let (ops, since) = (vec![op], long_ago);
        let (count, committed, bytes) = (48, index, 0);
        let is_judged = true;
        TransferInFlight {
            index,
            of,
            count,
            committed,
            bytes,
            ops,
            is_judged,
            is_partial,
            since,
            moved: long_ago,
        }
    }

    fn posting(sent: TransferInFlight) -> Posting {
        let (header, remote) = (Vec::new(), Remote::default());
        Posting { job: job(sent.of), header, remote, mark: 0, writes: VecDeque::new(), sent }
    }

    fn plant() -> Plant {
        Plant::open(Provider::Tcp, (Some("127.0.0.1"), None), &Options::default()).unwrap()
    }

    /// Regression test: a target that took a part of the first transfer, and then nothing, was never dropped.
    #[test]
    fn a_target_that_takes_a_part_of_a_transfer_and_no_more_is_stuck() {
        let plant = plant();
        let mut there = connected(&plant);
        assert!(!there.is_stuck());
        there.posting = Some(posting(sent(1048, 1048, 1, false)));
        assert!(there.is_stuck());
    }

    /// Regression test: only the oldest transfer had the time of the last write that ended, so the next one was taken
    /// for stuck as soon as that was over.
    #[test]
    fn a_target_that_takes_a_long_transfer_is_not_stuck_at_the_next_one() {
        let plant = plant();
        let mut there = connected(&plant);
        there.sent.extend([sent(1048, 1048, 1, false), sent(1096, 1096, 2, false)]);
        there.posting = Some(posting(sent(1144, 1144, 3, false)));
        assert!(there.is_stuck());
        there.ended(1);
        assert!(there.sent[0].ops.is_empty() && !there.is_stuck());
        there.sent.clear();
        assert!(!there.is_stuck());
    }

    /// Regression test: the end of a batch whose first part was being posted was told twice.
    #[test]
    fn a_batch_in_parts_is_lost_once() {
        let plant = plant();
        let mut there = connected(&plant);
        there.sent.push_back(sent(1048, 1144, 1, true));
        there.posting = Some(posting(sent(1096, 1144, 2, true)));
        there.jobs.push_back(job(1144));
        assert_eq!(there.hang_up(), [1144]);
        assert!(there.is_idle());
    }

    /// Regression test: a grain that was told to be torn was told again as done, or as lost.
    #[test]
    fn a_torn_grain_is_told_once() {
        let plant = plant();
        let mut there = connected(&plant);
        there.flag(7);
        assert!(there.hang_up().is_empty() && there.is_idle());
        there.flag(7);
        assert_eq!(there.queue(job(48), 2), None);
        assert_eq!(there.queue(job(96), 2), Some(48), "the announcement stays");
        assert_eq!(there.queue(job(144), 2), Some(96));
        assert_eq!(there.jobs.iter().map(|job| job.index).collect::<Vec<_>>(), [7, 144]);
        assert_eq!(there.hang_up(), [144]);
    }
}
