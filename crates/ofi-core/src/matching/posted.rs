//! Posted receives that wait for a message.
//!
//! Every receive is in one list, by its class: untagged from anyone, untagged from one peer, exact tag from
//! anyone, exact tag from one peer, or wildcard (some tag bits ignored). Within a list the order is that of
//! posting, so a message has at most one candidate in each list but the wildcards', and `order` decides
//! between candidates.
//!
//! Invariants:
//! P1. `order` is unique, grows with each post, and stays with a receive until it is taken: a multi-receive
//!     buffer keeps its place while it takes messages.
//! P2. A receive is in the list of its class and key, and in no other; lists are in ascending `order`.

use super::cancel::CancelIndex;
use super::slab::{NIL, Slab};
use super::table::{Hint, KeyHash, Table};
use super::{Envelope, PostedReceive, RecvId, SourceFilter, SourceId, Space, Want};
use crate::copy;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    UntaggedAny = 0,
    UntaggedFrom,
    TagAny,
    TagFrom,
    WildAny,
    WildFrom,
}

/// With links and generation 32 bytes, so that a receive of 32 bytes takes one cache line. That is why it is packed,
/// and why the ignored bits of wildcards are stored elsewhere.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
struct Key {
    /// Order in the upper bits, class in the lower three: to compare it is to compare the orders, which are unique.
    order: u64,
    tag: u64,  // of a wildcard: with the ignored bits set; of an untagged receive: 0
    peer: u32, // of a receive from anyone: 0
}

const CLASS_BITS: u32 = 3;
const CLASSES: [Class; 1 << CLASS_BITS] = [
    Class::UntaggedAny,
    Class::UntaggedFrom,
    Class::TagAny,
    Class::TagFrom,
    Class::WildAny,
    Class::WildFrom,
    Class::UntaggedAny, // never stored
    Class::UntaggedAny,
];

/// A receive that was found for a message, and its list: `place` is the entry in the table of its class. Unless it is a
/// wildcard, it is the first of its list.
#[derive(Clone, Copy)]
pub(super) struct Found {
    index: u32,
    class: Class,
    place: usize,
}

/// The address of a receive's memory. Among many receives, a message finds neither the receive nor its memory in the
/// cache: so both are fetched at once.
#[derive(Clone, Copy, Default)]
struct MemoryHint(usize);

impl<R: PostedReceive> Hint<R> for MemoryHint {
    #[inline(always)]
    fn of(recv: &R) -> Self {
        Self(recv.memory())
    }

    #[inline(always)]
    fn found(self) {
        copy::prefetch_to_write(std::ptr::without_provenance(self.0));
    }
}

pub(super) struct PostedReceives<R> {
    slab: Slab<Key, R, 1>,
    next_order: u64,
    untagged_any: u32,
    wild: u32,
    /// The ignored bits of wildcards, by slot.
    ignored: Vec<u64>,
    /// Receives in the lists of `untagged_from`.
    untagged_from_len: usize,
    tag_any: Table<0, MemoryHint>,
    tag_from: Table<0, MemoryHint>,
    untagged_from: Vec<u32>,
    hash: KeyHash,
    cancels: CancelIndex,
}

impl<R: PostedReceive> PostedReceives<R> {
    pub(super) fn new(hash: KeyHash) -> Self {
        Self {
            slab: Slab::new(),
            next_order: 0,
            untagged_any: NIL,
            wild: NIL,
            ignored: Vec::new(),
            untagged_from_len: 0,
            tag_any: Table::new(),
            tag_from: Table::new(),
            untagged_from: Vec::new(),
            hash,
            cancels: CancelIndex::default(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Queues a receive behind all others.
    #[inline(always)]
    pub(super) fn push(&mut self, want: &Want, recv: R) -> RecvId {
        let order = self.next_order;
        self.next_order += 1;
        let (class, peer, tag) = classify(want);
        let index = self.slab.insert(Key { order: order << CLASS_BITS | class as u64, tag, peer }, recv);
        match class {
            Class::UntaggedAny => self.untagged_any = self.slab.push::<0>(self.untagged_any, index),
            Class::WildAny | Class::WildFrom => self.link_wild(want.ignore, index),
            _ => self.link(class, peer, tag, index),
        }
        RecvId { index, generation: self.slab.generation(index) }
    }

    /// Queues an untagged receive from anyone.
    #[inline(always)]
    pub(super) fn push_untagged(&mut self, recv: R) {
        let key = self.next_key(Class::UntaggedAny, 0);
        let index = self.slab.insert(key, recv);
        self.untagged_any = self.slab.push::<0>(self.untagged_any, index);
    }

    /// Queues a receive of one tag from anyone.
    #[inline(always)]
    pub(super) fn push_tagged(&mut self, tag: u64, recv: R) {
        let key = self.next_key(Class::TagAny, tag);
        let index = self.slab.insert(key, recv);
        self.link(Class::TagAny, 0, tag, index);
    }

    #[inline(always)]
    fn next_key(&mut self, class: Class, tag: u64) -> Key {
        let order = self.next_order;
        self.next_order += 1;
        Key { order: order << CLASS_BITS | class as u64, tag, peer: 0 }
    }

    #[inline(never)]
    fn link_wild(&mut self, ignore: u64, index: u32) {
        let at = index as usize;
        if at >= self.ignored.len() {
            self.ignored.resize(at + 1, 0);
        }
        self.ignored[at] = ignore;
        self.wild = self.slab.push::<0>(self.wild, index);
    }

    /// Puts a receive that is no wildcard into the list of its class and key.
    #[inline(never)]
    fn link(&mut self, class: Class, peer: u32, tag: u64, index: u32) {
        match class {
            Class::TagAny => {
                let hash = self.hash.tag(tag);
                self.tag_any.append(&mut self.slab, hash, |slab, head| slab.key(head).tag == tag, index);
            }
            Class::TagFrom => {
                let hash = self.hash.source_tag(peer, tag);
                self.tag_from.append(&mut self.slab, hash, |slab, head| slab.key(head).is(peer, tag), index);
            }
            Class::WildAny | Class::WildFrom | Class::UntaggedAny => unreachable!("linked by `push`"),
            Class::UntaggedFrom => {
                let at = peer as usize;
                if at >= self.untagged_from.len() {
                    self.untagged_from.resize(at + 1, NIL);
                }
                self.untagged_from[at] = self.slab.push::<0>(self.untagged_from[at], index);
                self.untagged_from_len += 1;
            }
        }
    }

    /// The first posted receive that matches.
    #[inline(always)] // so that the common cases know the class of what they find
    pub(super) fn find(&self, envelope: &Envelope) -> Option<Found> {
        match envelope.space {
            Space::Untagged if self.untagged_from_len == 0 => found(self.untagged_any, Class::UntaggedAny, 0),
            Space::Untagged => self.find_untagged(envelope.peer),
            Space::Tagged if self.tag_from.is_empty() && self.wild == NIL => self.tag_any_place(envelope.tag),
            Space::Tagged => self.find_tagged(envelope.peer, envelope.tag),
        }
    }

    #[inline(never)]
    fn find_untagged(&self, peer: SourceId) -> Option<Found> {
        let any = found(self.untagged_any, Class::UntaggedAny, 0);
        let head = self.untagged_from.get(peer.0 as usize).copied().unwrap_or(NIL);
        self.first_posted(any, found(head, Class::UntaggedFrom, 0))
    }

    #[inline(never)]
    fn find_tagged(&self, peer: SourceId, tag: u64) -> Option<Found> {
        let any = if self.tag_any.is_empty() { None } else { self.tag_any_place(tag) };
        let from = if self.tag_from.is_empty() { None } else { self.tag_from_place(peer.0, tag) };
        self.first_wild(self.first_posted(any, from), peer, tag)
    }

    #[inline]
    fn tag_any_place(&self, tag: u64) -> Option<Found> {
        let (place, index) =
            self.tag_any.first(&self.slab, self.hash.tag(tag), |slab, head| slab.key(head).tag == tag)?;
        Some(Found { index, class: Class::TagAny, place })
    }

    #[inline]
    fn tag_from_place(&self, peer: u32, tag: u64) -> Option<Found> {
        let is_key = |slab: &Slab<Key, R, 1>, head| slab.key(head).is(peer, tag);
        let (place, index) = self.tag_from.first(&self.slab, self.hash.source_tag(peer, tag), is_key)?;
        Some(Found { index, class: Class::TagFrom, place })
    }

    /// The first wildcard that matches, unless `best` was posted before it.
    fn first_wild(&self, best: Option<Found>, peer: SourceId, tag: u64) -> Option<Found> {
        let limit = best.map(|best| self.slab.key(best.index).order);
        let mut index = self.wild;
        while index != NIL {
            let receive = *self.slab.key(index);
            if limit.is_some_and(|limit| limit < receive.order) {
                break;
            }
            let from = receive.class() == Class::WildAny || receive.peer == peer.0;
            if from && receive.tag == tag | self.ignored[index as usize] {
                return found(index, receive.class(), 0);
            }
            index = self.slab.next::<0>(index);
        }
        best
    }

    #[inline]
    fn first_posted(&self, a: Option<Found>, b: Option<Found>) -> Option<Found> {
        match (a, b) {
            (Some(x), Some(y)) if self.slab.key(y.index).order < self.slab.key(x.index).order => b,
            (None, _) => b,
            _ => a,
        }
    }

    #[inline]
    pub(super) fn id(&self, found: Found) -> RecvId {
        RecvId { index: found.index, generation: self.slab.generation(found.index) }
    }

    #[inline]
    pub(super) fn found_mut(&mut self, found: Found) -> &mut R {
        self.slab.at_mut(found.index)
    }

    #[inline]
    pub(super) fn get(&self, id: RecvId) -> Option<&R> {
        self.slab.holds(id.index, id.generation).then(|| self.slab.at(id.index))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: RecvId) -> Option<&mut R> {
        self.slab.holds(id.index, id.generation).then(|| self.slab.at_mut(id.index))
    }

    /// Removes the receive of a message if `accept` returns a value for it, and returns that value. Handles the common
    /// case only: `None` also if more than one list must be searched.
    #[inline(always)]
    pub(super) fn accept<X>(
        &mut self,
        envelope: &Envelope,
        accept: impl FnOnce(&R) -> Option<X>,
    ) -> Option<X> {
        match envelope.space {
            Space::Untagged => {
                let index = self.untagged_any;
                if self.untagged_from_len != 0 || index == NIL {
                    return None;
                }
                let accepted = accept(self.slab.at(index))?;
                self.untagged_any = self.slab.discard_first::<0>(index);
                Some(accepted)
            }
            Space::Tagged => {
                if !self.tag_from.is_empty() || self.wild != NIL {
                    return None;
                }
                let tag = envelope.tag;
                let is_key = |slab: &Slab<Key, R, 1>, head| slab.key(head).tag == tag;
                let (place, index) = self.tag_any.first(&self.slab, self.hash.tag(tag), is_key)?;
                let accepted = accept(self.slab.at(index))?;
                self.tag_any.discard_first(&mut self.slab, place);
                Some(accepted)
            }
        }
    }

    /// Takes a receive that `find` has just found.
    #[inline]
    pub(super) fn take_found(&mut self, Found { index, class, place }: Found) -> R {
        match class {
            Class::UntaggedAny => self.untagged_any = self.slab.pop::<0>(index),
            Class::TagAny => self.tag_any.pop(&mut self.slab, place),
            Class::TagFrom => self.tag_from.pop(&mut self.slab, place),
            Class::UntaggedFrom | Class::WildAny | Class::WildFrom => self.unlink(class, index),
        }
        self.slab.remove(index)
    }

    pub(super) fn take(&mut self, id: RecvId) -> Option<R> {
        self.slab.holds(id.index, id.generation).then(|| self.take_index(id.index))
    }

    fn take_index(&mut self, index: u32) -> R {
        let key = *self.slab.key(index);
        let (class, peer, tag) = (key.class(), key.peer, key.tag);
        match class {
            Class::TagAny => {
                let place = self.tag_any_place(tag).expect(LISTED).place;
                self.tag_any.unlink(&mut self.slab, place, index);
            }
            Class::TagFrom => {
                let place = self.tag_from_place(peer, tag).expect(LISTED).place;
                self.tag_from.unlink(&mut self.slab, place, index);
            }
            _ => self.unlink(class, index),
        }
        self.slab.remove(index)
    }

    /// Takes a receive out of a list that is not in a table.
    #[inline(never)]
    fn unlink(&mut self, class: Class, index: u32) {
        let head = match class {
            Class::UntaggedAny => &mut self.untagged_any,
            Class::UntaggedFrom => {
                self.untagged_from_len -= 1;
                &mut self.untagged_from[self.slab.key(index).peer as usize]
            }
            _ => &mut self.wild,
        };
        *head = self.slab.unlink::<0>(*head, index);
    }

    /// Takes the first-posted receive that satisfies `wanted`. Looks at all of them.
    pub(super) fn take_first(&mut self, wanted: impl FnMut(&R) -> bool) -> Option<R> {
        let index = self.first(wanted)?;
        Some(self.take_index(index))
    }

    fn first(&self, mut wanted: impl FnMut(&R) -> bool) -> Option<u32> {
        let matching = self.slab.iter().filter(|(_, _, recv)| wanted(recv));
        matching.min_by_key(|(_, key, _)| key.order).map(|(index, ..)| index)
    }

    /// Takes the first posted receive of a context, and returns its space.
    pub(super) fn cancel(&mut self, context: usize) -> Option<(Space, R)> {
        let index = self.find_context(context, R::context)?;
        let space = self.slab.key(index).space();
        Some((space, self.take_index(index)))
    }

    fn find_context(&mut self, context: usize, context_of: impl Fn(&R) -> usize) -> Option<u32> {
        if !self.cancels.is_repeated(self.next_order) {
            return self.first(|recv| context_of(recv) == context);
        }
        let slab = &self.slab;
        let ids = self.cancels.ids(context, || {
            let id = |index| RecvId { index, generation: slab.generation(index) };
            in_order(slab, |_, _, _| true)
                .into_iter()
                .map(move |index| (context_of(slab.at(index)), id(index)))
        })?;
        let id = std::iter::from_fn(|| ids.pop_front()).find(|id| slab.holds(id.index, id.generation))?;
        Some(id.index)
    }

    /// Takes every receive that satisfies `wanted`, in the order of posting.
    pub(super) fn extract(&mut self, mut wanted: impl FnMut(&Want, &R) -> bool) -> Vec<R> {
        let ignored = |index: u32| self.ignored.get(index as usize).copied().unwrap_or_default();
        let found = in_order(&self.slab, |index, key, recv| wanted(&key.want(ignored(index)), recv));
        found.into_iter().map(|index| self.take_index(index)).collect()
    }
}

/// The slots of the receives that satisfy `wanted`, in the order of posting.
fn in_order<R>(slab: &Slab<Key, R, 1>, mut wanted: impl FnMut(u32, &Key, &R) -> bool) -> Vec<u32> {
    let matching = slab.iter().filter(|(index, key, recv)| wanted(*index, key, recv));
    let mut found: Vec<(u64, u32)> = matching.map(|(index, key, _)| (key.order, index)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, index)| index).collect()
}

impl Key {
    #[inline]
    fn is(self, peer: u32, tag: u64) -> bool {
        self.peer == peer && self.tag == tag
    }

    #[inline]
    fn class(self) -> Class {
        CLASSES[(self.order % CLASSES.len() as u64) as usize]
    }

    fn space(self) -> Space {
        match self.class() {
            Class::UntaggedAny | Class::UntaggedFrom => Space::Untagged,
            _ => Space::Tagged,
        }
    }

    fn want(self, ignored: u64) -> Want {
        let class = self.class();
        let space = self.space();
        let source = match class {
            Class::UntaggedAny | Class::TagAny | Class::WildAny => SourceFilter::Any,
            _ => SourceFilter::From(SourceId(self.peer)),
        };
        let ignore = if matches!(class, Class::WildAny | Class::WildFrom) { ignored } else { 0 };
        Want { space, source, tag: self.tag, ignore }
    }
}

/// The class of a receive, and its peer and tag as they are stored.
#[inline]
fn classify(want: &Want) -> (Class, u32, u64) {
    match (want.space, want.source) {
        (Space::Untagged, SourceFilter::Any) => (Class::UntaggedAny, 0, 0),
        (Space::Untagged, SourceFilter::From(peer)) => (Class::UntaggedFrom, peer.0, 0),
        (Space::Tagged, SourceFilter::Any) if want.ignore == 0 => (Class::TagAny, 0, want.tag),
        (Space::Tagged, SourceFilter::From(peer)) if want.ignore == 0 => (Class::TagFrom, peer.0, want.tag),
        (Space::Tagged, SourceFilter::Any) => (Class::WildAny, 0, want.tag | want.ignore),
        (Space::Tagged, SourceFilter::From(peer)) => (Class::WildFrom, peer.0, want.tag | want.ignore),
    }
}

#[inline]
fn found(index: u32, class: Class, place: usize) -> Option<Found> {
    (index != NIL).then_some(Found { index, class, place })
}

const LISTED: &str = "a queued receive is in the list of its key";

#[cfg(test)]
impl<R> PostedReceives<R> {
    pub(super) const SLOT_BYTES: usize = Slab::<Key, R, 1>::SLOT_BYTES;
}

#[cfg(test)]
impl<R: PostedReceive> PostedReceives<R> {
    /// Checks P1 and P2: every receive is in the list of its class and key, once and in order.
    pub(super) fn check(&self) {
        let mut seen = 0;
        let mut check_list = |head: u32, of_list: &dyn Fn(&Key) -> bool| {
            let list = self.slab.check_list::<0>(head);
            assert!(list.iter().all(|&index| of_list(self.slab.key(index))));
            assert!(list.is_sorted_by_key(|&index| { self.slab.key(index).order }));
            seen += list.len();
        };
        check_list(self.untagged_any, &|key| key.class() == Class::UntaggedAny);
        check_list(self.wild, &|key| matches!(key.class(), Class::WildAny | Class::WildFrom));
        for (peer, &head) in (0..).zip(&self.untagged_from) {
            check_list(head, &|key| key.class() == Class::UntaggedFrom && key.peer == peer);
        }
        for (hash, head) in self.tag_any.check() {
            let tag = self.slab.key(head).tag;
            assert_eq!(hash, self.hash.tag(tag));
            check_list(head, &|key| key.class() == Class::TagAny && key.tag == tag);
        }
        for (hash, head) in self.tag_from.check() {
            let Key { peer, tag, .. } = *self.slab.key(head);
            assert_eq!(hash, self.hash.source_tag(peer, tag));
            check_list(head, &|key| key.class() == Class::TagFrom && key.is(peer, tag));
        }
        assert_eq!(seen, self.len());
        let directed = self.slab.iter().filter(|(_, key, _)| key.class() == Class::UntaggedFrom).count();
        assert_eq!(directed, self.untagged_from_len);
    }

    /// The number of slots, full or not.
    pub(super) fn capacity(&self) -> usize {
        self.slab.capacity()
    }
}
