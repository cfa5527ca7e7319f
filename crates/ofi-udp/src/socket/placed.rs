//! Receives payloads in place: buffers of messages have gaps whose bytes go to the destination. Mispredicted payloads
//! are moved back into the gaps before anything is processed.

use std::net::SocketAddr;

use ofi_core::copy;
use ofi_rdm::RxPrediction;

use super::incoming::{MESSAGE, RECEIVE_LONG};

/// Memory for expected payloads: `count` of `part` bytes each, contiguous from `base`.
#[derive(Clone, Copy)]
pub struct PlacementBuffer {
    base: *mut u8,
    pub part: usize,
    pub count: usize,
}

impl PlacementBuffer {
    /// Upper bound of the bytes that one receive may place.
    pub const MAX_LEN: usize = RECEIVE_LONG * MESSAGE;
    /// Maximum number of messages that are received in place.
    pub const MESSAGES: usize = RECEIVE_LONG;

    pub const NONE: Self = Self { base: std::ptr::null_mut(), part: 0, count: 0 };

    /// # Safety
    /// The memory may be written, and read where it was written, until the batch that is received with it has been
    /// processed.
    pub unsafe fn new(base: *mut u8, part: usize, count: usize) -> Self {
        Self { base, part, count }
    }

    /// The memory after the first `count` payloads.
    fn after(self, count: usize) -> Self {
        Self { base: self.base.wrapping_add(count * self.part), count: self.count - count, ..self }
    }

    /// Length in bytes of a datagram with such a payload.
    fn packet(self) -> usize {
        RxPrediction::HEAD + self.part
    }
}

/// Expected rows of packets, and the destinations of their payloads. A kernel message has `each` packets. Only packets
/// that arrive alone are expected in more than one row.
pub struct Expected {
    pub foresight: RxPrediction,
    pub places: [PlacementBuffer; RxPrediction::ROWS],
    pub each: usize,
}

/// A received message: its buffer of [`MESSAGE`] bytes, and its length.
#[derive(Clone, Copy)]
pub struct Received {
    pub buffer: *mut u8,
    pub len: usize,
}

/// The layout of a received message.
#[derive(Clone, Copy)]
pub struct Came {
    /// Bytes of each of its datagrams but the last.
    pub step: usize,
    pub from: Option<SocketAddr>,
}

/// The gaps of one message: the expected payloads of its first datagrams.
#[derive(Clone, Copy)]
struct Slot {
    place: PlacementBuffer,
    row: usize,
}

impl Slot {
    const NONE: Self = Self { place: PlacementBuffer::NONE, row: 0 };
}

/// The gaps in a batch of messages.
pub struct Placed {
    slots: [Slot; RECEIVE_LONG],
    vectors: Vec<libc::iovec>,
    /// Whether all messages checked so far were as expected.
    holds: bool,
    /// Payloads that were moved back so far.
    pub undone: u64,
}

// SAFETY: the pointers are used during the call that they were given for alone.
unsafe impl Send for Placed {}

impl Placed {
    pub fn new() -> Self {
        Self { slots: [Slot::NONE; RECEIVE_LONG], vectors: Vec::new(), holds: true, undone: 0 }
    }

    /// Divides the expected payloads among the next messages, with the buffers `buffers`, at most [`RECEIVE_LONG`].
    /// Their headers point to vectors with gaps.
    pub fn lay_out(&mut self, expected: &Expected, buffers: &[*mut u8], headers: &mut [libc::mmsghdr]) {
        let vector = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        let (mut row, mut rest) = (0, expected.places[0]);
        let each = expected.each.clamp(1, (MESSAGE / rest.packet()).max(1));
        self.vectors.clear();
        for (&buffer, slot) in buffers.iter().zip(&mut self.slots) {
            if rest.count == 0 && each == 1 && row + 1 < RxPrediction::ROWS {
                row += 1;
                rest = expected.places[row];
            }
            *slot = Slot { place: PlacementBuffer { count: rest.count.min(each), ..rest }, row };
            let (place, packet) = (slot.place, rest.packet());
            rest = rest.after(place.count);
            for index in 0..place.count {
                self.vectors.push(vector(buffer.wrapping_add(index * packet), RxPrediction::HEAD));
                self.vectors.push(vector(place.after(index).base, place.part));
            }
            let filled = place.count * packet;
            self.vectors.push(vector(buffer.wrapping_add(filled), MESSAGE - filled));
        }
        let mut vectors = &mut self.vectors[..];
        for (slot, header) in self.slots[..buffers.len()].iter().zip(headers) {
            let (here, rest) = vectors.split_at_mut(2 * slot.place.count + 1);
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (here.as_mut_ptr(), here.len() as _);
            vectors = rest;
        }
    }

    /// Checks received message `index`; must be called in order. From the first unexpected datagram on, payloads are
    /// moved back, including those of later messages.
    ///
    /// # Safety
    /// It was received into the vectors of the last [`Placed::lay_out`], and the memory is still as expected then.
    pub unsafe fn check(
        &mut self,
        foresight: &mut RxPrediction,
        index: usize,
        message: Received,
        came: Came,
    ) {
        let Slot { place, row } = self.slots[index];
        let packet = place.packet();
        // A packet that arrived alone may have more frames after its part.
        let is_longer = place.count == 1 && came.step == message.len && message.len > packet;
        let is_alike = came.from == Some(foresight.from) && (came.step == packet || is_longer);
        let good = if self.holds && is_alike { Self::meets(place, row, message, foresight) } else { 0 };
        self.holds &= good == place.count;
        // SAFETY: the caller's promise.
        unsafe { self.bring_back(index, message, good) };
    }

    /// The number of datagrams at the start of the message that are the next expected ones.
    fn meets(place: PlacementBuffer, row: usize, message: Received, foresight: &mut RxPrediction) -> usize {
        let packet = place.packet();
        // A shorter last datagram is not one of them.
        let whole = message.len / packet;
        let mut is_next = |at: usize| {
            let head = message.buffer.wrapping_add(at * packet);
            // SAFETY: inside the message's buffer, as it has a whole datagram there; its head went there.
            foresight.meets(row, unsafe { std::slice::from_raw_parts(head, RxPrediction::HEAD) })
        };
        (0..whole.min(place.count)).take_while(|&at| is_next(at)).count()
    }

    /// Moves payloads back into the buffer of message `index`, from that of datagram `first` on.
    ///
    /// # Safety
    /// As of [`Placed::check`], and nothing else was put into those places since.
    pub unsafe fn bring_back(&mut self, index: usize, message: Received, first: usize) {
        let Some(Slot { place, .. }) = self.slots.get_mut(index) else { return };
        for gap in first..place.count {
            let begin = gap * place.packet() + RxPrediction::HEAD;
            let len = message.len.saturating_sub(begin).min(place.part);
            let to = message.buffer.wrapping_add(begin);
            self.undone += u64::from(len > 0);
            // SAFETY: the kernel has put so many bytes of the message there, and the gap has room for them.
            unsafe { copy::bytes(place.after(gap).base, to, len) };
        }
        place.count = place.count.min(first);
    }

    /// Datagrams of message `index` whose payloads are not in its buffer.
    pub fn count(&self, index: usize) -> usize {
        self.slots.get(index).map_or(0, |slot| slot.place.count)
    }

    /// No message has gaps.
    pub fn clear(&mut self) {
        (self.slots, self.holds) = ([Slot::NONE; RECEIVE_LONG], true);
    }
}
