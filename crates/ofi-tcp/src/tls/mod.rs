//! Encryption: TLS 1.3 from the first byte of a connection, by rustls over graviola, which is pure Rust.
//!
//! An endpoint with an authorization key speaks TLS with holders of that key ([`keys`]); one without it, where
//! `FI_TCP_TLS_CERT` names a certificate, with holders of certificates of the same authority ([`certificates`]). Such
//! an endpoint never speaks in the clear, and all others never speak TLS. TLS begins with the connection, and not after
//! C's connection messages: those hold the application's data, and nothing in the clear could be relied on.
//!
//! [`session`] is the protocol of one connection, [`established`] what remains of it after the handshake, and [`bulk`]
//! seals what an established one sends. Sessions are not resumed, and nothing is sent before the handshake has ended
//! (no 0-RTT).

mod bulk;
mod certificates;
mod established;
mod keys;
mod record;
mod session;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ofi_api::{Errno, Error, Info, Result};
use ofi_core::auth::{self, AuthKey};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, ServerConfig};

use crate::address::canonical;
use crate::{settings, sys};
use certificates::{Certificates, Named};
use keys::{Exactly, ROLES};

pub use session::Session;

/// The longest authorization key.
pub const MAX_KEY_LEN: usize = auth::MAX_SIZE;

/// Why this process cannot encrypt, if it cannot.
pub fn lacking() -> Option<&'static str> {
    (!graviola::util::is_cpu_supported())
        .then_some("the processor lacks instructions for encryption (AES, ADX, AVX)")
}

/// Checks the settings of certificates, and their files.
///
/// # Errors
/// `FI_EINVAL` if they cannot be used; `FI_EOPNOTSUPP` if this process cannot encrypt.
pub fn check_settings() -> Result<()> {
    match settings::tls_files()? {
        Some(_) => Certificates::load(&provider()?).map(|_| ()),
        None => Ok(()),
    }
}

/// graviola's, which panics on a processor that it does not support, with the only suite that ends of this library have
/// ever chosen.
fn provider() -> Result<Arc<CryptoProvider>> {
    if let Some(why) = lacking() {
        return Err(Error::with(Errno::EOPNOTSUPP, why));
    }
    let mut provider = rustls_graviola::default_provider();
    // As provider udp has it.
    provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_256_GCM_SHA384);
    Ok(Arc::new(provider))
}

#[derive(Debug)]
enum Identity {
    /// The pair of an end that accepts, and the public key of one that connects.
    Key(Arc<CertifiedKey>, Arc<Exactly>),
    Certificates(Certificates),
}

/// How an endpoint encrypts.
pub struct Security {
    provider: Arc<CryptoProvider>,
    identity: Identity,
    /// Of an end that connects.
    connecting: Arc<ClientConfig>,
    /// Whether addresses may change between the ends.
    translated: bool,
    /// Records that are being sealed.
    sealing: Vec<u8>,
}

impl Security {
    /// That of an endpoint, or a passive endpoint; `None` for one that does not encrypt.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if it shall, and this process cannot; `FI_EINVAL` for certificates that cannot be used.
    pub fn of(info: &Info) -> Result<Option<Box<Self>>> {
        let key = AuthKey::of(info);
        if !key.is_none() {
            let provider = provider()?;
            return Self::new(&provider, Self::by_key(&key, &provider)).map(Some);
        }
        if settings::tls_files()?.is_none() {
            return Ok(None);
        }
        let provider = provider()?;
        let Some(certificates) = Certificates::load(&provider)? else { return Ok(None) };
        Self::new(&provider, Self::by_certificates(certificates, &provider)).map(Some)
    }

    /// Of holders of a key, without an endpoint.
    ///
    /// # Errors
    /// As [`Security::of`].
    pub fn for_fuzzing(key: &[u8]) -> Result<Box<Self>> {
        let provider = provider()?;
        Self::new(&provider, Self::by_key(&AuthKey::new(key), &provider))
    }

    fn new(
        provider: &Arc<CryptoProvider>,
        identity: Result<(Identity, ClientConfig), rustls::Error>,
    ) -> Result<Box<Self>> {
        let failed = |error| Error::with(Errno::EIO, format!("TLS: {error}"));
        let (identity, mut connecting) = identity.map_err(failed)?;
        (connecting.resumption, connecting.enable_sni) = (Resumption::disabled(), false);
        connecting.enable_secret_extraction = true; // for `established`
        let (provider, connecting) = (Arc::clone(provider), Arc::new(connecting));
        let translated = settings::ADDRESS_TRANSLATION.get();
        Ok(Box::new(Self { provider, identity, connecting, translated, sealing: Vec::new() }))
    }

    fn by_certificates(
        certificates: Certificates,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(Identity, ClientConfig), rustls::Error> {
        let own = SingleCertAndKey::from(Arc::clone(&certificates.own));
        let config = Self::connecting(provider)?
            .with_webpki_verifier(Arc::clone(&certificates.of_accepting))
            .with_client_cert_resolver(Arc::new(own));
        Ok((Identity::Certificates(certificates), config))
    }

    fn connecting(
        provider: &Arc<CryptoProvider>,
    ) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
        ClientConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(&[&TLS13])
    }

    fn by_key(
        key: &AuthKey,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(Identity, ClientConfig), rustls::Error> {
        let [connects, accepts] = ROLES.map(|role| keys::derive(key, role, provider));
        let (connects, accepts) = (connects?, accepts?);
        let config = Self::connecting(provider)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Exactly::of(&accepts, provider)))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
                &connects,
            ))));
        Ok((Identity::Key(accepts, Arc::new(Exactly::of(&connects, provider))), config))
    }

    /// A session on a socket that this end has connected. Its first message is sent by [`Session::push`].
    ///
    /// # Errors
    /// The error number of a socket that is not connected any more, or `EIO`.
    pub fn connect(&self, socket: BorrowedFd<'_>) -> Result<Box<Session>, Errno> {
        let (own, peer) = ends(socket)?;
        let occasion = self.occasion(own.ip(), peer);
        let name = match &self.identity {
            Identity::Key(..) => ServerName::from(peer.ip()), // nobody looks
            Identity::Certificates(certificates) => certificates.name_at(peer.ip()),
        };
        Session::connecting(Arc::clone(&self.connecting), name, occasion)
    }

    /// A session on a socket that this end has accepted.
    ///
    /// # Errors
    /// As [`Security::connect`].
    pub fn accept(&self, socket: BorrowedFd<'_>) -> Result<Box<Session>, Errno> {
        let (own, peer) = ends(socket)?;
        let config = self.accepting(peer.ip()).map_err(|_| Errno::EIO)?;
        Session::accepting(config, self.occasion(peer.ip(), own))
    }

    /// Of an end that accepts a connection from `from`.
    fn accepting(&self, from: IpAddr) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::clone(&self.provider);
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
        let mut config = match &self.identity {
            Identity::Key(own, peer) => config
                .with_client_cert_verifier(Arc::clone(peer) as _)
                .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(own)))),
            Identity::Certificates(certificates) => {
                let chain = Arc::clone(&certificates.of_connecting);
                let verifier = Named { chain, name: certificates.name_at(from) };
                let own = SingleCertAndKey::from(Arc::clone(&certificates.own));
                config.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(Arc::new(own))
            }
        };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        (config.send_tls13_tickets, config.enable_secret_extraction) = (0, true);
        Ok(config)
    }

    /// What both ends must agree on, as the protocol that TLS negotiates (ALPN): who was called, and from where. So
    /// nobody leads a connection to another holder of the key than its caller means.
    fn occasion(&self, from: IpAddr, called: std::net::SocketAddr) -> Vec<u8> {
        match self.translated {
            true => b"ofi-tcp/1".to_vec(),
            false => format!("ofi-tcp/1 {}:{} {from}", called.ip(), called.port()).into_bytes(),
        }
    }
}

/// This end's address, and the peer's.
fn ends(socket: BorrowedFd<'_>) -> Result<(std::net::SocketAddr, std::net::SocketAddr), Errno> {
    let both = sys::name(socket).zip(sys::peer_name(socket)).ok_or(Errno::ECONNRESET)?;
    Ok((canonical(both.0), canonical(both.1)))
}

#[cfg(test)]
mod tests;
