//! Links that go mute: data sent over them stays in flight, without an error, until they are repaired.
//!
//! A write that has left its device is executed when the link is repaired, if the queue pair at the other end still
//! exists. Its own queue pair may be gone by then: late packets arrive in the same way.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ofi_verbs::rc::Remote;

use super::execute::{gather, put_at};
use super::{Bytes, Fabric, Pair, Stage, What};
use crate::rc::meeting::CmMessage;

/// A write that has left its device.
struct Late {
    /// The queue pair at the other end. Numbers are not used again.
    to: u32,
    at: Remote,
    bytes: Vec<u8>,
}

/// The endpoints whose links are mute, and the writes in flight on them.
#[derive(Default)]
pub struct Mute {
    endpoints: BTreeSet<u64>,
    late: Vec<Late>,
}

impl Fabric {
    /// Makes the links of the endpoints at these addresses mute.
    pub fn mute(&mut self, of: &[SocketAddr]) {
        let found = of.iter().filter_map(|&of| self.endpoint_at(of)).collect::<Vec<_>>();
        self.mute.endpoints.extend(found);
    }

    /// Number of writes that have left their devices over mute links.
    pub fn late(&self) -> usize {
        self.mute.late.len()
    }

    /// Repairs all links. Returns the number of late writes that were executed.
    pub fn mend(&mut self) -> usize {
        self.mute.endpoints.clear();
        let late = std::mem::take(&mut self.mute.late);
        let mut executed = 0;
        for Late { to, at, bytes } in late {
            let is_there = self.pairs.get(&to).is_some_and(|pair| pair.stage == Stage::Ready);
            if is_there && self.allows(at, bytes.len(), true) {
                put_at(self.real_place(at), &bytes);
                executed += 1;
            }
        }
        let all: Vec<u32> = self.pairs.keys().copied().collect();
        all.into_iter().for_each(|qp| self.wake(qp));
        executed
    }

    /// Whether the link between a queue pair and the other end is mute.
    pub(super) fn is_mute(&self, pair: &Pair) -> bool {
        let other = pair.other.and_then(|other| self.pairs.get(&other)).map(|other| other.endpoint);
        self.mute.endpoints.contains(&pair.endpoint)
            || other.is_some_and(|other| self.mute.endpoints.contains(&other))
    }

    /// Whether a message between two ends stays in flight.
    pub fn is_held(&self, message: &CmMessage) -> bool {
        let end = self.ids.get(&message.to());
        end.is_some_and(|end| self.mute.endpoints.contains(&end.endpoint))
    }

    /// The posted writes of a queue pair leave its device over a mute link. None of them ends.
    pub(super) fn leave_over_mute(&mut self, pair: &mut Pair) {
        let Some(to) = pair.other else { return };
        for request in pair.posted.iter().filter(|request| request.number >= pair.left) {
            if let What::Write(bytes, at, _) = &request.what {
                let bytes = match bytes {
                    Bytes::Inline(bytes) => bytes.clone(),
                    Bytes::At(segments) if self.owns_all(segments) => gather(&self.real_all(segments)),
                    Bytes::At(_) => continue,
                };
                self.mute.late.push(Late { to, at: *at, bytes });
            }
        }
        pair.left = pair.next;
    }
}
