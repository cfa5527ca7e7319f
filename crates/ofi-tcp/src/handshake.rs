//! Decides whether to accept a connection request, from its sender and from the state of the connection. No I/O.
//!
//! There is one connection for each pair of endpoints. If both request it at the same time, the request of the endpoint
//! with the greater address is used: that endpoint refuses the other's request, and the other drops its own.

use std::net::{IpAddr, SocketAddr};

/// The state of this end's connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No connection, or an attempt that waits between two requests.
    None,
    /// A request in flight.
    Asking,
    /// A connection to this process.
    Open(u32),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accept it, in place of any attempt of this end.
    Accept,
    /// Accept it, in place of the connection to a process that has ended.
    Replace,
    /// Accept it: the endpoint connects to itself, for messages that it sends to itself.
    Beside,
    /// Refuse it, and keep the existing connection or this end's own request.
    Refuse,
}

fn bytes(address: SocketAddr) -> (Vec<u8>, [u8; 2]) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    (ip, address.port().to_be_bytes())
}

/// The verdict on the request of `process` at `peer`, by the endpoint that it called at `own`.
pub fn judge(own: SocketAddr, peer: SocketAddr, standing: Standing, process: u32) -> Verdict {
    let (own, peer) = (bytes(own), bytes(peer));
    if own == peer {
        return Verdict::Beside;
    }
    match standing {
        Standing::None => Verdict::Accept,
        Standing::Asking if peer > own => Verdict::Accept,
        // A request of the same process was sent before it knew of the connection.
        Standing::Asking => Verdict::Refuse,
        Standing::Open(known) if known == process => Verdict::Refuse,
        Standing::Open(_) => Verdict::Replace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn of_two_requests_exactly_one_survives() {
        // By address first, then by port, each by its bytes in network order.
        for (less, more) in [
            ("10.0.0.1:9", "10.0.0.2:5"),
            ("10.0.0.2:5", "10.0.0.10:5"),
            ("10.0.0.1:255", "10.0.0.1:256"),
            ("[fd00::1]:9", "[fd00::2]:1"),
        ] {
            let (less, more) = (at(less), at(more));
            assert_eq!(judge(less, more, Standing::Asking, 1), Verdict::Accept);
            assert_eq!(judge(more, less, Standing::Asking, 1), Verdict::Refuse);
        }
    }

    #[test]
    fn a_restarted_peer_replaces_its_connection_and_a_late_request_does_not() {
        let (own, peer) = (at("10.0.0.1:1"), at("10.0.0.2:1"));
        assert_eq!(judge(own, peer, Standing::None, 7), Verdict::Accept);
        assert_eq!(judge(own, peer, Standing::Open(7), 7), Verdict::Refuse);
        assert_eq!(judge(own, peer, Standing::Open(7), 8), Verdict::Replace);
        for standing in [Standing::None, Standing::Asking, Standing::Open(7)] {
            assert_eq!(judge(own, own, standing, 7), Verdict::Beside);
        }
    }
}
