//! Scalable endpoints (`fi_scalable_ep`): one address and one set of peers under several transmit and receive contexts.
//!
//! The endpoint inside is an ordinary one that posts nothing itself; its contexts are in `contexts.rs`. All contexts
//! share one address: a peer sees one source, and one vector entry covers all receive contexts.
//!
//! If an endpoint has a single context of a kind, programs may use it without naming it: binding a queue or a counter
//! to the endpoint opens the context ([`Sole`]), and calls on the endpoint go to it.
//!
//! An info with `FI_COLLECTIVE` or `FI_TRIGGER` can open a scalable endpoint: getinfo gives both to hints without
//! capabilities before it is known which kind of endpoint the program opens (MPICH opens a scalable one). Calls that
//! need these capabilities are refused.

use std::sync::{Arc, OnceLock};

use ofi_api::{
    Address, AddressVector, AtomicKind, AtomicOp, BindFlags, Caps, CompletionQueue, Context, Counter,
    Datatype, Endpoint, EpOption, EpType, Errno, Error, EventQueue, FiOp, Fid, Info, ReceiveOp, Result,
    RmaOp, RxAttr, SHARED_CONTEXT, SendOp, Statistic, TagMatch, TxAttr,
};

use super::Ep;
use super::context::ContextEp;
use super::contexts::EndpointContext;
use super::refused::{refuse, refuse_others, refused};
use crate::domain::DomainCore;
use crate::negotiate::with_directions;
use crate::transport::Transport;

/// A scalable endpoint. Its contexts keep the endpoint open.
pub(crate) struct Sep<T: Transport> {
    hub: Arc<Ep<T>>,
    transmit: Sole,
    receive: Sole,
}

/// The only context of its kind, once something for it was bound to the endpoint.
#[derive(Default)]
struct Sole(OnceLock<Arc<dyn Endpoint>>);

impl Sole {
    /// The context, for a call on the endpoint.
    fn get(&self, call: &str) -> Result<&dyn Endpoint> {
        let open = self.0.get().map(|context| &**context);
        open.ok_or_else(|| {
            let kind = "a scalable endpoint whose contexts transfer: no queue or counter was bound to it";
            refused(call, kind)
        })
    }
}

fn beyond(field: &str, limit: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
    Error::wanted(
        Errno::EINVAL,
        field.to_string(),
        format!("at most {limit}, as the scalable endpoint has"),
        found.to_string(),
        "open the scalable endpoint with more, or ask for less",
    )
}

/// A size of a context: the requested one, or, for 0, the endpoint's.
fn size(field: &str, wanted: usize, limit: usize) -> Result<usize> {
    match wanted {
        0 => Ok(limit),
        wanted if wanted > limit => Err(beyond(field, limit, wanted)),
        wanted => Ok(wanted),
    }
}

/// The capabilities of a context: the requested ones and the directions that they imply, or, if none are requested, the
/// endpoint's.
fn capabilities(field: &str, wanted: Caps, limit: Caps) -> Result<Caps> {
    match wanted {
        none if none.is_empty() => Ok(limit),
        wanted if !limit.contains(wanted) => Err(beyond(field, limit, wanted)),
        wanted => Ok(with_directions(wanted, limit)),
    }
}

fn transmit_attr(of: &TxAttr, wanted: &TxAttr) -> Result<TxAttr> {
    let flags = if wanted.op_flags.is_empty() { of.op_flags } else { wanted.op_flags };
    Ok(TxAttr {
        caps: capabilities("tx_attr.caps", wanted.caps, of.caps)?,
        op_flags: flags,
        inject_size: size("tx_attr.inject_size", wanted.inject_size, of.inject_size)?,
        size: size("tx_attr.size", wanted.size, of.size)?,
        iov_limit: size("tx_attr.iov_limit", wanted.iov_limit, of.iov_limit)?,
        rma_iov_limit: size("tx_attr.rma_iov_limit", wanted.rma_iov_limit, of.rma_iov_limit)?,
        ..of.clone()
    })
}

fn receive_attr(of: &RxAttr, wanted: &RxAttr) -> Result<RxAttr> {
    let flags = if wanted.op_flags.is_empty() { of.op_flags } else { wanted.op_flags };
    // Whether senders may name a context is a property of the endpoint, but MPICH requests it for the named contexts.
    let caps = wanted.caps - Caps::NAMED_RX_CTX;
    Ok(RxAttr {
        caps: capabilities("rx_attr.caps", caps, of.caps)?,
        op_flags: flags,
        size: size("rx_attr.size", wanted.size, of.size)?,
        iov_limit: size("rx_attr.iov_limit", wanted.iov_limit, of.iov_limit)?,
        ..of.clone()
    })
}

fn no_such(direction: &str, index: usize, count: usize) -> Error {
    Error::wanted(
        Errno::EINVAL,
        format!("the index of a {direction} context"),
        format!("one below {count} (ep_attr)"),
        index.to_string(),
        "open the scalable endpoint with more contexts",
    )
}

impl<T: Transport> Sep<T> {
    /// Opens a scalable endpoint of `domain` as `info` says.
    ///
    /// # Errors
    /// `FI_EINVAL` for invalid counts; `FI_ENOSYS` for connected endpoints.
    pub(crate) fn open(domain: &Arc<DomainCore<T>>, info: &Info) -> Result<Arc<Self>> {
        if info.ep_attr.ep_type == EpType::Msg {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "the info of a scalable endpoint",
                "a connectionless endpoint",
                info.ep_attr.ep_type.to_string(),
                "ask getinfo for FI_EP_RDM or FI_EP_DGRAM",
            ));
        }
        let limits = &domain.info.domain_attr;
        let counts = [
            ("ep_attr.tx_ctx_cnt", info.ep_attr.tx_ctx_cnt, limits.max_ep_tx_ctx),
            ("ep_attr.rx_ctx_cnt", info.ep_attr.rx_ctx_cnt, limits.max_ep_rx_ctx),
        ];
        for (field, count, limit) in counts {
            if count == SHARED_CONTEXT || count > limit {
                let found =
                    if count == SHARED_CONTEXT { "FI_SHARED_CONTEXT".into() } else { count.to_string() };
                return Err(Error::wanted(
                    Errno::EINVAL,
                    field.to_string(),
                    format!("1 to {limit} contexts of its own"),
                    found,
                    "share contexts between ordinary endpoints",
                ));
            }
        }
        Ok(Arc::new(Self {
            hub: Ep::open_hub(domain, info)?,
            transmit: Sole::default(),
            receive: Sole::default(),
        }))
    }
}

/// The kinds of operation of a transmit context, as bindings name them. (`FI_TRANSMIT` is `FI_SEND`.)
const TRANSMITS: BindFlags = BindFlags::SEND.union(BindFlags::READ).union(BindFlags::WRITE);

impl<T: Transport> Sep<T> {
    /// The single contexts that a binding with `flags` applies to, with the flags for each. Opens them if necessary.
    fn soles(&self, flags: BindFlags, what: &str) -> Result<Vec<(&Arc<dyn Endpoint>, BindFlags)>> {
        let attr = &self.hub.core.info.ep_attr;
        let rest = flags - TRANSMITS - BindFlags::RECV;
        let wanted = [
            (flags & TRANSMITS, attr.tx_ctx_cnt, &self.transmit),
            (flags & BindFlags::RECV, attr.rx_ctx_cnt, &self.receive),
        ];
        // All are checked before one is opened.
        if let Some((_, count, _)) = wanted.iter().find(|(part, count, _)| !part.is_empty() && *count > 1) {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                format!("fi_scalable_ep_bind of {what}"),
                "an endpoint with one context of that kind (ep_attr.tx_ctx_cnt, rx_ctx_cnt)",
                format!("one with {count}"),
                "open the contexts, and bind to each (fi_tx_context, fi_rx_context)",
            ));
        }
        let mut all = Vec::new();
        for (part, _, sole) in wanted.into_iter().filter(|(part, ..)| !part.is_empty()) {
            if sole.0.get().is_none() {
                let transmits = std::ptr::eq(sole, &self.transmit);
                let context = match transmits {
                    true => self.transmit_context(0, None)?.0,
                    false => self.receive_context(0, None)?.0,
                };
                sole.0.get_or_init(|| context);
            }
            all.extend(sole.0.get().map(|context| (context, part | rest)));
        }
        Ok(all)
    }
}

impl<T: Transport> Endpoint for Sep<T> {
    refuse_others!("a scalable endpoint, whose contexts transfer");
    refuse! { "a scalable endpoint, whose contexts transfer":
        bind_eq(&Arc<dyn EventQueue>) -> ();
    }

    fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()> {
        let soles = self.soles(flags, "a completion queue")?;
        if soles.is_empty() {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_scalable_ep_bind with a completion queue",
                "FI_TRANSMIT, FI_RECV or both, and optionally FI_SELECTIVE_COMPLETION",
                format!("{flags:?}"),
                "say for which operations it is",
            ));
        }
        soles.into_iter().try_for_each(|(context, flags)| context.bind_cq(cq, flags))
    }

    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
        let kinds = if flags.is_empty() { TRANSMITS | BindFlags::RECV } else { flags };
        let soles = self.soles(kinds, "a counter")?;
        soles.into_iter().try_for_each(|(context, flags)| context.bind_counter(counter, flags))
    }

    fn send(&self, op: &SendOp<'_>) -> Result<()> {
        self.transmit.get("fi_send")?.send(op)
    }

    fn send_tagged(&self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        self.transmit.get("fi_tsend")?.send_tagged(op, tag)
    }

    fn write(&self, op: &RmaOp<'_>) -> Result<()> {
        self.transmit.get("fi_write")?.write(op)
    }

    fn read(&self, op: &RmaOp<'_>) -> Result<()> {
        self.transmit.get("fi_read")?.read(op)
    }

    fn atomic(&self, op: &AtomicOp<'_>) -> Result<()> {
        self.transmit.get("fi_atomic")?.atomic(op)
    }

    fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize> {
        self.transmit.get("fi_atomicvalid")?.atomic_valid(kind, op, datatype)
    }

    fn receive(&self, op: &ReceiveOp<'_>) -> Result<()> {
        self.receive.get("fi_recv")?.receive(op)
    }

    fn receive_tagged(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        self.receive.get("fi_trecv")?.receive_tagged(op, tag)
    }

    fn cancel(&self, context: Context) -> Result<()> {
        self.receive.get("fi_cancel")?.cancel(context)
    }

    fn fid(&self) -> Fid {
        self.hub.fid()
    }

    fn bind_av(&self, av: &Arc<dyn AddressVector>) -> Result<()> {
        self.hub.bind_av(av)
    }

    fn transmit_context(&self, index: usize, attr: Option<&TxAttr>) -> Result<(Arc<dyn Endpoint>, TxAttr)> {
        let core = &self.hub.core;
        core.born.check()?;
        let info = &core.info;
        let attr = attr.map_or(Ok(info.tx_attr.clone()), |wanted| transmit_attr(&info.tx_attr, wanted))?;
        let at = core.state.lock().contexts()?.sender(index);
        let at = at.ok_or_else(|| no_such("transmit", index, info.ep_attr.tx_ctx_cnt))?;
        Ok((ContextEp::open(&self.hub, at, EndpointContext::transmitting(info, &attr), true)?, attr))
    }

    fn receive_context(&self, index: usize, attr: Option<&RxAttr>) -> Result<(Arc<dyn Endpoint>, RxAttr)> {
        let core = &self.hub.core;
        core.born.check()?;
        let info = &core.info;
        let attr = attr.map_or(Ok(info.rx_attr.clone()), |wanted| receive_attr(&info.rx_attr, wanted))?;
        let at = core.state.lock().contexts()?.receiver(index);
        let at = at.ok_or_else(|| no_such("receive", index, info.ep_attr.rx_ctx_cnt))?;
        Ok((ContextEp::open(&self.hub, at, EndpointContext::receiving(info, &attr), false)?, attr))
    }

    fn enable(&self) -> Result<()> {
        self.hub.enable()?;
        self.hub.core.attach_all()?;
        [&self.transmit, &self.receive]
            .into_iter()
            .filter_map(|sole| sole.0.get())
            .try_for_each(|own| own.enable())
    }

    fn name(&self) -> Result<Address> {
        self.hub.name()
    }

    fn set_name(&self, address: &Address) -> Result<()> {
        self.hub.set_name(address)
    }

    fn option(&self, option: EpOption) -> Result<usize> {
        match (option, self.receive.0.get()) {
            (EpOption::MinMultiRecv, Some(own)) => own.option(option),
            (EpOption::MinMultiRecv, None) => Err(Error::new(Errno::ENOPROTOOPT)), // belongs to a receive context
            _ => self.hub.option(option),
        }
    }

    fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        match (option, self.receive.0.get()) {
            (EpOption::MinMultiRecv, Some(own)) => own.set_option(option, value),
            (EpOption::MinMultiRecv, None) => Err(Error::new(Errno::ENOPROTOOPT)),
            _ => self.hub.set_option(option, value),
        }
    }

    /// The counters of the transport, and the messages that were dropped for lack of a context.
    fn statistics(&self) -> Vec<Statistic> {
        self.hub.statistics()
    }
}
