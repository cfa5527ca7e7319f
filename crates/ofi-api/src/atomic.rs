//! Atomic operations on a peer's memory (fi_atomic(3)): data types, operations, and requests.

use crate::c_enum::c_enum;
use crate::{Call, Context, FiAddr, Lent, OpFlags, RemotePiece};

c_enum! {
    /// The type of one element (`enum fi_datatype`).
    pub enum Datatype {
        /// Signed, 8 bits.
        Int8 = 0 => "FI_INT8",
        /// Unsigned, 8 bits.
        Uint8 = 1 => "FI_UINT8",
        /// Signed, 16 bits.
        Int16 = 2 => "FI_INT16",
        /// Unsigned, 16 bits.
        Uint16 = 3 => "FI_UINT16",
        /// Signed, 32 bits.
        Int32 = 4 => "FI_INT32",
        /// Unsigned, 32 bits.
        Uint32 = 5 => "FI_UINT32",
        /// Signed, 64 bits.
        Int64 = 6 => "FI_INT64",
        /// Unsigned, 64 bits.
        Uint64 = 7 => "FI_UINT64",
        /// IEEE 754 single precision.
        Float = 8 => "FI_FLOAT",
        /// IEEE 754 double precision.
        Double = 9 => "FI_DOUBLE",
        /// Two of [`Datatype::Float`]: real, imaginary.
        FloatComplex = 10 => "FI_FLOAT_COMPLEX",
        /// Two of [`Datatype::Double`].
        DoubleComplex = 11 => "FI_DOUBLE_COMPLEX",
        /// The platform's `long double`: on x86-64 the 80-bit format of the x87, in 16 bytes.
        LongDouble = 12 => "FI_LONG_DOUBLE",
        /// Two of [`Datatype::LongDouble`].
        LongDoubleComplex = 13 => "FI_LONG_DOUBLE_COMPLEX",
        /// Signed, 128 bits.
        Int128 = 14 => "FI_INT128",
        /// Unsigned, 128 bits.
        Uint128 = 15 => "FI_UINT128",
        /// IEEE 754 half precision.
        Float16 = 16 => "FI_FLOAT16",
        /// The upper half of a single-precision number.
        Bfloat16 = 17 => "FI_BFLOAT16",
        /// 8 bits: 4 of exponent, 3 of mantissa; no infinities, largest number 448.
        Float8E4m3 = 18 => "FI_FLOAT8_E4M3",
        /// 8 bits: 5 of exponent, 2 of mantissa.
        Float8E5m2 = 19 => "FI_FLOAT8_E5M2",
        /// Bytes; for collectives that do not calculate.
        Void = 256 => "FI_VOID",
    }
}

impl Datatype {
    /// Bytes of one element. [`Datatype::Void`] counts bytes.
    #[inline]
    pub const fn size(self) -> usize {
        // A table, because a jump on the type would cost every atomic operation of the C interface.
        SIZES[self as usize % SIZES.len()] as usize
    }

    const fn bytes(self) -> u8 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8E4m3 | Self::Float8E5m2 | Self::Void => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::LongDouble | Self::Int128 | Self::Uint128 => 16,
            Self::LongDoubleComplex => 32,
        }
    }
}

/// [`Datatype::bytes`], indexed by the type's number modulo the length. [`Datatype::Void`] (256) shares the entry of
/// [`Datatype::Int8`], whose size is 1 too.
const SIZES: [u8; 32] = {
    let mut sizes = [0; 32];
    let mut at = 0;
    while at < Datatype::VALUES.len() {
        let (number, bytes) = (Datatype::VALUES[at] as usize % sizes.len(), Datatype::VALUES[at].bytes());
        assert!(sizes[number] == 0 || sizes[number] == bytes);
        sizes[number] = bytes;
        at += 1;
    }
    sizes
};

c_enum! {
    /// The operation on each element (`enum fi_op`).
    pub enum FiOp {
        /// The smaller of target and operand.
        Min = 0 => "FI_MIN",
        /// The larger of the two.
        Max = 1 => "FI_MAX",
        /// Target plus operand; integers wrap around.
        Sum = 2 => "FI_SUM",
        /// Target times operand.
        Prod = 3 => "FI_PROD",
        /// 1 if at least one of the two is not zero, else 0.
        Lor = 4 => "FI_LOR",
        /// 1 if both are not zero, else 0.
        Land = 5 => "FI_LAND",
        /// Each bit that is set in at least one (bitwise or).
        Bor = 6 => "FI_BOR",
        /// Each bit that is set in both (bitwise and).
        Band = 7 => "FI_BAND",
        /// 1 if exactly one is not zero, else 0.
        Lxor = 8 => "FI_LXOR",
        /// Each bit that is set in exactly one (bitwise exclusive or).
        Bxor = 9 => "FI_BXOR",
        /// The target, unchanged; fetching only.
        AtomicRead = 10 => "FI_ATOMIC_READ",
        /// The operand.
        AtomicWrite = 11 => "FI_ATOMIC_WRITE",
        /// The operand if the comparand equals the target.
        Cswap = 12 => "FI_CSWAP",
        /// The operand if the comparand does not equal the target.
        CswapNe = 13 => "FI_CSWAP_NE",
        /// The operand if the comparand is less than or equal to the target.
        CswapLe = 14 => "FI_CSWAP_LE",
        /// The operand if the comparand is less than the target.
        CswapLt = 15 => "FI_CSWAP_LT",
        /// The operand if the comparand is greater than or equal to the target.
        CswapGe = 16 => "FI_CSWAP_GE",
        /// The operand if the comparand is greater than the target.
        CswapGt = 17 => "FI_CSWAP_GT",
        /// The operand's bits where the comparand has ones, the target's elsewhere.
        Mswap = 18 => "FI_MSWAP",
        /// Target minus operand.
        Diff = 19 => "FI_DIFF",
        /// Nothing; for collectives that do not calculate.
        Noop = 256 => "FI_NOOP",
    }
}

/// The family of calls that an atomic belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AtomicKind {
    /// `fi_atomic`: changes the target.
    #[default]
    Base,
    /// `fi_fetch_atomic`: changes the target and returns the old value.
    Fetch,
    /// `fi_compare_atomic`: changes the target depending on a comparand, and returns the old value.
    Compare,
}

impl AtomicKind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Base, Self::Fetch, Self::Compare];
}

/// The limits of one call (`struct fi_atomic_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AtomicAttr {
    /// The maximum number of elements.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
}

/// An atomic operation on an array in a peer's memory. Each element is updated atomically; the array as a whole is not.
///
/// All of `buf`, `compare`, `result` and `remote` that the call uses have the same length in bytes, and the length of
/// each remote piece is a multiple of the element size.
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp<'a> {
    /// The kind of call.
    pub kind: AtomicKind,
    /// The operation.
    pub op: FiOp,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The operands. Ignored by [`FiOp::AtomicRead`].
    pub buf: Lent<'a>,
    /// The operand of the comparison; [`AtomicKind::Compare`] only.
    pub compare: Lent<'a>,
    /// Memory for the old values; unused by [`AtomicKind::Base`].
    pub result: Lent<'a>,
    /// The peer's memory.
    pub remote: &'a [RemotePiece],
    /// The peer.
    pub peer: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

impl<'a> AtomicOp<'a> {
    /// An `fi_atomic` call. [`AtomicOp::fetch`] and [`AtomicOp::compare`] turn it into the other two kinds.
    pub const fn new(
        op: FiOp,
        datatype: Datatype,
        buf: Lent<'a>,
        remote: &'a [RemotePiece],
        peer: FiAddr,
        context: Context,
    ) -> Self {
        Self {
            kind: AtomicKind::Base,
            op,
            datatype,
            buf,
            compare: Lent::EMPTY,
            result: Lent::EMPTY,
            remote,
            peer,
            context,
            flags: OpFlags::empty(),
            call: Call::Plain,
        }
    }

    /// Makes it an `fi_fetch_atomic`, which stores the old values in `result`.
    #[must_use]
    pub const fn fetch(mut self, result: Lent<'a>) -> Self {
        (self.kind, self.result) = (AtomicKind::Fetch, result);
        self
    }

    /// Makes it an `fi_compare_atomic`, which compares with `compare` and stores the old values in `result`.
    #[must_use]
    pub const fn compare(mut self, compare: Lent<'a>, result: Lent<'a>) -> Self {
        (self.kind, self.compare, self.result) = (AtomicKind::Compare, compare, result);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        for (index, datatype) in Datatype::VALUES.iter().enumerate().take(20) {
            assert_eq!(datatype.as_c(), index as u32, "{datatype}");
        }
        for (index, op) in FiOp::VALUES.iter().enumerate().take(20) {
            assert_eq!(op.as_c(), index as u32, "{op}");
        }
        assert_eq!((Datatype::VALUES.len(), FiOp::VALUES.len()), (21, 21));
        assert_eq!((Datatype::Void.as_c(), FiOp::Noop.as_c()), (256, 256));
        assert_eq!((Datatype::Int128.as_c(), Datatype::Float8E5m2.as_c()), (14, 19));
        assert_eq!((FiOp::Cswap.as_c(), FiOp::Diff.as_c()), (12, 19));
    }
}
