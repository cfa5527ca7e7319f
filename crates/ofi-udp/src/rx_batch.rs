//! How the current packets arrived, and what is expected next.

use ofi_core::transport::PeerId;
use ofi_rdm::Stream;

/// The payload whose next part is expected.
#[derive(Clone, Copy)]
pub struct Next {
    pub peer: PeerId,
    pub stream: Stream,
    pub kind: u8,
    /// The name of the payload. After its end, the next requested payload of this kind is expected.
    pub id: u64,
}

/// The packets of one kernel message, while they are processed.
#[derive(Clone, Copy, Default)]
pub struct RxBatch {
    /// Number of datagrams in the message.
    pub of: usize,
    /// Their payloads are in place.
    pub placed: bool,
}

/// The lengths into which peers split payloads.
#[derive(Default)]
pub struct PartSize {
    /// Bytes of a part that is not its payload's last.
    pub part: usize,
    /// Number of such parts in one kernel message.
    pub each: usize,
    /// Number of shorter parts since the last one of that length.
    shorter: u8,
}

impl PartSize {
    /// Number of consecutive shorter parts after which the shorter length is expected. A few may be shorter at the end
    /// of a peer's send limit.
    const SHORTER: u8 = 4;

    /// Records a part of `part` bytes that was not its payload's last.
    pub fn note(&mut self, part: usize, each: usize) {
        self.shorter = if part < self.part { self.shorter + 1 } else { 0 };
        if part >= self.part || self.shorter == Self::SHORTER {
            *self = Self { part, each, shorter: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_shorter_when_several_were() {
        let mut cut = PartSize::default();
        let mut note = |part| {
            cut.note(part, 2);
            cut.part
        };
        assert_eq!([500, 900, 300, 300, 300, 900].map(&mut note), [500, 900, 900, 900, 900, 900]);
        assert_eq!([300, 400, 300, 400].map(&mut note), [900, 900, 900, 400]);
        assert_eq!(cut.each, 2);
    }
}
