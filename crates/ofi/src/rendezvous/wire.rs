//! The messages of a meeting. A request: [`MAGIC`], the number of processes, and the sender's contribution. An answer:
//! 0, the rank of the requester, and all contributions; or 1, and the reason of the refusal. Numbers have four bytes,
//! little-endian; each contribution is preceded by its length.

use super::{MAX_CONTRIBUTION_LEN, MAX_PROCESSES, Meeting};

/// The first bytes of a request, including the version.
pub const MAGIC: &[u8; 16] = b"ofi rendezvous 1";
/// The maximum length of a refusal's reason, in bytes.
const MAX_REASON_LEN: usize = 256;

/// The result of parsing a message that may be incomplete or invalid.
#[derive(Debug, PartialEq, Eq)]
pub enum ParseResult<T> {
    /// The whole message.
    Whole(T),
    /// More bytes are needed.
    More,
    /// The bytes are not such a message.
    Wrong,
}

/// A process that wants to take part.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of processes that the sender expects, including itself.
    pub count: usize,
    /// Its contribution.
    pub contribution: Vec<u8>,
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

fn put(to: &mut Vec<u8>, said: &[u8]) {
    to.extend((said.len() as u32).to_le_bytes());
    to.extend(said);
}

/// Encodes a request.
pub fn request(count: usize, contribution: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((count as u32).to_le_bytes());
    put(&mut bytes, contribution);
    bytes
}

/// Parses a request.
pub fn take_request(bytes: &[u8]) -> ParseResult<Request> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return ParseResult::Wrong;
    }
    let (Some(count), Some(len)) = (number(bytes, 16), number(bytes, 20)) else { return ParseResult::More };
    if len > MAX_CONTRIBUTION_LEN {
        return ParseResult::Wrong;
    }
    match bytes.len().cmp(&(24 + len)) {
        std::cmp::Ordering::Less => ParseResult::More,
        std::cmp::Ordering::Equal => {
            ParseResult::Whole(Request { count, contribution: bytes[24..].to_vec() })
        }
        std::cmp::Ordering::Greater => ParseResult::Wrong,
    }
}

/// Encodes the answer to a process that takes part.
pub fn answer(rank: usize, said: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend((rank as u32).to_le_bytes());
    bytes.extend((said.len() as u32).to_le_bytes());
    said.iter().for_each(|said| put(&mut bytes, said));
    bytes
}

/// Encodes the answer to a refused process: the reason as text, truncated to 256 bytes.
pub fn refusal(why: &str) -> Vec<u8> {
    let mut bytes = vec![1];
    put(&mut bytes, &why.as_bytes()[..why.len().min(MAX_REASON_LEN)]);
    bytes
}

/// Parses the answer to one of `count` processes: the meeting, or the reason for the refusal.
pub fn take_answer(bytes: &[u8], count: usize) -> ParseResult<Result<Meeting, String>> {
    match bytes.first() {
        None => ParseResult::More,
        Some(0) => {
            let (Some(rank), Some(found)) = (number(bytes, 1), number(bytes, 5)) else {
                return ParseResult::More;
            };
            if found != count || rank >= count || count > MAX_PROCESSES {
                return ParseResult::Wrong;
            }
            let (mut said, mut at) = (Vec::with_capacity(count), 9);
            for _ in 0..count {
                let Some(len) = number(bytes, at) else { return ParseResult::More };
                if len > MAX_CONTRIBUTION_LEN {
                    return ParseResult::Wrong;
                }
                let Some(one) = bytes.get(at + 4..at + 4 + len) else { return ParseResult::More };
                said.push(one.to_vec());
                at += 4 + len;
            }
            if bytes.len() > at { ParseResult::Wrong } else { ParseResult::Whole(Ok(Meeting { rank, said })) }
        }
        Some(1) => match number(bytes, 1) {
            None => ParseResult::More,
            Some(len) if len > MAX_REASON_LEN => ParseResult::Wrong,
            Some(len) => match bytes.get(5..5 + len) {
                Some(why) => ParseResult::Whole(Err(String::from_utf8_lossy(why).into_owned())),
                None => ParseResult::More,
            },
        },
        Some(_) => ParseResult::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every proper prefix of `bytes` is incomplete, and that `bytes` is complete.
    fn in_parts<T: std::fmt::Debug + PartialEq>(
        bytes: &[u8],
        whole: T,
        take: impl Fn(&[u8]) -> ParseResult<T>,
    ) {
        for len in 0..bytes.len() {
            assert_eq!(take(&bytes[..len]), ParseResult::More, "{len}");
        }
        assert_eq!(take(bytes), ParseResult::Whole(whole));
        assert_eq!(take(&[bytes, b"x"].concat()), ParseResult::Wrong);
    }

    #[test]
    fn requests_and_answers_come_in_parts() {
        in_parts(&request(3, b"me"), Request { count: 3, contribution: b"me".to_vec() }, take_request);
        let said = vec![b"me".to_vec(), Vec::new(), vec![7; MAX_CONTRIBUTION_LEN]];
        let meeting = Meeting { rank: 2, said: said.clone() };
        in_parts(&answer(2, &said), Ok(meeting), |bytes| take_answer(bytes, 3));
    }

    #[test]
    fn a_refusal_has_its_reason() {
        assert_eq!(take_answer(&refusal("too many"), 3), ParseResult::Whole(Err("too many".into())));
        assert_eq!(
            take_answer(&refusal(&"x".repeat(999)), 3),
            ParseResult::Whole(Err("x".repeat(MAX_REASON_LEN)))
        );
    }

    #[test]
    fn nonsense_is_known_at_once() {
        assert_eq!(take_request(b"GET / HTTP/1.1"), ParseResult::Wrong);
        let mut long = request(3, b"");
        long[20..24].copy_from_slice(&(MAX_CONTRIBUTION_LEN as u32 + 1).to_le_bytes());
        assert_eq!(take_request(&long), ParseResult::Wrong);
        assert_eq!(take_answer(&[2], 3), ParseResult::Wrong);
        assert_eq!(take_answer(&answer(3, &[Vec::new(), Vec::new(), Vec::new()]), 3), ParseResult::Wrong);
        assert_eq!(
            take_answer(&answer(0, &[Vec::new(), Vec::new()]), 3),
            ParseResult::Wrong,
            "of another count"
        );
    }
}
