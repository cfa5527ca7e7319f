//! The counters of an endpoint over sockets, by name.

use ofi_api::Statistic;
use ofi_core::transport::PeerId;

use crate::endpoint::UdpEndpoint;

impl UdpEndpoint {
    pub(crate) fn peer_statistics(&self, peer: PeerId, into: &mut Vec<Statistic>) {
        let Some(stats) = self.endpoint.peer_statistics(peer) else { return };
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("udp_session", u64::from(self.endpoint.is_open(peer)), "1 while there is a session");
        add("udp_rtt_ns", stats.rtt_ns, "smoothed round-trip time in nanoseconds");
        add("udp_packet_size", stats.packet_size, "longest packet in bytes that the path was found to carry");
        add("udp_window", stats.window, "congestion window in bytes");
        add("udp_tx_packets", stats.packets[0], "packets sent");
        add("udp_rx_packets", stats.packets[1], "packets received");
        add("udp_lost", stats.lost, "packets found lost, and sent again");
        add("udp_rx_marked", stats.marked[0], "packets that arrived marked for congestion (ECN)");
        add(
            "udp_tx_marked",
            stats.marked[1],
            "packets sent that the peer reports as marked for congestion (ECN)",
        );
        add("udp_duplicates", stats.duplicates, "packets that arrived more than once");
        add("udp_probes", stats.probes, "times that the peer was silent for a probe timeout");
        add("udp_credit_stalls", stats.stalls[0], "times that data waited for the peer's credit");
        add("udp_congestion_stalls", stats.stalls[1], "times that data waited for the congestion window");
    }

    pub(crate) fn statistics(&self, into: &mut Vec<Statistic>) {
        let (counts, proto) = (&self.common.counts, self.endpoint.statistics());
        let mut sums = [0u64; 8];
        for peer in 0..self.endpoint.peers() as u32 {
            let Some(stats) = self.endpoint.peer_statistics(peer) else { continue };
            let all = [
                stats.lost,
                stats.duplicates,
                stats.probes,
                stats.stalls[0],
                stats.stalls[1],
                u64::from(self.endpoint.is_open(peer)),
                stats.marked[0],
                stats.marked[1],
            ];
            sums.iter_mut().zip(all).for_each(|(sum, value)| *sum += value);
        }
        if let Some(messages) = &self.messages {
            messages.statistics_beside(&self.socket, into);
        }
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("udp_peers", self.peers.len() as u64, "peers met");
        add("udp_sessions", sums[5], "peers with a session now");
        add("udp_sessions_begun", proto.sessions, "sessions begun");
        add("udp_sessions_lost", proto.lost, "sessions lost");
        add("udp_tx_datagrams", counts.sent, "datagrams sent");
        add("udp_rx_datagrams", counts.received, "datagrams received");
        add("udp_placed", counts.placed, "datagrams whose payload the kernel received into its destination");
        let help = "datagrams whose payload was foreseen wrongly, and copied once more";
        add("udp_placement_undone", self.socket.undone(), help);
        add(
            "udp_brought_back",
            self.socket.undone(),
            "the old name of udp_placement_undone, for this release",
        );
        add("udp_eager", counts.eager, "messages sent inside a command");
        add(
            "udp_announced",
            counts.announced,
            "messages announced before their payload is sent (rendezvous)",
        );
        add("udp_ahead", counts.ahead, "messages whose payload left before it was requested");
        add(
            "udp_kept",
            counts.kept,
            "announced messages kept by the library because the receiver was out of room",
        );
        add("udp_lost", sums[0], "datagrams found lost, and sent again");
        add("udp_rx_marked", sums[6], "datagrams that arrived marked for congestion (ECN)");
        add("udp_tx_marked", sums[7], "datagrams sent that peers report as marked for congestion (ECN)");
        add("udp_duplicates", sums[1], "datagrams that arrived more than once");
        add("udp_probes", sums[2], "probes of peers that were silent");
        add("udp_credit_stalls", sums[3], "times that data waited for a receiver's credit");
        add("udp_congestion_stalls", sums[4], "times that data waited for the congestion window");
        add("udp_tx_calls", self.socket.calls[0], "system calls that sent datagrams");
        add("udp_rx_calls", self.socket.calls[1], "system calls that received datagrams");
        let (ring, entries) = self.socket.ring();
        add("udp_io_uring", ring.into(), "1 if io_uring receives, 0 if recvmmsg does");
        add("udp_ring_entries", entries, "times that the kernel was entered to receive by io_uring");
        add("udp_send_full", counts.send_full, "sends that the full socket refused");
        add("udp_unsendable", self.socket.unsendable, "datagrams that the system refused to send");
        add("udp_malformed", proto.malformed, "datagrams dropped: malformed");
        add("udp_versions", proto.versions, "datagrams dropped: another version");
        add("udp_strangers", proto.strangers, "datagrams dropped: no such session");
        add("udp_stale", proto.stale, "handshakes dropped: echoes and forgeries");
        add("udp_retries", proto.retries, "handshakes sent back for a cookie");
        add(
            "udp_other_key",
            proto.rejected,
            "handshakes refused: different authorization keys, or no common suite",
        );
        add("udp_forged", proto.forged, "datagrams dropped: authentication failed");
        add("udp_crowded", proto.crowded, "datagrams dropped: too many gaps before them");
        add(
            "udp_unanswered",
            proto.unanswered,
            "strangers not answered, because too many answers were pending",
        );
        add(
            "udp_turned_away",
            proto.turned_away,
            "sessions refused: too many peers, or too many of one host",
        );
        add("udp_receive_buffer", self.socket.granted as u64, "bytes that the kernel lets the socket hold");
    }
}
