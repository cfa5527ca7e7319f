//! The remote devices that the queue pairs of a device have attached. A device reports a sender by the number of its
//! address handle, even to a queue pair that has not attached the sender's device itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::Gid;

/// The attached devices by address handle number, each with the number of its handles.
#[derive(Default)]
pub struct Attached(Mutex<FxHashMap<u16, Holders>>);

/// The attached device behind one handle number, and the number of its handles.
struct Holders {
    gid: Gid,
    count: usize,
}

impl Attached {
    fn by_number(&self) -> MutexGuard<'_, FxHashMap<u16, Holders>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a queue pair has a handle of a device.
    pub fn add(&self, number: u16, gid: Gid) {
        self.by_number().entry(number).or_insert(Holders { gid, count: 0 }).count += 1;
    }

    /// Called before a queue pair destroys its handle, whose number may then be reused for another device.
    pub fn remove(&self, number: u16) {
        let mut all = self.by_number();
        if let Some(holders) = all.get_mut(&number) {
            holders.count = holders.count.saturating_sub(1);
            if holders.count == 0 {
                all.remove(&number);
            }
        }
    }

    /// The device of a handle.
    pub fn gid(&self, number: u16) -> Option<Gid> {
        self.by_number().get(&number).map(|holders| holders.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_while_a_queue_pair_has_it_attached() {
        let (attached, one, other) = (Attached::default(), [1; 16], [2; 16]);
        assert_eq!(attached.gid(7), None);
        attached.add(7, one);
        attached.add(7, one);
        attached.remove(7);
        assert_eq!(attached.gid(7), Some(one));
        attached.remove(7);
        assert_eq!(attached.gid(7), None);
        attached.add(7, other);
        assert_eq!(attached.gid(7), Some(other));
    }
}
