//! The C++ SDK's fabrics protocol, for pairs of which one end is not this library's.
//!
//! A target lists writable memory in its info: a slot for each grain of its ring (header and payload), or the entries
//! of a bounce buffer for samples. The initiator connects (`FI_EP_MSG`) and writes there; CQ data of the last write
//! names the slot and the end of its slices ([`wire::Mark`]), or the entry. There is no other message, so nothing tells
//! an initiator that it overwrites what the target has not read.
//!
//! # What is added here, at the end that is ours
//!
//! - **Targets** lend memory of their own, not the flow's ring ([`ingress`]). A header or an entry is checked after it
//!   has arrived, and its content is copied into the ring. Entries that the peer has overwritten before they were read
//!   are noticed: a peer on a connection writes in order, so a later mark with an earlier index gives it away.
//! - **Initiators** write a header of their own, have few writes in flight, connect again, and drop a target that takes
//!   nothing for [`egress::STUCK_AFTER`].
//!
//! Both share what a provider needs for it: [`plant::Plant`].

pub(crate) mod plant;
pub mod wire;
