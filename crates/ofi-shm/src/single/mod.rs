//! Large messages in application memory without a stop on the way: the receiver reads from the sender's memory and the
//! sender writes to the receiver's, from both ends, until they meet.
//!
//! 1. An `Announce` says where its payload lies (`LENT`), and whether the sender can write (`WRITES`).
//! 2. The receiver begins to copy from the front, and tells the sender by `Share` where its memory is. The sender
//!    copies from the end, if it is there to do so: a sender that computes holds nothing up. Each says in its pair
//!    memory how far it has got (`FRONT`; `CLAIMED` and `WRITTEN`). Where the two overlap, bytes are copied twice, the
//!    same ones.
//! 3. The receiver sees that all is there, and answers `Done`.
//!
//! Long writes and reads go so too. A write announces its bytes as a message does, and its owner receives them into
//! registered memory. A read is answered by an `Offer`: its owner is the sender then, and the reader the receiver,
//! whose replies have the flag `SERVED`. Registered memory is checked at each chunk that its owner copies; what the
//! other end does by itself is in `openings.rs`.
//!
//! One payload of a lane is copied so at a time. What cannot be copied (a page that is a device's, a right that was
//! taken away) is left to the other end, and if neither can, the message comes through the bulk ring, from its
//! beginning.
//!
//! Nobody writes into memory whose operation has ended, and nobody believes what was read out of such. The words and
//! their order are [`ofi_ring::ticket`]'s, which loom checks; here:
//! S1. A sender writes each chunk under a claim of `TARGET`, which it says in `WRITING`. A receiver that ends a receive
//!     for whatever reason takes `TARGET` away and waits until `WRITING` is not the ticket any more, or the process of
//!     the sender has ended: [`Lane::withdraw`]. Closing a registration does the same for a write that is being copied
//!     into it.
//! S2. A sender takes `LENT` away when its operation ends ([`Lend`]), before the application has the memory back. A
//!     receiver looks at it after each read, and drops what it read if the ticket is gone. Closing a registration takes
//!     away what is read of it.
//! S3. `CLAIMED` and `WRITTEN` begin with 16 bits of the ticket, and a sender sets them at each `Share`, of which a
//!     ring of replies holds fewer than 64: what stands there of another message is never taken for this one's.
//!
//! A peer that lies about any of it spoils its own messages, or its own memory (`docs/threat-model.md`).

mod ending;
mod inward;
mod outward;

use std::sync::atomic::Ordering;

use ofi_core::transport::Host;

pub use self::ending::deadline;
use crate::common::Common;
use crate::lane::Lane;
use crate::lane::link::Link;
use crate::layout::pair;
use crate::{Shm, cma};

/// The longest chunk: some 60 us of a system call, for which ending an operation may have to wait.
const LONGEST_CHUNK: usize = 512 << 10;
/// The shortest, but for what is left: a call costs as much as copying this.
const SHORTEST_CHUNK: usize = 64 << 10;
/// Bytes that one poll copies, each way: the application and the other peers wait.
const TURN: usize = 1 << 20;

/// Bits of a progress word: a part of the ticket, whether the writer has given up, and bytes.
const TICKET_SHIFT: u32 = 48;
const GIVEN_UP: u64 = 1 << 47;
const BYTES: u64 = GIVEN_UP - 1;

fn pack(ticket: u64, bytes: usize) -> u64 {
    ticket << TICKET_SHIFT | bytes as u64 & BYTES
}

/// Bytes, and whether the writer has given up, if the word is of this ticket.
fn unpack(word: u64, ticket: u64) -> Option<(usize, bool)> {
    (word >> TICKET_SHIFT == ticket & 0xFFFF).then_some(((word & BYTES) as usize, word & GIVEN_UP != 0))
}

/// How much of what is left to copy next. Both ends take less and less, so that they are through at the same time.
fn chunk(left: usize, alone: bool) -> usize {
    let share = if alone { left } else { (left / 8 * 3).next_multiple_of(4096) };
    let share = if share + SHORTEST_CHUNK / 2 >= left { left } else { share };
    share.clamp(SHORTEST_CHUNK, LONGEST_CHUNK).min(left)
}

impl Lane {
    /// Whether this end may read the peer's memory, write there with `write`. Asks the kernel once.
    fn may_copy(&mut self, common: &mut Common, write: bool) -> bool {
        let Some(up) = self.up() else { return false };
        let process = up.parts.process;
        let single = self.single.get_or_insert_default();
        let known = if write { &mut single.may_write } else { &mut single.may_read };
        *known.get_or_insert_with(|| {
            let may = if write { process.may_write() } else { process.may_read() };
            if !may {
                common.counts.single_denied += 1;
                tracing::debug!(target: "ofi::shm::ep_data", pid = process.pid, write, "single copies are not possible");
            }
            may
        })
    }

    /// Moves single copies on, either way.
    pub fn move_single<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        self.copy_out(common, host);
        self.copy_all_in(common, host);
    }

    /// Whether a poll would move a single copy.
    pub fn has_copies_to_move(&self) -> bool {
        let (Some(Link { up: Some(up), .. }), Some(single)) = (&self.link, &self.single) else {
            return false;
        };
        let its = |offset, ticket| {
            unpack(cma::word(&up.parts.pair, offset).load(Ordering::Acquire), ticket).unwrap_or_default()
        };
        let inward = single.inward.as_ref().is_some_and(|inward| {
            let shared = inward.shared;
            let (ticket, left) = (inward.ticket, inward.len - inward.front.min(inward.len));
            let (written, given_up) = its(pair::WRITTEN, ticket);
            let reads = inward.reads && left > its(pair::CLAIMED, ticket).0;
            let idle = cma::word(&up.parts.pair, pair::WRITING).load(Ordering::Acquire) != ticket;
            let own = self.link.as_ref().map(|link| link.own.word64(pair::TARGET).load(Ordering::Acquire));
            let withdrawn = inward.opened.is_some() && own != Some(ticket);
            ticket == 0 || !shared || withdrawn || reads || (idle && (written >= left || given_up))
        });
        let outward = single.outward.as_ref().is_some_and(|outward| {
            let front = its(pair::FRONT, outward.ticket).0;
            outward.len > front.saturating_add(outward.written)
        });
        inward || outward || (single.in_flight == 0 && !single.waiting.is_empty())
    }

    /// Whether something is being copied from memory to memory: the lane has to be polled.
    pub fn copies(&self) -> bool {
        self.single.as_ref().is_some_and(|single| single.is_busy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_another_ticket_says_nothing() {
        for (ticket, bytes) in [(1, 0), (7, 1 << 20), (0x1_0000, 3), (u64::MAX, BYTES as usize)] {
            let word = pack(ticket, bytes);
            assert_eq!(unpack(word, ticket), Some((bytes, false)));
            assert_eq!(unpack(word | GIVEN_UP, ticket), Some((bytes, true)));
            assert_eq!(unpack(word, ticket.wrapping_add(1)), None);
        }
    }

    #[test]
    fn two_ends_meet_in_few_chunks_and_one_alone_in_fewer() {
        for len in [1, 4_096, SHORTEST_CHUNK - 1, SHORTEST_CHUNK, 100_000, 1 << 20, (4 << 20) + 17, 64 << 20]
        {
            let (mut front, mut written, mut calls) = (0, 0, 0);
            while front + written < len {
                let size = chunk(len - front - written, false);
                assert!(size > 0 && size <= LONGEST_CHUNK && front + written + size <= len);
                if calls % 2 == 0 {
                    front += size
                } else {
                    written += size
                }
                calls += 1;
            }
            assert!(calls <= 8 + len / LONGEST_CHUNK, "{len}: {calls}");
            assert_eq!(chunk(len, true), len.min(LONGEST_CHUNK));
        }
    }
}
