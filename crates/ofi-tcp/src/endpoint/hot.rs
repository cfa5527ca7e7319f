//! Which connection polls read without asking what is ready: that of a program that exchanges messages with one peer.

use ofi_core::slots::SlotId;

/// Of so many polls that read a [hot](Hot) connection, one asks what is ready. Others wait no longer than that.
pub(super) const HOT_POLLS: u64 = 8;
/// After so many reads of a hot connection that bring nothing, all polls ask again.
const QUIET_READS: u32 = 64;

/// The connection that polls read without asking what is ready, because the last events were all its own: that saves
/// the poll's other system call while a program exchanges messages with one peer. With several peers it would cost one.
#[derive(Default)]
pub(super) struct Hot {
    pub(super) id: Option<SlotId>,
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
    pub(super) fn read(&mut self, has_come: bool) {
        self.quiet = if has_come { 0 } else { self.quiet + 1 };
        if self.quiet > QUIET_READS {
            self.id = None;
        }
    }
}
