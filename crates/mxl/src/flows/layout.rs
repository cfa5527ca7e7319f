//! The bytes of a flow's files: little-endian, natural alignment. Offsets are checked at compile time.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The only supported version of `data`.
pub const DATA_VERSION: u32 = 1;
/// The only supported version of a grain's header.
pub const GRAIN_VERSION: u32 = 1;
/// Offset of a grain's payload in its file.
pub const PAYLOAD_OFFSET: usize = 8192;
/// Maximum planes of a grain.
pub const MAX_PLANES: usize = 4;

/// Formats of flows.
pub mod format {
    /// Video, a discrete flow.
    pub const VIDEO: u32 = 1;
    /// Audio, a continuous flow.
    pub const AUDIO: u32 = 2;
    /// Ancillary data, a discrete flow.
    pub const DATA: u32 = 3;
}

/// Constant properties of all flows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CommonConfig {
    /// The flow's UUID, in the order of its text.
    pub id: [u8; 16],
    /// One of [`mod@format`].
    pub format: u32,
    /// No flag is defined.
    pub flags: u32,
    /// Rate of grains or samples; of fields for interlaced video.
    pub rate_numerator: i64,
    /// See `rate_numerator`.
    pub rate_denominator: i64,
    /// Slices or samples of the largest commit.
    pub max_commit_batch: u32,
    /// Maximum slices or samples after which readers are woken.
    pub max_sync_batch: u32,
    /// 0: host memory.
    pub payload_location: u32,
    /// -1: no device.
    pub device_index: i32,
    /// 0.
    pub reserved: [u8; 72],
}

/// Further properties of discrete flows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DiscreteConfig {
    /// Bytes of a slice in each plane.
    pub slice_sizes: [u32; MAX_PLANES],
    /// Slots of the ring.
    pub grain_count: u32,
    /// 0.
    pub reserved: [u32; 11],
}

/// Further properties of continuous flows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ContinuousConfig {
    /// Channels.
    pub channel_count: u32,
    /// Samples in each channel's ring.
    pub buffer_length: u32,
    /// 0.
    pub reserved: [u32; 14],
}

/// The constant part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Config {
    /// The part common to all flows.
    pub common: CommonConfig,
    /// A [`DiscreteConfig`] or a [`ContinuousConfig`], by the format.
    pub specific: [u32; 16],
}

impl Config {
    /// The part of a discrete flow.
    pub fn discrete(&self) -> DiscreteConfig {
        zerocopy::transmute!(self.specific)
    }

    /// The part of a continuous flow.
    pub fn continuous(&self) -> ContinuousConfig {
        zerocopy::transmute!(self.specific)
    }
}

/// The changing part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RuntimeInfo {
    /// The newest committed index.
    pub head: u64,
    /// Nanoseconds of TAI.
    pub last_write: u64,
    /// Nanoseconds of TAI; discrete flows only.
    pub last_read: u64,
    /// 0.
    pub reserved: [u8; 40],
}

/// The first part of `data`, which C programs know as `mxlFlowInfo`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Info {
    /// [`DATA_VERSION`].
    pub version: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// The constant part.
    pub config: Config,
    /// The changing part.
    pub runtime: RuntimeInfo,
    /// 0, except for the last 16 bytes in flows of samples, while a writer of this implementation
    /// [jumps](crate::protocol::JumpWords).
    pub reserved: [u8; 1784],
}

/// The second part of `data`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct State {
    /// The inode of `data` itself: a different value means that the flow was created again. This implementation stores
    /// 0 when it deletes a flow.
    pub inode: u64,
    /// The word that readers sleep on.
    pub counter: u32,
    /// 0.
    pub padding: u32,
}

/// The whole of `data`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Data {
    /// The part that C programs see.
    pub info: Info,
    /// The part that C programs do not see.
    pub state: State,
}

/// The header of a grain's file, which C programs know as `mxlGrainInfo`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GrainHeader {
    /// [`GRAIN_VERSION`].
    pub version: u32,
    /// Bytes of this structure.
    pub size: u32,
    /// The grain's index.
    pub index: u64,
    /// Bit 0: the payload is invalid.
    pub flags: u32,
    /// Bytes of the payload.
    pub grain_size: u32,
    /// Slices of the whole grain.
    pub total_slices: u16,
    /// Number of valid slices.
    pub valid_slices: u16,
    /// 0.
    pub reserved: [u8; 4068],
}

/// Offsets of the changing words in `data`.
pub(crate) mod at {
    use super::{Data, Info, RuntimeInfo, State, offset_of};

    const RUNTIME: usize = offset_of!(Data, info) + offset_of!(Info, runtime);
    const STATE: usize = offset_of!(Data, state);
    pub const HEAD: usize = RUNTIME + offset_of!(RuntimeInfo, head);
    pub const LAST_WRITE: usize = RUNTIME + offset_of!(RuntimeInfo, last_write);
    pub const LAST_READ: usize = RUNTIME + offset_of!(RuntimeInfo, last_read);
    /// The last of the reserved bytes, which a later version of the format is least likely to use.
    pub const JUMP_TO: usize = size_of::<Info>() - 8;
    pub const JUMP_FROM: usize = JUMP_TO - 8;
    pub const INODE: usize = STATE + offset_of!(State, inode);
    pub const COUNTER: usize = STATE + offset_of!(State, counter);
}

const _: () = {
    assert!(size_of::<CommonConfig>() == 128 && size_of::<Config>() == 192);
    assert!(size_of::<DiscreteConfig>() == 64 && size_of::<ContinuousConfig>() == 64);
    assert!(size_of::<RuntimeInfo>() == 64 && size_of::<Info>() == 2048);
    assert!(size_of::<Data>() == 2064 && size_of::<GrainHeader>() == 4096);
    assert!(offset_of!(Info, config) + offset_of!(CommonConfig, id) == 8);
    assert!(offset_of!(Info, config) + offset_of!(CommonConfig, format) == 24);
    assert!(offset_of!(Info, config) + offset_of!(CommonConfig, rate_numerator) == 32);
    assert!(offset_of!(Info, config) + offset_of!(CommonConfig, max_commit_batch) == 48);
    assert!(offset_of!(Info, config) + offset_of!(CommonConfig, device_index) == 60);
    assert!(offset_of!(Info, config) + offset_of!(Config, specific) == 136);
    assert!(offset_of!(DiscreteConfig, grain_count) == 16);
    assert!(at::HEAD == 200 && at::LAST_WRITE == 208 && at::LAST_READ == 216);
    assert!(at::JUMP_FROM == 2032 && at::JUMP_TO == 2040 && offset_of!(Info, reserved) <= at::JUMP_FROM);
    assert!(at::INODE == 2048 && at::COUNTER == 2056);
    assert!(offset_of!(GrainHeader, index) == 8 && offset_of!(GrainHeader, flags) == 16);
    assert!(offset_of!(GrainHeader, grain_size) == 20 && offset_of!(GrainHeader, total_slices) == 24);
    assert!(offset_of!(GrainHeader, valid_slices) == 26);
};
