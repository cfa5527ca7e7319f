//! Messages that arrived before a receive that matches them.
//!
//! A message waits in up to four lists, so that each kind of receive finds its oldest match at the head of
//! one: all messages of its space (`ORDER`), those of one peer (`SOURCE`), those with one tag (`TAG`), those
//! of one peer with one tag (`SOURCE_TAG`). Only a receive that ignores some bits of the tag scans, and if it
//! is directed, only its peer's messages.
//!
//! Invariants:
//! U1. Every list is in the order of arrival. A message not claimed is in `ORDER` and `SOURCE`, and, if it is
//!     tagged, in `TAG` and `SOURCE_TAG`.
//! U2. A claimed message is in the `ORDER` list of claimed ones and in `TAG` under its context; in no other.

use super::slab::{NIL, Slab};
use super::table::{KeyHash, Table};
use super::{Envelope, SourceFilter, SourceId, Space, Unexpected, UnexpectedId, Want};

const ORDER: usize = 0;
const SOURCE: usize = 1;
const TAG: usize = 2;
const SOURCE_TAG: usize = 3;

struct ClaimableMessage<U> {
    message: Unexpected<U>,
    claim: usize,
    claimed: bool,
}

pub(super) struct UnexpectedMessages<U> {
    slab: Slab<(), ClaimableMessage<U>, 4>,
    /// All messages of each space.
    order: [u32; 2],
    /// The messages of each space by peer.
    source: Vec<[u32; 2]>,
    tag: Table<TAG>,
    source_tag: Table<SOURCE_TAG>,
    claimed: u32,
    claim: Table<TAG>,
    hash: KeyHash,
}

impl<U> UnexpectedMessages<U> {
    pub(super) fn new(hash: KeyHash) -> Self {
        Self {
            slab: Slab::new(),
            order: [NIL; 2],
            source: Vec::new(),
            tag: Table::new(),
            source_tag: Table::new(),
            claimed: NIL,
            claim: Table::new(),
            hash,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no message of this space waits unclaimed.
    #[inline]
    pub(super) fn is_empty(&self, space: Space) -> bool {
        self.order[space as usize] == NIL
    }

    pub(super) fn push(&mut self, message: Unexpected<U>) -> UnexpectedId {
        let Envelope { space, peer, tag, .. } = message.envelope;
        let index = self.slab.insert((), ClaimableMessage { message, claim: 0, claimed: false });
        let at = peer.0 as usize;
        if at >= self.source.len() {
            self.source.resize(at + 1, [NIL; 2]);
        }
        let order = &mut self.order[space as usize];
        *order = self.slab.push::<ORDER>(*order, index);
        let source = &mut self.source[at][space as usize];
        *source = self.slab.push::<SOURCE>(*source, index);
        if space == Space::Tagged {
            let slab = &mut self.slab;
            self.tag.append(slab, self.hash.tag(tag), |slab, head| slab.at(head).has_tag(tag), index);
            let hash = self.hash.source_tag(peer.0, tag);
            self.source_tag.append(slab, hash, |slab, head| slab.at(head).has_source_tag(peer, tag), index);
        }
        UnexpectedId { index, generation: self.slab.generation(index) }
    }

    /// The oldest message that matches.
    #[inline]
    pub(super) fn find(&self, want: &Want) -> Option<u32> {
        if self.is_empty(want.space) {
            return None;
        }
        let all = match want.source {
            SourceFilter::Any => self.order[want.space as usize],
            SourceFilter::From(peer) => self.source.get(peer.0 as usize)?[want.space as usize],
        };
        if all == NIL || want.space == Space::Untagged {
            return (all != NIL).then_some(all);
        }
        let tag = want.tag;
        match want.source {
            SourceFilter::Any if want.ignore == 0 => self.tag_list(tag).map(|(_, head)| head),
            SourceFilter::From(peer) if want.ignore == 0 => {
                self.source_tag_list(peer, tag).map(|(_, head)| head)
            }
            SourceFilter::Any => self.slab.list::<ORDER>(all).find(|&index| self.is_wanted(want, index)),
            SourceFilter::From(_) => self.slab.list::<SOURCE>(all).find(|&index| self.is_wanted(want, index)),
        }
    }

    fn is_wanted(&self, want: &Want, index: u32) -> bool {
        self.slab.at(index).message.envelope.tag | want.ignore == want.tag | want.ignore
    }

    #[inline]
    fn tag_list(&self, tag: u64) -> Option<(usize, u32)> {
        self.tag.first(&self.slab, self.hash.tag(tag), |slab, head| slab.at(head).has_tag(tag))
    }

    #[inline]
    fn source_tag_list(&self, peer: SourceId, tag: u64) -> Option<(usize, u32)> {
        self.source_tag.first(&self.slab, self.hash.source_tag(peer.0, tag), |slab, head| {
            slab.at(head).has_source_tag(peer, tag)
        })
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> &Unexpected<U> {
        &self.slab.at(index).message
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: UnexpectedId) -> Option<&mut Unexpected<U>> {
        self.slab.holds(id.index, id.generation).then(|| &mut self.slab.at_mut(id.index).message)
    }

    /// Removes a message, claimed or not.
    pub(super) fn remove(&mut self, index: u32) -> Unexpected<U> {
        if self.slab.at(index).claimed {
            self.unlink_claimed(index);
        } else {
            self.unlink(index);
        }
        self.slab.remove(index).message
    }

    /// Sets a message aside for `context`.
    pub(super) fn claim(&mut self, index: u32, context: usize) {
        self.unlink(index);
        let message = self.slab.at_mut(index);
        message.claim = context;
        message.claimed = true;
        self.claimed = self.slab.push::<ORDER>(self.claimed, index);
        let is_key = |slab: &Slab<(), ClaimableMessage<U>, 4>, head| slab.at(head).claim == context;
        self.claim.append(&mut self.slab, self.hash.tag(context as u64), is_key, index);
    }

    /// The message set aside for `context`: the one claimed first, if there are several.
    pub(super) fn claimed(&self, context: usize) -> Option<u32> {
        self.claim_list(context).map(|(_, head)| head)
    }

    fn claim_list(&self, context: usize) -> Option<(usize, u32)> {
        self.claim
            .first(&self.slab, self.hash.tag(context as u64), |slab, head| slab.at(head).claim == context)
    }

    /// Removes the messages of `peer` that satisfy `wanted`, which gets the context of a claimed message. The order is
    /// untagged, tagged, then claimed, each in order of arrival.
    pub(super) fn extract(
        &mut self,
        peer: SourceId,
        mut wanted: impl FnMut(&mut Unexpected<U>, Option<usize>) -> bool,
    ) -> Vec<Unexpected<U>> {
        let mut indices: Vec<u32> = Vec::new();
        if let Some(&heads) = self.source.get(peer.0 as usize) {
            indices.extend(heads.iter().flat_map(|&head| self.slab.list::<SOURCE>(head)));
        }
        indices.extend(
            self.slab.list::<ORDER>(self.claimed).filter(|&index| self.at(index).envelope.peer == peer),
        );
        indices.retain(|&index| {
            let ClaimableMessage { message, claim, claimed } = self.slab.at_mut(index);
            wanted(message, claimed.then_some(*claim))
        });
        indices.into_iter().map(|index| self.remove(index)).collect()
    }

    /// Removes everything: untagged, tagged, then claimed, each in order.
    pub(super) fn drain(&mut self) -> Vec<Unexpected<U>> {
        let heads = [self.order[0], self.order[1], self.claimed];
        let indices: Vec<u32> = heads.iter().flat_map(|&head| self.slab.list::<ORDER>(head)).collect();
        indices.into_iter().map(|index| self.remove(index)).collect()
    }

    /// Takes a message out of the lists that receives look at.
    fn unlink(&mut self, index: u32) {
        let Envelope { space, peer, tag, .. } = self.at(index).envelope;
        let order = &mut self.order[space as usize];
        *order = self.slab.unlink::<ORDER>(*order, index);
        let source = &mut self.source[peer.0 as usize][space as usize];
        *source = self.slab.unlink::<SOURCE>(*source, index);
        if space == Space::Tagged {
            let (place, _) = self.tag_list(tag).expect(LISTED);
            self.tag.unlink(&mut self.slab, place, index);
            let (place, _) = self.source_tag_list(peer, tag).expect(LISTED);
            self.source_tag.unlink(&mut self.slab, place, index);
        }
    }

    fn unlink_claimed(&mut self, index: u32) {
        let context = self.slab.at(index).claim;
        self.claimed = self.slab.unlink::<ORDER>(self.claimed, index);
        let (place, _) = self.claim_list(context).expect(LISTED);
        self.claim.unlink(&mut self.slab, place, index);
    }
}

impl<U> ClaimableMessage<U> {
    #[inline]
    fn has_tag(&self, tag: u64) -> bool {
        self.message.envelope.tag == tag
    }

    #[inline]
    fn has_source_tag(&self, peer: SourceId, tag: u64) -> bool {
        self.message.envelope.tag == tag && self.message.envelope.peer == peer
    }
}

const LISTED: &str = "a message is in the lists of its keys";

#[cfg(test)]
impl<U> UnexpectedMessages<U> {
    pub(super) const SLOT_BYTES: usize = Slab::<(), ClaimableMessage<U>, 4>::SLOT_BYTES;

    /// Checks U1 and U2, except the order of arrival, which the model checks.
    pub(super) fn check(&self) {
        let (mut ordered, mut sourced, mut tagged, mut source_tagged) = (0, 0, 0, 0);
        for space in [Space::Untagged, Space::Tagged] {
            for index in self.slab.check_list::<ORDER>(self.order[space as usize]) {
                assert!(self.at(index).envelope.space == space && !self.slab.at(index).claimed);
                ordered += 1;
            }
            for (peer, heads) in (0..).zip(&self.source) {
                for index in self.slab.check_list::<SOURCE>(heads[space as usize]) {
                    let Envelope { peer: other, space: its, .. } = self.at(index).envelope;
                    assert!(other == SourceId(peer) && its == space && !self.slab.at(index).claimed);
                    sourced += 1;
                }
            }
        }
        for (hash, head) in self.tag.check() {
            let tag = self.at(head).envelope.tag;
            assert_eq!(hash, self.hash.tag(tag));
            for index in self.slab.check_list::<TAG>(head) {
                assert!(self.slab.at(index).has_tag(tag) && !self.slab.at(index).claimed);
                tagged += 1;
            }
        }
        for (hash, head) in self.source_tag.check() {
            let Envelope { peer, tag, .. } = self.at(head).envelope;
            assert_eq!(hash, self.hash.source_tag(peer.0, tag));
            for index in self.slab.check_list::<SOURCE_TAG>(head) {
                assert!(self.slab.at(index).has_source_tag(peer, tag) && !self.slab.at(index).claimed);
                source_tagged += 1;
            }
        }
        let claimed = self.slab.check_list::<ORDER>(self.claimed);
        assert!(claimed.iter().all(|&index| self.slab.at(index).claimed));
        let by_context =
            self.claim.check().into_iter().map(|(_, head)| self.slab.check_list::<TAG>(head).len());
        assert_eq!(by_context.sum::<usize>(), claimed.len());
        assert_eq!((ordered, ordered + claimed.len()), (sourced, self.len()));
        let all_tagged =
            self.slab.iter().filter(|(_, (), m)| m.message.envelope.space == Space::Tagged && !m.claimed);
        assert_eq!((tagged, source_tagged), (all_tagged.count(), tagged));
    }
}
