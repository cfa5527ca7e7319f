//! Segmentation offload: which datagrams are sent as one message (UDP_SEGMENT), and how a received message is split
//! (UDP_GRO). See udp(7); the limits are those of the kernel's net/ipv4/udp.c.

use std::net::{IpAddr, SocketAddr};

/// Datagrams that arrived as one message.
pub struct GroBatch<'a> {
    pub bytes: &'a mut [u8],
    /// Length in bytes of each datagram except the last, which may be shorter.
    pub len: usize,
    /// Their sender.
    pub from: Option<SocketAddr>,
    /// The local address that they arrived at, on a socket bound to all addresses of the host.
    pub local: Option<IpAddr>,
    /// Whether they were marked for congestion on the way (CE, RFC 3168).
    pub marked: bool,
    /// Number of datagrams in the whole message.
    pub of: usize,
    /// Whether the payloads are in place, not among the bytes.
    pub placed: bool,
}

impl<'a> GroBatch<'a> {
    /// The number of datagrams.
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.len.max(1)).max(1)
    }

    /// The first datagram, and its sender.
    pub fn first(self) -> (&'a mut [u8], Option<SocketAddr>) {
        (&mut self.bytes[..self.len], self.from)
    }
}

/// Maximum number of datagrams in one `sendmsg` (UDP_MAX_SEGMENTS of kernels before 6.9).
pub const MAX_GSO_SEGMENTS: usize = 64;
/// Maximum total length of these datagrams in bytes: an IPv4 packet's 65,535, less its headers.
pub const MAX_GSO_BYTES: usize = 65_535 - 60 - 8;

/// The number of leading rows that may form one message: all to one peer and of equal length, except that the last
/// datagram may be shorter. At least 1 if there are any. `get` returns a row's address, the length of its datagrams,
/// and their number.
pub fn run(rows: usize, get: impl Fn(usize) -> (SocketAddr, usize, usize)) -> usize {
    if rows == 0 {
        return 0;
    }
    let (to, len, mut count) = get(0);
    let (mut run, mut bytes) = (1, len * count);
    while run < rows {
        let (next_to, next_len, next_count) = get(run);
        (bytes, count) = (bytes + next_len * next_count, count + next_count);
        let ends = next_len < len;
        if next_to != to
            || next_len > len
            || (ends && next_count > 1)
            || count > MAX_GSO_SEGMENTS
            || bytes > MAX_GSO_BYTES
        {
            break;
        }
        run += 1;
        if ends {
            break;
        }
    }
    run
}

/// The bounds of the datagrams in a received message of `len` bytes, with `segment` bytes each except the last. A
/// message without segments is one datagram.
pub fn cut(len: usize, segment: Option<usize>) -> impl Iterator<Item = (usize, usize)> {
    let step = segment.filter(|&step| step > 0).unwrap_or(len).max(1);
    (0..len.max(1)).step_by(step).map(move |at| (at, (at + step).min(len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn runs(row: &[(u16, usize)]) -> Vec<usize> {
        let (mut at, mut runs) = (0, vec![]);
        while at < row.len() {
            runs.push(run(row.len() - at, |index| (peer(row[at + index].0), row[at + index].1, 1)));
            at += runs[runs.len() - 1];
        }
        runs
    }

    #[test]
    fn datagrams_of_one_peer_and_length_go_together_and_a_shorter_one_ends_them() {
        assert_eq!(runs(&[(1, 1452), (1, 1452), (1, 100), (1, 100), (2, 100)]), [3, 1, 1]);
        assert_eq!(runs(&[(1, 100), (1, 1452), (1, 1452)]), [1, 2]);
        assert_eq!(runs(&[(1, 40_000), (1, 40_000)]), [1, 1], "longer than a packet may be");
        assert_eq!(runs(&[(1, 200); 100]), [64, 36]);
        assert_eq!(run(0, |_| unreachable!()), 0);
    }

    #[test]
    fn rows_go_together_as_far_as_the_kernel_takes_them() {
        let of = |rows: &[(usize, usize)]| run(rows.len(), |index| (peer(1), rows[index].0, rows[index].1));
        assert_eq!(
            of(&[(1452, 1), (1452, 43), (1452, 1), (200, 1)]),
            3,
            "65,340 bytes; the next is too much"
        );
        assert_eq!(of(&[(1452, 20), (1452, 20), (90, 1), (90, 1)]), 3);
        assert_eq!(of(&[(1452, 20), (90, 2)]), 1, "only one may be shorter");
        assert_eq!(of(&[(100, 60), (100, 4), (100, 1)]), 2);
    }

    #[test]
    fn what_came_as_one_is_cut_where_it_was_joined() {
        assert_eq!(cut(2500, Some(1000)).collect::<Vec<_>>(), [(0, 1000), (1000, 2000), (2000, 2500)]);
        assert_eq!(cut(2000, Some(1000)).collect::<Vec<_>>(), [(0, 1000), (1000, 2000)]);
        assert_eq!(cut(900, Some(1000)).collect::<Vec<_>>(), [(0, 900)]);
        assert_eq!(cut(900, None).collect::<Vec<_>>(), [(0, 900)]);
        assert_eq!(cut(900, Some(0)).collect::<Vec<_>>(), [(0, 900)]);
        assert_eq!(cut(0, None).collect::<Vec<_>>(), [(0, 0)], "an empty datagram is one too");
    }
}
