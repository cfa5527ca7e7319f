//! Counters of an endpoint.

/// Counters of datagrams outside of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Malformed datagrams.
    pub malformed: u64,
    /// Datagrams of another version.
    pub versions: u64,
    /// Packets of unknown sessions, or from an address other than the session's.
    pub strangers: u64,
    /// Handshakes that were echoes or forgeries.
    pub stale: u64,
    /// Cookies requested.
    pub retries: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions lost.
    pub lost: u64,
    /// Answers to strangers that were dropped because too many were waiting.
    pub unanswered: u64,
    /// Sessions refused because there were too many peers, or too many from one host.
    pub turned_away: u64,
    /// Sessions refused because the authorization keys differ, or there is no common suite.
    pub rejected: u64,
    /// Packets and answers that were not authentic.
    pub forged: u64,
    /// Packets dropped because there are too many gaps in the bytes before them.
    pub crowded: u64,
}
