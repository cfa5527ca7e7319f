//! `mxl-info`, `mxl-generate` and `mxl-view`: inspect a domain, and fill it with test flows.
//!
//! The programs in `src/bin` only call [`info::main`], [`generate::main`] and [`view::main`]. They need only the
//! domain's directory: no server, and none of the transports of this repository.
#![forbid(unsafe_code)]

mod description;
mod failure;
pub mod generate;
pub mod info;
mod levels;
#[cfg_attr(not(feature = "nmos"), path = "without_nmos.rs")]
mod nmos;
mod output;
mod pattern;
mod picture;
mod place;
pub mod view;
