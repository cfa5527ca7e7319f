//! Private data of connection requests, acceptances and rejections, in the format of C libfabric's verbs provider
//! (`struct vrb_cm_data_hdr`): one byte of length, then the application's bytes. InfiniBand pads its packets with
//! zeros, so the length must be sent.

/// Maximum length of an application's private data in bytes: the 56 of a request, less the length byte.
pub const MAX_CM_DATA_LEN: usize = 55;

/// Encodes `data` with its length. Only the first [`MAX_CM_DATA_LEN`] bytes are sent.
pub fn encode(data: &[u8]) -> Vec<u8> {
    let data = &data[..data.len().min(MAX_CM_DATA_LEN)];
    let mut bytes = Vec::with_capacity(1 + data.len());
    bytes.push(data.len() as u8);
    bytes.extend(data);
    bytes
}

/// The application's private data, which is empty if none arrived. `None` for data of another program, whose length
/// field exceeds its size.
pub fn parse(bytes: &[u8]) -> Option<&[u8]> {
    match bytes {
        [] => Some(&[]),
        [len, rest @ ..] => rest.get(..usize::from(*len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_length_is_told_and_never_believed() {
        assert_eq!(encode(b"ping"), b"\x04ping");
        assert_eq!(encode(&[7; 300]).len(), 56);
        assert_eq!(parse(b"\x04ping\0\0\0"), Some(&b"ping"[..]));
        assert_eq!(parse(b""), Some(&b""[..]));
        for bad in [&b"\x01"[..], b"\x05ping", b"\xFFping"] {
            assert_eq!(parse(bad), None);
        }
    }

    proptest! {
        #[test]
        fn parse_inverts_encode(data in prop::collection::vec(any::<u8>(), 0..=MAX_CM_DATA_LEN), zeros in 0usize..200) {
            let mut bytes = encode(&data);
            bytes.resize(bytes.len() + zeros, 0);
            prop_assert_eq!(parse(&bytes), Some(&data[..]));
        }

        #[test]
        fn whatever_comes_is_within_what_came(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let fits = bytes.first().is_none_or(|&len| usize::from(len) < bytes.len());
            prop_assert_eq!(parse(&bytes).is_some(), fits);
        }
    }
}
