//! Transfers, as the program uses them: post, query, cancel, release.

use std::sync::Arc;

use ofi::Errno;

use super::transfer::{Awaited, Outcome, Plan, Progress, Transfer};
use super::{Audience, Core, PeerId, Time, Timer, TransferId};

impl<G> Core<G> {
    /// Posts a plan. [`Core::progress`] returns the transfer's state, and [`Core::release`] releases it. It ends by
    /// `deadline` in any case.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer, `FI_ECONNRESET` for a plan of an earlier incarnation of the peer, `FI_EMSGSIZE`
    /// for a notification that is too long.
    pub fn post(
        &mut self,
        peer: PeerId,
        plan: Arc<Plan<G>>,
        notice: Option<Vec<u8>>,
        deadline: Time,
        now: Time,
    ) -> Result<TransferId, (Errno, &'static str)> {
        self.post_to(Audience::Program, peer, plan, notice, deadline, now)
    }

    /// Checks that a plan for this incarnation of a peer, and a notification, may be posted.
    ///
    /// # Errors
    /// The errors of [`Core::post`].
    pub fn check(
        &self,
        peer: PeerId,
        incarnation: u64,
        notice: Option<&[u8]>,
    ) -> Result<(), (Errno, &'static str)> {
        self.check_post(peer, Some(incarnation), notice)
    }

    fn check_post(
        &self,
        peer: PeerId,
        incarnation: Option<u64>,
        notice: Option<&[u8]>,
    ) -> Result<(), (Errno, &'static str)> {
        let Some(found) = self.peers.get(peer.0) else {
            return Err((Errno::ENOENT, "the peer was forgotten"));
        };
        if incarnation.is_some_and(|incarnation| incarnation != found.incarnation) {
            return Err((Errno::ECONNRESET, "the peer has restarted since the plan was prepared"));
        }
        if notice.is_some_and(|notice| notice.len() > self.config.longest_notification) {
            return Err((Errno::EMSGSIZE, "the notification is longer than Config::longest_notification"));
        }
        Ok(())
    }

    /// Posts a plan as [`Core::post`] does, with a notification for this audience.
    ///
    /// # Errors
    /// The errors of [`Core::post`].
    pub fn post_to(
        &mut self,
        audience: Audience,
        peer: PeerId,
        plan: Arc<Plan<G>>,
        mut notice: Option<Vec<u8>>,
        deadline: Time,
        now: Time,
    ) -> Result<TransferId, (Errno, &'static str)> {
        let incarnation = if plan.pieces.is_empty() { None } else { Some(plan.incarnation) };
        self.check_post(peer, incarnation, notice.as_deref())?;
        if let Some(notice) = &mut notice {
            notice.push(audience.byte());
        }
        let Some(session) = self.session_for(peer.0, now) else {
            return Err((Errno::ENOENT, "the peer was forgotten"));
        };
        self.now = now;
        let id = self.transfers.insert_with(|| Transfer::new(plan, session, notice, now));
        let timer = self.remind(deadline, Timer::Transfer(id));
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.timer = Some(timer);
        }
        if let Some(session) = self.sessions.get_mut(session) {
            session.transfers.push_back(id);
            if session.ends.is_none() {
                session.ends = Some((id, id));
            } else {
                self.link(id);
            }
        }
        self.wake(session);
        self.finish_if_done(id);
        Ok(TransferId(id))
    }

    /// The plan of a transfer. It keeps the memory while the transfer is not quiet.
    pub fn plan(&self, id: TransferId) -> Option<&Arc<Plan<G>>> {
        self.transfers.get(id.0).map(|transfer| &transfer.plan)
    }

    /// The state of a transfer; `None` if it was released.
    pub fn progress(&self, id: TransferId) -> Option<Progress> {
        self.transfers.get(id.0).map(Transfer::progress)
    }

    /// What a transfer waits for, or waited for when its time was over. `None` if it ended otherwise, or was released.
    pub fn awaited(&self, id: TransferId) -> Option<Awaited> {
        self.transfers.get(id.0).and_then(Transfer::awaited)
    }

    /// Cancels a transfer that has not ended: none of its remaining parts is posted.
    pub fn cancel(&mut self, id: TransferId) {
        self.finish(id.0, Outcome::Cancelled);
    }

    /// Releases a transfer: cancels it if it has not ended, and forgets it when it is quiet. Returns whether it is not.
    pub fn release(&mut self, id: TransferId) -> bool {
        let Some(transfer) = self.transfers.get_mut(id.0) else { return false };
        transfer.released = true;
        if transfer.outcome.is_none() {
            self.finish(id.0, Outcome::Cancelled);
        }
        self.forget_if_quiet(id.0);
        self.transfers.get(id.0).is_some()
    }
}
