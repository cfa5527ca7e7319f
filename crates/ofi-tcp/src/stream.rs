//! The bytes of one connection: in the clear, or by a session of TLS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ofi_api::Errno;

use crate::outgoing::Stop;
use crate::sys;
use crate::tls::{Security, Session};
use crate::wire::cm;

/// Bytes that are read at once: no connection message is longer.
const AT_ONCE: usize = cm::HEADER + cm::MAX_PAYLOAD_LEN;

/// Sends a message. By TLS it may leave later ([`Session::push`]).
///
/// # Errors
/// The error number of send(2), `EIO` if the kernel takes a part of it, and errors of the session.
pub fn send_message(socket: BorrowedFd<'_>, tls: Option<&mut Session>, message: &[u8]) -> Result<(), Errno> {
    match tls {
        Some(session) => session.send_message(socket, message),
        None if sys::send(socket, message)? == message.len() => Ok(()),
        None => Err(Errno::EIO), // a new connection has room for it
    }
}

/// Receives bytes, and appends them to `into`. Returns how many; 0: the peer sends no more.
///
/// # Errors
/// The error number of recv(2), `EAGAIN` if there are none, and errors of the session ([`Session::mismatch`]).
pub fn receive_into(
    socket: BorrowedFd<'_>,
    tls: Option<&mut Session>,
    into: &mut impl for<'a> Extend<&'a u8>,
) -> Result<usize, Errno> {
    if let Some(session) = tls {
        return session.receive_into(socket, into);
    }
    let mut bytes = [0; AT_ONCE];
    let got = sys::receive(socket, &mut bytes)?;
    into.extend(&bytes[..got]);
    Ok(got)
}

/// How what is queued on an established connection leaves.
pub struct Through<'a> {
    pub socket: &'a OwnedFd,
    /// The connection's session.
    pub session: Option<&'a mut Session>,
    /// The endpoint's part in it.
    pub security: Option<&'a mut Security>,
    /// The endpoint encrypts.
    pub encrypts: bool,
}

impl Through<'_> {
    /// Sends the bytes of all of `pieces`. Returns how many went.
    ///
    /// # Errors
    /// The error number of sendmsg(2); `EAGAIN` if there is no room. `EIO` if an endpoint that encrypts has no session.
    ///
    /// # Safety
    /// The pieces may be read during the call.
    #[inline]
    pub unsafe fn send_pieces(&mut self, pieces: &[libc::iovec]) -> Result<usize, Errno> {
        match (&mut self.session, &mut self.security) {
            // SAFETY: the caller's promise.
            (None, _) if !self.encrypts => unsafe { sys::send_pieces(self.socket.as_fd(), pieces) },
            // SAFETY: the caller's promise.
            (Some(session), Some(security)) => unsafe {
                security.send_pieces(session, self.socket.as_fd(), pieces)
            },
            _ => Err(Errno::EIO),
        }
    }

    /// What a queue's stop means for the connection: sealed bytes may remain, which the queue does not know.
    #[inline]
    pub fn rest(&mut self, stop: Stop) -> Stop {
        let Some(session) = self.session.as_mut().filter(|_| stop == Stop::Empty) else { return stop };
        match session.push(self.socket.as_fd()) {
            Ok(()) if session.has_sealed() => Stop::Full,
            Ok(()) => stop,
            Err(errno) => Stop::Failed(errno),
        }
    }
}
