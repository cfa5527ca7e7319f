//! The counters of an endpoint, by kind of operation.

use std::sync::Arc;

use ofi_api::{BindFlags, CompletionFlags, Errno, Error, Result};

use super::Cntr;

/// Kinds of operation that can have counters of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Messages sent.
    Send = 0,
    /// Messages received.
    Receive = 1,
    /// Reads and fetches of this end.
    Read = 2,
    /// Writes and updates of this end.
    Write = 3,
    /// Reads and fetches of peers.
    RemoteRead = 4,
    /// Writes and updates of peers.
    RemoteWrite = 5,
}

const KINDS: [(BindFlags, Kind); 6] = [
    (BindFlags::SEND, Kind::Send),
    (BindFlags::RECV, Kind::Receive),
    (BindFlags::READ, Kind::Read),
    (BindFlags::WRITE, Kind::Write),
    (BindFlags::REMOTE_READ, Kind::RemoteRead),
    (BindFlags::REMOTE_WRITE, Kind::RemoteWrite),
];

impl Kind {
    /// The kind of an operation that started here, by the flags of its completion.
    #[inline]
    pub const fn of(flags: CompletionFlags) -> Self {
        if flags.contains(CompletionFlags::READ) {
            Self::Read
        } else if flags.contains(CompletionFlags::WRITE) {
            Self::Write
        } else {
            Self::Send
        }
    }
}

/// The counters of one endpoint, or of one region.
#[derive(Default)]
pub struct Counters([Option<Arc<Cntr>>; 6]);

impl Counters {
    /// All kinds, as flags.
    pub const ALL: BindFlags = BindFlags::SEND
        .union(BindFlags::RECV)
        .union(BindFlags::READ)
        .union(BindFlags::WRITE)
        .union(BindFlags::REMOTE_READ)
        .union(BindFlags::REMOTE_WRITE);

    /// Makes `counter` count the kinds of `flags`.
    ///
    /// # Errors
    /// `FI_EBUSY` if one of them has a counter.
    pub fn bind(&mut self, counter: &Arc<Cntr>, flags: BindFlags) -> Result<()> {
        let kinds = || KINDS.iter().filter(|(flag, _)| flags.contains(*flag));
        if kinds().any(|&(_, kind)| self.has(kind)) {
            return Err(Error::wanted(
                Errno::EBUSY,
                "binding a counter",
                "one counter for each kind of operation",
                "a kind that already has one",
                "count it once, and read that counter",
            ));
        }
        for &(_, kind) in kinds() {
            self.0[kind as usize] = Some(Arc::clone(counter));
        }
        Ok(())
    }

    /// Whether operations of `kind` are counted.
    #[inline]
    pub fn has(&self, kind: Kind) -> bool {
        self.0[kind as usize].is_some()
    }

    /// Counts a success.
    #[inline]
    pub fn count(&self, kind: Kind, len: usize) {
        if let Some(counter) = &self.0[kind as usize] {
            counter.count(len);
        }
    }

    /// Counts a failure.
    #[cold]
    pub fn fail(&self, kind: Kind) {
        if let Some(counter) = &self.0[kind as usize] {
            counter.count_error();
        }
    }

    /// Every counter, once.
    pub fn each(&self) -> Vec<Arc<Cntr>> {
        let mut all: Vec<Arc<Cntr>> = Vec::new();
        for counter in self.0.iter().flatten() {
            if !all.iter().any(|known| Arc::ptr_eq(known, counter)) {
                all.push(Arc::clone(counter));
            }
        }
        all
    }
}
