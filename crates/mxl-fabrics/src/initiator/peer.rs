//! An initiator's state for one target: connection, queue, transfers in flight.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use ofi::FiAddr;

use super::begun::BegunGrains;
use super::silence::Heard;
use crate::link::OpId;
use crate::message::{Remote, WINDOW, Why};
use crate::rest::WaitFor;
use crate::shape::{Limits, Span};
use crate::{Histogram, TargetInfo};

/// The outcome of a transfer, or a change of a target's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// The transfer is in the target's ring, whole. The target publishes it next, unless it ends before that:
    /// [`Published`](Self::Published) or [`Unconfirmed`](Self::Unconfirmed) follows, unless the program removes the
    /// target.
    Done {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the index after the last sample.
        index: u64,
    },
    /// The target said that it has published a transfer that is [`Done`](Self::Done): readers of its flow see it. It
    /// says so within milliseconds, for several transfers at once if they are frequent; a target of an older build
    /// only for every sixteenth.
    Published {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the index after the last sample.
        index: u64,
    },
    /// The connection ended before the target said that it has published a transfer that is [`Done`](Self::Done): it
    /// may or may not have.
    Unconfirmed {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the index after the last sample.
        index: u64,
    },
    /// The transfer did not reach the target.
    Lost {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the index after the last sample.
        index: u64,
    },
    /// The source's writer overwrote the data while it was sent. The target publishes an invalid grain, or
    /// silence.
    Torn {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the index after the last sample.
        index: u64,
    },
    /// The target accepts transfers from now on.
    Connected {
        /// [`TargetInfo::id`].
        target: u64,
    },
    /// The target accepts no transfers; the initiator greets it until it does.
    Disconnected {
        /// [`TargetInfo::id`].
        target: u64,
    },
    /// The target said that it ended the connection. If the connection was not lost before, this follows
    /// [`Disconnected`](Self::Disconnected).
    Parted {
        /// [`TargetInfo::id`].
        target: u64,
        /// The reason. After [`Why::Replaced`] the initiator does not greet the target until it is added again.
        why: Why,
    },
}

/// The state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// The target was greeted, and has not answered yet.
    Connecting,
    /// The target accepts transfers.
    Connected,
    /// The target has refused, with a reason. The initiator greets it again.
    Refused(Why),
    /// The target ended the connection, with a reason. The initiator greets it until it answers, except after
    /// [`Why::Replaced`]: two initiators of one target would replace each other for ever.
    Parted(Why),
}

/// Statistics of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Transfers that arrived whole.
    pub done: u64,
    /// Those of them that the target said it has published.
    pub published: u64,
    /// Those of them of which the target had not said so when its connection ended.
    pub unconfirmed: u64,
    /// Transfers that were lost.
    pub lost: u64,
    /// Transfers whose source was overwritten while they were sent.
    pub torn: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Number of connections.
    pub connected: u64,
    /// Writes and messages that failed.
    pub failed: u64,
    /// Connections that the target ended with a reason ([`PeerState::Parted`]).
    pub parted: u64,
}

/// The payload's description in the source's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Valid,
    /// The payload is sent, and flagged invalid at the target as well.
    Flagged,
    /// The payload is not sent: the grain is invalid.
    Left,
    /// Likewise, after its transfer: it was overwritten at the source meanwhile, and the program was told.
    Retracted,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Grain { start: u16, end: u16, payload: Payload },
    Samples { count: u64, published: bool },
}

/// How payloads travel to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Writes,
    Messages,
}

/// The verdict on an abandoned commit.
pub(super) const GIVEN_UP: u64 = 2;

/// A transfer that waits or is posted in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub index: u64,
    pub what: What,
    /// Number of posted writes or messages.
    pub posted: usize,
    /// The transfer's number, once a part was posted.
    pub number: Option<u64>,
    /// Time of the submission.
    pub since: Instant,
}

impl Job {
    /// Whether the program was told the transfer's outcome.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.what, What::Grain { payload: Payload::Retracted, .. })
    }

    /// Appends slices that follow its own. Returns false if a part has been posted already.
    pub(super) fn extend(&mut self, next: &Self) -> bool {
        let untouched = self.posted == 0 && self.number.is_none() && self.index == next.index;
        match (&mut self.what, next.what) {
            (
                What::Grain { end, payload: Payload::Valid, .. },
                What::Grain { start, end: further, payload: Payload::Valid },
            ) if untouched && *end == start => {
                *end = further;
                true
            }
            _ => false,
        }
    }
}

/// A commit with writes in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitInFlight {
    pub index: u64,
    /// Samples of the batch; 0 for grains.
    pub count: u64,
    /// Samples up to this index were committed when the first part was posted: a lower head means that they are gone.
    pub committed: u64,
    pub bytes: u64,
    /// Posted writes that have not ended.
    pub left: usize,
    /// All writes were posted.
    pub is_posted: bool,
    /// The commit had a payload, which may have been torn.
    pub is_judged: bool,
    /// The target must flag it invalid, torn or not.
    pub is_flagged: bool,
    /// The source was overwritten before all of it was posted.
    pub is_given_up: bool,
    /// Time of the submission.
    pub since: Instant,
}

impl CommitInFlight {
    /// A commit without posted writes.
    pub fn new(index: u64, count: u64, since: Instant) -> Self {
        Self {
            index,
            count,
            committed: index,
            bytes: 0,
            left: 0,
            is_posted: false,
            is_judged: false,
            is_flagged: false,
            is_given_up: false,
            since,
        }
    }
}

/// A request for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomRequest {
    /// The message.
    pub op: OpId,
    /// The time of its last repetition.
    pub last: Instant,
    /// The time when its arrival was known.
    pub arrived: Option<Instant>,
}

pub(super) struct TargetPeer {
    pub info: TargetInfo,
    pub addr: Option<FiAddr>,
    pub state: PeerState,
    /// Identifies the attempt to connect, or the resulting connection; 0 if none was begun.
    pub nonce: u64,
    /// The previous attempt, and whether the target refused or ended it.
    pub former: (u64, bool),
    pub token: u64,
    pub heard: Heard,
    pub way: Way,
    /// The limits of one write or message.
    pub limits: Limits,
    pub greet: Instant,
    pub grants: HashMap<u64, Remote>,
    pub rings: (Remote, u64),
    pub until: u64,
    /// The end of the last batch that was posted, or for which room was requested.
    pub position: Option<u64>,
    /// The unanswered request to the target.
    pub asked: Option<RoomRequest>,
    /// The time since which the target must publish a commit before the next one may begin.
    pub full: Option<Instant>,
    pub jobs: VecDeque<Job>,
    /// Grains that were queued in part since it was connected.
    pub begun: BegunGrains,
    /// The parts of the first job that are left to post, once it was begun.
    pub parts: VecDeque<Vec<Span>>,
    /// Commits whose writes are complete, and their verdicts.
    pub verdicts: VecDeque<(u64, u64)>,
    /// Operations in flight, and the commits of their writes; messages have none.
    pub flights: HashMap<OpId, Option<u64>>,
    pub sent: BTreeMap<u64, CommitInFlight>,
    /// Commits that arrived and are not known to be published, and their indices: [`WINDOW`] at most.
    pub arrived: BTreeMap<u64, u64>,
    /// The condition that its transfers wait for.
    pub rest: WaitFor,
    /// The number of the next commit.
    pub number: u64,
    /// Commits with lower numbers are published.
    pub published: u64,
    pub stats: PeerStats,
    /// Latencies of transfers that arrived, from their submission.
    pub latency: Histogram,
}

impl TargetPeer {
    pub fn new(info: TargetInfo) -> Self {
        Self {
            info,
            addr: None,
            state: PeerState::Connecting,
            nonce: 0,
            former: (0, true),
            token: 0,
            heard: Heard::new(Instant::now()),
            way: Way::Writes,
            limits: Limits { pieces: 1, bytes: 1 },
            greet: Instant::now(),
            grants: HashMap::new(),
            rings: (Remote::default(), 0),
            until: 0,
            position: None,
            asked: None,
            full: None,
            jobs: VecDeque::new(),
            begun: BegunGrains::default(),
            parts: VecDeque::new(),
            verdicts: VecDeque::new(),
            flights: HashMap::new(),
            sent: BTreeMap::new(),
            arrived: BTreeMap::new(),
            rest: WaitFor::Announced,
            number: 0,
            published: 0,
            stats: PeerStats::default(),
            latency: Histogram::default(),
        }
    }

    /// Appends a job to the last one, if its slices follow. Then both go as one transfer: a program that commits line
    /// by line does not wait for an answer for each line.
    pub fn extend_last(&mut self, job: &Job) -> bool {
        let is_longer = self.jobs.back_mut().is_some_and(|last| last.extend(job));
        if is_longer && self.jobs.len() == 1 {
            // The parts were cut for the shorter job; there was no room for the first of them.
            self.parts.clear();
        }
        is_longer
    }

    /// Whether the target can distinguish the next commit from its unpublished ones.
    pub fn may_begin(&self) -> bool {
        self.number - self.published < WINDOW
    }

    /// Whether another initiator has replaced this one, which then waits until the target is added again.
    pub fn is_replaced(&self) -> bool {
        self.state == PeerState::Parted(Why::Replaced)
    }

    /// Whether a nonce is that of the present or the previous attempt.
    pub fn is_named(&self, nonce: u64) -> bool {
        nonce != 0 && (self.nonce == nonce || self.former.0 == nonce)
    }

    /// Whether no transfer waits for the target or is in flight.
    pub fn is_idle(&self) -> bool {
        // Without a connection only greetings are in flight: to a dead target for ever.
        let is_greeted = self.state != PeerState::Connected;
        self.jobs.is_empty() && self.verdicts.is_empty() && (is_greeted || self.flights.is_empty())
    }
}
