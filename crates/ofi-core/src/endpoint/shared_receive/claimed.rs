//! Receives of a shared context that a device holds. It fills them with messages to any of the context's endpoints.

use ofi_api::{Errno, Error, ReceiveOp, Result};

use super::{SharedPart, SharedRx};
use crate::endpoint::endpoint_core::EndpointCore;
use crate::endpoint::queue::{Filling, SIGNALLED, SILENT};
use crate::slots::SlotId;
use crate::transport::{Arrived, RxName, SharedReceives, Transport, TransportEndpoint};

impl<T: Transport> SharedRx<T> {
    /// Makes the transport of an endpoint that is being enabled take its receives from this context.
    ///
    /// # Errors
    /// `FI_EINVAL` if only one of the two uses a device for receives, because the domain was opened for endpoints of
    /// another type.
    pub(in crate::endpoint) fn hand_over(&self, transport: &mut T::Endpoint) -> Result<()> {
        match &self.device {
            Some(device) if transport.claims() => transport.share(device),
            None if !transport.claims() => {}
            _ => {
                return Err(Error::wanted(
                    Errno::EINVAL,
                    "an endpoint with a shared receive context",
                    "a context of a domain that was opened with an info of the endpoint's type",
                    "one of a domain for endpoints of another type",
                    "open the domain with the endpoint's info",
                ));
            }
        }
        Ok(())
    }

    /// Posts a receive to the device.
    pub(super) fn hand_to(&self, device: &dyn SharedReceives, op: &ReceiveOp<'_>, asked: bool) -> Result<()> {
        // Nothing is known of the message.
        let none =
            Arrived { peer: 0, rx: RxName::ANY, tagged: false, has_data: false, tag: 0, data: 0, len: 0 };
        loop {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if state.credits == 0 {
                drop(guard);
                if self.collect() == 0 {
                    return Err(Error::AGAIN);
                }
                continue;
            }
            let plain = if asked { SIGNALLED } else { SILENT };
            let posted = state.queue.posted(op.context, &op.buf, asked, plain);
            let filling = state.queue.fill(posted, &none);
            let id = state.claimed.insert(filling);
            // SAFETY: the pieces are lent until the receive's completion, which is created when it has ended; and a
            // closing context makes the transports of its endpoints settle.
            if let Err(error) = unsafe { device.post(id, op.buf.pieces()) } {
                state.claimed.remove(id);
                return Err(error);
            }
            state.credits -= 1;
            break;
        }
        self.domain.works.run_if_due();
        Ok(())
    }
}

impl<T: Transport> SharedPart<T> {
    /// Takes a receive that the device has filled for this endpoint, or failed to; `None` if the context has closed.
    fn take_claimed(&self, id: SlotId) -> Option<Filling> {
        let mut guard = self.context.state.lock();
        let filling = guard.claimed.remove(id)?;
        guard.give(self.member);
        Some(filling)
    }
}

impl<T: Transport> EndpointCore<T> {
    /// Takes a receive that has ended: one of the endpoint's, or one of its shared context's that a device held.
    pub(in crate::endpoint) fn take_filling(&mut self, id: SlotId) -> Option<Filling> {
        let Some(part) = self.rx.shared.as_ref().filter(|part| part.context.device.is_some()) else {
            return self.rx.filling.remove(id);
        };
        let filling = part.take_claimed(id)?;
        Some(Filling { signal: self.rx.reports_shared(filling.signal), ..filling })
    }
}
