//! Hints: what an application requires of getinfo's results.

use crate::{
    AddrFormat, Address, AvType, Caps, EpType, Handle, Info, Mode, MrMode, MsgOrder, OpFlags, Progress,
    Protocol, ResourceMgmt, Threading, TrafficClass,
};

/// An [`Info`] in which a field with its default value means "any". There are three exceptions, as in C: an empty
/// `mode` means that the application supports no mode, an empty `mr_mode` means scalable registration, and a primary
/// capability is granted only if `caps` names it.
///
/// ```
/// use ofi_api::{Caps, EpType, Hints, MrMode};
/// let hints = Hints::new()
///     .caps(Caps::MSG | Caps::TAGGED)
///     .ep_type(EpType::Rdm)
///     .provider("shm")
///     .mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY);
/// assert_eq!(hints.info.fabric_attr.prov_name, "shm");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Hints {
    /// The fields. Set those that have no method below directly.
    pub info: Info,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($field:ident).+: $type:ty);)+) => {
        impl Hints {
            $($(#[$doc])*
            pub fn $name(mut self, value: $type) -> Self {
                self.info.$($field).+ = value;
                self
            })+
        }
    };
}

setters! {
    /// Capabilities that the endpoint must have. See [`Info::caps`].
    caps(caps: Caps);
    /// Provider requirements that the application can fulfil. See [`Info::mode`].
    mode(mode: Mode);
    /// The address format.
    addr_format(addr_format: AddrFormat);
    /// The endpoint type.
    ep_type(ep_attr.ep_type: EpType);
    /// The required protocol.
    protocol(ep_attr.protocol: Protocol);
    /// The maximum length of a message, in bytes.
    max_msg_size(ep_attr.max_msg_size: usize);
    /// How the application lays out its tags.
    mem_tag_format(ep_attr.mem_tag_format: u64);
    /// The number of the endpoint's transmit contexts.
    tx_ctx_cnt(ep_attr.tx_ctx_cnt: usize);
    /// The number of the endpoint's receive contexts.
    rx_ctx_cnt(ep_attr.rx_ctx_cnt: usize);
    /// Default flags of transmit calls.
    tx_op_flags(tx_attr.op_flags: OpFlags);
    /// Default flags of receive calls.
    rx_op_flags(rx_attr.op_flags: OpFlags);
    /// The maximum length of an injected message, in bytes.
    inject_size(tx_attr.inject_size: usize);
    /// The maximum number of outstanding operations.
    tx_size(tx_attr.size: usize);
    /// The maximum number of posted receives.
    rx_size(rx_attr.size: usize);
    /// The maximum number of pieces of a local buffer to send, read into or write from.
    tx_iov_limit(tx_attr.iov_limit: usize);
    /// The maximum number of pieces of a receive buffer.
    rx_iov_limit(rx_attr.iov_limit: usize);
    /// The maximum number of pieces of a remote buffer.
    rma_iov_limit(tx_attr.rma_iov_limit: usize);
    /// The traffic class.
    tclass(tx_attr.tclass: TrafficClass);
    /// The calls that the application serialises.
    threading(domain_attr.threading: Threading);
    /// Manual or automatic progress.
    progress(domain_attr.progress: Progress);
    /// Whether the provider must keep queues from overrunning.
    resource_mgmt(domain_attr.resource_mgmt: ResourceMgmt);
    /// The type of address vectors.
    av_type(domain_attr.av_type: AvType);
    /// Registration requirements that the application can fulfil.
    mr_mode(domain_attr.mr_mode: MrMode);
    /// The length of a remote key, in bytes.
    mr_key_size(domain_attr.mr_key_size: usize);
    /// The length of remote completion data, in bytes.
    cq_data_size(domain_attr.cq_data_size: usize);
    /// Capabilities of the domain.
    domain_caps(domain_attr.caps: Caps);
}

impl Hints {
    /// No requirements, apart from the exceptions above.
    pub fn new() -> Self {
        Self::default()
    }

    /// The provider: a name, several layers separated by `;`, or `^name` to exclude one.
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.info.fabric_attr.prov_name = name.into();
        self
    }

    /// The fabric's name.
    pub fn fabric(mut self, name: impl Into<String>) -> Self {
        self.info.fabric_attr.name = name.into();
        self
    }

    /// The domain's name.
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.info.domain_attr.name = name.into();
        self
    }

    /// The local address. Also sets the address format.
    pub fn src_addr(mut self, address: Address) -> Self {
        self.info.addr_format = address.format();
        self.info.src_addr = Some(address);
        self
    }

    /// The peer's address. Also sets the address format.
    pub fn dest_addr(mut self, address: Address) -> Self {
        self.info.addr_format = address.format();
        self.info.dest_addr = Some(address);
        self
    }

    /// The object that the endpoint takes over.
    pub fn handle(mut self, handle: Handle) -> Self {
        self.info.handle = Some(handle);
        self
    }

    /// The message order, for both the transmit and the receive side.
    pub fn msg_order(mut self, order: MsgOrder) -> Self {
        self.info.tx_attr.msg_order = order;
        self.info.rx_attr.msg_order = order;
        self
    }

    /// The authorization key of the domain.
    pub fn auth_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.info.domain_attr.auth_key = key.into();
        self.info.domain_attr.auth_key_size = self.info.domain_attr.auth_key.len();
        self
    }
}

impl From<Info> for Hints {
    /// Hints that ask for the properties of `info`, to find similar offers.
    fn from(info: Info) -> Self {
        Hints { info }
    }
}
