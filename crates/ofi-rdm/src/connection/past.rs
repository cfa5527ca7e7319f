//! A peer's earlier incarnations and questions, by which an echo is distinguished from a restart.

use alloc::boxed::Box;

use crate::wire::Init;

use super::Connection;

/// The number of past incarnations of a peer that are remembered, so that an echo is not taken for a restart.
const RETIRED: usize = 4;

/// Past incarnations of a peer, the latest last. Unused entries are zero, which is never an epoch. Few peers have any.
#[derive(Debug, Default)]
pub(super) struct Retired {
    epochs: [u64; RETIRED],
}

/// The state that distinguishes echoes of a peer's questions from new ones, and this end's questions from echoes.
#[derive(Debug, Default)]
pub struct OldIncarnations {
    /// Number of sessions that this end requested.
    pub attempts: u64,
    /// The peer's last incarnation.
    pub peer_epoch: Option<u64>,
    peer_attempt: u64,
    retired: Option<Box<Retired>>,
}

impl Connection {
    /// Whether an `Init` is an echo: of a past incarnation, or of an earlier session.
    pub fn is_echo(&self, init: &Init) -> bool {
        self.retired.as_ref().is_some_and(|retired| retired.epochs.contains(&init.epoch))
            || (self.peer_epoch == Some(init.epoch) && init.attempt <= self.peer_attempt)
    }

    /// Number of sessions that this end requested.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    pub(super) fn meet(&mut self, epoch: u64, attempt: u64) {
        if let Some(old) = self.peer_epoch.replace(epoch)
            && old != epoch
        {
            self.peer_attempt = 0;
            let retired = self.retired.get_or_insert_default();
            retired.epochs.rotate_left(1);
            retired.epochs[RETIRED - 1] = old;
        }
        self.peer_attempt = self.peer_attempt.max(attempt);
    }

    /// Takes the state that is kept until the peer returns.
    pub fn past(&mut self) -> OldIncarnations {
        let Self { attempts, peer_epoch, peer_attempt, .. } = *self;
        OldIncarnations { attempts, peer_epoch, peer_attempt, retired: self.retired.take() }
    }

    /// Restores the state that was kept when the peer was forgotten.
    pub fn recall(&mut self, past: OldIncarnations) {
        (self.attempts, self.peer_epoch) = (past.attempts, past.peer_epoch);
        (self.peer_attempt, self.retired) = (past.peer_attempt, past.retired);
    }
}
