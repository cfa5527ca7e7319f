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
        /// Part `i` of each rank's array to rank `i`.
        Alltoall = 2 => "FI_ALLTOALL",
        /// All arrays combined, to all.
        Allreduce = 3 => "FI_ALLREDUCE",
        /// All arrays, one behind the other, to all.
        Allgather = 4 => "FI_ALLGATHER",
        /// All arrays combined, of which each rank gets its part.
        ReduceScatter = 5 => "FI_REDUCE_SCATTER",
        /// All arrays combined, to the root.
        Reduce = 6 => "FI_REDUCE",
        /// Part `i` of the root's array to rank `i`.
        Scatter = 7 => "FI_SCATTER",
        /// All arrays, one behind the other, to the root.
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
    /// This rank's array, in one piece. In a broadcast: the root's payload, and the receive buffer of the others.
    pub buf: Lent<'a>,
    /// Memory for the outcome, in one piece. Not for broadcasts and barriers, and of [`CollectiveKind::Reduce`] and
    /// [`CollectiveKind::Gather`] only at the root.
    pub result: Lent<'a>,
    /// Elements: of the whole array for broadcast, reduce and all-reduce; of the part for each rank otherwise.
    pub count: usize,
    /// Their type.
    pub datatype: Datatype,
    /// How to combine them, where the kind does.
    pub op: FiOp,
    /// The root's address, where there is one.
    pub root: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

impl<'a> CollectiveOp<'a> {
    /// An operation without memory: a barrier, or the begin of something else.
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

    /// Gives it its memory: `count` elements of a type from `buf`, and where the outcome goes.
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
    /// The first and last index of the vector that are members initially; [`FiAddr::NOTAVAIL`] for none.
    pub range: (FiAddr, FiAddr),
    /// Every how many of them; 0 only without a range.
    pub stride: u64,
    /// All addresses of the vector to begin with (`FI_UNIVERSE`).
    pub universe: bool,
}

impl Default for AvSetAttr {
    fn default() -> Self {
        Self { count: 0, range: (FiAddr::NOTAVAIL, FiAddr::NOTAVAIL), stride: 0, universe: false }
    }
}

/// An ordered set of an address vector's numbers (`fid_av_set`). A member's place is its rank.
pub trait AvSet: Send + Sync + std::any::Any {
    /// Appends an address, unless the set contains it.
    ///
    /// # Errors
    /// `FI_EINVAL` if the address vector does not have it.
    fn insert(&self, address: FiAddr) -> Result<()>;

    /// Takes a number out; the order of the others stays.
    ///
    /// # Errors
    /// `FI_EINVAL` if the set does not contain it.
    fn remove(&self, address: FiAddr) -> Result<()>;

    /// The members, by rank.
    fn members(&self) -> Vec<FiAddr>;

    /// Replaces the members.
    ///
    /// # Errors
    /// `FI_EINVAL` for numbers that the address vector does not have, or that come twice.
    fn replace(&self, members: &[FiAddr]) -> Result<()>;

    /// An address that stands for the set, to join with (`fi_av_set_addr`). No peer has it.
    fn addr(&self) -> FiAddr;

    /// Appends the members of `other` that are not here (`fi_av_set_union`).
    ///
    /// # Errors
    /// `FI_EINVAL` for members of another address vector.
    fn union(&self, other: &dyn AvSet) -> Result<()> {
        let mut members = self.members();
        members.extend(other.members().into_iter().filter(|member| !self.members().contains(member)));
        self.replace(&members)
    }

    /// Keeps the members that `other` has too (`fi_av_set_intersect`).
    ///
    /// # Errors
    /// As `union`.
    fn intersect(&self, other: &dyn AvSet) -> Result<()> {
        let (mut members, others) = (self.members(), other.members());
        members.retain(|member| others.contains(member));
        self.replace(&members)
    }

    /// Keeps the members that `other` does not have (`fi_av_set_diff`).
    ///
    /// # Errors
    /// As `union`.
    fn diff(&self, other: &dyn AvSet) -> Result<()> {
        let (mut members, others) = (self.members(), other.members());
        members.retain(|member| !others.contains(member));
        self.replace(&members)
    }
}

/// A group that an endpoint has joined (`fid_mc`). Dropping it leaves the group: operations that run in it fail with
/// `FI_ECANCELED`, here and at the other members.
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
