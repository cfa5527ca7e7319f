//! Finding a posted receive by its context, to cancel it.
//!
//! The data path keeps no order by context, so a cancel checks all posted receives. A program that cancels many in a
//! row, for example at its end, would then take quadratic time. So a cancel that follows another without a post in
//! between builds an index, which later ones use.
//!
//! Invariant: while `as_of` equals the owner's count of posts, every queued receive is in `by_context`, oldest first;
//! it may also contain ids of receives that were taken since.

use super::RecvId;
use std::collections::{HashMap, VecDeque};

#[derive(Default)]
pub(super) struct CancelIndex {
    as_of: u64,
    by_context: Option<HashMap<usize, VecDeque<RecvId>>>,
}

impl CancelIndex {
    /// Whether an earlier cancel saw the same posts, so that an index would have served it too.
    pub(super) fn is_repeated(&mut self, posts: u64) -> bool {
        let repeated = self.as_of == posts;
        if !repeated {
            *self = Self { as_of: posts, by_context: None };
        }
        repeated
    }

    /// The ids of a context, oldest first. `receives` yields all that are queued, in the order of posting; it
    /// is called for the first of a row.
    pub(super) fn ids<I: Iterator<Item = (usize, RecvId)>>(
        &mut self,
        context: usize,
        receives: impl FnOnce() -> I,
    ) -> Option<&mut VecDeque<RecvId>> {
        let by_context = self.by_context.get_or_insert_with(|| {
            let mut map: HashMap<usize, VecDeque<RecvId>> = HashMap::new();
            receives().for_each(|(context, id)| map.entry(context).or_default().push_back(id));
            map
        });
        by_context.get_mut(&context)
    }
}
