//! The sending ends of the streams of a session at rest: two numbers each.

use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};

use super::{SendStream, Sender};
use crate::wire::Stream;

/// A [`Sender`] for each stream, which needs no memory while everything is acknowledged and nothing is written. Reads
/// work as usual; a write wakes it.
#[derive(Debug)]
pub struct Senders(SendersState);

#[derive(Debug)]
enum SendersState {
    Awake(Box<Sender>),
    /// The next byte and the limit of each stream.
    Resting([(u64, u64); 2]),
}

/// The [`Sender`] that reads use while the session is at rest.
static AT_REST: Sender = Sender::new();

impl Senders {
    /// Streams of a new session.
    pub const fn new() -> Self {
        Self(SendersState::Resting([SendStream::BEGIN; 2]))
    }

    /// Releases the memory if everything is acknowledged.
    pub fn rest(&mut self) {
        if let SendersState::Awake(sender) = &mut self.0
            && sender.is_drained()
        {
            self.0 = SendersState::Resting([sender.commands.position(), sender.bulk.position()]);
        }
    }
}

impl Deref for Senders {
    type Target = Sender;

    #[inline]
    fn deref(&self) -> &Sender {
        match &self.0 {
            SendersState::Awake(sender) => sender,
            SendersState::Resting(_) => &AT_REST,
        }
    }
}

impl DerefMut for Senders {
    #[inline]
    fn deref_mut(&mut self) -> &mut Sender {
        if let SendersState::Resting([commands, bulk]) = self.0 {
            self.0 = SendersState::Awake(Box::new(Sender {
                commands: SendStream::at(Stream::Commands, commands),
                bulk: SendStream::at(Stream::Bulk, bulk),
            }));
        }
        match &mut self.0 {
            SendersState::Awake(sender) => sender,
            SendersState::Resting(_) => unreachable!("it was just woken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_where_it_was() {
        let mut senders = Senders::new();
        assert!(senders.is_drained() && !senders.has_output());
        let mut packet = [0u8; 100];
        let mut send = |senders: &mut Senders| {
            senders.commands.record(1, 0, &[7; 10], 0, Some(5));
            senders.rest();
            assert!(senders.has_output(), "it has work");
            senders.commands.write(&mut packet, &mut |_, _, _| {}).unwrap().0
        };
        let first = send(&mut senders);
        assert_eq!(first, 0..18);
        senders.commands.set_limit(100_000);
        senders.commands.ack(first);
        assert_eq!(senders.commands.pop_acked(), Some(5));
        senders.rest();
        assert!(matches!(senders.0, SendersState::Resting(_)));
        assert_eq!(send(&mut senders), 18..36);
        assert_eq!(senders.commands.position(), (36, 100_000));
    }
}
