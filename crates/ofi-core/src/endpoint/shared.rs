//! Binds an endpoint to shared contexts, and removes it from them.

use std::any::Any;
use std::sync::Arc;

use ofi_api::{Endpoint, Errno, Error, Info, Result, SHARED_CONTEXT, SharedTransmit};

use super::bind::enabled_already;
use super::queue::Filling;
use super::shared_receive::SharedPart;
use super::shared_transmit::{Loan, SharedTx};
use super::srx::Srx;
use super::{EpCore, State, foreign, of_another_domain};
use crate::cq::Credit;
use crate::transport::Transport;

fn not_asked_for(field: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "fi_ep_bind with a shared context",
        format!("an endpoint opened with ep_attr.{field} FI_SHARED_CONTEXT"),
        "one with contexts of its own",
        "ask getinfo for FI_SHARED_CONTEXT",
    )
}

/// The error for an endpoint whose attributes exceed those of its context (fi_endpoint(3), fi_stx_context and
/// fi_srx_context).
fn no_part(field: &str, context: String, endpoint: String) -> Error {
    Error::wanted(
        Errno::EINVAL,
        format!("{field} of an endpoint with a shared context"),
        format!("a part of the context's, {context}"),
        endpoint,
        "open the context with the attributes of the endpoint's info",
    )
}

/// The shares of a closing endpoint in shared contexts.
pub struct Leaving<T: Transport> {
    loan: Option<Loan<T>>,
    part: Option<SharedPart<T>>,
    filling: Vec<Filling>,
}

impl<T: Transport> Leaving<T> {
    /// Returns all of them. Call it without holding the endpoint's lock.
    pub fn end(self) {
        if let Some(loan) = &self.loan {
            loan.leave();
        }
        if let Some(part) = &self.part {
            part.leave(&self.filling);
        }
    }
}

impl<T: Transport> State<T> {
    /// Checks that the endpoint's shared contexts are bound and use one address vector.
    pub(super) fn check_shared(&self, info: &Info) -> Result<()> {
        let missing = |what: &str| {
            let wanted = format!("a shared {what} context, as ep_attr says FI_SHARED_CONTEXT");
            Err(Error::wanted(Errno::EINVAL, "fi_enable", wanted, "none", "open one and bind it"))
        };
        if info.ep_attr.tx_ctx_cnt == SHARED_CONTEXT && self.ends.tx.loan.is_none() {
            return missing("transmit");
        }
        match (&self.ends.rx.shared, self.ends.peers.av()) {
            (None, _) if info.ep_attr.rx_ctx_cnt == SHARED_CONTEXT => missing("receive"),
            (Some(part), Some(av)) => part.context.use_av(av),
            _ => Ok(()),
        }
    }

    /// Removes the endpoint's shares in shared contexts, and the receives that it was filling.
    pub(super) fn leave_shared(&mut self) -> Leaving<T> {
        let part = self.ends.rx.shared.take();
        let mut filling = Vec::new();
        if part.is_some() {
            let slots = &mut self.ends.rx.filling;
            filling.extend(slots.ids(|_| true).into_iter().filter_map(|id| slots.remove(id)));
        }
        Leaving { loan: self.ends.tx.loan.take(), part, filling }
    }
}

impl<T: Transport> EpCore<T> {
    /// See [`Endpoint::bind_shared_transmit`].
    pub(super) fn share_transmit(self: &Arc<Self>, context: &Arc<dyn SharedTransmit>) -> Result<()> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(context) as _;
        let Ok(context) = any.downcast::<SharedTx<T>>() else {
            return Err(foreign("the shared transmit context"));
        };
        if context.domain != self.domain.id() {
            return Err(of_another_domain("the shared transmit context"));
        }
        if self.info.ep_attr.tx_ctx_cnt != SHARED_CONTEXT {
            return Err(not_asked_for("tx_ctx_cnt"));
        }
        let (ours, its) = (&self.info.tx_attr, &context.attr);
        let mut sizes = [
            ("tx_attr.inject_size", ours.inject_size, its.inject_size),
            ("tx_attr.iov_limit", ours.iov_limit, its.iov_limit),
            ("tx_attr.rma_iov_limit", ours.rma_iov_limit, its.rma_iov_limit),
        ]
        .into_iter();
        if let Some((field, ours, its)) = sizes.find(|(_, ours, its)| ours > its) {
            return Err(no_part(field, its.to_string(), ours.to_string()));
        }
        if !its.caps.is_empty() && !its.caps.contains(ours.caps) {
            return Err(no_part("tx_attr.caps", its.caps.to_string(), ours.caps.to_string()));
        }
        let mut guard = self.state.lock();
        if guard.transport.is_some() || guard.ends.tx.loan.is_some() {
            return Err(late(guard.transport.is_some()));
        }
        guard.ends.tx.loan = Some(context.join(Arc::downgrade(self))?);
        guard.ends.staging.credits[Credit::Transmit as usize] = 0;
        Ok(())
    }

    /// See [`Endpoint::bind_shared_receive`].
    pub(super) fn share_receive(self: &Arc<Self>, context: &Arc<dyn Endpoint>) -> Result<()> {
        let context = Srx::<T>::of(context)?;
        if context.domain.id() != self.domain.id() {
            return Err(of_another_domain("the shared receive context"));
        }
        if self.info.ep_attr.rx_ctx_cnt != SHARED_CONTEXT {
            return Err(not_asked_for("rx_ctx_cnt"));
        }
        let (ours, its) = (&self.info.rx_attr, &context.attr);
        if ours.iov_limit > its.iov_limit {
            return Err(no_part("rx_attr.iov_limit", its.iov_limit.to_string(), ours.iov_limit.to_string()));
        }
        if !its.caps.contains(ours.caps) {
            return Err(no_part("rx_attr.caps", its.caps.to_string(), ours.caps.to_string()));
        }
        let mut guard = self.state.lock();
        if guard.transport.is_some() || guard.ends.rx.shared.is_some() {
            return Err(late(guard.transport.is_some()));
        }
        guard.ends.rx.shared = Some(context.join(Arc::downgrade(self))?);
        guard.ends.rx.may_receive = [false; 2];
        guard.ends.staging.credits[Credit::Receive as usize] = 0;
        Ok(())
    }
}

/// The error for a context that is bound too late, or in addition to another one.
#[cold]
fn late(enabled: bool) -> Error {
    match enabled {
        true => enabled_already(),
        false => Error::wanted(
            Errno::EBUSY,
            "fi_ep_bind",
            "one shared context for each direction",
            "a second one",
            "bind only one",
        ),
    }
}
