//! Insertions that are reported to an event queue (`FI_EVENT`).

use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Context, EqErrorEntry, Errno, Error, Event, EventKind, Fid, Inserted, Result};

use crate::eq::EqCore;

/// The event queue of a vector.
#[derive(Default)]
pub struct Reports(Mutex<Option<Arc<EqCore>>>);

impl Reports {
    /// Reports to `queue` from now on.
    ///
    /// # Errors
    /// `FI_EBUSY` if there is one.
    pub fn bind(&self, queue: Arc<EqCore>) -> Result<()> {
        let mut bound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.is_some() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_av_bind",
                "one event queue",
                "a second one",
                "open another address vector",
            ));
        }
        *bound = Some(queue);
        Ok(())
    }

    /// The queue.
    ///
    /// # Errors
    /// `FI_ENOEQ` if there is none.
    pub fn queue(&self) -> Result<Arc<EqCore>> {
        let bound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bound.clone().ok_or_else(|| {
            Error::wanted(
                Errno::ENOEQ,
                "inserting into an address vector opened with FI_EVENT",
                "an event queue that was bound to it",
                "none",
                "call fi_av_bind first",
            )
        })
    }
}

/// Reports an insertion to `queue`: each failure, then the end.
pub fn insertion(queue: &EqCore, fid: Fid, context: Context, inserted: &[Inserted]) {
    let mut good = 0;
    for (place, one) in inserted.iter().enumerate() {
        match one {
            Ok(_) => good += 1,
            Err(error) => {
                let entry =
                    EqErrorEntry { context, data: place as u64, ..EqErrorEntry::new(fid, error.errno()) };
                queue.push_error(entry);
            }
        }
    }
    queue.push(Event { context, data: good, ..Event::new(EventKind::AvComplete, fid) });
}
