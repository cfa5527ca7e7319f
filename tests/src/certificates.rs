//! Certificates for tests (X.509 in DER, Ed25519), in files as `FI_TCP_TLS_CERT` and its companions want them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use graviola::signing::eddsa::Ed25519SigningKey;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8: u8 = 0x0C;
const TIME: u8 = 0x18;
const TRUE: [u8; 3] = [0x01, 1, 0xFF];
/// Object identifiers.
const ED25519: [u8; 3] = [0x2B, 0x65, 0x70];
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
const BASIC_CONSTRAINTS: [u8; 3] = [0x55, 0x1D, 19];
const ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1D, 17];

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match content.len() {
        len @ 0..0x80 => bytes.push(len as u8),
        len @ 0x80..0x100 => bytes.extend([0x81, len as u8]),
        len => bytes.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    bytes.extend(content);
    bytes
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn algorithm() -> Vec<u8> {
    der(SEQUENCE, &[&der(OID, &[&ED25519])])
}

fn name(text: &str) -> Vec<u8> {
    let attribute = der(SEQUENCE, &[&der(OID, &[&COMMON_NAME]), &der(UTF8, &[text.as_bytes()])]);
    der(SEQUENCE, &[&der(SET, &[&attribute])])
}

/// The files of a process.
pub struct Files {
    /// `FI_TCP_TLS_CERT`.
    pub cert: PathBuf,
    /// `FI_TCP_TLS_KEY`.
    pub key: PathBuf,
    /// `FI_TCP_TLS_CA`.
    pub ca: PathBuf,
}

/// A name in a certificate.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// An address.
    Ip(IpAddr),
    /// A name of the DNS.
    Dns(&'a str),
}

/// Who signs certificates.
pub struct Authority {
    key: Ed25519SigningKey,
    text: String,
    certificate: Vec<u8>,
}

impl Authority {
    /// One of this name, whose key follows from `seed`.
    ///
    /// # Panics
    /// If graviola does not run on this processor.
    pub fn new(text: &str, seed: u8) -> Self {
        let key = Ed25519SigningKey::from_bytes(&[seed; 32]).expect("a seed");
        let basic = der(SEQUENCE, &[&TRUE]);
        let extension =
            der(SEQUENCE, &[&der(OID, &[&BASIC_CONSTRAINTS]), &TRUE, &der(OCTET_STRING, &[&basic])]);
        let certificate = sign(&key, text, (&key, text), &extension, "20400101000000Z");
        Self { key, text: text.into(), certificate }
    }

    /// Writes the files of a process into `folder`, with a certificate that is valid until `end`.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn issue(&self, folder: &Path, seed: u8, subject: Subject<'_>, end: &str) -> Files {
        let key = Ed25519SigningKey::from_bytes(&[seed; 32]).expect("a seed");
        let general = match subject {
            Subject::Ip(IpAddr::V4(ip)) => der(0x87, &[&ip.octets()]),
            Subject::Ip(IpAddr::V6(ip)) => der(0x87, &[&ip.octets()]),
            Subject::Dns(name) => der(0x82, &[name.as_bytes()]),
        };
        let names = der(OCTET_STRING, &[&der(SEQUENCE, &[&general])]);
        let extension = der(SEQUENCE, &[&der(OID, &[&ALTERNATIVE_NAME]), &names]);
        let certificate = sign(&self.key, &self.text, (&key, "a node"), &extension, end);
        let private = {
            let mut room = [0; 128];
            key.to_pkcs8_der(&mut room).expect("room").to_vec()
        };
        std::fs::create_dir_all(folder).expect("a folder");
        let write = |file: &str, text: String| {
            let path = folder.join(file);
            std::fs::write(&path, text).expect("a file");
            path
        };
        Files {
            cert: write("cert.pem", pem("CERTIFICATE", &certificate)),
            key: write("key.pem", pem("PRIVATE KEY", &private)),
            ca: write("ca.pem", pem("CERTIFICATE", &self.certificate)),
        }
    }
}

fn sign(
    by: &Ed25519SigningKey,
    issuer: &str,
    (key, subject): (&Ed25519SigningKey, &str),
    extension: &[u8],
    end: &str,
) -> Vec<u8> {
    let mut room = [0; 128];
    let public = key.public_key().to_spki_der(&mut room).expect("room").to_vec();
    let validity = der(SEQUENCE, &[&der(TIME, &[b"20200101000000Z"]), &der(TIME, &[end.as_bytes()])]);
    let to_sign = der(
        SEQUENCE,
        &[
            &der(0xA0, &[&der(INTEGER, &[&[2]])]), // version 3
            &der(INTEGER, &[&[1]]),
            &algorithm(),
            &name(issuer),
            &validity,
            &name(subject),
            &public,
            &der(0xA3, &[&der(SEQUENCE, &[extension])]),
        ],
    );
    let signature = by.sign(&to_sign);
    der(SEQUENCE, &[&to_sign, &algorithm(), &der(BIT_STRING, &[&[0], &signature])])
}
