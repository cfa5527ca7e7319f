//! Objects that the queue pairs of a device share by the address of a remote device: address handles, of which a device
//! has room for a limited number.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ofi_api::Result;
use rustc_hash::FxHashMap;

use super::Gid;

/// One object for each remote device, while a queue pair uses it.
pub struct Handles<T>(Mutex<FxHashMap<Gid, Weak<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Handles<T> {
    /// The object of this address, which is made if there is none. The last user's drop ends it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(&self, gid: &Gid, make: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = all.get(gid).and_then(Weak::upgrade) {
            return Ok(handle);
        }
        let handle = make()?;
        if all.len() == all.capacity() {
            all.retain(|_, handle| handle.strong_count() > 0);
        }
        all.insert(*gid, Arc::downgrade(&handle));
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ofi_api::{Errno, Error};

    use super::*;

    /// Counts itself while it exists.
    struct Counted<'a>(&'a AtomicUsize);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn users_of_an_address_share_a_handle_that_ends_with_the_last() {
        let (live, handles) = (AtomicUsize::new(0), Handles::default());
        let get = |last: u8| {
            let gid = [last; 16];
            handles.get(&gid, || {
                live.fetch_add(1, Ordering::Relaxed);
                Ok(Arc::new(Counted(&live)))
            })
        };
        let (one, same, other) = (get(1).unwrap(), get(1).unwrap(), get(2).unwrap());
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(live.load(Ordering::Relaxed), 2);
        drop((one, other));
        assert_eq!(live.load(Ordering::Relaxed), 1);
        drop(same);
        assert_eq!(live.load(Ordering::Relaxed), 0);
        for last in 0..=255 {
            drop(get(last).unwrap());
        }
        assert_eq!(live.load(Ordering::Relaxed), 0);
        let room = handles.0.lock().unwrap().capacity();
        assert!(room < 64, "what has ended takes no room: {room}");
        assert!(handles.get(&[1; 16], || Err(Error::new(Errno::ENOMEM))).is_err());
    }
}
