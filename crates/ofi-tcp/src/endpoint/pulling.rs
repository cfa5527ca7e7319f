//! Payloads that the core asks for, or discards.

use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};

use super::TcpEndpoint;
use crate::Tcp;
use crate::bulk::Role;
use crate::conn::To;
use crate::op::Token;

impl TcpEndpoint {
    /// Moves a payload that has arrived or is arriving to a receive.
    pub(crate) fn pull<H: Upcalls<Tcp>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        let Some(entry) = self.peers.get_mut(peer as usize) else { return };
        let (on, to) = match entry.resolve(token) {
            Token::Announced(on, number) => {
                if let Some(conn) = self.conn(on) {
                    conn.ask(number, To::Receive(into));
                    self.flush(host, on);
                }
                return;
            }
            Token::Spool(id) => {
                let Some(spool) = entry.unspool(id) else { return };
                self.common.spooled -= spool.bytes.len();
                if let Some(receiving) = host.receiving(into) {
                    let len = spool.bytes.len().min(receiving.len);
                    // SAFETY: the pieces are lent for this receive, and the buffer has as many bytes.
                    unsafe { ofi_core::copy::scatter(spool.bytes.as_ptr(), len, receiving.pieces, 0) };
                }
                if spool.is_whole() {
                    return host.received(into, Ok(()));
                }
                (spool.on, To::Receive(into))
            }
        };
        self.redirect(on, to);
    }

    /// Changes the destination of the rest of an arriving payload.
    fn redirect(&mut self, on: SlotId, to: To) {
        let Some(conn) = self.conn(on) else { return };
        let (peer, has_stripes) = (conn.peer, conn.role == Role::Main);
        if let Some(body) = &mut conn.body {
            body.to = to.clone();
        }
        let bulk =
            peer.filter(|_| has_stripes).and_then(|peer| self.peers.get(peer as usize)?.bulk.as_deref());
        for id in bulk.map_or_else(Vec::new, |bulk| bulk.incoming.clone()) {
            if let Some(body) = self.conn(id).and_then(|conn| conn.body.as_mut()) {
                body.to = to.clone();
            }
        }
    }

    /// Discards a payload.
    pub(crate) fn discard(&mut self, peer: PeerId, token: Token) {
        let Some(entry) = self.peers.get_mut(peer as usize) else { return };
        match entry.resolve(token) {
            Token::Announced(on, number) => {
                if let Some(conn) = self.conn(on) {
                    conn.ask(number, To::Nowhere);
                    self.dirty.push(on);
                }
            }
            Token::Spool(id) => {
                let Some(spool) = entry.unspool(id) else { return };
                self.common.spooled -= spool.bytes.len();
                if !spool.is_whole() {
                    self.redirect(spool.on, To::Nowhere);
                }
            }
        }
    }
}
