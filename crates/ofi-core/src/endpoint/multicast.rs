//! Multicast groups that an endpoint joins. A send to a group is a send to its address, which the join inserts into the
//! address vector.
//!
//! A transport may complete a join later, from a poll. The event queue drives the endpoint only while joins are
//! pending, so that datagrams do not wake a thread that waits for events.

use std::sync::{Arc, Weak};

use ofi_api::{
    Address, AddressVector as _, BindFlags, Caps, Context, EqErrorEntry, Errno, Error, Event, EventKind,
    FiAddr, Fid, Multicast, MulticastGroup, Result,
};

use super::post::not_enabled;
use super::transmit::not_opened_for;
use super::{EpCore, State};
use crate::eq::{Driven, EqCore};
use crate::transport::{Posted, Transport, TransportEndpoint};

/// The state of an endpoint with `FI_MULTICAST`.
#[derive(Default)]
pub struct MulticastSide {
    eq: Option<Arc<EqCore>>,
    members: Vec<Membership>,
    /// Whether the event queue currently drives the endpoint because of pending joins.
    is_driven: bool,
}

/// A group that the endpoint has joined, or is joining.
struct Membership {
    fid: Fid,
    context: Context,
    /// The address to send to.
    group: Address,
    receives: bool,
    pending: bool,
}

impl MulticastSide {
    /// The side of an endpoint with these capabilities; `None` if it joins no groups.
    pub fn new(caps: Caps) -> Option<Box<Self>> {
        caps.contains(Caps::MULTICAST).then(Box::default)
    }

    /// Binds an event queue, for joins.
    ///
    /// # Errors
    /// `FI_EBUSY` if there is one.
    pub fn bind(&mut self, eq: Arc<EqCore>) -> Result<()> {
        eq.bind_once(&mut self.eq)
    }

    /// See [`crate::transport::Upcalls::joined_group`].
    pub fn ended(&mut self, group: &Address, receives: bool, result: Result<(), Errno>) {
        let is_it = |it: &Membership| it.pending && it.receives == receives && it.group == *group;
        let Some(at) = self.members.iter().position(is_it) else { return };
        let member = &mut self.members[at];
        let (fid, context) = (member.fid, member.context);
        member.pending = false;
        if result.is_err() {
            self.members.swap_remove(at);
        }
        let Some(eq) = &self.eq else { return };
        match result {
            Ok(()) => eq.push(Event { context, ..Event::new(EventKind::JoinComplete, fid) }),
            Err(errno) => eq.push_error(EqErrorEntry { context, ..EqErrorEntry::new(fid, errno) }),
        }
    }
}

impl<T: Transport> State<T> {
    /// Makes the event queue drive the endpoint, because a join is pending.
    fn be_driven_for_joins(&mut self, core: &Arc<EpCore<T>>) -> Result<()> {
        let always = self.ends.collectives.as_ref().is_some_and(|side| side.has_queue());
        let (Some(side), Some(transport)) = (&mut self.ends.multicast, &self.transport) else {
            return Ok(());
        };
        if always || side.is_driven {
            return Ok(());
        }
        if let Some(eq) = &side.eq {
            let driven: Arc<dyn Driven> = Arc::clone(core) as _;
            eq.add_locked(&driven, transport.wait_fd())?;
            side.is_driven = true;
        }
        Ok(())
    }

    /// Reverts [`State::be_driven_for_joins`] if no join is pending any more.
    pub(super) fn rest_from_joins(&mut self, core: &dyn Driven) {
        let Some(side) = &mut self.ends.multicast else { return };
        if side.is_driven && !side.members.iter().any(|member| member.pending) {
            side.is_driven = false;
            if let Some(eq) = &side.eq {
                eq.remove_locked(core, self.transport.as_ref().and_then(TransportEndpoint::wait_fd));
            }
        }
    }

    /// Ends the joins of a closing endpoint without events. Call it before the transport's part is closed.
    pub(super) fn forget_groups(&mut self, core: &dyn Driven) {
        if let Some(side) = &mut self.ends.multicast {
            side.members.clear();
        }
        self.rest_from_joins(core);
    }

    /// Leaves a group, if the endpoint is in it or is joining it. Returns the queue that may have an event of it.
    fn leave_group(&mut self, fid: Fid) -> Option<Arc<EqCore>> {
        let side = self.ends.multicast.as_mut()?;
        if let Some(at) = side.members.iter().position(|member| member.fid == fid) {
            let member = side.members.swap_remove(at);
            if let Some(transport) = &mut self.transport {
                transport.leave_group(&member.group, member.receives);
            }
        }
        side.eq.clone()
    }
}

/// A group, as the application holds it.
struct GroupHandle<T: Transport> {
    core: Weak<EpCore<T>>,
    fid: Fid,
    addr: FiAddr,
}

impl<T: Transport> MulticastGroup for GroupHandle<T> {
    fn fid(&self) -> Fid {
        self.fid
    }

    fn addr(&self) -> FiAddr {
        self.addr
    }
}

impl<T: Transport> Drop for GroupHandle<T> {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade().filter(|core| core.born.is_here()) else {
            return;
        };
        let eq = core.state.lock().leave_group(self.fid);
        if let Some(eq) = eq {
            eq.forget(self.fid);
        }
    }
}

impl<T: Transport> EpCore<T> {
    /// See [`ofi_api::Endpoint::join_multicast`].
    pub(super) fn join_multicast(
        self: &Arc<Self>,
        group: &Address,
        flags: BindFlags,
        context: Context,
    ) -> Result<Multicast> {
        let group = T::normalize(group)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(side) = &state.ends.multicast else {
            return Err(not_opened_for("fi_join", "FI_MULTICAST"));
        };
        let Some(eq) = side.eq.clone() else {
            return Err(Error::wanted(
                Errno::ENOEQ,
                "fi_join",
                "an endpoint with an event queue, where the end of the join is reported",
                "one without",
                "open one with fi_eq_open and bind it before fi_enable",
            ));
        };
        let ways = BindFlags::SEND | BindFlags::RECV;
        if !ways.contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_join",
                "FI_SEND, FI_RECV, both, or none for both",
                format!("{flags:?}"),
                "leave the others out",
            ));
        }
        let may_receive = state.ends.rx.may_receive.contains(&true);
        if flags.contains(BindFlags::RECV) && !may_receive {
            return Err(not_opened_for("fi_join with FI_RECV", "FI_MSG and FI_RECV"));
        }
        if flags.contains(BindFlags::SEND) && !state.ends.tx.may_send.contains(&true) {
            return Err(not_opened_for("fi_join with FI_SEND", "FI_MSG and FI_SEND"));
        }
        let receives = may_receive && (flags.is_empty() || flags.contains(BindFlags::RECV));
        let av = state.ends.peers.av().cloned().ok_or_else(|| Error::new(Errno::ENOAV))?;
        let transport = state.transport.as_mut().ok_or_else(not_enabled)?;
        let (group, posted) = transport.join_group(&group, receives)?;
        let pending = posted == Posted::Pending;
        let addr = match av.number(&group) {
            Some(addr) => Ok(addr),
            None => av.insert(std::slice::from_ref(&group)).pop().unwrap_or(Err(Error::new(Errno::ENOMEM))),
        };
        let ready = if pending { state.be_driven_for_joins(self) } else { Ok(()) };
        let (Some(side), Some(transport)) = (&mut state.ends.multicast, &mut state.transport) else {
            return Err(not_enabled());
        };
        let addr = ready.and(addr).inspect_err(|_| transport.leave_group(&group, receives))?;
        let fid = Fid::next();
        side.members.push(Membership { fid, context, group, receives, pending });
        drop(guard);
        if !pending {
            eq.push(Event { context, ..Event::new(EventKind::JoinComplete, fid) });
        }
        Ok(Arc::new(GroupHandle { core: Arc::downgrade(self), fid, addr }))
    }
}
