//! Ways to protect packets. An end offers a set of them, and takes one.

/// Not at all.
pub const CLEAR: u8 = 1;
/// AES-256-GCM.
pub const AES_256_GCM: u8 = 2;
/// ChaCha20-Poly1305.
pub const CHACHA20_POLY1305: u8 = 4;
/// Those that encrypt and authenticate.
pub const ENCRYPTED: u8 = AES_256_GCM | CHACHA20_POLY1305;
/// All.
pub const ALL: u8 = CLEAR | ENCRYPTED;
