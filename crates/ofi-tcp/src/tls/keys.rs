//! What an authorization key makes of TLS: a key pair for each end, which both ends derive from it (HKDF-SHA-256), and
//! which stand in place of certificates (raw public keys, RFC 7250). Each end accepts exactly the other's public key.
//!
//! The end that connects and the one that accepts have different pairs: an end's own messages, sent back to it, prove
//! nothing.

use std::sync::Arc;

use hkdf::Hkdf;
use ofi_core::auth::AuthKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
};
use sha2::Sha256;

const SALT: &[u8] = b"ofi-tcp TLS 1.3 authorization key";
/// The end that connects, and the one that accepts.
pub const ROLES: [&str; 2] = ["connecting end, Ed25519", "accepting end, Ed25519"];
/// What precedes the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410, section 7).
const PKCS8: [u8; 16] = [0x30, 0x2E, 2, 1, 0, 0x30, 5, 6, 3, 0x2B, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The pair of a role.
///
/// # Errors
/// None that is known: the provider knows Ed25519.
pub fn derive(key: &AuthKey, role: &str, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
    let mut der = [0; PKCS8.len() + 32];
    let (head, secret) = der.split_at_mut(PKCS8.len());
    head.copy_from_slice(&PKCS8);
    let derived = Hkdf::<Sha256>::new(Some(SALT), key.bytes()).expand(role.as_bytes(), secret);
    derived.map_err(|_| Error::General("HKDF gives no 32 bytes".into()))?;
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.to_vec()));
    let pair = provider.key_provider.load_private_key(der)?;
    let public = pair.public_key().ok_or_else(|| Error::General("a pair without a public key".into()))?;
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], pair)))
}

/// Accepts one public key.
#[derive(Debug)]
pub struct Exactly {
    key: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Exactly {
    /// The one of this pair.
    pub fn of(pair: &CertifiedKey, provider: &CryptoProvider) -> Self {
        let key = pair.cert.first().map_or(Vec::new(), |key| key.to_vec());
        Self { key, algorithms: provider.signature_verification_algorithms }
    }

    /// In a time that does not depend on the bytes.
    fn check(&self, key: &[u8], chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let differs = key.iter().zip(&self.key).fold(0, |differs, (a, b)| differs | (a ^ b));
        if key.len() == self.key.len() && differs == 0 && chain.is_empty() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

const ONLY_1_3: Error = Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end, chain).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(ONLY_1_3)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Exactly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end, chain).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(ONLY_1_3)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
