//! The flag sets, with C's values. C uses one number space for capabilities, operations, completions, bindings and
//! access rights, so one C flag such as `FI_RECV` appears in several sets; a type for each use keeps them apart.
//!
//! Values from C are converted with `from_bits_retain`, so that an unknown bit is refused by name and number rather
//! than dropped. `Display` (in `text.rs`) prints C's names.

use bitflags::bitflags;

bitflags! {
    /// Capabilities of an endpoint: `fi_info.caps` and the `caps` of its attributes (fi_getinfo(3), "Capabilities").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Caps: u64 {
        /// Messages and datagrams.
        const MSG = 1 << 1;
        /// Remote memory access.
        const RMA = 1 << 2;
        /// Messages matched by tag.
        const TAGGED = 1 << 3;
        /// Atomic operations on remote memory.
        const ATOMIC = 1 << 4;
        /// Multicast groups.
        const MULTICAST = 1 << 5;
        /// Collective operations.
        const COLLECTIVE = 1 << 6;
        /// May start remote reads.
        const READ = 1 << 8;
        /// May start remote writes.
        const WRITE = 1 << 9;
        /// May receive messages.
        const RECV = 1 << 10;
        /// May send messages.
        const SEND = 1 << 11;
        /// May be the target of reads.
        const REMOTE_READ = 1 << 12;
        /// May be the target of writes.
        const REMOTE_WRITE = 1 << 13;
        /// One posted buffer may take many messages.
        const MULTI_RECV = 1 << 16;
        /// Triggered and deferred operations.
        const TRIGGER = 1 << 20;
        /// [`OpFlags::FENCE`] is honoured.
        const FENCE = 1 << 21;
        /// One posted buffer may take many tagged messages.
        const TAGGED_MULTI_RECV = 1 << 46;
        /// Tagged receives may name their source.
        const TAGGED_DIRECTED_RECV = 1 << 45;
        /// Directed receives must name their source: `FI_ADDR_UNSPEC` is not allowed.
        const EXACT_DIRECTED_RECV = 1 << 48;
        /// Remote completions on persistent memory.
        const RMA_PMEM = 1 << 49;
        /// Completions report the raw address of an unknown source. Costs as much as [`Caps::SOURCE`].
        const SOURCE_ERR = 1 << 50;
        /// Reaches endpoints on this host.
        const LOCAL_COMM = 1 << 51;
        /// Reaches endpoints on other hosts.
        const REMOTE_COMM = 1 << 52;
        /// Address vectors may be shared between processes.
        const SHARED_AV = 1 << 53;
        /// A counter bound to a registration counts peers' accesses to it.
        const RMA_EVENT = 1 << 56;
        /// Completions report the source of a message. Costs a look-up for each message.
        const SOURCE = 1 << 57;
        /// Senders may name a receive context of a scalable endpoint.
        const NAMED_RX_CTX = 1 << 58;
        /// Receives may name their source.
        const DIRECTED_RECV = 1 << 59;
        /// Completions report a number that the application chose for the peer.
        const AV_USER_ID = 1 << 41;
        /// The provider may run under another provider's queues.
        const PEER = 1 << 43;
        /// Memory of devices (GPUs).
        const HMEM = 1 << 47;
        /// Operations started by a device. Newer than 2.6; see fi_xpu(3).
        const XPU = 1 << 44;
    }
}

impl Caps {
    /// Granted only on request (fi_getinfo(3)). The man page does not classify `FI_EXACT_DIRECTED_RECV`; it restricts
    /// the application, so it belongs here.
    pub const PRIMARY: Caps = Caps::MSG
        .union(Caps::RMA)
        .union(Caps::TAGGED)
        .union(Caps::ATOMIC)
        .union(Caps::MULTICAST)
        .union(Caps::COLLECTIVE)
        .union(Caps::NAMED_RX_CTX)
        .union(Caps::DIRECTED_RECV)
        .union(Caps::TAGGED_DIRECTED_RECV)
        .union(Caps::EXACT_DIRECTED_RECV)
        .union(Caps::HMEM)
        .union(Caps::AV_USER_ID)
        .union(Caps::PEER)
        .union(Caps::XPU);

    /// May be granted without being requested.
    pub const SECONDARY: Caps = Caps::MULTI_RECV
        .union(Caps::TAGGED_MULTI_RECV)
        .union(Caps::SOURCE)
        .union(Caps::SOURCE_ERR)
        .union(Caps::RMA_EVENT)
        .union(Caps::RMA_PMEM)
        .union(Caps::SHARED_AV)
        .union(Caps::TRIGGER)
        .union(Caps::FENCE)
        .union(Caps::LOCAL_COMM)
        .union(Caps::REMOTE_COMM);

    /// The directions of messages, tagged messages and multicast.
    pub const MSG_DIRECTIONS: Caps = Caps::SEND.union(Caps::RECV);

    /// The directions of RMA and atomics.
    pub const RMA_DIRECTIONS: Caps =
        Caps::READ.union(Caps::WRITE).union(Caps::REMOTE_READ).union(Caps::REMOTE_WRITE);

    /// These restrict a primary capability; if none is given, all that apply are granted.
    pub const MODIFIERS: Caps = Caps::MSG_DIRECTIONS.union(Caps::RMA_DIRECTIONS);

    /// Whether an endpoint with these capabilities permits peers' accesses of kind `kind` ([`Caps::RMA`] or
    /// [`Caps::ATOMIC`]) that need the rights `access`. An endpoint that names no direction permits both.
    pub fn serves(self, kind: Caps, access: MrAccess) -> bool {
        let named = self & Caps::RMA_DIRECTIONS;
        let serves =
            |right, direction| !access.contains(right) || named.is_empty() || named.contains(direction);
        self.intersects(kind)
            && serves(MrAccess::REMOTE_READ, Caps::REMOTE_READ)
            && serves(MrAccess::REMOTE_WRITE, Caps::REMOTE_WRITE)
    }
}

bitflags! {
    /// How one operation behaves; also the default `op_flags` of an endpoint (fi_endpoint(3), "Operation flags").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct OpFlags: u64 {
        /// The destination is a multicast group.
        const MULTICAST = 1 << 5;
        /// Reads or sets the flags of the receive side (`FI_GETOPSFLAG`); not for an operation.
        const RECV = 1 << 10;
        /// Reads or sets the flags of the transmit side (`FI_GETOPSFLAG`); not for an operation.
        const TRANSMIT = 1 << 11;
        /// The buffer takes many messages.
        const MULTI_RECV = 1 << 16;
        /// The operation carries data for the peer's completion queue.
        const REMOTE_CQ_DATA = 1 << 17;
        /// More operations follow immediately: the provider may wait for them.
        const MORE = 1 << 18;
        /// Looks for a message without receiving it.
        const PEEK = 1 << 19;
        /// The operation starts when a counter reaches a threshold.
        const TRIGGER = 1 << 20;
        /// Starts after all earlier operations to the same peer are complete.
        const FENCE = 1 << 21;
        /// Requests a completion entry where the binding is selective.
        const COMPLETION = 1 << 24;
        /// The buffer may be reused when the call returns.
        const INJECT = 1 << 25;
        /// Completes when the buffer may be reused.
        const INJECT_COMPLETE = 1 << 26;
        /// Completes when it no longer depends on the sender.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Completes when the peer has processed it.
        const DELIVERY_COMPLETE = 1 << 28;
        /// Completes when the peer has matched it with a receive.
        const MATCH_COMPLETE = 1 << 31;
        /// Completes when the data is in persistent memory.
        const COMMIT_COMPLETE = 1 << 30;
        /// The completion queue should stay on the core that its signalling vector names.
        const AFFINITY = 1 << 29;
        /// Claims the message that a peek found, or reserves it while peeking.
        const CLAIM = 1 << 59;
        /// Drops the message that was found or claimed.
        const DISCARD = 1 << 58;
        /// The address names an authorization key.
        const AUTH_KEY = 1 << 57;
        /// Another provider hands over the operation (fi_peer(3)).
        const PEER_TRANSFER = 1 << 36;
    }
}

impl OpFlags {
    /// The same bit as [`OpFlags::COMPLETION`], for calls that report to an event queue.
    pub const EVENT: OpFlags = OpFlags::COMPLETION;

    /// The completion levels; an operation has at most one.
    pub const LEVELS: OpFlags = OpFlags::INJECT_COMPLETE
        .union(OpFlags::TRANSMIT_COMPLETE)
        .union(OpFlags::DELIVERY_COMPLETE)
        .union(OpFlags::MATCH_COMPLETE)
        .union(OpFlags::COMMIT_COMPLETE);
}

bitflags! {
    /// Properties of a completed operation (fi_cq(3), "Completion flags").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct CompletionFlags: u64 {
        /// A send.
        const SEND = 1 << 11;
        /// A receive.
        const RECV = 1 << 10;
        /// An RMA operation.
        const RMA = 1 << 2;
        /// An atomic operation.
        const ATOMIC = 1 << 4;
        /// An untagged message.
        const MSG = 1 << 1;
        /// A tagged message.
        const TAGGED = 1 << 3;
        /// A multicast message.
        const MULTICAST = 1 << 5;
        /// A collective operation.
        const COLLECTIVE = 1 << 6;
        /// A read or fetch that this side started.
        const READ = 1 << 8;
        /// A write or update that this side started.
        const WRITE = 1 << 9;
        /// A read that a peer started.
        const REMOTE_READ = 1 << 12;
        /// A write that a peer started.
        const REMOTE_WRITE = 1 << 13;
        /// The entry's `data` is valid.
        const REMOTE_CQ_DATA = 1 << 17;
        /// The multi-receive buffer belongs to the application again.
        const MULTI_RECV = 1 << 16;
        /// More data of the same message follows.
        const MORE = 1 << 18;
        /// The message is held for a later claim.
        const CLAIM = 1 << 59;
    }
}

bitflags! {
    /// The operations that a queue or counter bound to an endpoint reports (fi_endpoint(3), fi_cntr(3)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct BindFlags: u64 {
        /// Operations that this side transmits. The same bit as `FI_SEND`.
        const TRANSMIT = 1 << 11;
        /// Receives.
        const RECV = 1 << 10;
        /// Only errors, and operations that request a completion.
        const SELECTIVE_COMPLETION = 1 << 59;
        /// Reads and fetches that this side starts (counters).
        const READ = 1 << 8;
        /// Writes and updates that this side starts (counters).
        const WRITE = 1 << 9;
        /// Reads that peers make (counters).
        const REMOTE_READ = 1 << 12;
        /// Writes that peers make (counters).
        const REMOTE_WRITE = 1 << 13;
    }
}

impl BindFlags {
    /// The same bit as [`BindFlags::TRANSMIT`], under the name that counters use.
    pub const SEND: BindFlags = BindFlags::TRANSMIT;

    /// Registrations of the domain (`FI_REG_MR`). The same bit as [`BindFlags::SELECTIVE_COMPLETION`], which applies to
    /// endpoints.
    pub const REG_MR: BindFlags = BindFlags::SELECTIVE_COMPLETION;
}

bitflags! {
    /// What the provider requires of the application (fi_getinfo(3), "Mode").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Mode: u64 {
        /// Each operation supplies 32 bytes (`struct fi_context`) that the provider may use until it completes.
        const CONTEXT = 1 << 59;
        /// Message buffers begin with space for the provider.
        const MSG_PREFIX = 1 << 58;
        /// The `iovec` array of an operation with several pieces stays in place until the operation completes.
        const ASYNC_IOV = 1 << 57;
        /// Remote CQ data consumes a posted receive.
        const RX_CQ_DATA = 1 << 56;
        /// Local buffers must be registered. Deprecated: from API 1.5 on, [`MrMode::LOCAL`].
        const LOCAL_MR = 1 << 55;
        /// Each operation supplies 64 bytes (`struct fi_context2`).
        const CONTEXT2 = 1 << 52;
        /// Another provider hands over operations (fi_peer(3)).
        const PEER_TRANSFER = 1 << 36;
    }
}

bitflags! {
    /// What registering memory requires of the application (fi_domain(3) and fi_mr(3), "mr_mode").
    ///
    /// No bits mean scalable registration: the application chooses keys, and offsets start at zero.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MrMode: u32 {
        /// Deprecated (API below 1.5): stands for `VIRT_ADDR | ALLOCATED | PROV_KEY`. Not combined with other bits.
        const BASIC = 1 << 0;
        /// Deprecated (API below 1.5): stands for no bits. Not combined with other bits.
        const SCALABLE = 1 << 1;
        /// Local buffers must be registered.
        const LOCAL = 1 << 2;
        /// Keys may be longer than 64 bits.
        const RAW = 1 << 3;
        /// Peers address the region by its virtual address.
        const VIRT_ADDR = 1 << 4;
        /// Pages must be allocated before they are registered.
        const ALLOCATED = 1 << 5;
        /// The provider chooses the keys.
        const PROV_KEY = 1 << 6;
        /// The application announces changes of the page tables (`fi_mr_refresh`).
        const MMU_NOTIFY = 1 << 7;
        /// A region with a counter is enabled after the counter is bound.
        const RMA_EVENT = 1 << 8;
        /// A region is bound to an endpoint and then enabled.
        const ENDPOINT = 1 << 9;
        /// Device memory must be registered.
        const HMEM = 1 << 10;
        /// Buffers of collective operations must be registered for them.
        const COLLECTIVE = 1 << 11;
        /// Regions have descriptors for devices. Newer than 2.6; see fi_xpu(3).
        const XPU_DESC = 1 << 12;
    }
}

impl MrMode {
    /// The bits that [`MrMode::BASIC`] stands for.
    pub const BASIC_BITS: MrMode = MrMode::VIRT_ADDR.union(MrMode::ALLOCATED).union(MrMode::PROV_KEY);

    /// The same mode with the deprecated bits replaced by the requirements that they stand for.
    pub const fn expanded(self) -> MrMode {
        let basic = if self.contains(MrMode::BASIC) { MrMode::BASIC_BITS } else { MrMode::empty() };
        self.difference(MrMode::DEPRECATED).union(basic)
    }

    /// The two deprecated values.
    pub const DEPRECATED: MrMode = MrMode::BASIC.union(MrMode::SCALABLE);

    /// The bits that concern only regions that peers access.
    pub const RMA_TARGET: MrMode =
        MrMode::RAW.union(MrMode::VIRT_ADDR).union(MrMode::PROV_KEY).union(MrMode::RMA_EVENT);
}

bitflags! {
    /// Which operations to one peer keep their order there: `RAW` means that a read after a write is processed after it
    /// (fi_endpoint(3), "Message ordering"). No bits mean no order.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MsgOrder: u64 {
        /// Read after read.
        const RAR = 1 << 0;
        /// Read after write.
        const RAW = 1 << 1;
        /// Read after send.
        const RAS = 1 << 2;
        /// Write after read.
        const WAR = 1 << 3;
        /// Write after write.
        const WAW = 1 << 4;
        /// Write after send.
        const WAS = 1 << 5;
        /// Send after read.
        const SAR = 1 << 6;
        /// Send after write.
        const SAW = 1 << 7;
        /// Send after send.
        const SAS = 1 << 8;
        /// RMA read after RMA read.
        const RMA_RAR = 1 << 32;
        /// RMA read after RMA write.
        const RMA_RAW = 1 << 33;
        /// RMA write after RMA read.
        const RMA_WAR = 1 << 34;
        /// RMA write after RMA write.
        const RMA_WAW = 1 << 35;
        /// Atomic read after atomic read.
        const ATOMIC_RAR = 1 << 36;
        /// Atomic read after atomic write.
        const ATOMIC_RAW = 1 << 37;
        /// Atomic write after atomic read.
        const ATOMIC_WAR = 1 << 38;
        /// Atomic write after atomic write.
        const ATOMIC_WAW = 1 << 39;
    }
}

impl MsgOrder {
    /// Deprecated `FI_ORDER_STRICT`: the nine general orders.
    pub const STRICT: MsgOrder = MsgOrder::from_bits_retain(0x1ff);
}

bitflags! {
    /// The rights of a registration (fi_mr(3), "access").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MrAccess: u64 {
        /// Receive buffers of messages.
        const RECV = 1 << 10;
        /// Send buffers of messages.
        const SEND = 1 << 11;
        /// Result buffers of reads and fetches that start here.
        const READ = 1 << 8;
        /// Source buffers of writes and updates that start here.
        const WRITE = 1 << 9;
        /// Peers may read.
        const REMOTE_READ = 1 << 12;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 13;
        /// Buffers of collective operations.
        const COLLECTIVE = 1 << 6;
    }
}

bitflags! {
    /// How getinfo reads its arguments (fi_getinfo(3), "Flags").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct GetinfoFlags: u64 {
        /// Node and service name the local side.
        const SOURCE = 1 << 57;
        /// The node is a number, not a name to resolve.
        const NUMERICHOST = 1 << 55;
        /// Only lists the available providers.
        const PROV_ATTR_ONLY = 1 << 54;
        /// Looks for devices again.
        const RESCAN = 1 << 35;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_serves_the_kinds_and_directions_that_it_names() {
        let (read, write) = (MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE);
        // An endpoint that names no direction permits both.
        assert!(Caps::RMA.serves(Caps::RMA, read | write));
        assert!(!Caps::RMA.serves(Caps::ATOMIC, read));
        // A direction of the endpoint's own operations says nothing about its peers' operations.
        assert!(!(Caps::RMA | Caps::WRITE).serves(Caps::RMA, write));
        let readable = Caps::RMA | Caps::REMOTE_READ;
        assert!(readable.serves(Caps::RMA, read));
        assert!(!readable.serves(Caps::RMA, write) && !readable.serves(Caps::RMA, read | write));
        // Local rights need none.
        assert!(readable.serves(Caps::RMA, MrAccess::SEND));
    }
}
