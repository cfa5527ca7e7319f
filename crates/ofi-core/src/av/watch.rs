//! Endpoints that are notified of insertions immediately. All others notice them at their next lookup
//! ([`super::AvCounts`]).

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An enabled endpoint that follows insertions.
pub trait Watcher: Send + Sync {
    /// Addresses were inserted.
    fn inserted(&self);
}

/// The watchers of a vector.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<Weak<dyn Watcher>>>);

impl Watchers {
    /// Adds a watcher, for as long as it lives.
    pub fn add(&self, watcher: Weak<dyn Watcher>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }

    /// Notifies all watchers of an insertion. They take the locks of their endpoints, so no lock of the vector is held.
    pub fn tell(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|watcher| watcher.strong_count() > 0);
        let living: Vec<Arc<dyn Watcher>> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        living.iter().for_each(|watcher| watcher.inserted());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Watcher for Count {
        fn inserted(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_that_live_are_told_and_the_others_forgotten() {
        let (watchers, one, other) = (Watchers::default(), Arc::<Count>::default(), Arc::<Count>::default());
        for count in [&one, &other] {
            let watcher: Weak<Count> = Arc::downgrade(count);
            watchers.add(watcher);
        }
        watchers.tell();
        drop(other);
        watchers.tell();
        assert_eq!(one.0.load(Ordering::Relaxed), 2);
        assert_eq!(watchers.0.lock().unwrap().len(), 1);
    }
}
