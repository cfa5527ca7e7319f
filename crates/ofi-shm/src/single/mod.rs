//! Large messages between application memories without an intermediate copy: the receiver reads from the sender's
//! memory and the sender writes to the receiver's, from both ends, until they meet.
//!
//! 1. An `Announce` tells where its payload is (`LENT`), and whether the sender can write (`WRITES`).
//! 2. The receiver starts to copy from the front, and tells the sender by `Share` where its memory is. The sender
//!    copies from the end if it polls; a sender that computes delays nothing. Each publishes its progress in its pair
//!    memory (`FRONT`; `CLAIMED` and `WRITTEN`). Where the two overlap, the same bytes are copied twice.
//! 3. When everything is there, the receiver answers `Done`.
//!
//! Long writes and reads work the same way. A write announces its bytes like a message, and the owner receives them
//! into registered memory. A read is answered by an `Offer`: then the owner is the sender and the reader is the
//! receiver, whose replies have the flag `SERVED`. The owner checks registered memory at each chunk that it copies;
//! `openings.rs` governs the chunks of the other end.
//!
//! Each peer copies one payload at a time in this way. If one end cannot copy something (device pages, a revoked
//! right), the other end does. If neither can, the whole message comes through the bulk ring.
//!
//! Nobody writes into memory whose operation has ended, and bytes read from such memory are discarded. The words and
//! their order are those of [`ofi_ring::access_token`], which loom checks. Here:
//! S1. A sender writes each chunk under a claim of `TARGET`, which it announces in `WRITING`. A receiver that ends a
//!     receive for any reason clears `TARGET` and waits until `WRITING` no longer holds the ticket, or the sender's
//!     process has ended: [`Peer::withdraw`]. Closing a registration does the same for a write that is being copied
//!     into it.
//! S2. A sender clears `LENT` when its operation ends ([`crate::exposed_buffer`]), before the application owns the
//!     memory again. A receiver checks it after each read, and discards the bytes if the ticket is gone. Closing a
//!     registration revokes reads of it.
//! S3. `CLAIMED` and `WRITTEN` begin with 16 bits of the ticket, and a sender sets them at each `Share`, of which a
//!     ring of replies holds fewer than 64: values of another message are never mistaken for this one's.
//!
//! A lying peer damages only its own messages or its own memory (`docs/threat-model.md`).

mod ending;
mod inward;
mod outward;

use std::sync::atomic::Ordering;

use ofi_core::transport::Upcalls;

pub use self::ending::deadline;
use crate::common::Common;
use crate::layout::pair;
use crate::peer::Peer;
use crate::peer::link::Link;
use crate::{Shm, cma};

/// The maximum length of a chunk, in bytes: a system call of about 60 us, for which the end of an operation may have to
/// wait.
const MAX_CHUNK_LEN: usize = 512 << 10;
/// The minimum length of every chunk but the last, in bytes: a system call costs as much as copying this.
const MIN_CHUNK_LEN: usize = 64 << 10;
/// Bytes that one poll copies in each direction, because the application and the other peers wait.
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

/// The size of the next chunk. Chunks shrink, so that both ends finish at the same time.
fn chunk(left: usize, alone: bool) -> usize {
    let share = if alone { left } else { (left / 8 * 3).next_multiple_of(4096) };
    let share = if share + MIN_CHUNK_LEN / 2 >= left { left } else { share };
    share.clamp(MIN_CHUNK_LEN, MAX_CHUNK_LEN).min(left)
}

impl Peer {
    /// Whether this end may read (with `write`: write) the peer's memory. Asks the kernel once.
    fn may_copy(&mut self, common: &mut Common, write: bool) -> bool {
        let Some(up) = self.up() else { return false };
        let process = up.parts.process;
        let single = self.single.get_or_insert_default();
        let known = if write { &mut single.may_write } else { &mut single.may_read };
        *known.get_or_insert_with(|| {
            let may = if write { process.may_write() } else { process.may_read() };
            if !may {
                common.counts.single_denied += 1;
            }
            let (pid, way) = (process.pid, if write { "write" } else { "read" });
            if may {
                tracing::info!(
                    target: "ofi::shm::ep_data",
                    pid, way, "long payloads are copied once between this process and a peer's (CMA)"
                );
            } else {
                tracing::info!(
                    target: "ofi::shm::ep_data",
                    pid, way,
                    "the kernel forbids single copies with a peer's process (CMA; seccomp, Yama's ptrace_scope or \
                     another user): long payloads go through a ring"
                );
            }
            may
        })
    }

    /// Advances single copies in both directions.
    pub fn move_single<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        self.copy_out(common, host);
        self.copy_all_in(common, host);
    }

    /// Whether a poll would advance a single copy.
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

    /// Whether a direct copy is in flight, so that the peer must be polled.
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
        for len in [1, 4_096, MIN_CHUNK_LEN - 1, MIN_CHUNK_LEN, 100_000, 1 << 20, (4 << 20) + 17, 64 << 20] {
            let (mut front, mut written, mut calls) = (0, 0, 0);
            while front + written < len {
                let size = chunk(len - front - written, false);
                assert!(size > 0 && size <= MAX_CHUNK_LEN && front + written + size <= len);
                if calls % 2 == 0 {
                    front += size
                } else {
                    written += size
                }
                calls += 1;
            }
            assert!(calls <= 8 + len / MAX_CHUNK_LEN, "{len}: {calls}");
            assert_eq!(chunk(len, true), len.min(MAX_CHUNK_LEN));
        }
    }
}
