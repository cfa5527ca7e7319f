//! Threading levels: whether the library or the program serialises calls. The level is fixed when a domain is opened,
//! and is then part of the types.

use std::cell::Cell;
use std::marker::PhantomData;

use ofi_api::Threading;

/// `FI_THREAD_SAFE`: a [`Node`](crate::Node) is `Sync`. For a single thread it costs the same as [`Exclusive`]: locks
/// are biased to that thread.
#[derive(Clone, Copy, Debug)]
pub struct Safe(());

/// `FI_THREAD_COMPLETION`: a [`Node`](crate::Node), which owns an endpoint and its queue, is `Send` but not `Sync`, so
/// that the compiler prevents concurrent use.
#[derive(Clone, Copy, Debug)]
pub struct Exclusive(PhantomData<Cell<()>>);

/// One of the two threading levels of the safe layer.
pub trait Level: sealed::Sealed + 'static {
    /// C's name for it.
    const THREADING: Threading;
}

impl Level for Safe {
    const THREADING: Threading = Threading::Safe;
}

impl Level for Exclusive {
    const THREADING: Threading = Threading::Completion;
}

/// Prevents other crates from adding levels.
pub(crate) mod sealed {
    use super::{Exclusive, Safe};

    pub trait Sealed {}

    impl Sealed for Safe {}

    impl Sealed for Exclusive {}
}
