//! How the protocol of an endpoint is set up.

use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::auth::AuthKey;
use ofi_core::config::Problem;
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::Params;
use ofi_rdm::wire::handshake::param;
use ofi_rdm::{Config, Endpoint, LONGEST_PACKET, Limits, NoEncryption, Security, suites};

use crate::settings;

/// Peers that strangers may make an endpoint remember.
const MAX_PEERS: usize = 1 << 20;

/// And of those, of one host: many times the processes that a host has for one job.
const MAX_OF_HOST: usize = 1 << 14;
/// How long nothing has come of a stranger before it is asked whether it still is there.
const IDLE: Duration = Duration::from_secs(600);

/// Peers at rest whose next message finds everything ready.
const WARM_PEERS: usize = 64;

/// For an endpoint whose socket may hold `granted` bytes, and that is answered for on `liveness_port`.
pub fn config(granted: usize, liveness_port: u16) -> Config {
    // The kernel counts what it holds generously: half of it may be under way, in at least eight packets. A stream may
    // have as much, and more where that is little.
    let params = Params {
        window: (granted as u64).clamp(128 << 10, 4 << 20).max(granted as u64 / 2),
        in_flight: granted as u64 / 2,
        max_packet: (granted / 8).clamp(1232, LONGEST_PACKET as usize) as u32,
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

/// Tells `endpoint` with whom it talks, and how its packets are protected. Without an authorization key nobody knows
/// who the peer is: packets that only hide from those who listen are not worth their price unless somebody asks for
/// them.
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

/// What to do about a setting that cannot be read.
pub const CORRECT: &str = "correct the variable, or unset it for its default (fi_info -e lists settings)";

/// What a program can do whose build lacks the feature `encryption`.
pub const WITHOUT: &str = "build ofi with its feature `encryption`, which is on by default";

/// What a program asks for, by a key or by settings, that takes the feature `encryption`, if this build lacks it.
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
