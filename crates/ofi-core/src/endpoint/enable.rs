//! Enabling: the checks that everything is bound that the endpoint's capabilities need, and the place where its lanes come to be.

use std::sync::Arc;

use ofi_api::{Caps, Errno, Error, Result};

use super::EpCore;
use crate::auth;
use crate::cntr::Kind;
use crate::cq::Source;
use crate::transport::{Lanes, Transport};

impl<T: Transport> EpCore<T> {
    /// Enables the endpoint, once.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::enable`].
    pub(super) fn enable(self: &Arc<Self>) -> Result<()> {
        let core = self;
        let mut guard = core.state.lock();
        let state = &mut *guard;
        if state.lanes.is_some() {
            return Ok(());
        }
        state.check_shared(&core.info)?;
        if let Some(eq) = core.domain.events.queue() {
            let _of_its_own = state.ends.bind_queue(eq); // comes before the domain's
        }
        let caps = core.info.caps;
        let (sends, receives) = directions(caps);
        let counts = |kinds: &[Kind]| kinds.iter().any(|&kind| state.ends.boxes.counters.has(kind));
        let told = (
            state.ends.tx.bound || counts(&[Kind::Send, Kind::Read, Kind::Write]),
            state.ends.rx.bound || counts(&[Kind::Receive]),
        );
        let transfers = state.ends.contexts.is_none();
        if transfers && ((sends && !told.0) || (receives && !told.1)) {
            let missing = if sends && !told.0 { "FI_TRANSMIT" } else { "FI_RECV" };
            return Err(Error::wanted(
                Errno::ENOCQ,
                "fi_enable",
                "a completion queue or a counter for each direction that the endpoint's capabilities have",
                format!("none for {missing}"),
                "bind one, or ask getinfo for fewer capabilities",
            ));
        }
        if state.ends.connection.as_ref().is_some_and(|connection| connection.eq().is_none()) {
            return Err(Error::wanted(
                Errno::ENOEQ,
                "fi_enable",
                "an event queue, as FI_EP_MSG endpoints need",
                "none",
                "open one with fi_eq_open and bind it",
            ));
        }
        if state.ends.connection.is_none() && !state.ends.peers.is_bound() {
            return Err(Error::wanted(
                Errno::ENOAV,
                "fi_enable",
                "an address vector, as FI_EP_RDM endpoints need",
                "none",
                "open one with fi_av_open and bind it",
            ));
        }
        state.ends.tx.names = state.ends.peers.names_contexts();
        state.ends.tx.counted = state.ends.boxes.counters.has(Kind::Send);
        state.ends.tx.decide();
        state.ends.rx.decide(state.ends.boxes.counters.has(Kind::Receive));
        let key = state.ends.peers.av().map_or(Ok(None), |av| av.claim_key())?;
        let mut lanes = match &key {
            None => T::open_lanes(&core.domain.part, &core.info)?,
            Some((key, _)) => T::open_lanes(&core.domain.part, &auth::with_key(&core.info, key))?,
        };
        state.key_in_use = key.map(|(_, in_use)| in_use);
        lanes.permit_shared_memory(state.shared_memory);
        let name = lanes.enable(state.name.as_ref())?;
        state.name = Some(name);
        state.lanes = Some(lanes);
        let rx = &mut state.ends.rx;
        rx.quick = rx.may_receive.map(|may| may && rx.op_flags.is_empty());
        state.ends.boxes.read = [state.ends.tx.bound, state.ends.rx.bound];
        let counters = state.ends.boxes.counters.each();
        let queues = state.queues.clone();
        let same = matches!(&queues, [Some(tx), Some(rx)] if Arc::ptr_eq(tx, rx));
        if same {
            state.ends.boxes.join();
        }
        for (slot, queue) in queues.iter().enumerate() {
            if let Some(bell) = queue.as_ref().and_then(|queue| queue.bell()) {
                state.ends.boxes.slot(slot).0.set_bell(bell);
            }
        }
        drop(guard);
        let source: Arc<dyn Source> = Arc::clone(core) as _;
        for (slot, queue) in queues.into_iter().enumerate().skip(usize::from(same)) {
            if let Some(queue) = queue {
                queue.add(Arc::clone(&source), slot)?;
            }
        }
        for counter in counters {
            counter.add_source(&source)?;
        }
        core.domain.roster.enter(&source)?;
        core.domain.progress.add(&source);
        core.watch_joins()?;
        core.watch_connection()?;
        core.attend();
        Ok(())
    }
}

/// Whether capabilities need a transmit queue and a receive queue.
fn directions(caps: Caps) -> (bool, bool) {
    let messages = caps.intersects(Caps::MSG | Caps::TAGGED);
    let one_sided = caps.intersects(Caps::RMA | Caps::ATOMIC);
    let together = caps.contains(Caps::COLLECTIVE);
    let named = caps.intersects(Caps::SEND | Caps::RECV | Caps::READ | Caps::WRITE);
    let sends = (messages && (!named || caps.contains(Caps::SEND)))
        || (one_sided && (!named || caps.intersects(Caps::READ | Caps::WRITE)))
        || together;
    let receives = messages && (!named || caps.contains(Caps::RECV));
    (sends, receives)
}
