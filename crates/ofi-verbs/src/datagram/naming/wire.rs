//! The requests of C libfabric's name server, over TCP. Each connection carries one.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 0 |
//! | 1 | kind: 0 adds a name, 1 removes it, 2 queries it, 3 answers a query |
//! | 2..4 | unused |
//! | 4..8 | in an answer 0, or a negative error number (big-endian) |
//! | 8..12 | service, in this host's byte order; 0 in a query means any |
//! | 12..44 | name, in all but queries |
//!
//! An answer with an error ends after the first 8 bytes. Nothing answers the other two kinds.

use ofi_api::{AddrFormat, Address, Errno};

/// Length in bytes of the common header.
pub const HEAD: usize = 8;
const SERVICE: usize = 4;
const NAME: usize = 32;
/// Maximum length of a request or answer in bytes.
pub const MAX_MESSAGE_LEN: usize = HEAD + SERVICE + NAME;
/// Length of a query.
const QUERY: usize = HEAD + SERVICE;

/// The service in a query that any name answers.
pub const ANY: u32 = 0;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameRequest {
    /// An endpoint has this service.
    Add(u32, Address),
    /// The endpoint no longer has the service.
    Remove(u32, Address),
    /// Queries the endpoint with this service.
    Query(u32),
}

/// The result of parsing the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a request.
    Partial,
    /// A request.
    Whole(NameRequest),
    /// An unknown request.
    Strange,
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|index| bytes[index]))
}

impl NameRequest {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, service, name) = match self {
            Self::Add(service, name) => (0, service, Some(name)),
            Self::Remove(service, name) => (1, service, Some(name)),
            Self::Query(service) => (2, service, None),
        };
        let mut bytes = vec![0, kind, 0, 0, 0, 0, 0, 0];
        bytes.extend(service.to_ne_bytes());
        bytes.extend(name.map_or(&[][..], Address::bytes));
        bytes
    }

    /// Parses what has arrived.
    pub fn parse(bytes: &[u8]) -> Parsed {
        let whole = match bytes {
            [] | [0] => return Parsed::Partial,
            [0, 0 | 1, ..] => MAX_MESSAGE_LEN,
            [0, 2, ..] => QUERY,
            _ => return Parsed::Strange,
        };
        if bytes.len() < whole {
            return Parsed::Partial;
        }
        let service = number(&bytes[HEAD..]);
        let name = || Address::new(AddrFormat::IbUd, &bytes[QUERY..MAX_MESSAGE_LEN]);
        Parsed::Whole(match bytes[1] {
            0 => Self::Add(service, name()),
            1 => Self::Remove(service, name()),
            _ => Self::Query(service),
        })
    }
}

/// The answer to a query, as bytes.
pub fn answer(found: Option<(u32, &Address)>) -> Vec<u8> {
    let status = if found.is_some() { 0 } else { -Errno::ENOENT.get() };
    let mut bytes = vec![0, 3, 0, 0];
    bytes.extend(status.to_be_bytes());
    if let Some((service, name)) = found {
        bytes.extend(service.to_ne_bytes());
        bytes.extend(name.bytes());
    }
    bytes
}

/// The name in an answer: `None` if there is none, or for anything else than a whole answer.
pub fn parse_answer(bytes: &[u8]) -> Option<Address> {
    let is_answer = bytes.len() == MAX_MESSAGE_LEN && bytes[..2] == [0, 3] && bytes[4..HEAD] == [0; 4];
    is_answer.then(|| Address::new(AddrFormat::IbUd, &bytes[QUERY..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(byte: u8) -> Address {
        Address::new(AddrFormat::IbUd, &[byte; NAME])
    }

    #[test]
    fn requests_are_c_s() {
        let seven = 7u32.to_ne_bytes();
        let added = NameRequest::Add(7, name(9)).encode();
        assert_eq!(added, [&[0, 0, 0, 0, 0, 0, 0, 0][..], &seven, &[9; NAME]].concat());
        assert_eq!(NameRequest::Query(7).encode(), [&[0, 2, 0, 0, 0, 0, 0, 0][..], &seven].concat());
        assert_eq!(answer(None), [0, 3, 0, 0, 0xFF, 0xFF, 0xFF, 0xFE], "-FI_ENOENT");
        assert_eq!(parse_answer(&answer(None)), None);
        assert_eq!(parse_answer(&answer(Some((7, &name(9))))), Some(name(9)));
    }

    #[test]
    fn requests_come_back_at_their_whole_length_and_not_before() {
        for request in
            [NameRequest::Add(7, name(1)), NameRequest::Remove(u32::MAX, name(2)), NameRequest::Query(ANY)]
        {
            let bytes = request.encode();
            for cut in 0..bytes.len() {
                assert_eq!(NameRequest::parse(&bytes[..cut]), Parsed::Partial, "{request:?}, {cut}");
            }
            assert_eq!(NameRequest::parse(&bytes), Parsed::Whole(request));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let known = bytes.is_empty() || bytes[0] == 0 && bytes.get(1).is_none_or(|kind| *kind < 3);
            prop_assert_eq!(NameRequest::parse(&bytes) != Parsed::Strange, known);
            prop_assert!(parse_answer(&bytes).is_none() || bytes.len() == MAX_MESSAGE_LEN);
        }
    }
}
