//! The counters of an endpoint, under the names of its statistics.

use std::sync::atomic::Ordering;

use ofi_api::Statistic;
use ofi_ring::membarrier::Support;

use super::ShmEndpoint;

impl ShmEndpoint {
    /// Appends its counters.
    pub(super) fn statistics(&self, into: &mut Vec<Statistic>) {
        let counts = &self.common.counts;
        let helper = &self.common.shared.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("shm_peers", self.peers.len() as u64, "peers, including lost ones that are kept");
        add("shm_hot", self.hot.len() as u64, "peers whose ring every poll visits");
        add("shm_eager", counts.eager, "messages sent inside a command");
        add(
            "shm_announced",
            counts.announced,
            "messages announced before their payload is sent (rendezvous)",
        );
        add(
            "shm_kept",
            counts.kept,
            "announced messages kept by the library because the receiver was out of room",
        );
        add("shm_bulk_bytes", counts.bulk_bytes, "bytes streamed through bulk memory");
        add("shm_streamed_bytes", counts.streamed_bytes, "bytes written into rings by streaming stores");
        add("shm_direct_bytes", counts.direct_bytes, "bytes copied straight to or from a peer's memory");
        add("shm_direct_atomics", counts.direct_atomics, "atomic operations done in a peer's memory");
        add("shm_single_messages", counts.single_messages, "messages copied directly from memory to memory");
        add(
            "shm_single_accesses",
            counts.single_accesses,
            "long reads and writes copied directly from memory to memory",
        );
        add("shm_single_read_bytes", counts.single_read, "bytes of direct copies that this end read");
        add(
            "shm_single_received_bytes",
            counts.single_received,
            "bytes of direct copies that their senders wrote",
        );
        add("shm_single_written_bytes", counts.single_written, "bytes written straight into peers' memory");
        add(
            "shm_single_failed",
            counts.single_failed,
            "messages whose direct copy failed and that came through bulk memory",
        );
        add("shm_single_denied", counts.single_denied, "peers whose memory must not be read or written");
        add("shm_ring_full", counts.ring_full, "times that the ring to a peer was full");
        add("shm_wakes", counts.wakes, "sleeping peers woken");
        add("shm_lost", counts.lost, "peers lost");
        add("shm_corrupt", counts.corrupt, "peers given up for breaking the protocol");
        add("shm_dropped", helper.dropped.load(Ordering::Relaxed), "control datagrams dropped");
        let keys = helper.other_key.load(Ordering::Relaxed);
        add("shm_other_key", keys, "greetings and requests refused for another authorization key");
        add(
            "shm_device_bytes",
            counts.device_bytes,
            "bytes that devices copied to or from peers' device memory",
        );
        let mapped = (std::sync::Arc::strong_count(&self.common.mapped_devices) - 1) as u64;
        add("shm_device_mappings", mapped, "mappings of peers' device memory now");
        add("shm_granted", helper.granted.load(Ordering::Relaxed), "mappings granted to peers");
        let fenceless = self.common.shared.barrier == Support::Expedited;
        add("shm_fenceless", fenceless.into(), "1 if senders need no fence (membarrier works)");
    }
}
