//! Untrusted input of `multirail`'s agents: messages and metadata. The first byte selects which.

use multirail::wire::{Message, Metadata};

/// Input that parses encodes back to the same bytes. Returns whether it parsed.
pub fn rails(input: &[u8]) -> bool {
    let Some((&kind, bytes)) = input.split_first() else { return false };
    match kind {
        b'B' => Metadata::parse(bytes).is_ok_and(|metadata| {
            assert_eq!(metadata.encode(), bytes);
            true
        }),
        _ => Message::parse(bytes).is_ok_and(|message| {
            assert_eq!(message.encode(), bytes);
            true
        }),
    }
}
