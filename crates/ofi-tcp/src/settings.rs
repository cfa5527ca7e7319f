//! The provider's settings. Those that C libfabric's `tcp` has too mean the same.

use ofi_api::{Errno, Error, Result};
use ofi_core::config::{AnySetting, Problem, Setting};

/// The default address or interface of endpoints.
pub static INTERFACE: Setting<&'static str> = Setting::new(
    "tcp",
    "iface",
    "",
    "Interface or address for endpoints without a given address; all of the host if empty",
);

/// The first port of listeners without a given one.
pub static PORT_LOW: Setting<usize> = Setting::new(
    "tcp",
    "port_low_range",
    0,
    "First port for endpoints without a given one, with FI_TCP_PORT_HIGH_RANGE; 0: any port",
)
.range(0, 65_535);

/// The last one.
pub static PORT_HIGH: Setting<usize> = Setting::new(
    "tcp",
    "port_high_range",
    0,
    "Last port for endpoints without a given one, with FI_TCP_PORT_LOW_RANGE; 0: any port",
)
.range(0, 65_535);

/// The length from which a tagged message is announced.
pub static MAX_SAVED_SIZE: Setting<usize> = Setting::new(
    "tcp",
    "max_saved_size",
    usize::MAX,
    "Longest tagged message that is sent before its receiver asks for it, in bytes with its header, and at least 16384; C libfabric before 1.20 never asks, and gets all at once",
);

/// The messages of a peer that wait here without receives.
pub static UNEXPECTED_BYTES: Setting<usize> = Setting::new(
    "tcp",
    "unexpected_bytes",
    4 << 20,
    "Bytes of messages, each with 128 more, that a peer of this library may send before there are receives for them; further ones wait at the peer, and its reads and writes go on",
)
.range(256 << 10, 1 << 30);

/// The time for which an endpoint tries to connect.
pub static CONNECT_TIMEOUT_MS: Setting<usize> = Setting::new(
    "tcp",
    "connect_timeout_ms",
    5000,
    "Milliseconds for which an endpoint tries to reach a peer before the operations to it fail",
)
.range(1, 3_600_000);

/// The maximum silence of a peer's host.
pub static PEER_TIMEOUT_MS: Setting<usize> = Setting::new(
    "tcp",
    "peer_timeout_ms",
    20_000,
    "Milliseconds after which a peer whose host acknowledges nothing is taken for dead",
)
.range(1000, 3_600_000);

/// The maximum time that closing an endpoint waits.
pub static LINGER_MS: Setting<usize> = Setting::new(
    "tcp",
    "linger_ms",
    1000,
    "Milliseconds that a closing endpoint waits at most for its sent messages to reach the kernel",
)
.range(0, 60_000);

/// Whether getinfo offers what only ends of this library have.
pub static ATOMICS: Setting<bool> = Setting::new(
    "tcp",
    "atomics",
    false,
    "Offer atomic operations and collectives: C libfabric's ends have none, and a program that uses them if they are offered must find them on all of its hosts",
);

/// This process's certificate.
pub static TLS_CERT: Setting<&'static str> = Setting::new(
    "tcp",
    "tls_cert",
    "",
    "PEM file with the certificate chain of this process, which lets endpoints without an authorization key encrypt (docs/tcp.md)",
)
.strict();

/// Its private key.
pub static TLS_KEY: Setting<&'static str> =
    Setting::new("tcp", "tls_key", "", "PEM file with its private key").strict();

/// Whose certificates count.
pub static TLS_CA: Setting<&'static str> =
    Setting::new("tcp", "tls_ca", "", "PEM file with the authorities that sign the certificates of peers")
        .strict();

/// The name in certificates.
pub static TLS_NAME: Setting<&'static str> =
    Setting::new("tcp", "tls_name", "", "Name in the certificates of peers; empty: their IP addresses")
        .strict();

/// Whether ends may see each other's addresses differently.
pub static ADDRESS_TRANSLATION: Setting<bool> = Setting::new(
    "tcp",
    "address_translation",
    false,
    "Let encrypting ends connect through address translation (NAT), if both have this",
);

/// The remedy for an unusable setting.
pub const CORRECT: &str = "correct the variable, or unset it for its default (fi_info -e lists settings)";

/// The files of the certificate, its private key and the authorities; `None` if none of them is set.
///
/// # Errors
/// `FI_EINVAL` if only some are, or one is no text.
pub fn tls_files() -> Result<Option<[String; 3]>> {
    let mut files = [const { String::new() }; 3];
    for (file, setting) in files.iter_mut().zip([&TLS_CERT, &TLS_KEY, &TLS_CA]) {
        *file = setting.checked().map_err(|Problem { env, found, reason }| {
            Error::wanted(Errno::EINVAL, env, reason, format!("{found:?}"), CORRECT)
        })?;
    }
    match files.iter().filter(|file| !file.is_empty()).count() {
        0 if TLS_NAME.get().is_empty() => Ok(None),
        3 => Ok(Some(files)),
        _ => Err(Error::wanted(
            Errno::EINVAL,
            "FI_TCP_TLS_CERT, FI_TCP_TLS_KEY, FI_TCP_TLS_CA",
            "all three or none, and no FI_TCP_TLS_NAME without them",
            "some of them",
            CORRECT,
        )),
    }
}

/// Whether peers of this host are reached over shared memory.
pub static SHARED_MEMORY: Setting<bool> = Setting::new(
    "tcp",
    "shared_memory",
    true,
    "Reach peers of this library of the same host, user and network namespace over shared memory (provider shm's settings apply)",
);

/// Connections that long payloads to one peer use.
pub static BULK_CONNECTIONS: Setting<usize> = Setting::new(
    "tcp",
    "bulk_connections",
    1,
    "Connections over which payloads of 256 KiB and more to one peer of this library are striped, where both ends have more than one",
)
.range(1, crate::bulk::MAX_INCOMING + 1);

/// All settings of this provider.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &SHARED_MEMORY,
    &INTERFACE,
    &PORT_LOW,
    &PORT_HIGH,
    &MAX_SAVED_SIZE,
    &UNEXPECTED_BYTES,
    &CONNECT_TIMEOUT_MS,
    &PEER_TIMEOUT_MS,
    &LINGER_MS,
    &BULK_CONNECTIONS,
    &ATOMICS,
    &TLS_CERT,
    &TLS_KEY,
    &TLS_CA,
    &TLS_NAME,
    &ADDRESS_TRANSLATION,
];
