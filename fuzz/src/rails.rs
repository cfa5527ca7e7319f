//! What agents of `multirail` take from strangers: messages and metadata. The first byte says which.

use multirail::wire::{Message, Metadata};

/// What parses encodes back to the same bytes. Whether it was something.
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
