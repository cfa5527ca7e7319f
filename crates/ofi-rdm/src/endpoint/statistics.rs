//! What is counted of an endpoint.

/// Counters of datagrams that lead to no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Malformed datagrams.
    pub malformed: u64,
    /// Datagrams of another version.
    pub versions: u64,
    /// Packets of sessions that there are not, or from another address than the session's.
    pub strangers: u64,
    /// Handshakes that were echoes or forgeries.
    pub stale: u64,
    /// Cookies asked for.
    pub retries: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions lost.
    pub lost: u64,
    /// Answers to strangers that were not given as there were too many.
    pub unanswered: u64,
    /// Sessions that were not begun: too many peers, or too many of one host.
    pub turned_away: u64,
    /// Sessions that were not begun: another authorization key, or no suite in common.
    pub rejected: u64,
    /// Packets and answers that were not what the peer had sent.
    pub forged: u64,
    /// Packets not taken, as too much before them was missing in too many places.
    pub crowded: u64,
}
