//! Objects that the queue pairs of a device share by the address of a remote device: address handles, of which a device
//! has room for a limited number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    fn all(&self) -> MutexGuard<'_, FxHashMap<Gid, Weak<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object of this address, which is made if there is none. The last user's drop ends it. A device may take long
    /// to make one, so other queue pairs go on meanwhile. If two make the same one, both use that of the first.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(&self, gid: &Gid, make: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        if let Some(handle) = self.find(gid) {
            return Ok(handle);
        }
        let made = make();
        let mut all = self.all();
        // Another's is used even if this one was refused: perhaps the other took the last place.
        if let Some(handle) = all.get(gid).and_then(Weak::upgrade) {
            drop(all); // before this one is destroyed
            return Ok(handle);
        }
        let handle = made?;
        if all.len() == all.capacity() {
            all.retain(|_, handle| handle.strong_count() > 0);
        }
        all.insert(*gid, Arc::downgrade(&handle));
        Ok(handle)
    }

    /// The object of this address, if a queue pair uses it.
    pub fn find(&self, gid: &Gid) -> Option<Arc<T>> {
        self.all().get(gid).and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

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

    #[test]
    fn a_handle_that_takes_long_holds_up_no_other() {
        let (live, handles, (begun, begins)) = (AtomicUsize::new(0), Handles::default(), channel());
        let (release, held) = channel::<()>();
        let make = || {
            live.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(Counted(&live)))
        };
        let (live, handles) = (&live, &handles);
        std::thread::scope(|scope| {
            let slow = scope.spawn(move || {
                handles.get(&[1; 16], || {
                    begun.send(()).unwrap();
                    held.recv_timeout(Duration::from_secs(5)).expect("others waited for this one");
                    live.fetch_add(1, Ordering::Relaxed);
                    Ok(Arc::new(Counted(live)))
                })
            });
            begins.recv().unwrap();
            drop(handles.get(&[2; 16], make).unwrap());
            release.send(()).unwrap();
            drop(slow.join().unwrap().unwrap());
        });
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_that_make_the_same_handle_share_one() {
        let (live, handles, both) = (AtomicUsize::new(0), Handles::default(), Barrier::new(2));
        let one = |succeeds: bool| {
            handles.get(&[1; 16], || {
                both.wait();
                if !succeeds {
                    std::thread::sleep(Duration::from_millis(50));
                    return Err(Error::new(Errno::ENOMEM));
                }
                live.fetch_add(1, Ordering::Relaxed);
                Ok(Arc::new(Counted(&live)))
            })
        };
        for refused in [false, true] {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| one(!refused));
                let (own, other) = (one(true).unwrap(), other.join().unwrap().unwrap());
                assert!(Arc::ptr_eq(&own, &other));
                assert_eq!(live.load(Ordering::Relaxed), 1, "the second one is destroyed");
            });
            assert_eq!(live.load(Ordering::Relaxed), 0);
        }
    }
}
