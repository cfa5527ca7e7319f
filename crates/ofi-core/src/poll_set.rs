//! Poll sets: which of several queues and counters have something.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Context, Errno, Error, PollMember, PollSet, Result};

use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::fork::Born;
use crate::wait::Waitable;

enum Member {
    Queue(Arc<Cq>),
    Counter(Arc<Cntr>),
}

impl Member {
    fn of(member: &PollMember) -> Result<Self> {
        let own = match member {
            PollMember::Queue(queue) => {
                let any: Arc<dyn Any + Send + Sync> = Arc::clone(queue) as _;
                any.downcast().ok().map(Self::Queue)
            }
            PollMember::Counter(counter) => {
                let any: Arc<dyn Any + Send + Sync> = Arc::clone(counter) as _;
                any.downcast().ok().map(Self::Counter)
            }
        };
        own.ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the member of a poll set",
                "a queue or a counter of this library",
                "one of another implementation",
                "poll it by itself",
            )
        })
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Queue(one), Self::Queue(other)) => Arc::ptr_eq(one, other),
            (Self::Counter(one), Self::Counter(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

#[derive(Default)]
struct Members {
    all: Vec<(Member, Context)>,
    /// The start of the next poll.
    turn: usize,
}

/// The core's poll set.
#[derive(Default)]
pub struct Polls {
    members: Mutex<Members>,
    born: Born,
}

impl PollSet for Polls {
    fn add(&self, member: PollMember, context: Context) -> Result<()> {
        self.born.check()?;
        let member = Member::of(&member)?;
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if members.all.iter().any(|(known, _)| known.is(&member)) {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_poll_add",
                "an object that is not in the set",
                "one that is",
                "add it once",
            ));
        }
        members.all.push((member, context));
        Ok(())
    }

    fn remove(&self, member: &PollMember) -> Result<()> {
        self.born.check()?;
        let member = Member::of(member)?;
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = members.all.iter().position(|(known, _)| known.is(&member)) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_poll_del",
                "a member of the set",
                "an object that is not in it",
                "add it first",
            ));
        };
        let gone = members.all.remove(at);
        members.turn = 0;
        drop(members);
        drop(gone); // perhaps its last holder
        Ok(())
    }

    fn poll(&self, contexts: &mut [Context]) -> usize {
        if !self.born.is_here() {
            return 0; // nothing ever happens in objects that belong to the parent
        }
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, first) = (members.all.len(), members.turn);
        let mut found = 0;
        for step in 0..count {
            let at = (first + step) % count;
            let (member, context) = &members.all[at];
            if found == contexts.len() {
                // Only driven, not queried: a query would mark a counter's change as reported.
                match member {
                    Member::Queue(queue) => drop(queue.has_something()),
                    Member::Counter(counter) => counter.drive(),
                }
                continue;
            }
            let has = match member {
                Member::Queue(queue) => queue.has_something(),
                Member::Counter(counter) => counter.take_change(),
            };
            if has {
                contexts[found] = *context;
                found += 1;
                if found == contexts.len() {
                    members.turn = (at + 1) % count;
                }
            }
        }
        found
    }
}
