//! Runs measurements that do not depend on the machine's load side by side, one on each core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::{Error, Result, sys};

/// Calls `measure` for each item, on a thread for each core that this one may run on. Each thread is pinned to its
/// core, and the processes that it starts inherit that. The results have the order of the items.
///
/// # Errors
/// A thread cannot be pinned, or panics; otherwise the first error of `measure`, in the order of the items.
pub fn on_each_core<T, U>(items: &[T], measure: impl Fn(&T) -> Result<U> + Sync) -> Result<Vec<U>>
where
    T: Sync,
    U: Send,
{
    let next = AtomicUsize::new(0);
    let work = |core| {
        sys::pin_current_thread(core).map_err(Error::io(format!("pinning a thread to core {core}")))?;
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { return Ok(done) };
            done.push((place, measure(item)));
        }
    };
    let cores = sys::usable_cores().map_err(Error::io("reading the cores of this thread"))?;
    let mut results = Vec::with_capacity(items.len());
    thread::scope(|scope| {
        let threads: Vec<_> = cores.into_iter().map(|core| scope.spawn(move || work(core))).collect();
        for thread in threads {
            let done = thread.join().map_err(|_| Error::Stack("a measuring thread panicked".into()))?;
            results.extend(done?);
        }
        Ok::<_, Error>(())
    })?;
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let doubled = on_each_core(&items, |item| Ok(item * 2)).unwrap();
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_error_in_the_items_order_is_reported() {
        let fails = |item: &u64| if *item < 3 { Ok(()) } else { Err(Error::NotReady(item.to_string())) };
        let error = on_each_core(&[1, 2, 3, 4, 5], fails).unwrap_err();
        assert!(matches!(error, Error::NotReady(which) if which == "3"));
    }
}
