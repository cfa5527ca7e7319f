//! A lock whose operations need no locked instruction while it has a single user. With several users it costs as much
//! as any lock.
//!
//! The lock is biased to a thread, its *owner*, which enters and leaves by plain loads and stores. The first other
//! thread *revokes* the bias: it takes `held`, the word that all threads but the owner take; clears `bias`; makes every
//! processor pass a barrier ([`membarrier::heavy_private`]); and waits until the owner is outside. From then on the
//! lock is an ordinary spin lock. A thread that was its only user for long enough becomes the owner again; how long
//! doubles with each revocation, so that threads that alternate rarely pay for one.
//!
//! A thread that only [tries](RawLock::try_enter) does not wait for the owner either: if it has revoked the bias and
//! finds the owner inside, it restores the bias before it releases `held`.
//!
//! Invariants:
//! I1. A thread inside has stored its id in `held`, or has stored it in the `inside` of its own [`Owner`] and then
//!     found its bias in `bias`. Leaving clears only that word.
//! I2. Only the holder of `held` stores `bias`. If it finds another thread's bias there, it revokes that first. When it
//!     releases `held`, there is no bias, or a valid one, but never an owner inside whose bias is revoked.
//! I3. A thread has one [`Owner`] per lock, for the lock's life, and no other thread stores its `inside`. So an owner
//!     may be preempted for any time between its first look at `bias` and its store to `inside` without disturbing a
//!     later owner: it stores its mark, finds the bias gone at its second look, and clears the mark.
//! Pairs: BIAS on `inside` and `bias`: the owner stores the first and loads the second, a revoker stores the second and
//!        loads the first, with [`membarrier`] between: one of the two sees the other.
//!        LEAVE on `held` or `inside`, leaving (Release) to entering or revoking (Acquire): everything that was done
//!        inside is visible.
//!
//! A thread's id is its thread pointer, which no two living threads share. A new thread may have the pointer of one
//! that has ended, and is then taken for it. That is sound: a thread's control block is reused only after its old
//! thread has ended, so everything that thread did inside happened before, and none of its stores is in flight. An
//! owner that has ended is outside, so its bias is revoked like any other.
//!
//! A thread that enters a lock twice would wait for itself. It panics instead.

mod thread;

use core::fmt;
use core::marker::PhantomData;

use crate::membarrier::{self, Support};
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, UnsafeCell, relax};
use thread::thread;

/// An id that no thread has.
const NOBODY: usize = 0;
/// After the first revocation, how often a thread must enter, with no other thread between, to become the owner. A
/// revocation takes some microseconds; an unbiased entry costs some nanoseconds more than a biased one.
const ALONE: u32 = if cfg!(loom) { 1 } else { 512 };
/// The same after many revocations.
const ALONE_LONG: u32 = 1 << 22;
/// The maximum number of owners of one lock over its life. For later threads it is an ordinary lock.
const OWNERS: u32 = 16;
/// How often a returning thread checks the lock word, to let waiting threads enter first.
const GIVE_WAY: u32 = if cfg!(loom) { 0 } else { 64 };

/// A thread that a lock was biased to.
struct Owner {
    thread: usize,
    /// `thread` while that thread is inside as owner.
    inside: AtomicUsize,
    next: *mut Owner,
}

/// State that belongs to the holder of `held`.
struct BiasState {
    /// Consecutive unbiased entries of the last thread.
    streak: u32,
    /// The number of such entries that makes a thread the owner.
    wanted: u32,
    owners: u32,
    /// Whether the barrier works.
    may_bias: bool,
}

impl BiasState {
    /// A bias was revoked: the next one is given later.
    fn count_revocation(&mut self) {
        self.wanted = self.wanted.saturating_mul(2).clamp(ALONE, ALONE_LONG);
    }
}

/// A lock without data.
pub struct RawLock {
    /// One of `owners`.
    bias: AtomicPtr<Owner>,
    /// The thread inside, unless it entered as owner.
    held: AtomicUsize,
    /// The thread that took `held` last.
    last: AtomicUsize,
    /// Threads that wait for `held`.
    waiting: AtomicU32,
    /// All owners so far; the last entry of the list stands for no thread. Freed with the lock.
    owners: AtomicPtr<Owner>,
    book: UnsafeCell<BiasState>,
}

// SAFETY: only the holder of `held` uses `book`, and `held` is passed on with Release and Acquire; owners are reached
// through atomics, changed only by atomics, and live as long as the lock.
unsafe impl Sync for RawLock {}
// SAFETY: it owns what it points to.
unsafe impl Send for RawLock {}

impl fmt::Debug for RawLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawLock").finish_non_exhaustive()
    }
}

/// Proof that the caller is inside. Dropping it leaves the lock. It cannot move to another thread.
#[derive(Debug)]
#[must_use]
pub struct Entered<'a>(&'a AtomicUsize, PhantomData<*const ()>);

impl<'a> Entered<'a> {
    #[inline(always)]
    fn by(word: &'a AtomicUsize) -> Self {
        Self(word, PhantomData)
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Release); // LEAVE
    }
}

impl Default for RawLock {
    fn default() -> Self {
        Self::new()
    }
}

impl RawLock {
    /// A lock that becomes biased to the first thread that enters, if this system has the barrier.
    pub fn new() -> Self {
        Self::with(membarrier::register_private())
    }

    /// A lock that is biased only if `support` allows it.
    pub fn with(support: Support) -> Self {
        let nobody = Box::into_raw(Box::new(Owner {
            thread: NOBODY,
            inside: AtomicUsize::new(NOBODY),
            next: core::ptr::null_mut(),
        }));
        Self {
            bias: AtomicPtr::new(nobody),
            held: AtomicUsize::new(NOBODY),
            last: AtomicUsize::new(NOBODY),
            waiting: AtomicU32::new(0),
            owners: AtomicPtr::new(nobody),
            book: UnsafeCell::new(BiasState {
                streak: 0,
                wanted: 0,
                owners: 0,
                may_bias: support == Support::Expedited,
            }),
        }
    }

    /// Waits until no other thread is inside.
    ///
    /// # Panics
    /// If the calling thread is already inside, which can happen in a signal handler.
    #[inline(always)]
    pub fn enter(&self) -> Entered<'_> {
        self.enter_as(thread())
    }

    /// As [`RawLock::enter`], but returns `None` if a thread is inside.
    pub fn try_enter(&self) -> Option<Entered<'_>> {
        self.try_enter_as(thread())
    }

    fn try_enter_as(&self, me: usize) -> Option<Entered<'_>> {
        let bias = self.bias.load(Ordering::Acquire);
        // SAFETY: `bias` is never null, and owners live as long as the lock.
        let owner = unsafe { &*bias };
        if owner.thread == me {
            if owner.inside.load(Ordering::Relaxed) != NOBODY {
                return None; // this thread itself
            }
            owner.inside.store(me, Ordering::Relaxed); // BIAS
            membarrier::light();
            if self.bias.load(Ordering::Relaxed) == bias {
                return Some(Entered::by(&owner.inside));
            }
            owner.inside.store(NOBODY, Ordering::Release);
        }
        self.take(me).ok()?;
        if self.try_revoke(me) {
            return Some(self.enter_by_held(me));
        }
        self.held.store(NOBODY, Ordering::Release); // LEAVE
        None
    }

    /// Called by the holder of `held`: takes the bias from another thread, unless that thread is inside. Returns
    /// whether the lock is free of other threads.
    #[cold]
    fn try_revoke(&self, me: usize) -> bool {
        let bias = self.bias.load(Ordering::Relaxed);
        // SAFETY: `bias` is never null, and owners live as long as the lock.
        let owner = unsafe { &*bias };
        if owner.thread == NOBODY || owner.thread == me {
            return true;
        }
        if owner.inside.load(Ordering::Acquire) != NOBODY {
            return false;
        }
        // SAFETY: this thread has `held`, and no other thread accesses the holder's state.
        self.book.with_mut(|book| self.unbias(unsafe { &mut *book }));
        let is_outside = owner.inside.load(Ordering::Acquire) == NOBODY; // BIAS, LEAVE
        if is_outside {
            // SAFETY: as above.
            self.book.with_mut(|book| unsafe { (*book).count_revocation() });
        } else {
            self.bias.store(bias, Ordering::Release);
        }
        is_outside
    }

    #[inline(always)]
    fn enter_as(&self, me: usize) -> Entered<'_> {
        let bias = self.bias.load(Ordering::Acquire);
        // SAFETY: `bias` is never null, and owners live as long as the lock.
        let owner = unsafe { &*bias };
        if owner.thread == me && owner.inside.load(Ordering::Relaxed) == NOBODY {
            owner.inside.store(me, Ordering::Relaxed); // BIAS
            membarrier::light();
            if self.bias.load(Ordering::Relaxed) == bias {
                return Entered::by(&owner.inside);
            }
            return self.enter_revoked(owner, me);
        }
        self.enter_unbiased(me)
    }

    /// As [`RawLock::enter`], for an owner that found its bias gone after setting its mark.
    #[cold]
    #[inline(never)]
    fn enter_revoked(&self, owner: &Owner, me: usize) -> Entered<'_> {
        owner.inside.store(NOBODY, Ordering::Release);
        self.enter_unbiased(me)
    }

    #[cold]
    #[inline(never)]
    fn enter_unbiased(&self, me: usize) -> Entered<'_> {
        if self.waiting.load(Ordering::Relaxed) > 0 && self.last.load(Ordering::Relaxed) == me {
            self.give_way();
        }
        if self.take(me).is_err() {
            self.wait(me);
        }
        self.enter_by_held(me)
    }

    /// As [`RawLock::enter`], for a thread that has taken `held`.
    fn enter_by_held(&self, me: usize) -> Entered<'_> {
        let entered = Entered::by(&self.held);
        let came_back = self.last.load(Ordering::Relaxed) == me;
        if !came_back {
            self.last.store(me, Ordering::Relaxed);
        }
        let bias = self.bias.load(Ordering::Relaxed);
        // SAFETY: `bias` is never null, and owners live as long as the lock.
        let owner = unsafe { &*bias };
        let mut mine = None;
        // SAFETY: this thread has `held`, and no other thread accesses the holder's state.
        self.book.with_mut(|book| mine = unsafe { self.keep_book(&mut *book, owner, me, came_back) });
        let Some(owner) = mine else { return entered };
        // The thread is now inside as owner, no longer by `held`; a revoking thread takes `held` first.
        owner.inside.store(me, Ordering::Relaxed);
        drop(entered);
        Entered::by(&owner.inside)
    }

    /// Called by the holder of `held`: revokes another thread's bias, or takes the bias after a long enough streak.
    /// Returns this thread's owner entry if it has the bias.
    fn keep_book<'a>(
        &'a self,
        book: &mut BiasState,
        owner: &'a Owner,
        me: usize,
        came_back: bool,
    ) -> Option<&'a Owner> {
        if owner.thread == me {
            assert!(owner.inside.load(Ordering::Relaxed) == NOBODY, "{TWICE}");
            return Some(owner);
        }
        if owner.thread != NOBODY {
            self.revoke(book, owner);
        }
        book.streak = if came_back { book.streak.saturating_add(1) } else { 0 };
        let alone = book.streak >= book.wanted && self.waiting.load(Ordering::Relaxed) == 0;
        if alone && book.may_bias { self.bias_to(book, me) } else { None }
    }

    /// Called by the holder of `held`: takes the bias from `owner`, and waits until it is outside.
    #[cold]
    fn revoke(&self, book: &mut BiasState, owner: &Owner) {
        self.unbias(book);
        let mut tries = 0;
        while owner.inside.load(Ordering::Acquire) != NOBODY {
            relax(&mut tries); // BIAS, LEAVE
        }
        book.count_revocation();
    }

    /// Called by the holder of `held`: removes the bias. Its owner may still be inside.
    fn unbias(&self, book: &mut BiasState) {
        self.bias.store(self.nobody(), Ordering::Relaxed); // BIAS
        if membarrier::heavy_private().is_err() {
            // The barrier failed because the process has entered a sandbox since. No processor delays a store for this
            // long.
            book.may_bias = false;
            membarrier::outwait();
        }
    }

    /// Called by the holder of `held` while no thread has the bias: gives the bias to this thread.
    #[cold]
    fn bias_to(&self, book: &mut BiasState, me: usize) -> Option<&Owner> {
        book.streak = 0;
        let mut known = self.owner(me);
        if known.is_null() && book.owners < OWNERS {
            book.owners += 1;
            let next = self.owners.load(Ordering::Relaxed);
            known = Box::into_raw(Box::new(Owner { thread: me, inside: AtomicUsize::new(NOBODY), next }));
            self.owners.store(known, Ordering::Release);
        }
        // SAFETY: owners live as long as the lock.
        let owner = unsafe { known.as_ref() }?;
        self.bias.store(known, Ordering::Release);
        Some(owner)
    }

    /// The owner with this id, or null.
    fn owner(&self, thread: usize) -> *mut Owner {
        let mut at = self.owners.load(Ordering::Acquire);
        // SAFETY: owners live as long as the lock, and their ids and order never change.
        while let Some(owner) = unsafe { at.as_ref() } {
            if owner.thread == thread {
                break;
            }
            at = owner.next;
        }
        at
    }

    fn nobody(&self) -> *mut Owner {
        self.owner(NOBODY)
    }

    #[inline]
    fn take(&self, me: usize) -> Result<usize, usize> {
        self.held.compare_exchange(NOBODY, me, Ordering::Acquire, Ordering::Relaxed) // LEAVE
    }

    /// Gives waiting threads the chance to find the lock free.
    #[cold]
    fn give_way(&self) {
        for _ in 0..GIVE_WAY {
            if self.held.load(Ordering::Relaxed) != NOBODY || self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Takes `held` from another thread.
    #[cold]
    fn wait(&self, me: usize) {
        self.refuse_second(me);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0;
        loop {
            while self.held.load(Ordering::Relaxed) != NOBODY {
                relax(&mut tries);
            }
            if self.take(me).is_ok() {
                break;
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Panics for a thread that is already inside, since it would wait for itself.
    fn refuse_second(&self, me: usize) {
        // SAFETY: owners live as long as the lock.
        let owner = unsafe { self.owner(me).as_ref() };
        let inside = owner.is_some_and(|owner| owner.inside.load(Ordering::Relaxed) == me);
        assert!(!inside && self.held.load(Ordering::Relaxed) != me, "{TWICE}");
    }
}

const TWICE: &str = "a thread entered a lock that it is inside of: was the library called from a signal handler \
                     that interrupted a call of it?";

impl Drop for RawLock {
    fn drop(&mut self) {
        let mut at = self.owners.load(Ordering::Acquire);
        while !at.is_null() {
            // SAFETY: each owner came from a box and is in the list once; nothing can reach the list after the lock is
            // gone.
            let owner = unsafe { Box::from_raw(at) };
            at = owner.next;
        }
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
