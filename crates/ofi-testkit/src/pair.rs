//! Two endpoints that know each other, driven together.

use std::time::Duration;

use ofi::raw::{CqErrorEntry, CqTaggedEntry, FiAddr, Result};

use crate::side::{Event, TestEndpoint};
use crate::wait;

/// `a` mostly sends, `b` mostly receives.
pub struct Pair {
    /// The first side.
    pub a: TestEndpoint,
    /// The second side.
    pub b: TestEndpoint,
    /// `b`'s number at `a`.
    pub to_b: FiAddr,
    /// `a`'s number at `b`.
    pub to_a: FiAddr,
}

impl Pair {
    /// Inserts two endpoints' addresses at each other.
    #[track_caller]
    pub fn of(a: TestEndpoint, b: TestEndpoint) -> Self {
        let (to_b, to_a) = (a.insert(&b), b.insert(&a));
        Self { a, b, to_b, to_a }
    }

    /// Polls both.
    #[track_caller]
    pub fn poll(&self) {
        self.a.poll();
        self.b.poll();
    }

    /// Drives both until `ready` returns a value.
    #[track_caller]
    pub fn drive<T>(&self, what: &str, ready: impl FnMut() -> Option<T>) -> T {
        wait::drive(&[&self.a, &self.b], what, ready)
    }

    /// The next event of `side`, driving both.
    #[track_caller]
    pub fn next(&self, side: &TestEndpoint) -> Event {
        self.drive("an event", || side.next())
    }

    /// The next event of `side`, which must be a success.
    #[track_caller]
    pub fn done(&self, side: &TestEndpoint) -> CqTaggedEntry {
        self.next(side).done()
    }

    /// The next event of `side`, which must be a success, and its source.
    #[track_caller]
    pub fn done_from(&self, side: &TestEndpoint) -> (CqTaggedEntry, FiAddr) {
        match self.next(side) {
            Event::Done(entry, source) => (entry, source),
            Event::Failed(error) => panic!("a failure: {error:?}"),
        }
    }

    /// The next event of `side`, which must be a failure.
    #[track_caller]
    pub fn failed(&self, side: &TestEndpoint) -> CqErrorEntry {
        self.next(side).failed()
    }

    /// Waits until `count` operations of `side` with this context have succeeded.
    #[track_caller]
    pub fn all_done(&self, side: &TestEndpoint, context: usize, count: usize) {
        for number in 0..count {
            self.drive(&format!("operation {number} of {count}"), || side.next_of(context)).done();
        }
    }

    /// Posts, and retries while resources are short.
    #[track_caller]
    pub fn post(&self, mut post: impl FnMut() -> Result<()>) {
        self.drive("room to post", || match post() {
            Ok(()) => Some(()),
            Err(error) if error.is_again() => None,
            Err(error) => panic!("posting: {error}"),
        });
    }

    /// Posts a message to `b` that has no receive, and waits until it is unexpected there.
    #[track_caller]
    pub fn keep(&self, post: impl FnMut() -> Result<()>) {
        wait::until_counted(&[&self.a, &self.b], &self.b, "rx_unexpected_now", || self.post(post));
    }

    /// Drives both for a while, in which no event may occur.
    #[track_caller]
    pub fn quiet(&self, time: Duration) {
        wait::drive_through(time, &[&self.a, &self.b]);
        assert_eq!((self.a.pending(), self.b.pending()), (0, 0), "{}\n{}", self.a.report(), self.b.report());
    }

    /// Exchanges one message in each direction, so that the two are connected.
    #[track_caller]
    pub fn warm_up(&self) {
        self.greet(&self.a, self.to_b, &self.b);
        self.greet(&self.b, self.to_a, &self.a);
    }

    #[track_caller]
    fn greet(&self, from: &TestEndpoint, to: FiAddr, at: &TestEndpoint) {
        const CONTEXT: usize = usize::MAX;
        self.post(|| at.receive(()).context(CONTEXT).post());
        self.post(|| from.out(to, ()).context(CONTEXT).inject().send());
        self.drive("a first message", || at.next_of(CONTEXT)).done();
    }
}
