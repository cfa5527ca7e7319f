//! Reads from connections that are encrypted, and says why one does not come about.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use ofi_api::Errno;
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};

use super::{ROUNDS, SHARE, TcpEndpoint};
use crate::Tcp;
use crate::conn::{Conn, Phase};
use crate::mismatch::{self, Mismatch};
use crate::sys;
use crate::tls::Session;

/// Bytes that one call receives: about as many as stay in the cache until they are opened.
const SCRATCH: usize = 64 << 10;
/// Room for them behind the beginning of a record.
const ROOM: usize = SCRATCH + (17 << 10);

impl TcpEndpoint {
    /// Reads from an established connection. All whole records are decrypted where they were read. What cannot be
    /// processed yet waits in the clear ([`Conn::stash`]), and a part of a record in the session.
    pub(super) fn read_sealed<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        peer: PeerId,
        conn: &mut Conn,
        mut session: Box<Session>,
    ) -> Result<(), Errno> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let (mut result, mut received) = (Ok(true), 0);
        let mut kept = session.part().len();
        if scratch.len() < kept + ROOM {
            scratch = vec![0; kept + ROOM].into();
        }
        scratch[..kept].copy_from_slice(session.part());
        for _ in 0..ROUNDS {
            if conn.stalled.is_some() || received >= SHARE || !host.hungry() || result != Ok(true) {
                break;
            }
            let Some(socket) = &conn.socket else { break };
            self.common.counts.reads += 1;
            result = match sys::receive(socket.as_fd(), &mut scratch[kept..][..SCRATCH]) {
                Ok(0) => Err(Errno::ECONNRESET),
                Ok(got) => {
                    received += got;
                    self.common.counts.received += 1;
                    let len = kept + got;
                    let bytes = &mut scratch[..len];
                    let (used, taken) =
                        session.open(bytes, |plain| self.take_plain(host, id, peer, conn, plain));
                    bytes.copy_within(used.., 0);
                    kept = len - used;
                    let broken = conn.broken.filter(|_| got < SCRATCH && conn.stalled.is_none());
                    taken.and_then(|()| broken.map_or(Ok(got == SCRATCH), Err))
                }
                Err(errno) if sys::is_full(errno) => conn.broken.map_or(Ok(false), Err),
                Err(errno) => Err(errno),
            };
        }
        session.keep(&scratch[..kept]);
        self.scratch = scratch;
        if let (Some(mismatch), Some(socket)) = (session.mismatch(), &conn.socket) {
            self.count_mismatch(sys::peer_name(socket.as_fd()), mismatch);
            let _ = session.push(socket.as_fd()); // the alert
        }
        conn.dirty |= session.has_sealed() && !conn.full;
        conn.tls = Some(session);
        result.map(|_| ())
    }

    /// Processes bytes of a record.
    fn take_plain<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        peer: PeerId,
        conn: &mut Conn,
        plain: &[u8],
    ) -> Result<(), Errno> {
        if conn.stalled.is_some() {
            conn.stash.extend(plain);
            return Ok(());
        }
        if conn.stash.is_empty() {
            let used = self.take(host, id, peer, conn, plain)?;
            conn.stash.extend(&plain[used..]);
            return Ok(());
        }
        let mut stash = std::mem::take(&mut conn.stash);
        stash.extend(plain);
        let used = self.take(host, id, peer, conn, &stash)?;
        stash.skip(used);
        conn.stash = stash;
        Ok(())
    }

    /// Counts and logs why a connection does not come about, or ends.
    pub(super) fn count_mismatch(&mut self, from: Option<SocketAddr>, mismatch: &Mismatch) {
        let counts = &mut self.common.counts;
        match mismatch {
            Mismatch::Broken(_) => counts.broken += 1,
            _ => counts.other_key += 1,
        }
        static LIMIT: Limit = Limit::new();
        let Some(more) = LIMIT.pass() else { return };
        let from = from.map_or_else(String::new, |from| from.to_string());
        tracing::warn!(target: "ofi::tcp::ep_ctrl", from, more, "a connection is refused: {mismatch}");
    }

    /// The session of a connection of this endpoint, if it encrypts. `connects`: this end has connected.
    ///
    /// # Errors
    /// The error number of a connection that has ended.
    pub(super) fn secure(&mut self, id: SlotId, connects: bool) -> Result<(), Errno> {
        if !self.common.encrypts {
            return Ok(());
        }
        let security = self.common.tls.as_ref().ok_or(Errno::EIO)?;
        let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { return Ok(()) };
        let socket = conn.socket.as_ref().ok_or(Errno::ECONNRESET)?.as_fd();
        conn.tls = Some(if connects { security.connect(socket)? } else { security.accept(socket)? });
        Ok(())
    }

    /// A connection ends while its ends agree on encryption. Returns the error for its operations.
    pub(super) fn disagree(&mut self, id: SlotId, errno: Errno) -> Errno {
        let Some(conn) = self.conn(id) else { return errno };
        let Some(session) = &conn.tls else { return errno };
        let from = conn.socket.as_ref().and_then(|socket| sys::peer_name(socket.as_fd()));
        if let Some(mismatch) = session.mismatch().cloned() {
            self.count_mismatch(from, &mismatch);
        } else if conn.phase == Phase::Asking && session.is_unanswered() {
            tracing::info!(
                target: "ofi::tcp::ep_ctrl", ?from,
                "a peer ended the connection at the first message of TLS: it may be of C libfabric"
            );
            return Errno::ECONNREFUSED;
        }
        errno
    }

    /// The peer of a connection in the clear sends TLS.
    pub(super) fn deny_tls(&mut self, id: SlotId) {
        let Some(socket) = self.conn(id).and_then(|conn| conn.socket.as_ref()) else { return };
        mismatch::deny(socket.as_fd());
        let from = sys::peer_name(socket.as_fd());
        self.count_mismatch(from, &Mismatch::Encrypted);
    }

    /// Sends what the handshake of a connection has sealed, and there was no room for.
    pub(super) fn push_sealed<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        let (Some(session), Some(socket)) = (&mut conn.tls, &conn.socket) else { return };
        match session.push(socket.as_fd()) {
            Ok(()) => self.want_of(id),
            Err(errno) => self.failed(host, id, errno),
        }
    }
}
