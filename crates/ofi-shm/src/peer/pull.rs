//! Payloads that are being pulled.

use crate::token::Token;

/// A payload that is being pulled.
pub struct Pull {
    pub token: Token,
    pub got: usize,
    pub len: usize,
    /// Its duration is measured, and others wait for it (`single/`).
    pub measured: bool,
}
