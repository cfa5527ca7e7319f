//! Structures of the C interface that are not parts of files. The others are in `mxl::layout`.

use std::mem::size_of;

pub(crate) use mxl::Rational;
pub(crate) use mxl::layout::{Config, GrainHeader, Info, RuntimeInfo};

/// `mxlBufferSlice` and `mxlMutableBufferSlice`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BufferSlice {
    pub pointer: *mut u8,
    /// Size in bytes.
    pub size: usize,
}

/// `mxlWrappedMultiBufferSlice` and `mxlMutableWrappedMultiBufferSlice`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MultiBufferSlice {
    /// Fragments of the first channel.
    pub fragments: [BufferSlice; 2],
    /// Bytes from a channel to the next.
    pub stride: usize,
    /// Number of channels.
    pub count: usize,
}

/// `mxlVersionType`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
    pub bugfix: u16,
    pub build: u16,
    pub full: *const std::ffi::c_char,
}

const _: () = {
    assert!(size_of::<Rational>() == 16 && size_of::<MultiBufferSlice>() == 48 && size_of::<Version>() == 16);
    assert!(size_of::<Config>() == 192 && size_of::<RuntimeInfo>() == 64);
    assert!(size_of::<Info>() == 2048 && size_of::<GrainHeader>() == 4096);
};
