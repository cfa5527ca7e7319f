//! Binds queues, counters and an address vector to an endpoint before it is enabled, and refuses unsuitable objects.

use std::any::Any;
use std::sync::Arc;

use ofi_api::{AddressVector, BindFlags, Caps, CompletionQueue, Counter, Errno, Error, EventQueue, Result};

use super::EpCore;
use super::transmit::not_opened_for;
use crate::av::Av;
use crate::cntr::{Cntr, Counters};
use crate::cq::Cq;
use crate::domain::DomainCore;
use crate::eq::EqCore;
use crate::transport::Transport;

pub(super) fn bad_state(subject: &str, wanted: &str, found: &str, advice: &str) -> Error {
    Error::wanted(Errno::EOPBADSTATE, subject, wanted, found, advice)
}

/// The refusal of a late binding.
#[cold]
pub(super) fn enabled_already() -> Error {
    bad_state("fi_ep_bind", "an endpoint before fi_enable", "an enabled one", "bind first")
}

pub(super) fn foreign(what: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        what,
        "an object opened in a domain of this library",
        "an object of another implementation",
        "open it with the domain of the endpoint",
    )
}

pub(super) fn of_another_domain(what: &str) -> Error {
    Error::wanted(
        Errno::EDOMAIN,
        what,
        "one opened in the endpoint's domain",
        "one of another domain, whose addresses and locks may differ",
        "open it with the domain of the endpoint",
    )
}

/// The core of an application's queue, which must belong to `domain`.
pub(super) fn queue_of<T: Transport>(
    cq: &Arc<dyn CompletionQueue>,
    domain: &DomainCore<T>,
) -> Result<Arc<Cq>> {
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(cq) as _;
    let Ok(cq) = any.downcast::<Cq>() else { return Err(foreign("the completion queue")) };
    if cq.domain() != domain.id() {
        return Err(of_another_domain("the completion queue"));
    }
    Ok(cq)
}

impl<T: Transport> EpCore<T> {
    /// Binds a completion queue.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::bind_cq`].
    pub(super) fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()> {
        let cq = queue_of(cq, &self.domain)?;
        let directions = BindFlags::TRANSMIT | BindFlags::RECV;
        if !flags.intersects(directions) || !(directions | BindFlags::SELECTIVE_COMPLETION).contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_ep_bind with a completion queue",
                "FI_TRANSMIT, FI_RECV or both, and optionally FI_SELECTIVE_COMPLETION",
                format!("{flags:?}"),
                "bind counters, not queues, to single kinds of operation",
            ));
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.transport.is_some() {
            return Err(enabled_already());
        }
        let (tx, rx) = (flags.contains(BindFlags::TRANSMIT), flags.contains(BindFlags::RECV));
        if (tx && state.ends.tx.bound) || (rx && state.ends.rx.bound) {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_ep_bind",
                "one completion queue for each direction",
                "a direction that has one already",
                "open another endpoint, or bind once with both directions",
            ));
        }
        let selective = flags.contains(BindFlags::SELECTIVE_COMPLETION);
        if tx {
            (state.ends.tx.bound, state.ends.tx.selective) = (true, selective);
            state.queues[0] = Some(Arc::clone(&cq));
        }
        if rx {
            (state.ends.rx.bound, state.ends.rx.selective) = (true, selective);
            state.queues[1] = Some(cq);
        }
        Ok(())
    }

    /// Binds a counter.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::bind_counter`].
    pub(super) fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
        let counter = Cntr::of(counter, self.domain.id())?;
        if !Counters::ALL.contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_ep_bind with a counter",
                "FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ and FI_REMOTE_WRITE, or none for all",
                format!("{flags:?}"),
                "leave the others out",
            ));
        }
        let target = BindFlags::REMOTE_READ | BindFlags::REMOTE_WRITE;
        let events = self.info.caps.contains(Caps::RMA_EVENT);
        if flags.intersects(target) && !events {
            return Err(not_opened_for("counting what peers do", "FI_RMA_EVENT"));
        }
        let every = if events { Counters::ALL } else { Counters::ALL - target };
        let mut guard = self.state.lock();
        if guard.transport.is_some() {
            return Err(enabled_already());
        }
        guard.ends.staging.counters.bind(&counter, if flags.is_empty() { every } else { flags })
    }

    /// Binds an address vector.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::bind_av`].
    pub(super) fn bind_av(&self, av: &Arc<dyn AddressVector>) -> Result<()> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(av) as _;
        let Ok(av) = any.downcast::<Av>() else { return Err(foreign("the address vector")) };
        if av.domain() != self.domain.id() {
            return Err(of_another_domain("the address vector"));
        }
        let mut guard = self.state.lock();
        if guard.transport.is_some() {
            return Err(enabled_already());
        }
        if guard.ends.connection.is_some() {
            return Err(Error::with(
                Errno::EINVAL,
                "an endpoint of FI_EP_MSG has one peer and takes no address vector; do not bind one",
            ));
        }
        if guard.ends.peers.is_bound() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_ep_bind",
                "one address vector",
                "a second one",
                "insert all addresses into one vector",
            ));
        }
        guard.ends.peers.bind(av);
        Ok(())
    }

    /// Binds an event queue.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::bind_eq`].
    pub(super) fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()> {
        let eq = EqCore::of(eq)?;
        let mut guard = self.state.lock();
        if guard.transport.is_some() {
            return Err(enabled_already());
        }
        guard.ends.bind_queue(&eq).into_iter().flatten().collect()
    }
}
