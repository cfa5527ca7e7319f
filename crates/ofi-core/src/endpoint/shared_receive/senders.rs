//! The numbers of senders in a shared receive context, by address. A number is kept while an endpoint of the context
//! knows the sender, or a message or receive in the context refers to it; then it is reused.
//!
//! Invariant: a sender to which no endpoint refers is in `loose` once. Each new sender causes two of these to be
//! checked, so that few unneeded ones remain.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// Loose senders that are checked for each new one: more than one, so that their number falls.
const CHECKS_PER_NEW_SENDER: usize = 2;

struct Sender {
    address: Box<[u8]>,
    /// Endpoints that hold it.
    holders: u32,
    is_loose: bool,
}

/// The table of one shared receive context's senders, by address and by number.
#[derive(Default)]
pub struct Senders {
    by_address: FxHashMap<Box<[u8]>, u32>,
    known: Vec<Sender>,
    loose: VecDeque<u32>,
    free: Vec<u32>,
}

impl Senders {
    /// The number of the sender with this address. It is temporary unless it is [held](Senders::hold), or `is_needed`
    /// finds that a message or receive in the context refers to it.
    pub fn number(&mut self, address: &[u8], is_needed: impl FnMut(u32) -> bool) -> u32 {
        if let Some(&number) = self.by_address.get(address) {
            return number;
        }
        self.reap(is_needed);
        let sender = Sender { address: address.into(), holders: 0, is_loose: true };
        let number = match self.free.pop() {
            Some(number) => {
                self.known[number as usize] = sender;
                number
            }
            None => {
                self.known.push(sender);
                (self.known.len() - 1) as u32
            }
        };
        self.by_address.insert(address.into(), number);
        self.loose.push_back(number);
        number
    }

    /// An endpoint knows the sender.
    pub fn hold(&mut self, number: u32) {
        self.known[number as usize].holders += 1;
    }

    /// An endpoint knows the sender no longer.
    pub fn release(&mut self, number: u32) {
        let sender = &mut self.known[number as usize];
        sender.holders -= 1;
        if sender.holders == 0 && !sender.is_loose {
            sender.is_loose = true;
            self.loose.push_back(number);
        }
    }

    /// Forgets loose senders that nothing needs.
    fn reap(&mut self, mut is_needed: impl FnMut(u32) -> bool) {
        for _ in 0..CHECKS_PER_NEW_SENDER.min(self.loose.len()) {
            let Some(number) = self.loose.pop_front() else { return };
            let sender = &mut self.known[number as usize];
            if sender.holders > 0 {
                sender.is_loose = false;
            } else if is_needed(number) {
                self.loose.push_back(number);
            } else {
                self.by_address.remove(&std::mem::take(&mut sender.address));
                self.free.push(number);
            }
        }
    }

    /// The number of known ones.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    #[test]
    fn senders_that_nothing_needs_are_forgotten_and_others_are_not() {
        let mut senders = Senders::default();
        let held = senders.number(b"held", |_| false);
        senders.hold(held);
        let needed = senders.number(b"needed", |_| false);
        for number in 0..1000 {
            let passing = senders.number(&name(number), |number| number == needed);
            assert!(passing != held && passing != needed);
            senders.hold(passing);
            senders.release(passing);
            assert!(senders.len() <= 6, "{}", senders.len());
        }
        assert_eq!(
            (senders.number(b"held", |_| false), senders.number(b"needed", |_| false)),
            (held, needed)
        );
        senders.release(held);
        for number in 0..10 {
            senders.number(&name(number), |_| false);
        }
        assert!(!senders.by_address.contains_key(&b"held"[..]) && senders.known.len() <= 6);
    }

    #[test]
    fn a_sender_that_two_endpoints_know_stays_until_both_have_forgotten_it() {
        let mut senders = Senders::default();
        let number = senders.number(b"a", |_| false);
        senders.hold(number);
        senders.hold(number);
        senders.release(number);
        for other in 0..10 {
            senders.number(&name(other), |_| false);
        }
        assert_eq!(senders.number(b"a", |_| false), number);
        senders.release(number);
        for other in 0..10 {
            senders.number(&name(other), |_| false);
        }
        assert!(!senders.by_address.contains_key(&b"a"[..]));
    }
}
