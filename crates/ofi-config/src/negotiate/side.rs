//! The transmit and the receive side: `tx_attr` and `rx_attr`.

use super::caps::{attr_mode, with_directions};
use super::{Negotiation, models};
use ofi_api::{Caps, MsgOrder, OpFlags, RxAttr, TxAttr, Version};

/// The capabilities that concern transmitting (fi_endpoint(3), transmit attributes, "caps").
const TX_CAPS: Caps = Caps::MSG
    .union(Caps::RMA)
    .union(Caps::TAGGED)
    .union(Caps::ATOMIC)
    .union(Caps::READ)
    .union(Caps::WRITE)
    .union(Caps::SEND)
    .union(Caps::HMEM)
    .union(Caps::TRIGGER)
    .union(Caps::FENCE)
    .union(Caps::MULTICAST)
    .union(Caps::RMA_PMEM)
    .union(Caps::NAMED_RX_CTX)
    .union(Caps::COLLECTIVE)
    .union(Caps::XPU);

/// The capabilities that concern receiving (fi_endpoint(3), receive attributes, "caps").
const RX_CAPS: Caps = Caps::MSG
    .union(Caps::RMA)
    .union(Caps::TAGGED)
    .union(Caps::ATOMIC)
    .union(Caps::REMOTE_READ)
    .union(Caps::REMOTE_WRITE)
    .union(Caps::RECV)
    .union(Caps::HMEM)
    .union(Caps::TRIGGER)
    .union(Caps::RMA_PMEM)
    .union(Caps::DIRECTED_RECV)
    .union(LATER_RX_CAPS)
    .union(Caps::MULTI_RECV)
    .union(Caps::SOURCE)
    .union(Caps::RMA_EVENT)
    .union(Caps::SOURCE_ERR)
    .union(Caps::COLLECTIVE)
    .union(Caps::XPU);

/// Receive capabilities that were added in 2.x. They are in `rx_attr.caps` only on request, because programs that check
/// the set against the older list (such as libfabric's own getinfo_test) reject them.
const LATER_RX_CAPS: Caps =
    Caps::TAGGED_DIRECTED_RECV.union(Caps::EXACT_DIRECTED_RECV).union(Caps::TAGGED_MULTI_RECV);

/// The first interface without an order of completions and without `total_buffered_recv`.
const WITHOUT_COMPLETION_ORDER: Version = Version::new(2, 0);

/// The transmit side of an endpoint with these capabilities.
pub(super) fn tx_attr(talk: &mut Negotiation<'_>, caps: Caps) -> TxAttr {
    let (offer, hints) = (&talk.offer.tx_attr, &talk.hints.tx_attr);
    TxAttr {
        caps: attr_caps(talk, "tx_attr.caps", caps & TX_CAPS, offer.caps, hints.caps),
        mode: attr_mode(talk, "tx_attr.mode", offer.mode, hints.mode),
        op_flags: op_flags(talk, "tx_attr.op_flags", hints.op_flags, offer.op_flags),
        msg_order: msg_order(talk, "tx_attr.msg_order", hints.msg_order, offer.msg_order),
        comp_order: comp_order(talk, "tx_attr.comp_order", hints.comp_order, offer.comp_order),
        inject_size: talk.at_most("tx_attr.inject_size", hints.inject_size, offer.inject_size),
        size: talk.at_most("tx_attr.size", hints.size, offer.size),
        iov_limit: talk.at_most("tx_attr.iov_limit", hints.iov_limit, offer.iov_limit),
        rma_iov_limit: talk.at_most("tx_attr.rma_iov_limit", hints.rma_iov_limit, offer.rma_iov_limit),
        tclass: models::tclass(talk, "tx_attr.tclass", hints.tclass, offer.tclass),
    }
}

/// The receive side of an endpoint with these capabilities.
pub(super) fn rx_attr(talk: &mut Negotiation<'_>, caps: Caps) -> RxAttr {
    let (offer, hints) = (&talk.offer.rx_attr, &talk.hints.rx_attr);
    let asked = if hints.caps.is_empty() { talk.hints.caps } else { hints.caps };
    let available = (caps & RX_CAPS).difference(LATER_RX_CAPS.difference(asked));
    RxAttr {
        caps: attr_caps(talk, "rx_attr.caps", available, offer.caps, hints.caps),
        mode: attr_mode(talk, "rx_attr.mode", offer.mode, hints.mode),
        op_flags: op_flags(talk, "rx_attr.op_flags", hints.op_flags, offer.op_flags),
        msg_order: msg_order(talk, "rx_attr.msg_order", hints.msg_order, offer.msg_order),
        comp_order: comp_order(talk, "rx_attr.comp_order", hints.comp_order, offer.comp_order),
        total_buffered_recv: total_buffered_recv(talk),
        size: talk.at_most("rx_attr.size", hints.size, offer.size),
        iov_limit: talk.at_most("rx_attr.iov_limit", hints.iov_limit, offer.iov_limit),
    }
}

/// The capabilities of one side: the endpoint's capabilities that concern the side (`available`) and that the provider
/// has there. If the hints name some, only these and the secondary ones. Hints that concern the other side are ignored,
/// as in C; others that the endpoint was not granted are refused.
fn attr_caps(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    available: Caps,
    offered: Caps,
    asked: Caps,
) -> Caps {
    let offered =
        if offered.is_empty() { available } else { with_directions(offered, available) & available };
    let side = if field.starts_with("tx") { TX_CAPS } else { RX_CAPS };
    let asked = asked.difference((TX_CAPS | RX_CAPS).difference(side));
    if asked.is_empty() {
        return offered;
    }
    let missing = asked.difference(offered);
    if !missing.is_empty() {
        talk.refuse(field, missing, offered);
    }
    with_directions(asked & offered, offered) | (offered & Caps::SECONDARY)
}

/// The default flags of operations: exactly the hints' flags. Without hints there are none: the offer's flags are the
/// possible ones, and no program wants all of them by default.
fn op_flags(talk: &mut Negotiation<'_>, field: &'static str, asked: OpFlags, offered: OpFlags) -> OpFlags {
    let missing = asked.difference(offered);
    if !missing.is_empty() {
        talk.refuse(field, missing, offered);
    }
    asked
}

/// The order of messages: at least what was requested. Everything that the provider keeps anyway is reported.
fn msg_order(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    asked: MsgOrder,
    offered: MsgOrder,
) -> MsgOrder {
    let missing = asked.difference(offered);
    if !missing.is_empty() {
        talk.refuse(field, missing, offered);
    }
    offered
}

/// The order of completions, which API 2.0 removed.
fn comp_order(talk: &mut Negotiation<'_>, field: &'static str, asked: u64, offered: u64) -> u64 {
    let possible = if talk.api >= WITHOUT_COMPLETION_ORDER { 0 } else { offered };
    if asked & !possible != 0 {
        talk.refuse(field, format_args!("{asked:#x}"), format_args!("{possible:#x}"));
    }
    possible
}

/// The room for unexpected messages, which API 2.0 removed.
fn total_buffered_recv(talk: &mut Negotiation<'_>) -> usize {
    let offered = talk.offer.rx_attr.total_buffered_recv;
    let possible = if talk.api >= WITHOUT_COMPLETION_ORDER { 0 } else { offered };
    talk.at_most("rx_attr.total_buffered_recv", talk.hints.rx_attr.total_buffered_recv, possible)
}
