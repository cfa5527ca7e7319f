//! Suites: the ways to protect packets. An end offers a set of suites, and accepts one.

/// No protection.
pub const CLEAR: u8 = 1;
/// AES-256-GCM.
pub const AES_256_GCM: u8 = 2;
/// ChaCha20-Poly1305.
pub const CHACHA20_POLY1305: u8 = 4;
/// The suites that encrypt and authenticate.
pub const ENCRYPTED: u8 = AES_256_GCM | CHACHA20_POLY1305;
/// All suites.
pub const ALL: u8 = CLEAR | ENCRYPTED;
