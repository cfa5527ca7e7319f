//! Authorization keys: only endpoints with the same key talk to each other (fi_endpoint(3), "auth_key"), and a
//! registration with a key is closed to all other endpoints of its domain (fi_mr(3), "auth_key").
//!
//! What a transport does:
//! - It declares the longest key: [`Transport::AUTH_KEY_SIZE`], and the same number in `auth_key_size` of its offer's
//!   endpoint and domain attributes. The core refuses keys if this is 0, and longer ones, whatever an application put
//!   into its info.
//! - An endpoint's key is in `info.ep_attr.auth_key` of the info that [`Transport::open_endpoint`] and
//!   [`Transport::open_port`] get. It is the endpoint's own; else its domain's; else, in a domain opened with
//!   `FI_AV_AUTH_KEY`, its address vector's. An empty key means no key, and matches only itself.
//! - It admits no peer with a different key, fails operations posted to such a peer with `FI_EKEYREJECTED`, and counts
//!   this. [`AuthKey::proof`] proves possession of the key without revealing it, for transports that have no better
//!   way.
//! - It checks remote accesses with [`crate::keys::RegionTable::check_as`].

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use ofi_api::{AV_AUTH_KEY, DomainAttr, Errno, Error, Info, Result};
use sha2::Sha256;

#[cfg(doc)]
use crate::transport::Transport;

/// The longest key that transports of this project check, in bytes.
pub const MAX_SIZE: usize = 64;

/// A key; empty for none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AuthKey(Option<Arc<[u8]>>);

/// Proves that its sender has the key. All zeros without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof(pub [u64; 2]);

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "no key" } else { "a key" }) // which is a secret
    }
}

impl AuthKey {
    /// No key.
    pub const NONE: Self = Self(None);

    /// This key; none if it is empty.
    pub fn new(bytes: &[u8]) -> Self {
        Self((!bytes.is_empty()).then(|| bytes.into()))
    }

    /// The key of an endpoint or a passive endpoint, in the form that transports get.
    pub fn of(info: &Info) -> Self {
        Self::new(&info.ep_attr.auth_key)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Its bytes; none if there is no key.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether an endpoint with this key may access a registration with the key `region`.
    #[inline]
    pub fn opens(&self, region: &Self) -> bool {
        region.is_none() || self == region
    }

    /// The proof of possession of the key, over `parts` in this order: HMAC-SHA-256, truncated to 128 bits. Anybody who
    /// sees it can replay it, so `parts` must identify the sender, the receiver and the occasion.
    pub fn proof(&self, parts: &[&[u8]]) -> Proof {
        let Some(key) = &self.0 else { return Proof::default() };
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Proof::default() }; // any length is fine
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        let hash = mac.finalize().into_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| hash[at + index]));
        Proof([word(0), word(8)])
    }

    /// Whether `proof` is the one over `parts`, in constant time.
    pub fn accepts(&self, parts: &[&[u8]], proof: Proof) -> bool {
        let own = self.proof(parts);
        (own.0[0] ^ proof.0[0]) | (own.0[1] ^ proof.0[1]) == 0
    }
}

/// Checks a domain's key for a transport with keys of up to `longest` bytes.
///
/// # Errors
/// `FI_EINVAL` for one that the transport cannot check.
pub(crate) fn check_domain(info: &Info, longest: usize) -> Result<()> {
    let attr = &info.domain_attr;
    if attr.auth_key_size == AV_AUTH_KEY && longest > 0 && attr.auth_key.is_empty() {
        return Ok(());
    }
    check("domain_attr.auth_key", attr.auth_key_size, &attr.auth_key, longest)
}

/// The info of an endpoint of a domain, or of a passive endpoint, with its effective key filled in.
///
/// # Errors
/// `FI_EINVAL` for a key that the transport cannot check, because it is longer than `longest` bytes, and for a key in a
/// domain whose keys are in its address vectors.
pub(crate) fn resolve(info: &Info, domain: &DomainAttr, longest: usize) -> Result<Info> {
    let mut info = info.clone();
    if info.ep_attr.auth_key_size == 0 {
        info.ep_attr.auth_key.clear();
    }
    check("ep_attr.auth_key", info.ep_attr.auth_key_size, &info.ep_attr.auth_key, longest)?;
    let in_vector = domain.auth_key_size == AV_AUTH_KEY;
    if in_vector && !info.ep_attr.auth_key.is_empty() {
        return Err(Error::wanted(
            Errno::EINVAL,
            "ep_attr.auth_key",
            "no key in a domain that was opened with FI_AV_AUTH_KEY",
            "a key",
            "insert the key into the endpoint's address vector",
        ));
    }
    if !in_vector && info.ep_attr.auth_key.is_empty() {
        info.ep_attr.auth_key.clone_from(&domain.auth_key);
    }
    info.ep_attr.auth_key_size = info.ep_attr.auth_key.len();
    Ok(info)
}

/// The info of an endpoint whose key is in its address vector.
pub(crate) fn with_key(info: &Info, key: &AuthKey) -> Info {
    let mut info = info.clone();
    (info.ep_attr.auth_key, info.ep_attr.auth_key_size) = (key.bytes().to_vec(), key.bytes().len());
    info
}

/// Checks a key of an application. A size without a key is not a key but a request for keys of that size.
pub(crate) fn check(field: &str, size: usize, key: &[u8], longest: usize) -> Result<()> {
    if key.is_empty() || (key.len() == size && size <= longest) {
        return Ok(());
    }
    let wanted = match longest {
        0 => "no key: this provider checks none".to_string(),
        _ => format!("a key of 1 to {longest} bytes, and its length in {field}_size"),
    };
    let found = format!("{} bytes, and a size of {size}", key.len());
    Err(Error::wanted(Errno::EINVAL, field, wanted, found, "use the value that getinfo returned"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_key_and_one_occasion() {
        let (ours, other) = (AuthKey::new(b"job 7"), AuthKey::new(b"job 8"));
        let proof = ours.proof(&[b"from", b"to"]);
        assert!(ours.accepts(&[b"from", b"to"], proof));
        assert!(!other.accepts(&[b"from", b"to"], proof));
        assert!(!AuthKey::NONE.accepts(&[b"from", b"to"], proof));
        assert!(!ours.accepts(&[b"fromt", b"o"], proof), "parts are not run together");
        assert!(!ours.accepts(&[b"from", b"to"], Proof::default()));
        for bit in 0..128 {
            let mut wrong = proof;
            wrong.0[bit / 64] ^= 1 << (bit % 64);
            assert!(!ours.accepts(&[b"from", b"to"], wrong), "bit {bit}");
        }
    }

    #[test]
    fn a_proof_is_what_others_calculate() {
        // RFC 4231, test case 2, over one part without its length.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(mac.finalize().into_bytes()[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }

    #[test]
    fn no_key_fits_no_key() {
        assert!(AuthKey::NONE.accepts(&[b"anything"], Proof::default()));
        assert_eq!(AuthKey::new(b""), AuthKey::NONE);
        assert_eq!(format!("{:?}", AuthKey::new(b"secret")), "a key");
    }

    #[test]
    fn a_registration_without_a_key_is_everybody_s() {
        let (ours, other) = (AuthKey::new(b"a"), AuthKey::new(b"b"));
        assert!(ours.opens(&ours) && ours.opens(&AuthKey::NONE) && AuthKey::NONE.opens(&AuthKey::NONE));
        assert!(!other.opens(&ours) && !AuthKey::NONE.opens(&ours));
    }
}
