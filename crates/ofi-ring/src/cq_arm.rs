//! How a thread goes to sleep on a device's completion queue, which signals its next entry only if it is armed.
//!
//! When a device adds an entry to an armed queue, it makes the descriptor readable and disarms the queue. An entry
//! added before the queue was armed is not signalled. Therefore there are three steps, in this order:
//!
//! 1. Consume old notifications. After step 3, this could consume the notification of an entry that nobody has seen.
//! 2. Arm the queue.
//! 3. Poll the queue once more, for an entry that was added between the last poll and step 2.
//!
//! Invariant: if [`may_sleep`] returned true, an untaken entry makes the descriptor readable, or will do so as soon as
//! the device has added it. If several threads poll, a lock must protect these steps and the polls: otherwise one
//! thread's poll could take the entry that another must see while it arms.

/// A completion queue with a descriptor.
pub trait CqArm {
    /// Consumes notifications: the descriptor is no longer readable.
    fn quiet(&mut self);

    /// Arms the queue: the next entry makes the descriptor readable, but entries already in the queue do not. Returns
    /// whether the device supports this.
    fn arm(&mut self) -> bool;

    /// Polls the queue. Returns whether there are entries, or another reason to poll.
    fn look(&mut self) -> bool;
}

/// Arms a queue that was found empty. Returns whether a thread may sleep on the descriptor; otherwise poll the queue.
#[inline]
pub fn may_sleep(queue: &mut impl CqArm) -> bool {
    queue.quiet();
    queue.arm() && !queue.look()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue that records the steps applied to it.
    #[derive(Default)]
    struct Queue {
        steps: String,
        is_lost: bool,
        has_entries: bool,
    }

    impl CqArm for Queue {
        fn quiet(&mut self) {
            self.steps += "quiet ";
        }

        fn arm(&mut self) -> bool {
            self.steps += "arm ";
            !self.is_lost
        }

        fn look(&mut self) -> bool {
            self.steps += "look ";
            self.has_entries
        }
    }

    #[test]
    fn nobody_sleeps_at_a_queue_that_has_entries_or_is_lost() {
        let mut queue = Queue::default();
        assert!(may_sleep(&mut queue));
        assert_eq!(queue.steps, "quiet arm look ");
        assert!(!may_sleep(&mut Queue { has_entries: true, ..Queue::default() }));
        assert!(!may_sleep(&mut Queue { is_lost: true, ..Queue::default() }));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Mutex;

    use super::*;
    use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence};

    /// A device's queue. The device adds an entry before it checks whether the queue is armed, and a thread arms the
    /// queue before it looks for entries; fences, because loom takes `SeqCst` accesses as `AcqRel`.
    #[derive(Default)]
    struct Device {
        added: AtomicU32,
        is_armed: AtomicBool,
        /// Whether the descriptor is readable. Swapped, as the kernel's has one order of all changes.
        event: AtomicBool,
    }

    impl Device {
        fn add(&self) {
            self.added.fetch_add(1, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            if self.is_armed.swap(false, Ordering::AcqRel) {
                self.event.swap(true, Ordering::AcqRel);
            }
        }
    }

    /// An endpoint: how many entries it has taken.
    struct Endpoint {
        device: Arc<Device>,
        taken: u32,
    }

    impl Endpoint {
        /// Takes all that there is.
        fn poll(&mut self) -> bool {
            let added = self.device.added.load(Ordering::Acquire);
            std::mem::replace(&mut self.taken, added) != added
        }
    }

    impl CqArm for Endpoint {
        fn quiet(&mut self) {
            self.device.event.swap(false, Ordering::AcqRel);
        }

        fn arm(&mut self) -> bool {
            self.device.is_armed.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            true
        }

        fn look(&mut self) -> bool {
            self.poll()
        }
    }

    /// A device adds `entries` entries, each in a thread, while another thread polls and goes to sleep if it finds
    /// none. Unless that thread has taken all entries or did not sleep, it is woken in the end.
    fn sleeps_and_is_woken(entries: u32) {
        loom::model(move || {
            let device = Arc::new(Device::default());
            let adding: Vec<_> = (0..entries)
                .map(|_| {
                    let device = Arc::clone(&device);
                    loom::thread::spawn(move || device.add())
                })
                .collect();
            let mut endpoint = Endpoint { device: Arc::clone(&device), taken: 0 };
            let sleeps = !endpoint.poll() && may_sleep(&mut endpoint);
            adding.into_iter().for_each(|thread| thread.join().unwrap());
            let is_woken = device.event.load(Ordering::Acquire);
            assert!(!sleeps || is_woken || endpoint.taken == entries, "asleep, with an entry in the queue");
        });
    }

    #[test]
    fn an_entry_is_seen_or_wakes() {
        sleeps_and_is_woken(1);
    }

    #[test]
    fn of_two_entries_none_is_left_to_a_sleeper() {
        sleeps_and_is_woken(2);
    }

    /// If a thread that was woken goes to sleep again and an entry is added meanwhile, it finds the descriptor
    /// readable.
    #[test]
    fn one_that_sleeps_again_is_woken_again() {
        loom::model(|| {
            let device = Arc::new(Device::default());
            let mut endpoint = Endpoint { device: Arc::clone(&device), taken: 0 };
            assert!(may_sleep(&mut endpoint));
            device.add();
            let adding = {
                let device = Arc::clone(&device);
                loom::thread::spawn(move || device.add())
            };
            assert!(device.event.load(Ordering::Acquire), "woken by the first");
            endpoint.poll();
            let sleeps = may_sleep(&mut endpoint);
            adding.join().unwrap();
            let is_woken = device.event.load(Ordering::Acquire);
            assert!(!sleeps || is_woken || endpoint.taken == 2, "asleep, with an entry in the queue");
        });
    }

    /// A helper goes to sleep on the queue while an application polls. The endpoint's lock is between them.
    #[test]
    fn what_another_thread_has_not_taken_wakes() {
        loom::model(|| {
            let device = Arc::new(Device::default());
            let endpoint = Arc::new(Mutex::new(Endpoint { device: Arc::clone(&device), taken: 0 }));
            let adding = {
                let device = Arc::clone(&device);
                loom::thread::spawn(move || device.add())
            };
            let polling = {
                let endpoint = Arc::clone(&endpoint);
                loom::thread::spawn(move || endpoint.lock().unwrap().poll())
            };
            let sleeps = {
                let mut endpoint = endpoint.lock().unwrap();
                !endpoint.poll() && may_sleep(&mut *endpoint)
            };
            adding.join().unwrap();
            polling.join().unwrap();
            let is_woken = device.event.load(Ordering::Acquire);
            let taken = endpoint.lock().unwrap().taken;
            assert!(!sleeps || is_woken || taken == 1, "asleep, with an entry in the queue");
        });
    }
}
