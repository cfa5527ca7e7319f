//! Configuration of an endpoint's protocol.

use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::auth::AuthKey;
use ofi_core::config::Problem;
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::Params;
use ofi_rdm::wire::handshake::param;
use ofi_rdm::{Config, Endpoint, Limits, MAX_PACKET_LEN, NoEncryption, Security, suites};

use crate::settings;

/// Maximum number of peers that an endpoint remembers only because they contacted it.
const MAX_PEERS: usize = 1 << 20;

/// Maximum number of them on one host: many times the number of processes per host in one job.
const MAX_OF_HOST: usize = 1 << 14;
/// Silence after which such a peer is pinged.
const IDLE: Duration = Duration::from_secs(600);

/// Maximum number of idle peers that keep their session state.
const WARM_PEERS: usize = 64;

/// Configuration for an endpoint whose socket may hold `granted` bytes, and whose liveness is answered on
/// `liveness_port`.
pub fn config(granted: usize, liveness_port: u16) -> Config {
    // The kernel's limit includes overhead, so half of the buffer may be in flight, in at least eight packets. A stream
    // may queue as much, or more if that is little.
    let params = Params {
        window: (granted as u64).clamp(128 << 10, 4 << 20).max(granted as u64 / 2),
        in_flight: granted as u64 / 2,
        max_packet: (granted / 8).clamp(1232, MAX_PACKET_LEN as usize) as u32,
        liveness_port,
        flags: if settings::CHECKSUM.get() { param::CHECKED } else { 0 },
    };
    Config {
        params,
        congestion: match (settings::CONGESTION.get(), settings::PACING.get()) {
            (false, _) => Congestion::Fixed,
            (true, false) => Congestion::Bursts,
            (true, true) => Congestion::Reno,
        },
        patience: Duration::from_millis(settings::PEER_TIMEOUT_MS.get() as u64),
        ack_delay: Duration::from_micros(50),
        max_peers: MAX_PEERS,
        max_of_host: MAX_OF_HOST,
        idle: IDLE,
        warm_peers: WARM_PEERS,
    }
}

/// Configures which peers `endpoint` accepts, and how its packets are protected. Without an authorization key peers are
/// not authenticated, and encryption stops only eavesdroppers, so it is off unless requested.
///
/// # Errors
/// `FI_EINVAL` for a setting that protects packets and cannot be read ([`settings::protections`]); `FI_EIO` on a system
/// without random numbers; `FI_EOPNOTSUPP` for a key, or encryption, in a build without the
/// feature `encryption`.
pub fn secure(endpoint: &mut Endpoint, key: &AuthKey) -> Result<()> {
    settings::protections().map_err(|Problem { env, found, reason }| {
        Error::wanted(Errno::EINVAL, env, reason, format!("{found:?}"), CORRECT)
    })?;
    let suites = match (settings::ENCRYPTION.get().as_str(), key.is_none()) {
        ("off", _) => suites::CLEAR,
        ("required", _) | (_, false) => suites::ENCRYPTED,
        _ => suites::ALL,
    };
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed).map_err(|_| Error::new(Errno::EIO))?;
    let translated = settings::TRANSLATED.get();
    let security = Security { suites, key: key.bytes().to_vec(), seed, translated, limits: Limits::RFC_9001 };
    endpoint.secure(&security).map_err(|NoEncryption| {
        let found = beyond_this_build(!key.is_none()).unwrap_or_default();
        Error::wanted(Errno::EOPNOTSUPP, "encryption", "neither a key nor encryption", found, WITHOUT)
    })
}

/// The remedy for an unreadable setting.
pub const CORRECT: &str = "correct the variable, or unset it for its default (fi_info -e lists settings)";

/// The remedy for a build without the feature `encryption`.
pub const WITHOUT: &str = "build ofi with its feature `encryption`, which is on by default";

/// A request, by a key or by settings, for which this build lacks the feature `encryption`.
pub fn beyond_this_build(has_key: bool) -> Option<&'static str> {
    match has_key {
        _ if cfg!(feature = "encryption") => None,
        true => Some("an authorization key"),
        false => (settings::ENCRYPTION.get() == "required").then_some("FI_UDP_ENCRYPTION=required"),
    }
}

/// The secret of an endpoint.
///
/// # Errors
/// `FI_EIO` on a system without random numbers.
pub fn secret() -> Result<[u64; 2]> {
    let random = || getrandom::u64().map_err(|_| Error::new(Errno::EIO));
    Ok([random()?, random()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_socket_s_buffer() {
        let windows = |granted| {
            let params = config(granted, 9).params;
            (params.window, params.in_flight)
        };
        assert_eq!(windows(64 << 10), (128 << 10, 32 << 10), "a stream may have more than may be in flight");
        assert_eq!(windows(2 << 20), (2 << 20, 1 << 20));
        assert_eq!(windows(6 << 20), (4 << 20, 3 << 20));
        assert_eq!(windows(64 << 20), (32 << 20, 32 << 20), "a window beyond 4 MiB where the buffer allows");
    }
}
