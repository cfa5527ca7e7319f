//! `Debug` of trait objects: the name of the trait. Types that hold one can then derive `Debug`.

use std::fmt;

macro_rules! by_name {
    ($($object:ident)+) => {$(
        impl fmt::Debug for dyn crate::$object + '_ {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($object)).finish_non_exhaustive()
            }
        }
    )+};
}

by_name! {
    AddressVector AvSet CollectiveGroup CompletionQueue Counter Domain Endpoint EventQueue Fabric LibraryMemory MemoryRegion
    MulticastGroup PassiveEndpoint PollSet Provider SharedTransmit WaitSet
}
