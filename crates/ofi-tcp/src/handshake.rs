//! What becomes of a request for a connection: decided by who asks, and by what this end has with it. No I/O.
//!
//! There is one connection for each pair of endpoints. If both ask at the same time, the request of the one with the
//! greater address survives: the greater refuses the other's, and the lesser gives up its own.

use std::net::{IpAddr, SocketAddr};

/// What this end has with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing, or an attempt that rests between two requests.
    None,
    /// A request that is on its way.
    Asking,
    /// A connection with this process.
    Open(u32),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It becomes the connection, in place of any attempt of this end.
    Accept,
    /// It becomes the connection in place of the one of a process that is gone.
    Replace,
    /// The endpoint asks itself: the connection is for what it sends itself.
    Beside,
    /// It is refused; the connection that there is, or that this end asks for, stays.
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
