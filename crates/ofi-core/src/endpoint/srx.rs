//! The application's handle of a shared receive context: an endpoint that only receives.

use std::any::Any;
use std::sync::Arc;

use ofi_api::{
    Address, AddressVector, BindFlags, CompletionQueue, Context, Counter, Endpoint, EpOption, Errno, Error,
    EventQueue, Fid, ReceiveOp, Result, RxAttr, Statistic, TagMatch, Watcher,
};

use super::refused::{refuse, refuse_others, refuse_transmit};
use super::shared_receive::SharedRx;
use crate::domain::DomainCore;
use crate::export::Counted;
use crate::transport::Transport;

/// The application's handle of a shared receive context. Dropping it closes the context.
pub(crate) struct Srx<T: Transport> {
    pub(super) shared: Arc<SharedRx<T>>,
}

impl<T: Transport> Srx<T> {
    /// Opens a context.
    ///
    /// # Errors
    /// Errors of the device that takes its receives.
    pub(crate) fn open(domain: &Arc<DomainCore<T>>, attr: &RxAttr) -> Result<Arc<Self>> {
        let shared = Arc::new(SharedRx::new(domain, attr)?);
        let counted: Arc<dyn Counted> = Arc::clone(&shared) as _;
        domain.registry.count(&counted);
        Ok(Arc::new(Self { shared }))
    }

    /// The core's part of an application's context.
    ///
    /// # Errors
    /// `FI_EINVAL` for anything else.
    pub(super) fn of(endpoint: &Arc<dyn Endpoint>) -> Result<Arc<SharedRx<T>>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(endpoint) as _;
        match any.downcast::<Self>() {
            Ok(srx) => Ok(Arc::clone(&srx.shared)),
            Err(_) => Err(super::foreign("the shared receive context")),
        }
    }
}

impl<T: Transport> Endpoint for Srx<T> {
    refuse! { "a shared receive context":
        bind_cq(&Arc<dyn CompletionQueue>, BindFlags) -> ();
        bind_counter(&Arc<dyn Counter>, BindFlags) -> ();
        bind_av(&Arc<dyn AddressVector>) -> ();
        bind_eq(&Arc<dyn EventQueue>) -> ();
        name() -> Address;
        set_name(&Address) -> ();
    }
    refuse_transmit!("a shared receive context");
    refuse_others!("a shared receive context");

    fn fid(&self) -> Fid {
        self.shared.fid
    }

    /// Does nothing: the context works from the start.
    fn enable(&self) -> Result<()> {
        self.shared.born.check()
    }

    fn receive(&self, op: &ReceiveOp<'_>) -> Result<()> {
        self.shared.born.check()?;
        self.shared.receive(op, None)
    }

    fn receive_tagged(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        self.shared.born.check()?;
        self.shared.receive(op, Some(tag))
    }

    fn cancel(&self, context: Context) -> Result<()> {
        self.shared.born.check()?;
        self.shared.cancel(context)
    }

    fn option(&self, option: EpOption) -> Result<usize> {
        self.shared.born.check()?;
        match option {
            EpOption::MinMultiRecv => Ok(self.shared.min_multi_recv()),
            _ => Err(Error::new(Errno::ENOPROTOOPT)),
        }
    }

    fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        self.shared.born.check()?;
        match option {
            EpOption::MinMultiRecv => {
                self.shared.set_min_multi_recv(value);
                Ok(())
            }
            _ => Err(Error::new(Errno::ENOPROTOOPT)),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        if !self.shared.born.is_here() {
            return Vec::new();
        }
        self.shared.counts()
    }

    fn watch_unexpected(&self, watcher: Option<Watcher>) -> Result<()> {
        self.shared.born.check()?;
        self.shared.watch(watcher);
        Ok(())
    }
}

impl<T: Transport> Drop for Srx<T> {
    fn drop(&mut self) {
        if self.shared.born.is_here() {
            self.shared.close();
        }
    }
}
