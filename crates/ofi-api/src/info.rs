//! The result of getinfo: one way to communicate, with every attribute (fi_getinfo(3), fi_endpoint(3),
//! fi_domain(3), fi_fabric(3)).
//!
//! Fields have C's names and meanings; zero, `Unspec`, an empty string and `None` stand for C's zero and NULL. Sizes
//! are in bytes and counts in units, unless stated otherwise. C's `fi_ep_attr.xpu_ctx` (newer than 2.6) has no
//! counterpart.

use crate::{
    AddrFormat, Address, AvType, Caps, EpType, Handle, Mode, MrMode, MsgOrder, Nic, OpFlags, Progress,
    Protocol, ResourceMgmt, Threading, TrafficClass, Version,
};

/// `FI_SHARED_CONTEXT`: a context count that means "shared with other endpoints".
pub const SHARED_CONTEXT: usize = usize::MAX;
/// `FI_AV_AUTH_KEY`: a key size that means "the keys are in the address vector".
pub const AV_AUTH_KEY: usize = usize::MAX;
/// `FI_KEY_NOTAVAIL`: the key of a registration that has no key yet.
pub const KEY_NOTAVAIL: u64 = u64::MAX;
/// `FI_TAG_BITS`, a value of [`EpAttr::mem_tag_format`]: tag bits have no structure.
pub const TAG_BITS: u64 = 0;
/// `FI_TAG_MPI`, a value of [`EpAttr::mem_tag_format`]: MPI tags.
pub const TAG_MPI: u64 = 1;
/// `FI_TAG_CCL`, a value of [`EpAttr::mem_tag_format`]: tags of collective communication libraries.
pub const TAG_CCL: u64 = 2;
/// `FI_TAG_MAX_FORMAT`: larger values of [`EpAttr::mem_tag_format`] are bit patterns, not names.
pub const TAG_MAX_FORMAT: u64 = 1 << 16;

/// One way to communicate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info {
    /// Capabilities of the endpoint.
    pub caps: Caps,
    /// What the provider requires of the application.
    pub mode: Mode,
    /// How addresses are laid out.
    pub addr_format: AddrFormat,
    /// The local address.
    pub src_addr: Option<Address>,
    /// The address that the requested node and service resolve to.
    pub dest_addr: Option<Address>,
    /// The object that an endpoint made from this info takes over: a connection request or a passive endpoint.
    pub handle: Option<Handle>,
    /// The transmit side.
    pub tx_attr: TxAttr,
    /// The receive side.
    pub rx_attr: RxAttr,
    /// The endpoint.
    pub ep_attr: EpAttr,
    /// The domain.
    pub domain_attr: DomainAttr,
    /// The fabric and the provider.
    pub fabric_attr: FabricAttr,
    /// The device, if there is one.
    pub nic: Option<Nic>,
}

/// The transmit side of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxAttr {
    /// The part of [`Info::caps`] that concerns transmitting.
    pub caps: Caps,
    /// The part of [`Info::mode`] that concerns transmitting.
    pub mode: Mode,
    /// Default flags, for calls without a flags argument.
    pub op_flags: OpFlags,
    /// The order kept among operations to one peer.
    pub msg_order: MsgOrder,
    /// Deprecated; must be zero from API 2.0.
    pub comp_order: u64,
    /// The maximum length of an injected message, in bytes.
    pub inject_size: usize,
    /// The maximum number of outstanding operations.
    pub size: usize,
    /// The maximum number of pieces of a local buffer.
    pub iov_limit: usize,
    /// The maximum number of pieces of a remote buffer.
    pub rma_iov_limit: usize,
    /// The traffic class.
    pub tclass: TrafficClass,
}

/// The receive side of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxAttr {
    /// The part of [`Info::caps`] that concerns receiving.
    pub caps: Caps,
    /// The part of [`Info::mode`] that concerns receiving.
    pub mode: Mode,
    /// Default flags, for calls without a flags argument.
    pub op_flags: OpFlags,
    /// The order kept among operations from one peer.
    pub msg_order: MsgOrder,
    /// Deprecated; must be zero from API 2.0.
    pub comp_order: u64,
    /// Deprecated; must be zero from API 2.0.
    pub total_buffered_recv: usize,
    /// The maximum number of posted receives.
    pub size: usize,
    /// The maximum number of pieces of a receive buffer.
    pub iov_limit: usize,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpAttr {
    /// The endpoint type. C: `type`.
    pub ep_type: EpType,
    /// The protocol between endpoints.
    pub protocol: Protocol,
    /// The version of the protocol; each version understands all lower ones.
    pub protocol_version: u32,
    /// The maximum length of a message, in bytes.
    pub max_msg_size: usize,
    /// With [`Mode::MSG_PREFIX`], the bytes to leave for the provider in front of each message; a multiple of 8.
    pub msg_prefix_size: usize,
    /// The longest transfer, in bytes, for which a read stays behind an earlier write: 0 for none, `usize::MAX` for
    /// all.
    pub max_order_raw_size: usize,
    /// The longest transfer, in bytes, for which a write stays behind an earlier read: 0 for none, `usize::MAX` for
    /// all.
    pub max_order_war_size: usize,
    /// The longest transfer, in bytes, for which a write stays behind an earlier write: 0 for none, `usize::MAX` for
    /// all.
    pub max_order_waw_size: usize,
    /// The structure of tags: [`TAG_BITS`] (0), [`TAG_MPI`], [`TAG_CCL`], or alternating runs of ones and zeroes that
    /// mark the fields of a tag.
    pub mem_tag_format: u64,
    /// The number of transmit contexts, or [`SHARED_CONTEXT`].
    pub tx_ctx_cnt: usize,
    /// The number of receive contexts, or [`SHARED_CONTEXT`].
    pub rx_ctx_cnt: usize,
    /// The length of the key, in bytes: the maximum in an offer, otherwise the length of `auth_key`.
    pub auth_key_size: usize,
    /// The authorization key; empty for none.
    pub auth_key: Vec<u8>,
}

/// A domain: the resources of one device that endpoints share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainAttr {
    /// The domain itself, if it is already open.
    pub domain: Option<Handle>,
    /// Its name.
    pub name: String,
    /// The calls that the application serialises.
    pub threading: Threading,
    /// Deprecated; the same as `progress` from API 2.0 on.
    pub control_progress: Progress,
    /// Manual or automatic progress. C's deprecated `data_progress` is the same field.
    pub progress: Progress,
    /// Whether the provider keeps queues and contexts from overrunning.
    pub resource_mgmt: ResourceMgmt,
    /// The type of address vectors.
    pub av_type: AvType,
    /// What registering memory requires of the application.
    pub mr_mode: MrMode,
    /// The length of a remote key, in bytes.
    pub mr_key_size: usize,
    /// The length of remote CQ data, in bytes.
    pub cq_data_size: usize,
    /// The optimal number of completion queues.
    pub cq_cnt: usize,
    /// The maximum number of endpoints.
    pub ep_cnt: usize,
    /// The maximum number of transmit contexts.
    pub tx_ctx_cnt: usize,
    /// The maximum number of receive contexts.
    pub rx_ctx_cnt: usize,
    /// The maximum number of transmit contexts of an endpoint.
    pub max_ep_tx_ctx: usize,
    /// The maximum number of receive contexts of an endpoint.
    pub max_ep_rx_ctx: usize,
    /// The maximum number of endpoints that share a transmit context.
    pub max_ep_stx_ctx: usize,
    /// The maximum number of endpoints that share a receive context.
    pub max_ep_srx_ctx: usize,
    /// The maximum number of counters.
    pub cntr_cnt: usize,
    /// The maximum number of pieces of a registration.
    pub mr_iov_limit: usize,
    /// Capabilities of the domain, such as [`Caps::LOCAL_COMM`].
    pub caps: Caps,
    /// Modes of the domain.
    pub mode: Mode,
    /// The default authorization key; empty for none.
    pub auth_key: Vec<u8>,
    /// The length of the key, as in [`EpAttr::auth_key_size`]; or [`AV_AUTH_KEY`].
    pub auth_key_size: usize,
    /// The maximum length of error data, in bytes.
    pub max_err_data: usize,
    /// The maximum number of registrations.
    pub mr_cnt: usize,
    /// The default traffic class.
    pub tclass: TrafficClass,
    /// The maximum number of authorization keys of an endpoint. API 1.20.
    pub max_ep_auth_key: usize,
    /// The highest identifier of a peer group. API 2.0.
    pub max_group_id: u32,
    /// The highest value of a counter; 0 is `u64::MAX`. API 2.5.
    pub max_cntr_value: u64,
    /// The highest value of a counter's error count; 0 is `u64::MAX`. API 2.5.
    pub max_err_cntr_value: u64,
    /// The maximum number of device contexts. Newer than 2.6; see fi_xpu(3).
    pub max_xpu_ctx_cnt: usize,
}

/// A fabric, and the provider that reaches it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricAttr {
    /// The fabric itself, if it is already open.
    pub fabric: Option<Handle>,
    /// Its name.
    pub name: String,
    /// The provider, such as `shm`; layers are separated by `;`, the lowest first.
    pub prov_name: String,
    /// The provider's version.
    pub prov_version: Version,
    /// The API version that the application requested.
    pub api_version: Version,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_info_is_c_s_zeroed_memory() {
        let info = Info::default();
        assert_eq!(info.ep_attr.ep_type, EpType::Unspec);
        assert_eq!(info.domain_attr.mr_mode, MrMode::empty());
        assert!(info.caps.is_empty() && info.src_addr.is_none() && info.fabric_attr.name.is_empty());
    }
}
