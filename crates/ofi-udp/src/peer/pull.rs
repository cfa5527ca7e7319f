//! Payloads that are being pulled.

use crate::op::Token;

/// A payload that is being pulled.
pub struct Pull {
    pub token: Token,
    pub got: usize,
    pub len: usize,
}
