//! Certificates from files: both ends show one that the authority of `FI_TCP_TLS_CA` has signed, and that names them by
//! the address that the other end sees, or by `FI_TCP_TLS_NAME`.

use std::net::IpAddr;
use std::sync::Arc;

use ofi_api::{Errno, Error, Result};
use ofi_core::config::AnySetting;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use crate::settings::{self, TLS_CA, TLS_CERT, TLS_KEY, TLS_NAME};

/// The certificates of this process.
#[derive(Debug)]
pub struct Certificates {
    /// This end's, with its private key.
    pub own: Arc<CertifiedKey>,
    /// Checks the chain and the name of an end that accepts.
    pub of_accepting: Arc<WebPkiServerVerifier>,
    /// Checks the chain of an end that connects.
    pub of_connecting: Arc<dyn ClientCertVerifier>,
    /// The name in all of them; without it each names its end's address.
    name: Option<ServerName<'static>>,
}

fn unusable(setting: &dyn AnySetting, found: &str, why: impl std::fmt::Display) -> Error {
    let found = format!("{found:?}: {why}");
    Error::wanted(Errno::EINVAL, setting.env(), "a usable file or name", found, settings::CORRECT)
}

impl Certificates {
    /// Those that the settings name; `None` if they name none.
    ///
    /// # Errors
    /// `FI_EINVAL` if some settings are missing, or a file cannot be used.
    pub fn load(provider: &Arc<CryptoProvider>) -> Result<Option<Self>> {
        let Some([cert, key, ca]) = settings::tls_files()? else { return Ok(None) };
        let read = |env: &dyn AnySetting, path: &str| -> Result<Vec<CertificateDer<'static>>> {
            let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let all = all.map_err(|error| unusable(env, path, error))?;
            if all.is_empty() { Err(unusable(env, path, "no certificate is in it")) } else { Ok(all) }
        };
        let own = read(&TLS_CERT, &cert)?;
        let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable(&TLS_KEY, &key, error))?;
        let own = CertifiedKey::from_der(own, private, provider)
            .map_err(|error| unusable(&TLS_KEY, &key, error))?;
        let mut roots = RootCertStore::empty();
        for root in read(&TLS_CA, &ca)? {
            roots.add(root).map_err(|error| unusable(&TLS_CA, &ca, error))?;
        }
        let roots = Arc::new(roots);
        let accepting =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider)).build();
        let connecting = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        let name = TLS_NAME.get();
        let name = match name.as_str() {
            "" => None,
            name => Some(
                ServerName::try_from(name.to_owned()).map_err(|error| unusable(&TLS_NAME, name, error))?,
            ),
        };
        Ok(Some(Self {
            own: Arc::new(own),
            of_accepting: accepting.map_err(|error| unusable(&TLS_CA, &ca, error))?,
            of_connecting: connecting.map_err(|error| unusable(&TLS_CA, &ca, error))?,
            name,
        }))
    }

    /// The name in the certificate of an end at `address`.
    pub fn name_at(&self, address: IpAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| ServerName::from(address))
    }
}

/// Checks the chain of an end that connects, and its name, which rustls does not.
#[derive(Debug)]
pub struct Named {
    pub chain: Arc<dyn ClientCertVerifier>,
    pub name: ServerName<'static>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end, chain, now)?;
        verify_server_name(&ParsedCertificate::try_from(end)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
