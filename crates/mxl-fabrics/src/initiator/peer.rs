//! An initiator's state of one target: connection, queue, transfers in flight.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use ofi::FiAddr;

use crate::link::OpId;
use crate::message::{Remote, WINDOW, Why};
use crate::shape::{Limits, Span};
use crate::{Histogram, TargetInfo};

/// The outcome of a transfer, or a change of a target's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// It is in the target's ring.
    Done {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the sample after the last.
        index: u64,
    },
    /// It did not reach the target.
    Lost {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the sample after the last.
        index: u64,
    },
    /// The source's writer overwrote it while it was sent: the target was told that the grain is invalid.
    Torn {
        /// [`TargetInfo::id`].
        target: u64,
        /// Grain, or the sample after the last.
        index: u64,
    },
    /// The target takes transfers from now on.
    Connected {
        /// [`TargetInfo::id`].
        target: u64,
    },
    /// The target takes no transfers; it is greeted until it does.
    Disconnected {
        /// [`TargetInfo::id`].
        target: u64,
    },
}

/// The state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// It was greeted, and has not answered yet.
    Connecting,
    /// It takes transfers.
    Connected,
    /// It refused, with a reason; it is greeted again.
    Refused(Why),
}

/// Statistics of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Transfers that arrived.
    pub done: u64,
    /// Transfers that did not.
    pub lost: u64,
    /// Transfers whose source was overwritten while they were sent.
    pub torn: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Times that it was connected.
    pub connected: u64,
    /// Writes and messages that failed.
    pub failed: u64,
}

/// The payload's description in the source's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    Valid,
    /// It is sent, and flagged invalid at the target as well.
    Flagged,
    /// It is not sent: the grain is invalid.
    Left,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Grain { start: u16, end: u16, payload: Payload },
    Samples { count: u64, published: bool },
}

/// How payloads go to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Writes,
    Messages,
}

/// The verdict of a commit of which no more comes.
pub(super) const GIVEN_UP: u64 = 2;

/// A transfer that waits, or of which a part was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub index: u64,
    pub what: What,
    /// Writes or messages that were posted.
    pub posted: usize,
    /// Its number, once something was posted.
    pub number: Option<u64>,
    /// When it was handed over.
    pub since: Instant,
}

impl Job {
    /// Takes slices that follow its own into it. Whether it could: not once something of it was posted.
    fn extend(&mut self, next: &Self) -> bool {
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
pub(super) struct Sent {
    pub index: u64,
    /// Samples of the batch; 0 for grains.
    pub count: u64,
    pub bytes: u64,
    /// Writes that were posted and have not ended.
    pub left: usize,
    /// All of them were posted.
    pub is_posted: bool,
    /// It had a payload, which may have been torn.
    pub is_judged: bool,
    /// The target is to flag it invalid, torn or not.
    pub is_flagged: bool,
    /// The source was overwritten before all of it was posted.
    pub is_given_up: bool,
    /// When it was handed over.
    pub since: Instant,
}

impl Sent {
    /// A commit of which nothing was posted yet.
    pub fn new(index: u64, count: u64, since: Instant) -> Self {
        Self {
            index,
            count,
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

pub(super) struct Peer {
    pub info: TargetInfo,
    pub addr: Option<FiAddr>,
    pub state: PeerState,
    pub nonce: u64,
    pub token: u64,
    pub way: Way,
    /// What goes at once.
    pub limits: Limits,
    pub greet: Instant,
    pub grants: HashMap<u64, Remote>,
    pub rings: (Remote, u64),
    pub until: u64,
    /// The end of the last batch that was posted, or for which room was asked.
    pub position: Option<u64>,
    /// Since when an answer is waited for, and when the question was last put.
    pub asked: Option<(Instant, Instant)>,
    pub jobs: VecDeque<Job>,
    /// What is left to post of the first of them, once it was begun.
    pub parts: VecDeque<Vec<Span>>,
    /// Commits whose writes are complete, and what they are worth.
    pub verdicts: VecDeque<(u64, u64)>,
    /// Operations under way, and the commits that they are writes of; messages are of none.
    pub flights: HashMap<OpId, Option<u64>>,
    pub sent: BTreeMap<u64, Sent>,
    /// Of the next commit.
    pub number: u64,
    /// Commits of lower numbers are published.
    pub published: u64,
    pub stats: PeerStats,
    /// Of transfers that arrived, from being handed over.
    pub latency: Histogram,
}

impl Peer {
    pub fn new(info: TargetInfo) -> Self {
        Self {
            info,
            addr: None,
            state: PeerState::Connecting,
            nonce: 0,
            token: 0,
            way: Way::Writes,
            limits: Limits { pieces: 1, bytes: 1 },
            greet: Instant::now(),
            grants: HashMap::new(),
            rings: (Remote::default(), 0),
            until: 0,
            position: None,
            asked: None,
            jobs: VecDeque::new(),
            parts: VecDeque::new(),
            verdicts: VecDeque::new(),
            flights: HashMap::new(),
            sent: BTreeMap::new(),
            number: 0,
            published: 0,
            stats: PeerStats::default(),
            latency: Histogram::default(),
        }
    }

    /// Takes a job into the last one, if it has the slices that follow. They go as one transfer then: a program that
    /// commits line by line is not slowed down by an answer for each of them.
    pub fn extend_last(&mut self, job: &Job) -> bool {
        let is_longer = self.jobs.back_mut().is_some_and(|last| last.extend(job));
        if is_longer && self.jobs.len() == 1 {
            // How the shorter one was to be cut, if there was no room for its first part.
            self.parts.clear();
        }
        is_longer
    }

    /// Whether the target can tell the next commit from those that it has not published.
    pub fn may_begin(&self) -> bool {
        self.number - self.published < WINDOW
    }

    /// Whether nothing waits for it or is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.flights.is_empty() && self.verdicts.is_empty()
    }
}
