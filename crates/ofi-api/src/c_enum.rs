//! One macro for the enumerations that carry C's values and print C's names.

/// Declares a fieldless enumeration whose first variant is the default, as zero is in C, with the
/// conversions that the C ABI needs and a `Display` that prints C's name.
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $value:literal => $c_name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$doc])* #[doc = concat!("\n\nC: `", $c_name, "`.")] $variant = $value,)+
        }

        impl $name {
            /// Every value, in the order of the C header.
            pub const VALUES: &'static [$name] = &[$($name::$variant),+];

            /// The value with this C number, or `None` if the header has none.
            #[inline]
            pub const fn from_c(value: u32) -> Option<Self> {
                match value {
                    $($value => Some($name::$variant),)+
                    _ => None,
                }
            }

            /// The number that C uses.
            #[inline]
            pub const fn as_c(self) -> u32 {
                self as u32
            }

            /// The name that C uses.
            pub const fn c_name(self) -> &'static str {
                match self {
                    $($name::$variant => $c_name,)+
                }
            }
        }

        impl Default for $name {
            /// The value of zeroed C memory.
            fn default() -> Self {
                $name::VALUES[0]
            }
        }

        impl TryFrom<u32> for $name {
            type Error = $crate::Error;

            /// Fails with `FI_EINVAL` for a number that the header does not have.
            fn try_from(value: u32) -> $crate::Result<Self> {
                $name::from_c(value).ok_or_else(|| {
                    $crate::Error::wanted(
                        $crate::Errno::EINVAL,
                        stringify!($name),
                        "a value of the C header",
                        value.to_string(),
                        "check which version of the header the caller was built with",
                    )
                })
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.c_name())
            }
        }
    };
}

pub(crate) use c_enum;
