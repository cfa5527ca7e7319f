//! Opens the objects of an info, and a peer.

use std::sync::atomic::{AtomicUsize, Ordering};

use ofi_testkit::connect::{Listener, connect};
use ofi_testkit::prelude::*;

use super::choices::Case;
use super::ends::{End, JOB, Two};
use super::{Under, hubs, moves, rare};

/// Number of opened infos.
pub static OPENED: AtomicUsize = AtomicUsize::new(0);

/// All registration modes (`mr_mode`) that a program may support.
pub fn easy_registration() -> MrMode {
    MrMode::all().difference(MrMode::DEPRECATED)
}

/// Requests the case, and opens each granted kind of endpoint.
pub fn all(under: &Under, case: &Case) {
    let hints = case.hints(under);
    let ends = &under.ends[case.ends % under.ends.len()];
    let (node, service) = (ends.node.as_deref(), ends.service.as_deref());
    let infos = match ofi::getinfo(case.version(), node, service, ends.flags, hints.as_ref()) {
        Ok(infos) => infos,
        Err(error) => {
            assert_eq!(error.errno(), Errno::ENODATA, "{error}");
            assert!(!error.refusals().is_empty(), "{error}");
            return;
        }
    };
    let mut seen = Vec::new();
    for info in infos.into_iter().filter(|info| info.fabric_attr.prov_name == under.provider) {
        let direct = info.fabric_attr.name.ends_with("-direct");
        let kind = (info.ep_attr.ep_type, info.ep_attr.protocol, direct);
        if seen.contains(&kind) {
            continue; // the same of another interface
        }
        seen.push(kind);
        OPENED.fetch_add(1, Ordering::Relaxed);
        Granted { info, near: case.near }.works();
    }
}

/// An info, and whether its endpoints may also use shared memory.
pub struct Granted {
    pub info: Info,
    near: bool,
}

impl Granted {
    fn works(&self) {
        let two = match self.info.ep_attr.ep_type {
            EpType::Msg => self.connected(),
            _ => Two::of(self.open(), End::of(self.peer().open())),
        };
        moves::all(&two);
        rare::all(&two);
        drop(two);
        if self.info.ep_attr.ep_type != EpType::Msg {
            hubs::scalable(self);
            rare::together(self);
            rare::by_vectors(self);
        }
    }

    fn by_itself(&self, opening: Opening) -> Opening {
        let either = self.info.ep_attr.ep_type == EpType::Rdm && self.info.fabric_attr.prov_name != "shm";
        if either && !self.near { opening.without_shared_memory() } else { opening }
    }

    /// Options that open an endpoint for this very info, with a counter of its own.
    pub fn opening(&self) -> Opening {
        let opening = self.by_itself(Opening::new(Hints::new()).info(self.info.clone()));
        // A program that declares that it needs no counter has none.
        opening.counter(CntrAttr::default(), BindFlags::SEND)
    }

    /// The options of another endpoint of the info, at an address of its own.
    pub fn another(&self) -> Opening {
        let mut info = self.info.clone();
        info.src_addr = None;
        self.by_itself(Opening::new(Hints::new()).info(info))
    }

    /// An endpoint of the info that is not enabled, with the contexts that it shares.
    fn open_disabled(&self) -> End {
        let attr = &self.info.ep_attr;
        let shares = [attr.tx_ctx_cnt, attr.rx_ctx_cnt].map(|count| count == SHARED_CONTEXT);
        if shares == [false, false] {
            return End::of(self.opening().open_disabled().expect("an endpoint of the info"));
        }
        let mut info = self.info.clone();
        (info.src_addr, info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt) = (None, 1, 1);
        let host = Opening::new(Hints::new()).info(info).open_disabled().expect("a domain of the info");
        let mut opening = self.opening().beside(&host);
        if shares[0] {
            let context = host.domain.open_shared_transmit(&self.info.tx_attr).expect("FI_SHARED_CONTEXT");
            opening = opening.shared_transmit(&context);
        }
        let mut receives = None;
        if shares[1] {
            let context = host.domain.open_shared_receive(&self.info.rx_attr).expect("FI_SHARED_CONTEXT");
            opening = opening.shared_receive(&context);
            receives = Some(host.context(context));
        }
        let side = opening.open_disabled().expect("an endpoint of the info");
        End { receives, ..End::of(side) }
    }

    fn open(&self) -> End {
        let mut end = self.open_disabled();
        if self.has_keys_in_vector() {
            end.number_of_key = Some(end.av.insert_auth_key(JOB).expect("FI_AV_AUTH_KEY"));
        }
        end.ep.enable().expect("enabling an endpoint of the info");
        end
    }

    /// Whether the keys are those of the address vector.
    fn has_keys_in_vector(&self) -> bool {
        self.info.domain_attr.auth_key_size == AV_AUTH_KEY
    }

    /// A peer with all capabilities of the provider for endpoints of this kind.
    pub fn peer(&self) -> Opening {
        let (info, attr) = (&self.info, &self.info.ep_attr);
        let prefixed = info.mode.contains(Mode::MSG_PREFIX);
        let mode = if prefixed { Mode::all() } else { Mode::all() - Mode::MSG_PREFIX };
        let hints = || {
            let hints = Hints::new().provider(&info.fabric_attr.prov_name).ep_type(attr.ep_type).mode(mode);
            let mut hints = hints.protocol(attr.protocol).addr_format(info.addr_format);
            hints.info.fabric_attr.name.clone_from(&info.fabric_attr.name);
            hints.info.domain_attr.name.clone_from(&info.domain_attr.name);
            // Before API 1.5 a mode said that local memory is registered.
            let registers =
                info.domain_attr.mr_mode.contains(MrMode::LOCAL) || info.mode.contains(Mode::LOCAL_MR);
            let local = if registers { MrMode::empty() } else { MrMode::LOCAL };
            hints.info.domain_attr.mr_mode = easy_registration() - local;
            let key = End::key_of(info);
            (hints.info.ep_attr.auth_key_size, hints.info.ep_attr.auth_key) = (key.len(), key);
            hints
        };
        let all = Opening::new(hints()).first_info().expect("a peer").caps;
        // Datagrams have several offers of one protocol. The peer uses the one with this endpoint's capabilities in
        // both directions.
        let all = all | info.caps | Caps::MSG_DIRECTIONS;
        let all = if all.intersects(Caps::RMA | Caps::ATOMIC) { all | Caps::RMA_DIRECTIONS } else { all };
        let dear = Caps::RMA_EVENT | Caps::TRIGGER | Caps::SOURCE_ERR | Caps::COLLECTIVE | Caps::MULTICAST;
        self.by_itself(Opening::new(hints().caps(all - dear)))
    }

    /// A connected pair: the first end is the caller.
    fn connected(&self) -> Two {
        drop(Listener::open(&self.info).expect("a passive endpoint of the info"));
        let a = self.open_disabled();
        let b = End::of(connect(&a.side, self.peer()).expect("a connection"));
        Two { a, b, to_b: FiAddr::UNSPEC, to_a: FiAddr::UNSPEC }
    }
}
