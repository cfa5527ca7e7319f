//! Connected endpoints (`FI_EP_MSG`) in tests: what cases and tests import of it.

pub use crate::connection::*;
pub use crate::opening::connect;
