//! Answers that need no endpoint state: a process sends them on behalf of endpoints that no thread polls.

use crate::wire::header::{self, flag};
use crate::wire::{Header, Kind};

/// Answers a question in the socket of an endpoint that is not polled: the endpoint exists. The requester recognizes
/// the answer by the address, and by the session name that it has just chosen. The answer is shorter than the question.
pub fn answer_question(datagram: &[u8]) -> Option<[u8; header::LEN]> {
    let (head, body) = Header::parse(datagram).ok()?;
    let long = datagram.len() >= crate::wire::handshake::INIT_LEN;
    if head.kind != Kind::Init || head.flags & flag::CHECKED == 0 || !long {
        return None;
    }
    let name = u64::from_be_bytes(*body.first_chunk::<8>()?);
    let mut packet = [0u8; header::LEN];
    Header { flags: flag::CHECKED, ..Header::new(Kind::Wait, name, 0) }.write(&mut packet);
    Some(packet)
}

/// Answers a datagram to a process's liveness port. `lives` says whether the endpoint in question exists. `None` if the
/// datagram is not a question.
pub fn answer_liveness(datagram: &[u8], lives: impl FnOnce(u64) -> bool) -> Option<[u8; header::LEN]> {
    let (head, _) = Header::parse(datagram).ok()?;
    if head.kind != Kind::Ask || head.flags & flag::CHECKED == 0 {
        return None;
    }
    let alive = if lives(head.session) { flag::ALIVE } else { 0 };
    let mut packet = [0u8; header::LEN];
    Header { flags: flag::CHECKED | alive, ..Header::new(Kind::Answer, head.session, head.number) }
        .write(&mut packet);
    Some(packet)
}
