//! Handles peers' notes: places those of waiting operations, and keeps those that arrive before their operation.

use ofi_api::Errno;

use super::super::note::{ControlKind, Note};
use super::running::{Running, State};
use super::{CREDITS, Collectives, EARLY_ABORTS, OneRunning, PeerNotes};
use crate::copy;
use crate::transport::PeerId;

/// A note that arrived before its operation.
pub struct Early {
    /// Its kind.
    pub what: Content,
    /// [`PeerNotes::epoch`](super::PeerNotes::epoch) of its sender.
    pub epoch: u64,
}

/// The kinds of early notes.
pub enum Content {
    /// A transfer.
    Eager(Box<[u8]>),
    /// A transfer of this many bytes waits for a request.
    Ask(u64),
}

impl Collectives {
    /// Takes a peer's note.
    ///
    /// # Errors
    /// A number for the log if the peer violates the protocol: the group with it must then be abandoned.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes.
    pub unsafe fn noted(
        &mut self,
        peer: PeerId,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        let note = Note::from_words(words).ok_or(Errno::EPROTO)?;
        self.is_due = true;
        match note.kind {
            ControlKind::Eager | ControlKind::Ask => {
                let flow = PeerNotes::of(&mut self.flows, &mut self.epochs, peer);
                if flow.held >= CREDITS {
                    return Err(Errno::EPROTO);
                }
                flow.held += 1;
                let epoch = flow.epoch;
                // Notes from strangers, or from members that were dropped, are ignored.
                let is_unwanted = match self.groups.get(&note.group) {
                    Some(group) => {
                        group.failed.is_some()
                            || !group.members.contains(&peer)
                            || group.gone.iter().any(|&(gone, _)| gone == peer)
                    }
                    None => self.numbers.was_given(note.group),
                };
                if is_unwanted {
                    self.taken(peer, epoch);
                    return Ok(());
                }
                // The common case: its receive waits.
                if note.kind == ControlKind::Eager
                    && let Some(running) = running_of(&mut self.running, &note)
                    && let Some(at) = running.receives.iter().position(|receive| {
                        receive.peer == peer && receive.len == len && !(receive.is_asked || receive.is_done)
                    })
                {
                    // SAFETY: the caller's promise; the memory is lent while the operation runs.
                    unsafe { running.take(at, body, len) };
                    flow.held -= 1;
                    self.outbox.extend(flow.taken().map(|note| (peer, note)));
                    return Ok(());
                }
                let what = if note.kind == ControlKind::Ask {
                    Content::Ask(note.value)
                } else {
                    let mut bytes = Box::<[u8]>::new_uninit_slice(len);
                    // SAFETY: the caller's promise, and the box is as long.
                    unsafe { copy::bytes(body, bytes.as_mut_ptr().cast(), len) };
                    // SAFETY: every byte was just written.
                    Content::Eager(unsafe { bytes.assume_init() })
                };
                let key = (note.group, note.operation, note.round, peer);
                if self.early.insert(key, Early { what, epoch }).is_some() {
                    return Err(Errno::EPROTO);
                }
                // If its receive waits already, it continues at once.
                let waits = self.running.iter().position(|running| {
                    (running.group, running.operation) == (note.group, note.operation) && running.has_entered
                });
                if let Some(at) = waits {
                    let mut running = self.running.swap_remove(at);
                    self.match_early(&mut running);
                    self.running.push(running);
                }
            }
            ControlKind::Go => {
                if let Some(sending) = running_of(&mut self.running, &note).and_then(|running| {
                    running.sends.iter_mut().find(|send| send.peer == peer && send.state == State::Asked)
                }) {
                    sending.state = State::Going;
                } else if !self.is_over(note.group) {
                    return Err(Errno::EPROTO);
                }
            }
            ControlKind::Chunk => {
                let Some(running) = running_of(&mut self.running, &note) else {
                    return if self.is_over(note.group) { Ok(()) } else { Err(Errno::EPROTO) };
                };
                let wanted = running.receives.iter().position(|receive| {
                    receive.peer == peer && receive.is_asked && receive.got as u64 == note.value
                });
                let at = wanted.ok_or(Errno::EPROTO)?;
                let receive = &running.receives[at];
                let fits = len <= receive.len - receive.got && len > 0;
                if !fits || running.executor.is_some_and(|executor| !len.is_multiple_of(executor.size())) {
                    return Err(Errno::EPROTO);
                }
                // SAFETY: the caller's promise; the memory is lent while the operation runs.
                unsafe { running.take(at, body, len) };
            }
            ControlKind::Credit => {
                let flow = self.flow(peer);
                let credits = u64::from(flow.credits).saturating_add(note.value);
                flow.credits = u32::try_from(credits).map_err(|_| Errno::EPROTO)?;
                if flow.credits > CREDITS {
                    return Err(Errno::EPROTO);
                }
            }
            ControlKind::Abort => {
                let errno = match i32::try_from(note.value) {
                    Ok(number) if number > 0 => Errno::from_raw(number),
                    _ => Errno::EIO,
                };
                match self.groups.get_mut(&note.group) {
                    // Only a member may end a group.
                    Some(group) if group.members.contains(&peer) => {
                        group.failed.get_or_insert(errno);
                        self.forget_early(note.group);
                    }
                    Some(_) => {}
                    None if self.numbers.was_given(note.group) => {}
                    None if self.aborted.len() < EARLY_ABORTS => drop(self.aborted.insert(note.group, errno)),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Passes early notes to the receives of a round.
    pub(super) fn match_early(&mut self, running: &mut Running) {
        if self.early.is_empty() {
            return;
        }
        let (group, operation, round) = (running.group, running.operation, running.round as u32);
        for index in 0..running.receives.len() {
            let receive = &mut running.receives[index];
            if receive.is_asked || receive.is_done {
                continue;
            }
            let peer = receive.peer;
            let Some(early) = self.early.remove(&(group, operation, round, peer)) else { continue };
            let len = match &early.what {
                Content::Eager(bytes) => bytes.len() as u64,
                Content::Ask(len) => *len,
            };
            let epoch = early.epoch;
            if len != receive.len as u64 {
                self.taken(peer, epoch);
                return self.fail(group, Errno::EINVAL); // the ranks mean different operations
            }
            match early.what {
                // SAFETY: the box has as many bytes as the receive wants, and the memory is lent.
                Content::Eager(bytes) => unsafe { running.take(index, bytes.as_ptr(), bytes.len()) },
                Content::Ask(_) => {
                    receive.is_asked = true;
                    let note = Note { kind: ControlKind::Go, group, operation, round, value: 0 };
                    self.outbox.push_back((peer, note));
                }
            }
            self.taken(peer, epoch);
        }
    }
}

/// The operation that a note belongs to, if the operation is in that round.
#[inline]
fn running_of<'a>(all: &'a mut [OneRunning], note: &Note) -> Option<&'a mut Running> {
    let running = all.iter_mut().map(|running| &mut **running);
    running.into_iter().find(|running| running.is_in(note.group, note.operation, note.round))
}
