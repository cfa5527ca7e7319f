//! Collectives (fi_collective(3)) and the sets of addresses that take part in them (fi_av_set(3)).

use std::sync::Arc;

use crate::c_enum::c_enum;
use crate::{AtomicAttr, Call, Context, Datatype, FiAddr, FiOp, Fid, Lent, OpFlags, Result};

c_enum! {
    /// The kind of collective (`enum fi_collective_op`).
    pub enum CollectiveKind {
        /// No member continues before all have arrived.
        Barrier = 0 => "FI_BARRIER",
        /// The root's array to all.
        Broadcast = 1 => "FI_BROADCAST",
        /// Part `i` of each rank's array goes to rank `i`.
        Alltoall = 2 => "FI_ALLTOALL",
        /// All arrays combined, to all.
        Allreduce = 3 => "FI_ALLREDUCE",
        /// The concatenation of all arrays goes to all ranks.
        Allgather = 4 => "FI_ALLGATHER",
        /// All arrays are combined, and each rank gets its part of the result.
        ReduceScatter = 5 => "FI_REDUCE_SCATTER",
        /// All arrays are combined, and the root gets the result.
        Reduce = 6 => "FI_REDUCE",
        /// Part `i` of the root's array goes to rank `i`.
        Scatter = 7 => "FI_SCATTER",
        /// The concatenation of all arrays goes to the root.
        Gather = 8 => "FI_GATHER",
    }
}

impl CollectiveKind {
    /// Whether it calculates.
    pub const fn combines(self) -> bool {
        matches!(self, Self::Allreduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether it has a root.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather)
    }
}

/// The limits of one collective (`struct fi_collective_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveAttr {
    /// The maximum number of elements, and their size.
    pub datatype_attr: AtomicAttr,
    /// The maximum number of members of a group.
    pub max_members: usize,
}

/// A collective operation. All members of a group post the same operations in the same order, with the same count,
/// type, operation and root.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveOp<'a> {
    /// The collective.
    pub kind: CollectiveKind,
    /// The group ([`CollectiveGroup::addr`]).
    pub group: FiAddr,
    /// This rank's array, in one piece. In a broadcast: the root's payload, and every other rank's receive buffer.
    pub buf: Lent<'a>,
    /// Memory for the result, in one piece. Unused in broadcasts and barriers; in [`CollectiveKind::Reduce`] and
    /// [`CollectiveKind::Gather`] only the root uses it.
    pub result: Lent<'a>,
    /// The number of elements: of the whole array for broadcast, reduce and all-reduce, else of each rank's part.
    pub count: usize,
    /// Their type.
    pub datatype: Datatype,
    /// How elements are combined, for the kinds that combine them.
    pub op: FiOp,
    /// The root's address, for the kinds that have a root.
    pub root: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

impl<'a> CollectiveOp<'a> {
    /// An operation without memory: a barrier as it is, and the start of any other kind.
    pub const fn new(kind: CollectiveKind, group: FiAddr, context: Context) -> Self {
        Self {
            kind,
            group,
            buf: Lent::EMPTY,
            result: Lent::EMPTY,
            count: 0,
            datatype: Datatype::Uint8,
            op: FiOp::Noop,
            root: FiAddr::NOTAVAIL,
            context,
            flags: OpFlags::empty(),
            call: Call::Plain,
        }
    }

    /// Sets the memory: `count` elements of `datatype` from `buf`, with the result in `result`.
    #[must_use]
    pub const fn data(mut self, datatype: Datatype, count: usize, buf: Lent<'a>, result: Lent<'a>) -> Self {
        (self.datatype, self.count, self.buf, self.result) = (datatype, count, buf, result);
        self
    }
}

/// How to make a set (`struct fi_av_set_attr`).
#[derive(Clone, Copy, Debug)]
pub struct AvSetAttr {
    /// The number of members to expect; 0 for unknown.
    pub count: usize,
    /// The indices of the first and last address that are members initially; [`FiAddr::NOTAVAIL`] for none.
    pub range: (FiAddr, FiAddr),
    /// The step from one initial member to the next; 0 only without a range.
    pub stride: u64,
    /// Starts with all addresses of the vector (`FI_UNIVERSE`).
    pub universe: bool,
}

impl Default for AvSetAttr {
    fn default() -> Self {
        Self { count: 0, range: (FiAddr::NOTAVAIL, FiAddr::NOTAVAIL), stride: 0, universe: false }
    }
}

/// An ordered set of an address vector's indices (`fid_av_set`). A member's position is its rank.
pub trait AvSet: Send + Sync + std::any::Any {
    /// Appends an address, unless the set already contains it.
    ///
    /// # Errors
    /// `FI_EINVAL` if the address vector does not have it.
    fn insert(&self, address: FiAddr) -> Result<()>;

    /// Removes an address; the others keep their order.
    ///
    /// # Errors
    /// `FI_EINVAL` if the set does not contain it.
    fn remove(&self, address: FiAddr) -> Result<()>;

    /// The members, by rank.
    fn members(&self) -> Vec<FiAddr>;

    /// Replaces the members.
    ///
    /// # Errors
    /// `FI_EINVAL` for addresses that the vector does not have, and for duplicates.
    fn replace(&self, members: &[FiAddr]) -> Result<()>;

    /// The address that names the set in a join (`fi_av_set_addr`). It is not the address of any peer.
    fn addr(&self) -> FiAddr;

    /// Appends those members of `other` that this set lacks (`fi_av_set_union`).
    ///
    /// # Errors
    /// `FI_EINVAL` for members of another address vector.
    fn union(&self, other: &dyn AvSet) -> Result<()> {
        let mut members = self.members();
        members.extend(other.members().into_iter().filter(|member| !self.members().contains(member)));
        self.replace(&members)
    }

    /// Keeps only the members that are also in `other` (`fi_av_set_intersect`).
    ///
    /// # Errors
    /// As `union`.
    fn intersect(&self, other: &dyn AvSet) -> Result<()> {
        let (mut members, others) = (self.members(), other.members());
        members.retain(|member| others.contains(member));
        self.replace(&members)
    }

    /// Keeps only the members that are not in `other` (`fi_av_set_diff`).
    ///
    /// # Errors
    /// As `union`.
    fn diff(&self, other: &dyn AvSet) -> Result<()> {
        let (mut members, others) = (self.members(), other.members());
        members.retain(|member| !others.contains(member));
        self.replace(&members)
    }
}

/// A group that an endpoint has joined (`fid_mc`). Dropping it leaves the group: operations in progress in the group
/// fail with `FI_ECANCELED`, both here and at the other members.
pub trait CollectiveGroup: Send + Sync {
    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// The group's address in operations (`fi_mc_addr`). Not valid before `FI_JOIN_COMPLETE`.
    fn addr(&self) -> FiAddr;

    /// This endpoint's rank.
    fn rank(&self) -> usize;

    /// The number of members.
    fn ranks(&self) -> usize;
}

/// Shared handle to a group.
pub type Group = Arc<dyn CollectiveGroup>;
