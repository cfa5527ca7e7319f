//! Shared transmit contexts (`fi_stx_context`): several endpoints share the room for outstanding operations.
//!
//! Endpoints borrow room in small batches, and keep the room that their completions free. An endpoint that finds none
//! releases its own lock, takes back unused room from the others, and returns `FI_EAGAIN` this time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ofi_api::{Errno, Error, Fid, Result, SharedTransmit, TxAttr};

use super::EpCore;
use crate::cq::Credit;
use crate::domain::DomainCore;
use crate::domain_id::DomainId;
use crate::transport::Transport;

/// The number of operations for which an endpoint borrows room at once.
const BATCH: usize = 8;

/// A shared transmit context: the operations that its endpoints may still post.
pub struct SharedTx<T: Transport> {
    pub(super) domain: DomainId,
    fid: Fid,
    pub(super) attr: TxAttr,
    /// The maximum number of bound endpoints.
    limit: usize,
    pool: Mutex<Pool<T>>,
}

struct Pool<T: Transport> {
    free: usize,
    members: Vec<Option<Member<T>>>,
}

struct Member<T: Transport> {
    core: Weak<EpCore<T>>,
    borrowed: usize,
}

/// The error for an endpoint beyond the maximum number.
#[cold]
pub fn crowded(direction: &str, limit: usize) -> Error {
    Error::wanted(
        Errno::EBUSY,
        format!("the endpoints of a shared {direction} context"),
        format!("at most {limit} (domain_attr)"),
        "one more",
        "open another context",
    )
}

impl<T: Transport> SharedTx<T> {
    /// Opens a context of `domain`.
    pub fn new(domain: &DomainCore<T>, attr: &TxAttr) -> Self {
        Self {
            domain: domain.id(),
            fid: Fid::next(),
            attr: attr.clone(),
            limit: domain.info.domain_attr.max_ep_stx_ctx,
            pool: Mutex::new(Pool { free: attr.size, members: Vec::new() }),
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool<T>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an endpoint.
    ///
    /// # Errors
    /// `FI_EBUSY` if the maximum number of endpoints is bound.
    pub(super) fn join(self: &Arc<Self>, core: Weak<EpCore<T>>) -> Result<Loan<T>> {
        let mut pool = self.pool();
        if pool.members.iter().flatten().count() >= self.limit {
            return Err(crowded("transmit", self.limit));
        }
        let member = Some(Member { core, borrowed: 0 });
        let free = pool.members.iter().position(Option::is_none);
        let at = free.unwrap_or(pool.members.len());
        match free {
            Some(at) => pool.members[at] = member,
            None => pool.members.push(member),
        }
        Ok(Loan { context: Arc::clone(self), member: at })
    }

    /// Takes back room that endpoints have borrowed but do not use.
    pub(super) fn collect(&self) {
        let members: Vec<_> = {
            let pool = self.pool();
            let members = pool.members.iter().enumerate();
            members.filter_map(|(at, member)| Some((at, member.as_ref()?.core.upgrade()?))).collect()
        };
        for (at, core) in members {
            let mut guard = core.state.lock();
            let spare = std::mem::take(&mut guard.ends.staging.credits[Credit::Transmit as usize]);
            drop(guard);
            let mut pool = self.pool();
            let pool = &mut *pool;
            let member = pool.members.get_mut(at).and_then(Option::as_mut);
            // It may have left meanwhile, and returned all that it had borrowed.
            if let Some(member) = member.filter(|member| member.core.as_ptr() == Arc::as_ptr(&core)) {
                let spare = spare.min(member.borrowed);
                member.borrowed -= spare;
                pool.free += spare;
            }
        }
    }
}

impl<T: Transport> SharedTransmit for SharedTx<T> {
    fn fid(&self) -> Fid {
        self.fid
    }
}

/// An endpoint's part in a shared context.
pub struct Loan<T: Transport> {
    pub context: Arc<SharedTx<T>>,
    member: usize,
}

impl<T: Transport> Loan<T> {
    /// Borrows room for a few operations; 0 if there is none.
    pub fn borrow(&self) -> usize {
        let mut pool = self.context.pool();
        let pool = &mut *pool;
        let Some(Some(member)) = pool.members.get_mut(self.member) else { return 0 };
        let room = BATCH.min(pool.free);
        member.borrowed += room;
        pool.free -= room;
        room
    }

    /// Returns all room that a closing endpoint has borrowed.
    pub fn leave(&self) {
        let mut pool = self.context.pool();
        if let Some(member) = pool.members.get_mut(self.member).and_then(Option::take) {
            pool.free += member.borrowed;
        }
    }
}
