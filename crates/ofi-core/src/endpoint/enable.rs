//! Enabling: checks that everything that the endpoint's capabilities need is bound, and opens its transport's part.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use ofi_api::{Address, Caps, EpOption, Errno, Error, Result};

use super::EpCore;
use super::bind::bad_state;
use crate::auth::{self, AuthKey};
use crate::av::Watcher;
use crate::cntr::Kind;
use crate::cq::Cq;
use crate::export::Counted;
use crate::ip::any;
use crate::source::Source;
use crate::transport::{Transport, TransportEndpoint};

impl<T: Transport> EpCore<T> {
    /// Enables the endpoint, once.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::enable`].
    pub(super) fn enable(self: &Arc<Self>) -> Result<()> {
        let core = self;
        let mut guard = core.state.lock();
        let state = &mut *guard;
        if state.transport.is_some() {
            return Ok(());
        }
        state.check_shared(&core.info)?;
        if let Some(eq) = core.domain.events.queue() {
            let _of_its_own = state.ends.bind_queue(eq); // takes precedence over the domain's
        }
        let caps = core.info.caps;
        let (sends, receives) = directions(caps);
        let counts = |kinds: &[Kind]| kinds.iter().any(|&kind| state.ends.staging.counters.has(kind));
        let told = (
            state.ends.tx.bound || counts(&[Kind::Send, Kind::Read, Kind::Write]),
            state.ends.rx.bound || counts(&[Kind::Receive]),
        );
        let transfers = state.ends.contexts.is_none();
        if transfers && ((sends && !told.0) || (receives && !told.1)) {
            let missing = if sends && !told.0 { "FI_TRANSMIT" } else { "FI_RECV" };
            return Err(Error::wanted(
                Errno::ENOCQ,
                "fi_enable",
                "a completion queue or a counter for each direction that the endpoint's capabilities have",
                format!("none for {missing}"),
                "bind one, or ask getinfo for fewer capabilities",
            ));
        }
        if state.ends.connection.as_ref().is_some_and(|connection| connection.eq().is_none()) {
            return Err(Error::wanted(
                Errno::ENOEQ,
                "fi_enable",
                "an event queue, as FI_EP_MSG endpoints need",
                "none",
                "open one with fi_eq_open and bind it",
            ));
        }
        if state.ends.connection.is_none() && !state.ends.peers.is_bound() {
            return Err(Error::wanted(
                Errno::ENOAV,
                "fi_enable",
                "an address vector, as FI_EP_RDM endpoints need",
                "none",
                "open one with fi_av_open and bind it",
            ));
        }
        state.ends.tx.names = state.ends.peers.names_contexts();
        state.ends.tx.counted = state.ends.staging.counters.has(Kind::Send);
        state.ends.tx.decide();
        state.ends.rx.decide(state.ends.staging.counters.has(Kind::Receive));
        let key = state.ends.peers.av().map_or(Ok(None), |av| av.claim_key())?;
        let reserved = match state.reserved.take() {
            // A part without the key of the vector, which was not bound or had none: another one gets the name.
            Some((part, name)) if key.is_some() && state.key_in_use.is_none() => {
                drop(part);
                (state.name, state.named) = (Some(Self::rebound(state.name.as_ref(), name)?), true);
                None
            }
            reserved => reserved,
        };
        let mut transport = match reserved {
            Some((part, _)) => part,
            None => core.open_part(state.named, key.as_ref().map(|(key, _)| key))?,
        };
        state.key_in_use = key.map(|(_, in_use)| in_use);
        transport.permit_shared_memory(state.shared_memory);
        state.own_options.iter().for_each(|&(option, value)| transport.set_option(option, value));
        if state.ends.devices.is_some() {
            transport.set_option(EpOption::HmemP2p, state.hmem_p2p);
        }
        transport.set_option(EpOption::MaxMsgSize, state.ends.tx.limits.message);
        let address = |queue: &Option<Arc<Cq>>| queue.as_ref().map(|queue| Arc::as_ptr(queue).addr());
        transport.report_to(state.queues.each_ref().map(address)); // the state keeps them as long as the transport
        let name = transport.enable(state.name.as_ref())?;
        state.name = Some(name);
        let rx = &mut state.ends.rx;
        rx.claimed = transport.claims();
        state.ends.tx.matches &= !transport.claims(); // a device does not report that a receive matched a message
        let rx = &mut state.ends.rx;
        if let Some(part) = &rx.shared {
            part.context.hand_over(&mut transport)?;
        }
        rx.quick = rx.may_receive.map(|may| may && rx.op_flags.is_empty() && !rx.claimed && !rx.devices);
        let followed = state.ends.peers.av().filter(|_| transport.follows()).cloned();
        state.transport = Some(transport);
        state.ends.staging.read = [state.ends.tx.bound, state.ends.rx.bound];
        let counters = state.ends.staging.counters.each();
        let queues = state.queues.clone();
        let same = matches!(&queues, [Some(tx), Some(rx)] if Arc::ptr_eq(tx, rx));
        if same {
            state.ends.staging.join();
        }
        for (slot, queue) in queues.iter().enumerate() {
            if let Some(wake) = queue.as_ref().and_then(|queue| queue.wake()) {
                state.ends.staging.slot(slot).0.set_wake(wake);
            }
        }
        drop(guard);
        if let Some(av) = followed {
            let watcher: Weak<Self> = Arc::downgrade(core);
            av.watch(watcher);
            core.inserted(); // earlier insertions, and those since the transport was enabled
        }
        let source: Arc<dyn Source> = Arc::clone(core) as _;
        for (slot, queue) in queues.into_iter().enumerate().skip(usize::from(same)) {
            if let Some(queue) = queue {
                queue.add(Arc::clone(&source), slot)?;
            }
        }
        for counter in counters {
            counter.add_source(&source)?;
        }
        core.domain.registry.enter(&source)?;
        core.domain.progress.add(&source);
        core.watch_joins()?;
        core.watch_connection()?;
        core.attend();
        let name = core.state.lock().name.clone();
        tracing::info!(
            target: "ofi::core::ep_ctrl",
            prov = core.info.fabric_attr.prov_name,
            address = %Shown(name.as_ref()),
            "enabled an endpoint"
        );
        Ok(())
    }

    /// Opens the transport's part, with the key of an address vector.
    fn open_part(&self, named: bool, key: Option<&AuthKey>) -> Result<T::Endpoint> {
        let mut info = Cow::Borrowed(&self.info);
        if let Some(key) = key {
            info = Cow::Owned(auth::with_key(&info, key));
        }
        if named {
            info.to_mut().src_addr = None; // only fi_setname counts
        }
        T::open_endpoint(&self.domain.part, &info)
    }

    /// The name to bind instead of a part that was opened as `wanted` and then named `name`. A part that is bound to
    /// all addresses of the host is named by one of them.
    fn rebound(wanted: Option<&Address>, name: Address) -> Result<Address> {
        let ip = wanted.and_then(Address::to_socket_addr).map(|wanted| wanted.ip());
        match name.to_socket_addr() {
            Some(name) if ip.is_none_or(|ip| ip.is_unspecified()) => {
                T::normalize(&SocketAddr::new(any(name.is_ipv6()), name.port()).into())
            }
            _ => Ok(name),
        }
    }

    /// See [`ofi_api::Endpoint::name`].
    pub(super) fn name(&self) -> Result<Address> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(name) = state.ends.connection.as_ref().and_then(|connection| connection.name()) {
            return Ok(name.clone());
        }
        if let (Some(_), Some(name)) = (&state.transport, &state.name) {
            return Ok(name.clone());
        }
        if state.reserved.is_none() {
            let key = state.ends.peers.av().and_then(|av| av.claim_key().ok().flatten());
            let mut part = self.open_part(state.named, key.as_ref().map(|(key, _)| key))?;
            if let Some(name) = part.reserve(state.name.as_ref())? {
                (state.reserved, state.key_in_use) = (Some((part, name)), key.map(|(_, in_use)| in_use));
            }
        }
        match &state.reserved {
            Some((_, name)) => Ok(name.clone()),
            None => {
                Err(bad_state("fi_getname", "an enabled endpoint", "one before fi_enable", "enable it first"))
            }
        }
    }

    /// Logs that the endpoint closes, with its nonzero counters.
    pub(super) fn log_close(&self) {
        if !tracing::enabled!(target: "ofi::core::ep_ctrl", tracing::Level::INFO) {
            return;
        }
        let prov = self.info.fabric_attr.prov_name.as_str();
        let name = self.state.lock().name.clone();
        let address = Shown(name.as_ref());
        tracing::info!(target: "ofi::core::ep_ctrl", prov, %address, "closes an endpoint");
        if tracing::enabled!(target: "ofi::core::ep_ctrl", tracing::Level::DEBUG) {
            let counts = self.counts().into_iter().filter(|count| count.value > 0);
            let counts: Vec<String> = counts.map(|count| format!("{}={}", count.name, count.value)).collect();
            tracing::debug!(target: "ofi::core::ep_ctrl", prov, %address, "its counters: {}", counts.join(" "));
        }
    }
}

/// An address, or its absence, for the log.
struct Shown<'a>(Option<&'a Address>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl<T: Transport> Watcher for EpCore<T> {
    fn inserted(&self) {
        if let Some((transport, host)) = self.state.lock().split() {
            transport.inserted(host);
        }
    }
}

/// Whether capabilities need a transmit queue and a receive queue. Messages and remote access each have their own
/// directions; naming none means all of them. The target of an access needs neither queue.
fn directions(caps: Caps) -> (bool, bool) {
    let may = |what: Caps, all: Caps, direction: Caps| {
        caps.intersects(what) && (!caps.intersects(all) || caps.intersects(direction))
    };
    let messages = |direction| may(Caps::MSG | Caps::TAGGED, Caps::MSG_DIRECTIONS, direction);
    let accesses = may(Caps::RMA | Caps::ATOMIC, Caps::RMA_DIRECTIONS, Caps::READ | Caps::WRITE);
    let together = caps.contains(Caps::COLLECTIVE);
    (messages(Caps::SEND) || accesses || together, messages(Caps::RECV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_accesses_name_their_directions_apart() {
        for (caps, wanted) in [
            (Caps::MSG, (true, true)),
            (Caps::MSG | Caps::RECV, (false, true)),
            (Caps::TAGGED | Caps::SEND, (true, false)),
            (Caps::RMA, (true, false)),
            (Caps::RMA | Caps::WRITE, (true, false)),
            (Caps::RMA | Caps::REMOTE_WRITE, (false, false)),
            (Caps::ATOMIC | Caps::REMOTE_READ | Caps::REMOTE_WRITE, (false, false)),
            (Caps::MSG | Caps::RECV | Caps::RMA | Caps::REMOTE_WRITE, (false, true)),
            (Caps::MSG | Caps::RECV | Caps::RMA, (true, true)),
            (Caps::MSG | Caps::RMA | Caps::REMOTE_WRITE, (true, true)),
            (Caps::COLLECTIVE, (true, false)),
        ] {
            assert_eq!(directions(caps), wanted, "{caps}");
        }
    }
}
