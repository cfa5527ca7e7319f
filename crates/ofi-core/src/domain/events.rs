//! The event queue of a domain, for its endpoints without a queue of their own, and for its registrations.

use std::sync::{Arc, OnceLock};

use ofi_api::{BindFlags, Context, Errno, Error, Event, EventKind, Fid, Result};

use crate::eq::EqCore;

/// The event queue that is bound to one domain, if any.
#[derive(Default)]
pub struct DomainEvents {
    /// The queue, and whether registrations are reported to it.
    bound: OnceLock<(Arc<EqCore>, bool)>,
}

impl DomainEvents {
    /// Binds a queue.
    ///
    /// # Errors
    /// See [`ofi_api::Domain::bind_eq`].
    pub fn bind(&self, eq: Arc<EqCore>, flags: BindFlags) -> Result<()> {
        if !BindFlags::REG_MR.contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_domain_bind with an event queue",
                "FI_REG_MR or none",
                format!("{:#x}", flags.bits()),
                "leave the others out",
            ));
        }
        self.bound.set((eq, !flags.is_empty())).map_err(|_| {
            Error::wanted(
                Errno::EBUSY,
                "fi_domain_bind",
                "one event queue",
                "a second one",
                "bind one queue to each domain",
            )
        })
    }

    /// The queue of endpoints that have none.
    pub fn queue(&self) -> Option<&Arc<EqCore>> {
        self.bound.get().map(|(eq, _)| eq)
    }

    /// Reports a registration, if that was asked for.
    pub fn registered(&self, fid: Fid, context: Context) {
        if let Some((eq, true)) = self.bound.get() {
            eq.push(Event { context, ..Event::new(EventKind::MrComplete, fid) });
        }
    }
}
