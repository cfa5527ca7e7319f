//! The core as one of the two transports sees it: with its own peer numbers and operations, as if it were the only
//! transport.

use std::marker::PhantomData;

use ofi_api::{Address, Errno, MrAccess, RemotePiece, Result};

use super::link::Names;
use super::routes::{FAR, NEAR, Routes};
use super::{Composite, CompositeSpec, Either, OpOf, TokenOf};
use crate::domain::Regions;
use crate::slots::SlotId;
use crate::transport::{
    Announced, Arrived, CompletionInfo, Delivery, Fault, PeerId, Reaction, Receiving, RemoteData, Transport,
    Upcalls,
};

/// One of the two transports of a pairing.
pub trait Half<P: CompositeSpec> {
    /// The transport.
    type Is: Transport;
    /// Its index.
    const INDEX: usize;

    /// Marks an operation as its own.
    fn op(own: <Self::Is as Transport>::Op) -> OpOf<P>;
    /// An operation, if it is its own.
    fn own(op: &OpOf<P>) -> Option<&<Self::Is as Transport>::Op>;
    /// An operation, if it is its own.
    fn own_mut(op: &mut OpOf<P>) -> Option<&mut <Self::Is as Transport>::Op>;
    /// An operation, if it is its own.
    fn take(op: OpOf<P>) -> Option<<Self::Is as Transport>::Op>;
    /// Marks a token as its own.
    fn token(own: <Self::Is as Transport>::Token) -> TokenOf<P>;
    /// A token, if it is its own.
    fn own_token(token: &TokenOf<P>) -> Option<&<Self::Is as Transport>::Token>;
    /// A token, if it is its own.
    fn take_token(token: TokenOf<P>) -> Option<<Self::Is as Transport>::Token>;
    /// The endpoint's form of one of its addresses; if there are several, the one that `known` contains.
    fn address(own: &Address, known: impl Fn(&Address) -> bool) -> Address;
}

/// The near transport.
pub struct Near;
/// The far transport.
pub struct Far;

macro_rules! side {
    ($side:ident, $index:ident, $addresses:expr) => {
        impl<P: CompositeSpec> Half<P> for $side {
            type Is = P::$side;
            const INDEX: usize = $index;

            #[inline(always)]
            fn op(own: <P::$side as Transport>::Op) -> OpOf<P> {
                Either::$side(own)
            }

            #[inline(always)]
            fn own(op: &OpOf<P>) -> Option<&<P::$side as Transport>::Op> {
                if let Either::$side(own) = op { Some(own) } else { None }
            }

            #[inline(always)]
            fn own_mut(op: &mut OpOf<P>) -> Option<&mut <P::$side as Transport>::Op> {
                if let Either::$side(own) = op { Some(own) } else { None }
            }

            #[inline(always)]
            fn take(op: OpOf<P>) -> Option<<P::$side as Transport>::Op> {
                if let Either::$side(own) = op { Some(own) } else { None }
            }

            fn token(own: <P::$side as Transport>::Token) -> TokenOf<P> {
                Either::$side(own)
            }

            fn own_token(token: &TokenOf<P>) -> Option<&<P::$side as Transport>::Token> {
                if let Either::$side(own) = token { Some(own) } else { None }
            }

            fn take_token(token: TokenOf<P>) -> Option<<P::$side as Transport>::Token> {
                if let Either::$side(own) = token { Some(own) } else { None }
            }

            fn address(own: &Address, known: impl Fn(&Address) -> bool) -> Address {
                let mut all: Vec<Address> = $addresses(own);
                let at = all.iter().position(known).unwrap_or(0);
                if all.is_empty() { own.clone() } else { all.swap_remove(at) }
            }
        }
    };
}

// A near peer that the pairing cannot name keeps its own name: it found the endpoint in another way.
side!(Near, NEAR, P::far_addresses);
side!(Far, FAR, |_| Vec::new());

/// The core, as one of the two transports sees it.
pub struct HalfUpcalls<'a, S, P, H> {
    routes: &'a mut Routes,
    host: &'a mut H,
    /// Set when the transport has made progress.
    heard: &'a mut bool,
    which: PhantomData<(S, P)>,
}

impl<'a, S: Half<P>, P: CompositeSpec, H> HalfUpcalls<'a, S, P, H> {
    pub fn new(routes: &'a mut Routes, host: &'a mut H, heard: &'a mut bool) -> Self {
        Self { routes, host, heard, which: PhantomData }
    }

    #[inline(always)]
    fn peer(&self, local: PeerId) -> PeerId {
        self.routes.peer(S::INDEX, local)
    }

    /// The endpoint's form of one of the transport's addresses: that of the connection, or the one that `known`
    /// contains.
    fn far_address(&self, own: &Address, known: impl Fn(&Address) -> bool) -> Address {
        let connected = if S::INDEX == NEAR { self.routes.link.far(own) } else { None };
        connected.unwrap_or_else(|| S::address(own, known))
    }
}

/// Converts the core's result for a token; the token is returned unchanged.
fn back<T: Transport>(token: Option<T::Token>, answer: fn(T::Token) -> Announced<T>) -> Announced<T> {
    token.map_or(Announced::Kept, answer)
}

impl<S: Half<P>, P: CompositeSpec, H: Upcalls<Composite<P>>> Upcalls<S::Is> for HalfUpcalls<'_, S, P, H> {
    fn disarmed(&mut self) {
        self.host.disarmed();
    }

    fn attend_later(&mut self) -> bool {
        self.host.attend_later()
    }

    fn attended(&mut self) {
        self.host.attended();
    }

    fn introduce(&mut self, local: PeerId, address: &Address) {
        let address = match self.routes.asked.take() {
            Some(asked) => asked,
            None => self.far_address(address, |address| self.routes.find(address).is_some()),
        };
        if self.routes.find(&address).is_none() {
            let host = &mut *self.host;
            self.routes.make_room(|peer| host.retire(peer));
        }
        let (peer, new) = self.routes.meet(S::INDEX, local, &address);
        if new {
            self.host.introduce(peer, &address);
        }
    }

    fn insertions(&self) -> u32 {
        self.host.insertions()
    }

    fn insertion(&self, local: PeerId) -> Option<u64> {
        self.host.insertion(self.peer(local))
    }

    fn addresses(&self) -> Vec<Address> {
        self.host.addresses()
    }

    #[inline]
    fn address(&self, local: PeerId) -> Option<&Address> {
        self.host.address(self.peer(local))
    }

    /// Whether the transport's number may be reused: not while sends are routed there and the core may still send. The
    /// endpoint's number may be reused once nothing refers to it.
    fn retire(&mut self, local: PeerId) -> bool {
        if self.routes.leads(S::INDEX, local) && !self.host.retire(self.peer(local)) {
            return false;
        }
        self.routes.retire(S::INDEX, local);
        true
    }

    #[inline(always)]
    unsafe fn deliver(&mut self, arrived: &Arrived, body: *const u8) -> Delivery {
        *self.heard = true;
        let arrived = Arrived { peer: self.peer(arrived.peer), ..*arrived };
        // SAFETY: the caller's promise.
        unsafe { self.host.deliver(&arrived, body) }
    }

    fn announce(&mut self, arrived: &Arrived, token: <S::Is as Transport>::Token) -> Announced<S::Is> {
        *self.heard = true;
        let arrived = Arrived { peer: self.peer(arrived.peer), ..*arrived };
        match self.host.announce(&arrived, S::token(token)) {
            Announced::Pull(id) => Announced::Pull(id),
            Announced::Kept => Announced::Kept,
            Announced::Stopped(token) => back(S::take_token(token), Announced::Stopped),
            Announced::Unwanted(token) => back(S::take_token(token), Announced::Unwanted),
        }
    }

    fn receiving(&self, id: SlotId) -> Option<Receiving<'_>> {
        self.host.receiving(id)
    }

    fn received(&mut self, id: SlotId, result: Result<(), Errno>) {
        *self.heard = true;
        self.host.received(id, result);
    }

    fn receive_failed(&mut self, id: SlotId, fault: Fault) {
        *self.heard = true;
        self.host.receive_failed(id, fault);
    }

    fn claim(&mut self, peer: PeerId) -> Option<SlotId> {
        self.host.claim(self.routes.peer(S::INDEX, peer))
    }

    fn landed(&mut self, id: SlotId, arrived: &Arrived) {
        *self.heard = true;
        self.host.landed(id, &Arrived { peer: self.peer(arrived.peer), ..*arrived });
    }

    fn spent(&mut self, id: SlotId, data: u64, len: usize) {
        *self.heard = true;
        self.host.spent(id, data, len);
    }

    fn remote_write(&mut self, peer: PeerId, data: RemoteData, len: usize) -> bool {
        *self.heard = true;
        self.host.remote_write(self.routes.peer(S::INDEX, peer), data, len)
    }

    fn accessed(&mut self, regions: &Regions, access: MrAccess, remote: &[RemotePiece]) {
        *self.heard = true;
        self.host.accessed(regions, access, remote);
    }

    fn counts_reads(&self, regions: &Regions) -> bool {
        self.host.counts_reads(regions)
    }

    unsafe fn noted(
        &mut self,
        peer: PeerId,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        *self.heard = true;
        // SAFETY: the caller's promise.
        unsafe { self.host.noted(self.routes.peer(S::INDEX, peer), words, body, len) }
    }

    fn open(&mut self, peer: PeerId, ticket: CompletionInfo, op: <S::Is as Transport>::Op) -> SlotId {
        *self.heard = true;
        self.host.open(self.routes.peer(S::INDEX, peer), ticket, S::op(op))
    }

    #[inline(always)]
    fn open_with(
        &mut self,
        peer: PeerId,
        ticket: CompletionInfo,
        make: impl FnOnce() -> <S::Is as Transport>::Op,
    ) -> SlotId {
        *self.heard = true;
        self.host.open_with(self.routes.peer(S::INDEX, peer), ticket, || S::op(make()))
    }

    #[inline]
    fn awaits(&mut self, ticket: &CompletionInfo) -> bool {
        self.host.awaits(ticket)
    }

    fn abandon(&mut self, id: SlotId) {
        self.host.abandon(id);
    }

    fn op(&mut self, peer: PeerId, id: SlotId) -> Option<&mut <S::Is as Transport>::Op> {
        self.host.op(self.routes.peer(S::INDEX, peer), id).and_then(S::own_mut)
    }

    fn own_op(&mut self, id: SlotId) -> Option<&mut <S::Is as Transport>::Op> {
        self.host.own_op(id).and_then(S::own_mut)
    }

    fn finish(
        &mut self,
        peer: PeerId,
        id: SlotId,
        result: Result<(), Errno>,
    ) -> Option<<S::Is as Transport>::Op> {
        *self.heard = true;
        self.op(peer, id)?; // this transport must not finish an operation of the other
        self.host.finish(self.routes.peer(S::INDEX, peer), id, result).and_then(S::take)
    }

    fn finish_failed(&mut self, peer: PeerId, id: SlotId, fault: Fault) -> Option<<S::Is as Transport>::Op> {
        *self.heard = true;
        self.op(peer, id)?; // as above
        self.host.finish_failed(self.routes.peer(S::INDEX, peer), id, fault).and_then(S::take)
    }

    fn fail_ops(&mut self, peer: PeerId, error: Errno, which: impl Fn(&<S::Is as Transport>::Op) -> bool) {
        self.host.fail_ops(self.routes.peer(S::INDEX, peer), error, |op| S::own(op).is_some_and(&which));
    }

    fn fail_peer_where(
        &mut self,
        peer: PeerId,
        error: Errno,
        ops: impl Fn(&<S::Is as Transport>::Op) -> bool,
        tokens: impl Fn(&<S::Is as Transport>::Token) -> bool,
    ) {
        let peer = self.routes.peer(S::INDEX, peer);
        let (own, own_token) =
            (|op: &_| S::own(op).is_some_and(&ops), |token: &_| S::own_token(token).is_some_and(&tokens));
        self.host.fail_peer_where(peer, error, own, own_token);
        self.routes.lost(S::INDEX, peer, error == Errno::ECONNREFUSED);
    }

    fn notes_gone(&mut self, peer: PeerId, error: Errno) {
        self.host.notes_gone(self.routes.peer(S::INDEX, peer), error);
    }

    fn may_hold(&self, peer: PeerId, len: usize) -> bool {
        self.host.may_hold(self.peer(peer), len)
    }

    fn held(&self, peer: PeerId) -> (usize, usize) {
        self.host.held(self.peer(peer))
    }

    #[inline(always)]
    fn hungry(&self) -> bool {
        self.host.hungry()
    }

    fn packet(&mut self, from: &Address, packet: &[u8]) -> Reaction {
        *self.heard = true;
        let accepting = if S::INDEX == NEAR { P::far_of_accepting(from) } else { None };
        let far = accepting.unwrap_or_else(|| self.far_address(from, |_| false));
        let reaction = self.host.packet(&far, packet);
        if S::INDEX == NEAR && matches!(reaction, Reaction::Join(_)) {
            self.routes.link.join(Names { far, near: from.clone() });
        }
        reaction
    }

    fn joined_group(&mut self, group: &Address, receives: bool, result: Result<(), Errno>) {
        *self.heard = true;
        self.host.joined_group(group, receives, result);
    }

    fn packet_lost(&mut self, to: &Address, errno: Errno) {
        *self.heard = true;
        let to = self.far_address(to, |_| false);
        self.host.packet_lost(&to, errno);
    }
}
