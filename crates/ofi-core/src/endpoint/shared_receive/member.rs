//! The endpoints bound to a shared receive context, and their operations on it: matching arrivals, returning credits,
//! losing peers, leaving.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use ofi_api::{CompletionFlags, Errno, Error, Result};

use super::{Member, SharedRx};
use crate::av::Av;
use crate::cq::Credit;
use crate::endpoint::peers::Peers;
use crate::endpoint::queue::{Arrival, Filling, Incoming, Kept};
use crate::endpoint::{EpCore, receive, shared_transmit};
use crate::matching;
use crate::slots::SlotId;
use crate::transport::{Arrived, PeerId, Transport};

impl<T: Transport> SharedRx<T> {
    /// Binds an endpoint.
    ///
    /// # Errors
    /// `FI_EBUSY` if `max_ep_srx_ctx` endpoints are bound.
    pub(in crate::endpoint) fn join(self: &Arc<Self>, core: Weak<EpCore<T>>) -> Result<SharedPart<T>> {
        let mut guard = self.state.lock();
        let limit = self.domain.info.domain_attr.max_ep_srx_ctx;
        if guard.members.iter().flatten().count() >= limit {
            return Err(shared_transmit::crowded("receive", limit));
        }
        let member = Some(Member { core, taken: 0 });
        let free = guard.members.iter().position(Option::is_none);
        let at = free.unwrap_or(guard.members.len());
        match free {
            Some(at) => guard.members[at] = member,
            None => guard.members.push(member),
        }
        Ok(SharedPart { context: Arc::clone(self), member: at as u32, senders: Vec::new() })
    }

    /// Takes the address vector of an endpoint that is being enabled.
    ///
    /// # Errors
    /// `FI_EINVAL` if the context's other endpoints use a different one.
    pub(in crate::endpoint) fn use_av(&self, av: &Arc<Av>) -> Result<()> {
        let mut guard = self.state.lock();
        match &guard.av {
            Some(known) if !Arc::ptr_eq(known, av) => Err(Error::wanted(
                Errno::EINVAL,
                "the address vector of an endpoint with a shared receive context",
                "that of the other endpoints of the context",
                "another one",
                "bind one vector to all of them",
            )),
            _ => {
                guard.av = Some(Arc::clone(av));
                Ok(())
            }
        }
    }
}

/// An endpoint's part in a shared context.
pub struct SharedPart<T: Transport> {
    pub context: Arc<SharedRx<T>>,
    pub(super) member: u32,
    /// By peer: its number in the context plus 1, or 0 if none is assigned yet.
    senders: Vec<u32>,
}

impl<T: Transport> SharedPart<T> {
    /// As [`RxQueue::arrive`].
    ///
    /// # Safety
    /// As [`RxQueue::arrive`].
    pub unsafe fn arrive(
        &mut self,
        peers: &Peers,
        arrived: &Arrived,
        ways: (bool, bool),
        incoming: Incoming<T>,
    ) -> Arrival<T> {
        let mut guard = self.context.state.lock();
        let at = arrived.peer as usize;
        if self.senders.len() <= at {
            self.senders.resize(at + 1, 0);
        }
        if self.senders[at] == 0 {
            let address = peers.address(arrived.peer).map_or(&[][..], |address| address.bytes());
            let number = guard.sender(address);
            guard.senders.hold(number);
            self.senders[at] = number + 1;
        }
        let mut envelope = receive::envelope(arrived);
        envelope.peer = matching::SourceId(self.senders[at] - 1);
        // SAFETY: the caller's promise.
        let arrival = unsafe { guard.queue.arrive(&envelope, arrived, self.member, ways, incoming) };
        if let Arrival::Receive(Filling { multi: None, .. }, _) = &arrival {
            guard.give(self.member);
        }
        arrival
    }

    fn sender(&self, peer: PeerId) -> Option<matching::SourceId> {
        self.senders.get(peer as usize)?.checked_sub(1).map(matching::SourceId)
    }

    /// As [`RxQueue::release`].
    pub fn release(&self, multi: SlotId) -> (CompletionFlags, Credit) {
        let mut guard = self.context.state.lock();
        let released = guard.queue.release(multi);
        if released.1 == Credit::Receive {
            guard.give(self.member);
        }
        released
    }

    /// Whether there is room for `len` more bytes of a peer's unexpected payloads.
    pub fn may_hold(&self, peer: PeerId, len: usize) -> bool {
        let sender = self.sender(peer).unwrap_or(matching::SourceId(u32::MAX));
        self.context.state.lock().queue.matcher.may_hold_bytes(sender, len)
    }

    /// The bytes and the number of a peer's unexpected messages.
    pub fn held(&self, peer: PeerId) -> (usize, usize) {
        let Some(sender) = self.sender(peer) else { return (0, 0) };
        self.context.state.lock().queue.matcher.held_by(sender)
    }

    /// Whether the context has unexpected messages of a peer, or matched messages of any peer: those complete their
    /// receives only after the context's lock is released.
    pub fn knows(&self, peer: PeerId) -> bool {
        let guard = self.context.state.lock();
        let waits = self.sender(peer).is_some_and(|sender| guard.queue.matcher.envelopes_of(sender) > 0);
        waits || self.context.settling.load(Ordering::Acquire) > 0
    }

    /// Releases the context's number of a peer.
    pub fn forget(&mut self, peer: PeerId) {
        let number = self.senders.get_mut(peer as usize).map_or(0, std::mem::take);
        if let Some(number) = number.checked_sub(1) {
            self.context.state.lock().senders.release(number);
        }
    }

    /// Applies `lose` to each message of a lost peer that arrived through this endpoint and is not complete.
    pub fn lose(&self, peer: PeerId, mut lose: impl FnMut(&mut Kept<T>)) {
        let Some(sender) = self.sender(peer) else { return };
        let mine = |kept: &Kept<T>| kept.member == self.member && kept.peer == peer;
        let mut guard = self.context.state.lock();
        for id in guard.matched.ids(mine) {
            guard.matched.get_mut(id).into_iter().for_each(&mut lose);
        }
        drop(guard.queue.matcher.drop_peer(sender, |kept, _| {
            if mine(kept) {
                lose(kept);
            }
            false
        }));
    }

    /// Unbinds a closing endpoint: drops its unexpected messages, and returns the credits of its receives.
    pub fn leave(&self, filling: &[Filling]) {
        let mut guard = self.context.state.lock();
        let state = &mut *guard;
        let Some(member) = state.members.get_mut(self.member as usize).and_then(Option::take) else { return };
        state.credits += member.taken;
        for part in filling.iter().filter_map(|filling| filling.multi) {
            state.queue.release(part);
        }
        for id in state.matched.ids(|kept| kept.member == self.member) {
            state.matched.remove(id);
        }
        let mut gone = Vec::new();
        for sender in self.senders.iter().filter_map(|number| number.checked_sub(1)) {
            let mine = |kept: &mut Kept<T>, _: Option<usize>| kept.member == self.member;
            gone.extend(state.queue.matcher.drop_peer(matching::SourceId(sender), mine));
            state.senders.release(sender);
        }
        drop(guard);
        drop(gone);
    }
}
