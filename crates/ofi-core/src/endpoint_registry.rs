//! The endpoints of a domain. Counters of regions need them, because any endpoint may serve a peer's access, and so do
//! the domain's statistics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ofi_api::Result;

use crate::cntr::Cntr;
use crate::export::{self, Counted};
use crate::source::Source;

#[derive(Default)]
struct Members {
    endpoints: Vec<Weak<dyn Source>>,
    counters: Vec<Weak<Cntr>>,
    counted: Vec<Weak<dyn Counted>>,
}

/// A domain's enabled endpoints, the counters that all of them drive, and the objects with statistics.
#[derive(Default)]
pub struct EndpointRegistry(Mutex<Members>);

impl EndpointRegistry {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that counts was opened.
    pub fn count(&self, opened: &Arc<dyn Counted>) {
        export::opened(opened);
        let mut members = self.members();
        // Pruned only when it would grow, and so rarely.
        if members.counted.len() == members.counted.capacity() {
            members.counted.retain(|known| known.strong_count() > 0);
        }
        members.counted.push(Arc::downgrade(opened));
    }

    /// The open sources of counters.
    pub fn counted(&self) -> Vec<Arc<dyn Counted>> {
        self.members().counted.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds an endpoint that was enabled.
    ///
    /// # Errors
    /// Errors of adding its descriptor to a wait set.
    pub fn enter(&self, endpoint: &Arc<dyn Source>) -> Result<()> {
        let counters: Vec<Arc<Cntr>> = {
            let mut members = self.members();
            members.endpoints.push(Arc::downgrade(endpoint));
            members.counters.retain(|counter| counter.strong_count() > 0);
            members.counters.iter().filter_map(Weak::upgrade).collect()
        };
        counters.iter().try_for_each(|counter| counter.add_source(endpoint))
    }

    /// An endpoint is closing.
    pub fn leave(&self, endpoint: &Arc<dyn Source>) {
        let gone = Arc::as_ptr(endpoint).cast::<()>();
        let counters: Vec<Arc<Cntr>> = {
            let mut members = self.members();
            members.endpoints.retain(|known| known.as_ptr().cast::<()>() != gone);
            members.counters.iter().filter_map(Weak::upgrade).collect()
        };
        counters.iter().for_each(|counter| counter.remove_source(endpoint));
    }

    /// Makes every endpoint return its grants on registrations that are being closed.
    pub fn give_back(&self) {
        let endpoints: Vec<Arc<dyn Source>> =
            self.members().endpoints.iter().filter_map(Weak::upgrade).collect();
        endpoints.iter().for_each(|endpoint| endpoint.give_back());
    }

    /// Makes every endpoint, including later ones, drive `counter`.
    ///
    /// # Errors
    /// As [`EndpointRegistry::enter`].
    pub fn watch(&self, counter: &Arc<Cntr>) -> Result<()> {
        let endpoints: Vec<Arc<dyn Source>> = {
            let mut members = self.members();
            if members.counters.iter().any(|known| known.as_ptr() == Arc::as_ptr(counter)) {
                return Ok(());
            }
            members.counters.push(Arc::downgrade(counter));
            members.endpoints.iter().filter_map(Weak::upgrade).collect()
        };
        endpoints.iter().try_for_each(|endpoint| counter.add_source(endpoint))
    }
}
