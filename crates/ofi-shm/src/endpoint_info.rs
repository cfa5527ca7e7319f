//! The negotiated properties of an endpoint that concern this transport.

use ofi_api::{AddrFormat, Address, Caps, EpType, Info, MsgOrder};
use ofi_core::auth::AuthKey;

/// The part of an endpoint's info that its peers need.
#[derive(Clone)]
pub struct EndpointInfo {
    pub format: AddrFormat,
    pub caps: Caps,
    pub strict: bool,
    pub connected: bool,
    pub auth: AuthKey,
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
            proposed: info.src_addr.clone(),
        }
    }
}

/// Whether an info's endpoints are connected.
pub fn is_connected(info: &Info) -> bool {
    info.ep_attr.ep_type == EpType::Msg
}
