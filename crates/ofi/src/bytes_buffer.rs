//! Buffers of the crate `bytes`. In flight, each is in a box, because its state does not fit into a raw buffer.

use bytes::{Bytes, BytesMut};

use crate::buffer::{Buffer, BufferMut, RawBuffer};

/// Converts a boxed buffer to its raw form; `addr` and `len` describe its contents.
fn boxed<B>(buffer: B, addr: *mut u8, len: usize) -> RawBuffer {
    RawBuffer::new(addr, len, Box::into_raw(Box::new(buffer)).cast())
}

/// Converts the raw form back.
///
/// # Safety
/// `raw` came from [`boxed`] with the same type, and was not converted back before.
unsafe fn unboxed<B>(raw: &RawBuffer) -> B {
    // SAFETY: from `Box::into_raw`, once (the caller's promise).
    *unsafe { Box::from_raw(raw.owner().cast()) }
}

// SAFETY: shared bytes cannot be written. Moving the handle does not move them, and the box keeps the handle.
unsafe impl Buffer for Bytes {
    fn into_raw(self) -> RawBuffer {
        let (addr, len) = (self.as_ptr().cast_mut(), self.len());
        boxed(self, addr, len)
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: the caller's promise.
        unsafe { unboxed(&raw) }
    }
}

// SAFETY: the bytes up to the length are initialised, and only this handle can reach them. Moving it does not move
// them, and the box keeps it.
unsafe impl Buffer for BytesMut {
    fn into_raw(mut self) -> RawBuffer {
        let (addr, len) = (self.as_mut_ptr(), self.len());
        boxed(self, addr, len)
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: the caller's promise.
        unsafe { unboxed(&raw) }
    }
}
// SAFETY: as above.
unsafe impl BufferMut for BytesMut {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::tests::there_and_back;

    #[test]
    fn every_buffer_comes_back_as_it_was() {
        for len in [0, 1, 100] {
            let whole = Bytes::from(vec![3; len + 8]);
            there_and_back(whole.slice(4..4 + len));
            there_and_back(whole);
            let mut own = BytesMut::zeroed(len + 8);
            there_and_back(own.split_off(len));
            there_and_back(own);
        }
        there_and_back(Bytes::from_static(b"static"));
    }

    #[test]
    fn what_is_received_is_in_the_buffer() {
        const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
        let hints = ofi_api::Hints::new().provider("shm");
        let (one, other) = (crate::Node::open(&hints).unwrap(), crate::Node::open(&hints).unwrap());
        let peer = one.insert(&other.name().unwrap()).unwrap();
        other.recv(BytesMut::zeroed(16)).unwrap();
        one.send(Bytes::from_static(b"shared"), peer).unwrap();
        let mut received = other.wait(LIMIT).unwrap().unwrap().into_result().unwrap();
        let length = received.bytes().len();
        let buffer = received.take_buffer::<BytesMut>().unwrap();
        assert_eq!(&buffer[..length], b"shared");
        let mut sent = one.wait(LIMIT).unwrap().unwrap().into_result().unwrap();
        assert_eq!(sent.take_buffer::<Bytes>().unwrap(), b"shared"[..]);
    }
}
