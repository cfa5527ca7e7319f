//! Multicast groups that an endpoint joins. Sends to a group are sends to its address, which joining puts into the
//! address vector.

use std::sync::{Arc, Weak};

use ofi_api::{
    Address, AddressVector as _, BindFlags, Caps, Context, Errno, Error, Event, EventKind, FiAddr, Fid,
    Multicast, MulticastGroup, Result,
};

use super::EpCore;
use super::post::not_enabled;
use super::transmit::not_opened_for;
use crate::eq::EqCore;
use crate::transport::{Lanes, Transport};

/// The state of an endpoint with `FI_MULTICAST`.
#[derive(Default)]
pub struct MulticastSide {
    eq: Option<Arc<EqCore>>,
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
}

/// A group, as the application holds it.
struct Handle<T: Transport> {
    core: Weak<EpCore<T>>,
    fid: Fid,
    addr: FiAddr,
    group: Address,
    receives: bool,
}

impl<T: Transport> MulticastGroup for Handle<T> {
    fn fid(&self) -> Fid {
        self.fid
    }

    fn addr(&self) -> FiAddr {
        self.addr
    }
}

impl<T: Transport> Drop for Handle<T> {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade().filter(|core| core.born.is_here()) else {
            return;
        };
        let mut guard = core.state.lock();
        if let Some(lanes) = &mut guard.lanes {
            lanes.leave_group(&self.group, self.receives);
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
        let lanes = state.lanes.as_mut().ok_or_else(not_enabled)?;
        let group = lanes.join_group(&group, receives)?;
        let addr = match av.number(&group) {
            Some(addr) => Ok(addr),
            None => av.insert(std::slice::from_ref(&group)).pop().unwrap_or(Err(Error::new(Errno::ENOMEM))),
        };
        let addr = addr.inspect_err(|_| lanes.leave_group(&group, receives))?;
        let fid = Fid::next();
        let handle = Handle { core: Arc::downgrade(self), fid, addr, group, receives };
        drop(guard);
        eq.push(Event { context, ..Event::new(EventKind::JoinComplete, fid) });
        Ok(Arc::new(handle))
    }
}
