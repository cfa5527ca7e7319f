//! Reads the connection of a program that exchanges messages with one peer without asking what is ready.

use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;

use super::TcpEndpoint;
use crate::Tcp;

/// Of so many polls that read a [hot](Hot) connection, one asks what is ready. Others wait no longer than that.
const HOT_POLLS: u64 = 8;
/// After so many reads of a hot connection that bring nothing, all polls ask again.
const QUIET_READS: u32 = 64;

/// The connection that polls read without asking what is ready, because the last events were all its own: that saves
/// the poll's other system call while a program exchanges messages with one peer. With several peers it would cost one.
#[derive(Default)]
pub(super) struct Hot {
    id: Option<SlotId>,
    /// The connection of the last event.
    last: Option<SlotId>,
    /// Reads that have brought nothing since the last that has.
    quiet: u32,
}

impl Hot {
    /// There is something to read on a connection.
    pub(super) fn found(&mut self, id: SlotId) {
        self.id = (self.last == Some(id)).then_some(id);
        (self.last, self.quiet) = (Some(id), 0);
    }

    /// The connection was read.
    fn read(&mut self, has_come: bool) {
        self.quiet = if has_come { 0 } else { self.quiet + 1 };
        if self.quiet > QUIET_READS {
            self.id = None;
        }
    }
}

impl TcpEndpoint {
    /// Reads the hot connection, if there is one. Returns whether this poll need not ask what else is ready.
    pub(super) fn read_hot<H: Upcalls<Tcp>>(&mut self, host: &mut H) -> bool {
        let Some(id) = self.hot.id else { return false };
        let before = self.common.counts.received;
        self.read(host, id, false);
        let has_come = self.common.counts.received != before;
        let Some(conn) = self.conn(id) else {
            self.hot = Hot::default();
            return false;
        };
        let needs_events = conn.full || conn.stalled.is_some();
        self.hot.read(has_come);
        !needs_events && self.pending.is_empty() && !self.polls.is_multiple_of(HOT_POLLS)
    }
}
