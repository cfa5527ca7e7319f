//! Requests for a session that are unread in an endpoint's socket. They are peeked, and stay in the socket.

use std::io::ErrorKind;
use std::os::fd::RawFd;

use crate::sys;

/// Maximum number of datagrams that one check peeks.
const LOOKS: usize = 1024;
/// Maximum number of answers that one check sends.
const ANSWERS: usize = 64;

/// Answers requests for a session among the datagrams in a socket, from that socket. Returns whether there are any
/// datagrams.
pub fn answer(fd: RawFd, buffer: &mut [u8]) -> bool {
    let socket = sys::lend_socket(fd);
    let beyond = sys::peek_from_front(&socket, true);
    let (mut unread, mut answered) = (false, Vec::new());
    for _ in 0..LOOKS {
        match socket.peek_from(buffer) {
            Ok((len, from)) => {
                unread = true;
                if let Some(answer) = ofi_rdm::answer_question(&buffer[..len])
                    && !answered.contains(&(from, answer))
                {
                    let _ = socket.send_to(&answer, from);
                    answered.push((from, answer));
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue, // from an earlier datagram
            Err(_) => break,
        }
        if !beyond || answered.len() == ANSWERS {
            break;
        }
    }
    sys::peek_from_front(&socket, false);
    unread
}
