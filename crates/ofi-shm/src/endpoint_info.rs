//! The negotiated properties of an endpoint that concern this transport.

use ofi_api::{AddrFormat, Address, Caps, EpType, Info, MsgOrder};
use ofi_core::auth::AuthKey;
use ofi_core::config::HMEM_DISABLE_P2P;

/// The part of an endpoint's info that its peers need.
#[derive(Clone)]
pub struct EndpointInfo {
    pub format: AddrFormat,
    pub caps: Caps,
    pub strict: bool,
    pub connected: bool,
    pub auth: AuthKey,
    /// Whether it maps device memory of peers, and lets them map its own.
    pub maps_devices: bool,
    /// The name in the info. The endpoint gets it unless another endpoint has it.
    pub proposed: Option<Address>,
}

impl EndpointInfo {
    /// The part of `info` that counts.
    pub fn of(info: &Info) -> Self {
        Self {
            format: info.addr_format,
            caps: info.caps,
            strict: info.tx_attr.msg_order.intersects(MsgOrder::WAS | MsgOrder::RAS),
            connected: is_connected(info),
            auth: AuthKey::of(info),
            maps_devices: may_map_devices(info.caps, true),
            proposed: info.src_addr.clone(),
        }
    }
}

/// Whether an endpoint maps device memory of peers, if that is `permitted` to it.
pub fn may_map_devices(caps: Caps, permitted: bool) -> bool {
    permitted && caps.contains(Caps::HMEM) && !HMEM_DISABLE_P2P.get()
}

/// Whether an info's endpoints are connected.
pub fn is_connected(info: &Info) -> bool {
    info.ep_attr.ep_type == EpType::Msg
}
