//! The small values that calls pass around: peers, contexts, versions, protocols, traffic classes.

use std::fmt;

/// The service class of an endpoint's packets (fi_endpoint(3), "tclass"): a label, or a DSCP value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct TrafficClass(u32);

impl TrafficClass {
    /// The provider's choice.
    pub const UNSPEC: Self = Self(0);
    /// `FI_TC_BEST_EFFORT`: like everyone else.
    pub const BEST_EFFORT: Self = Self(0x200);
    /// `FI_TC_LOW_LATENCY`: small and urgent.
    pub const LOW_LATENCY: Self = Self(0x201);
    /// `FI_TC_DEDICATED_ACCESS`: a reserved share of the bandwidth.
    pub const DEDICATED_ACCESS: Self = Self(0x202);
    /// `FI_TC_BULK_DATA`: much and not urgent.
    pub const BULK_DATA: Self = Self(0x203);
    /// `FI_TC_SCAVENGER`: bandwidth that other classes leave.
    pub const SCAVENGER: Self = Self(0x204);
    /// `FI_TC_NETWORK_CTRL`: control of the network itself.
    pub const NETWORK_CTRL: Self = Self(0x205);

    /// The class with this differentiated services code point, 0 to 63.
    pub const fn from_dscp(code_point: u8) -> Self {
        Self(0x100 | code_point as u32)
    }

    /// Whether it is [`TrafficClass::UNSPEC`], a label of fi_endpoint(3), or a valid code point (6 bits).
    pub const fn is_known(self) -> bool {
        matches!(self.0, 0 | 0x100..=0x13f | 0x200..=0x205)
    }

    /// The code point, if the class was made from one.
    pub const fn dscp(self) -> Option<u8> {
        match self.0 {
            0x100..=0x13f => Some(self.0 as u8 & 0x3f),
            _ => None,
        }
    }

    /// The class with this C number.
    pub const fn from_c(value: u32) -> Self {
        Self(value)
    }

    /// The number that C uses.
    pub const fn as_c(self) -> u32 {
        self.0
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A peer, by its number in an address vector: C's `fi_addr_t`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FiAddr(pub u64);

impl FiAddr {
    /// `FI_ADDR_UNSPEC`: any peer.
    pub const UNSPEC: Self = Self(u64::MAX);
    /// `FI_ADDR_NOTAVAIL`: unknown. The same number as [`FiAddr::UNSPEC`], as in the header.
    pub const NOTAVAIL: Self = Self(u64::MAX);

    /// The address of one receive context of a scalable endpoint (C: `fi_rx_addr`). The upper `rx_ctx_bits` bits hold
    /// the index; `rx_ctx_bits` (0 to 63) must be the value that the address vector was opened with.
    pub const fn with_rx_index(self, rx_index: u32, rx_ctx_bits: u32) -> Self {
        match rx_ctx_bits {
            0 => self,
            bits => Self((rx_index as u64) << (64 - bits) | self.0),
        }
    }
}

impl Default for FiAddr {
    fn default() -> Self {
        Self::UNSPEC
    }
}

impl fmt::Debug for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNSPEC => f.write_str("FiAddr(UNSPEC)"),
            Self(number) => write!(f, "FiAddr({number:#x})"),
        }
    }
}

/// A version of the API, packed as `FI_VERSION` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Incremented for incompatible changes.
    pub major: u16,
    /// Incremented for additions.
    pub minor: u16,
}

impl Version {
    /// The newest API version that this crate implements.
    pub const API: Self = Self::new(2, 6);

    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// From C's `(major << 16) | minor`.
    pub const fn from_c(packed: u32) -> Self {
        Self { major: (packed >> 16) as u16, minor: packed as u16 }
    }

    /// To C's `(major << 16) | minor`.
    pub const fn as_c(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What the application identifies an operation by: C's `void *context`.
///
/// The library passes it through without dereferencing it. Only a provider with
/// [`Mode::CONTEXT`](crate::Mode::CONTEXT) may use the memory that it points to.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Context(pub usize);

impl Context {
    /// No context.
    pub const NULL: Self = Self(0);

    /// The context that `pointer` stands for.
    pub fn from_ptr<T>(pointer: *const T) -> Self {
        Self(pointer.expose_provenance())
    }

    /// The context as a pointer.
    pub fn as_ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    /// True if no context was given.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl From<usize> for Context {
    fn from(value: usize) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:#x})", self.0)
    }
}

/// The protocol that endpoints speak (fi_endpoint(3)): endpoints with the same protocol interoperate.
///
/// A struct rather than an enumeration, because a provider may use a number of its own: see [`Protocol::specific`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Protocol(u32);

macro_rules! protocols {
    ($($name:ident = $value:literal,)+) => {
        impl Protocol {
            $(#[doc = concat!("`FI_PROTO_", stringify!($name), "`.")]
            pub const $name: Self = Self($value);)+

            /// The name that C uses, if the header has one.
            pub const fn c_name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!("FI_PROTO_", stringify!($name))),)+
                    _ => None,
                }
            }
        }
    };
}

protocols! {
    UNSPEC = 0,
    RDMA_CM_IB_RC = 1,
    IWARP = 2,
    IB_UD = 3,
    PSMX = 4,
    UDP = 5,
    SOCK_TCP = 6,
    MXM = 7,
    IWARP_RDM = 8,
    IB_RDM = 9,
    GNI = 10,
    RXM = 11,
    RXD = 12,
    MLX = 13,
    NETWORKDIRECT = 14,
    PSMX2 = 15,
    SHM = 16,
    MRAIL = 17,
    RSTREAM = 18,
    RDMA_CM_IB_XRC = 19,
    EFA = 20,
    PSMX3 = 21,
    RXM_TCP = 22,
    OPX = 23,
    CXI = 24,
    XNET = 25,
    COLL = 26,
    UCX = 27,
    SM2 = 28,
    CXI_RNR = 29,
    LPP = 30,
    LNX = 31,
}

impl Protocol {
    /// A provider-specific protocol, which C marks with the uppermost bit.
    pub const fn specific(number: u32) -> Self {
        Self(1 << 31 | number)
    }

    /// The protocol with this C number.
    pub const fn from_c(value: u32) -> Self {
        Self(value)
    }

    /// The number that C uses.
    pub const fn as_c(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.c_name() {
            Some(name) => f.pad(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_of_one_provider_prints_as_a_number() {
        assert_eq!(Protocol::SHM.to_string(), "FI_PROTO_SHM");
        assert_eq!(Protocol::specific(3).to_string(), "0x80000003");
    }

    #[test]
    fn a_version_is_packed_as_in_c() {
        assert_eq!(Version::new(2, 6).as_c(), 0x0002_0006);
        assert_eq!(Version::from_c(0x0001_0009), Version::new(1, 9));
        assert!(Version::new(1, 22) < Version::new(2, 0));
    }

    #[test]
    fn a_receive_context_sits_in_the_upper_bits() {
        assert_eq!(FiAddr(5).with_rx_index(3, 2), FiAddr(0xc000_0000_0000_0005));
        assert_eq!(FiAddr(5).with_rx_index(3, 0), FiAddr(5));
    }

    #[test]
    fn a_code_point_is_a_traffic_class() {
        assert_eq!(TrafficClass::from_dscp(46).as_c(), 0x12e);
        assert_eq!(TrafficClass::from_dscp(46).dscp(), Some(46));
        assert_eq!(TrafficClass::BULK_DATA.dscp(), None);
    }

    #[test]
    fn a_context_gives_its_pointer_back() {
        let value = 7_u8;
        let context = Context::from_ptr(&raw const value);
        assert_eq!(context.as_ptr::<u8>().cast_const(), &raw const value);
        assert!(Context::NULL.is_null());
    }
}
