//! The transmit and receive contexts of a scalable endpoint, within the endpoint that holds its address and peers.
//!
//! A context ([`EndpointContext`]) has its own posts and reports. Contexts are numbered from 1: first those that
//! transmit, then those that receive; 0 is the endpoint itself, which then transfers nothing. All contexts share the
//! endpoint's peers, its lock, and the slots of operations in flight.

use std::sync::{Arc, Weak};

use ofi_api::{Caps, Info, RxAttr, TxAttr};

use super::endpoint_core::EndpointCore;
use super::receive::RxSide;
use super::receiver::Receiver;
use super::staging::CompletionStaging;
use super::transmit::TxSide;
use super::{datagram, rx_side, tx_side};
use crate::cq::Cq;
use crate::source::Source;
use crate::transport::{PeerId, RxName, Transport};

/// One context.
pub struct EndpointContext<T: Transport> {
    pub tx: TxSide<T>,
    pub rx: RxSide<T>,
    pub staging: CompletionStaging,
    pub queue: Option<Arc<Cq>>,
    /// The application has it open.
    pub open: bool,
    pub enabled: bool,
}

impl<T: Transport> EndpointContext<T> {
    /// A context with these attributes; `None` for the direction that it does not have.
    fn new(info: &Info, tx_attr: Option<&TxAttr>, rx_attr: Option<&RxAttr>) -> Self {
        let (mut tx, mut rx) = (TxSide::new(), RxSide::new(&datagram::budget(info)));
        let (mut tx_size, mut rx_size) = (0, 0);
        if let Some(attr) = tx_attr {
            (tx, tx_size) = (tx_side(info, attr.caps, attr), attr.size);
        }
        if let Some(attr) = rx_attr {
            (rx, rx_size) = (rx_side(info, attr.caps, attr), attr.size);
        }
        let mut staging = CompletionStaging::new(tx_size, rx_size.max(tx_size));
        staging.credits[crate::cq::Credit::Receive as usize] = rx_size;
        staging.join();
        Self { tx, rx, staging, queue: None, open: false, enabled: false }
    }

    /// A transmit context.
    pub fn transmitting(info: &Info, attr: &TxAttr) -> Self {
        Self::new(info, Some(attr), None)
    }

    /// A receive context.
    pub fn receiving(info: &Info, attr: &RxAttr) -> Self {
        Self::new(info, None, Some(attr))
    }
}

/// All contexts of a scalable endpoint.
pub struct Contexts<T: Transport> {
    sides: Vec<EndpointContext<T>>,
    /// The number of transmit contexts.
    senders: usize,
    /// Messages may name their receive context (`FI_NAMED_RX_CTX`).
    named: bool,
    /// The sources of contexts that were enabled before the endpoint.
    pub late: Vec<(u16, Weak<dyn Source>)>,
}

impl<T: Transport> Contexts<T> {
    /// As many as `info` says, with its attributes.
    pub fn new(info: &Info) -> Self {
        let (senders, receivers) = (info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt);
        let transmitting = (0..senders).map(|_| EndpointContext::transmitting(info, &info.tx_attr));
        let receiving = (0..receivers).map(|_| EndpointContext::receiving(info, &info.rx_attr));
        let sides = transmitting.chain(receiving).collect();
        Self { sides, senders, named: info.caps.contains(Caps::NAMED_RX_CTX), late: Vec::new() }
    }

    /// The number of a transmit context.
    pub fn sender(&self, index: usize) -> Option<u16> {
        (index < self.senders).then_some(index as u16 + 1)
    }

    /// The number of a receive context.
    pub fn receiver(&self, index: usize) -> Option<u16> {
        (index < self.sides.len() - self.senders).then_some((self.senders + index) as u16 + 1)
    }

    /// A context, by its number.
    pub fn side(&mut self, at: u16) -> &mut EndpointContext<T> {
        &mut self.sides[usize::from(at) - 1]
    }

    /// As [`Contexts::side`].
    pub fn look(&self, at: u16) -> &EndpointContext<T> {
        &self.sides[usize::from(at) - 1]
    }

    /// All of them, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (u16, &EndpointContext<T>)> {
        self.sides.iter().enumerate().map(|(at, side)| (at as u16 + 1, side))
    }

    /// The context that receives a message of `peer`, or reports its data: the one that the message names, otherwise
    /// one of the enabled contexts that receive such messages, always the same one for each peer.
    fn choose(&self, peer: PeerId, rx: RxName, takes: impl Fn(&EndpointContext<T>) -> bool) -> Option<u16> {
        if self.named
            && let Some(index) = rx.index()
        {
            return self.receiver(index).filter(|&at| takes(self.look(at)));
        }
        let able = || self.all().skip(self.senders).filter(|(_, side)| takes(side));
        let enabled = || able().filter(|(_, side)| side.enabled);
        match enabled().count() {
            0 => able().next(),
            count => enabled().nth(peer as usize % count),
        }
        .map(|(at, _)| at)
    }
}

impl<T: Transport> EndpointCore<T> {
    /// The receive context of a message; `None` if it does not exist.
    #[inline]
    pub fn steer(&self, peer: PeerId, rx: RxName, tagged: bool) -> Option<u16> {
        match &self.contexts {
            None => rx.is_of_one().then_some(0),
            Some(contexts) => contexts.choose(peer, rx, |side| side.rx.may_receive[usize::from(tagged)]),
        }
    }

    /// The receive context that reports remote CQ data; `None` if it does not exist.
    pub fn steer_data(&self, peer: PeerId, rx: RxName) -> Option<u16> {
        match &self.contexts {
            None => rx.is_of_one().then_some(0),
            Some(contexts) => contexts.choose(peer, rx, |_| true),
        }
    }

    /// The transmit side of a context, and where its completions go.
    #[inline]
    pub fn sender(&mut self, at: u16) -> (&mut TxSide<T>, &mut CompletionStaging) {
        match &mut self.contexts {
            Some(contexts) if at > 0 => {
                let side = contexts.side(at);
                (&mut side.tx, &mut side.staging)
            }
            _ => (&mut self.tx, &mut self.staging),
        }
    }

    /// The receive side of a context, and the parts of the endpoint that it needs.
    #[inline]
    pub fn receiver(&mut self, at: u16) -> Receiver<'_, T> {
        let peers = &mut self.peers;
        match &mut self.contexts {
            Some(contexts) if at > 0 => {
                let side = contexts.side(at);
                Receiver { rx: &mut side.rx, staging: &mut side.staging, peers, at }
            }
            _ => Receiver { rx: &mut self.rx, staging: &mut self.staging, peers, at: 0 },
        }
    }

    /// Calls `each` with every receive side.
    pub fn each_receiver(&mut self, mut each: impl FnMut(&mut RxSide<T>)) {
        each(&mut self.rx);
        if let Some(contexts) = &mut self.contexts {
            contexts.sides.iter_mut().for_each(|side| each(&mut side.rx));
        }
    }

    /// Whether every receive side has room for `len` more bytes of a peer's unexpected payloads.
    pub fn all_may_hold(&self, peer: PeerId, len: usize) -> bool {
        let mut contexts = self.contexts.iter().flat_map(|contexts| contexts.sides.iter());
        self.rx.may_hold(peer, len) && contexts.all(|side| side.rx.may_hold(peer, len))
    }

    /// The bytes and the number of a peer's unexpected messages, over all receive sides.
    pub fn all_held(&self, peer: PeerId) -> (usize, usize) {
        let contexts = self.contexts.iter().flat_map(|contexts| contexts.sides.iter());
        let all = std::iter::once(&self.rx).chain(contexts.map(|side| &side.rx));
        all.map(|rx| rx.held(peer)).fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1))
    }
}
