//! C's structures and operation tables in their newest version. Older versions have the same structures with fewer
//! fields at the end; [`Abi`] knows how many.
//!
//! Names are C's own. `abi/libfabric-2.6.txt` has every size and offset, taken from the debug information of C's
//! headers. A test compares them.
#![allow(non_camel_case_types)]

mod layout;
mod ops;
mod types;
mod version;

pub(crate) use ops::*;
pub(crate) use types::*;
pub(crate) use version::Abi;
