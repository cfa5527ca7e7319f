//! Numbers that atomic operations and collectives use.

use ofi_api::Datatype;

mod sealed {
    /// Restricts [`super::Element`] to types without padding for which every bit pattern is a value.
    pub trait Sealed {}
}

/// A numeric type of libfabric ([`Datatype`]) that is also one of Rust.
pub trait Element: Copy + Default + sealed::Sealed + Send + Sync + 'static {
    /// The type's name in libfabric.
    const DATATYPE: Datatype;
}

macro_rules! elements {
    ($($number:ty: $datatype:ident;)+) => {$(
        impl sealed::Sealed for $number {}

        impl Element for $number {
            const DATATYPE: Datatype = Datatype::$datatype;
        }
    )+};
}

elements! {
    i8: Int8;
    u8: Uint8;
    i16: Int16;
    u16: Uint16;
    i32: Int32;
    u32: Uint32;
    i64: Int64;
    u64: Uint64;
    i128: Int128;
    u128: Uint128;
    f32: Float;
    f64: Double;
}

/// The numbers as bytes.
pub(crate) fn bytes_of<T: Element>(numbers: &[T]) -> &[u8] {
    // SAFETY: an `Element` has no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The bytes as numbers; an incomplete number at the end is ignored.
pub(crate) fn numbers_of<T: Element>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).map(|part| {
        // SAFETY: exactly that many bytes are there, and every bit pattern is valid.
        unsafe { part.as_ptr().cast::<T>().read_unaligned() }
    })
}
