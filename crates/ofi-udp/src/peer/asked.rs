//! Payloads requested from a peer, in the order in which the peer sends them.

use std::collections::VecDeque;

/// Each with its kind and its name.
#[derive(Default)]
pub struct PendingPulls(VecDeque<(u8, u64)>);

impl PendingPulls {
    /// A payload was requested.
    pub fn push(&mut self, kind: u8, id: u64) {
        self.0.push_back((kind, id));
    }

    /// A payload is complete, or will not arrive.
    pub fn remove(&mut self, kind: u8, id: u64) {
        match self.0.front() {
            Some(&front) if front == (kind, id) => _ = self.0.pop_front(),
            _ => {
                if let Some(at) = self.0.iter().position(|&asked| asked == (kind, id)) {
                    self.0.remove(at);
                }
            }
        }
    }

    /// The requested payloads of this kind, starting with this one; all if it is no longer in the list.
    pub fn from(&self, kind: u8, id: u64) -> impl Iterator<Item = (u8, u64)> + '_ {
        let first = self.0.iter().position(|&asked| asked == (kind, id)).unwrap_or(0);
        self.0.iter().skip(first).copied().filter(move |&(other, _)| other == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_follow_each_other_as_they_were_requested() {
        let mut asked = PendingPulls::default();
        [(1, 5), (2, 5), (1, 6), (1, 7)].into_iter().for_each(|(kind, id)| asked.push(kind, id));
        let from =
            |asked: &PendingPulls, kind, id| asked.from(kind, id).map(|(_, id)| id).collect::<Vec<_>>();
        assert_eq!(from(&asked, 1, 6), [6, 7]);
        assert_eq!(from(&asked, 2, 5), [5]);
        asked.remove(1, 6);
        asked.remove(1, 9);
        assert_eq!(from(&asked, 1, 6), [5, 7]);
        asked.remove(1, 5);
        assert_eq!((from(&asked, 1, 5), from(&asked, 2, 9)), (vec![7], vec![5]));
    }
}
