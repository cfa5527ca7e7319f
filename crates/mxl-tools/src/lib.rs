//! `mxl-info`, `mxl-generate` and `mxl-view`: looking into a domain, and having something to look at.
//!
//! The programs in `src/bin` only call [`info::main`], [`generate::main`] and [`view::main`]. They need the domain's
//! directory and nothing else: no server, and none of the transports of this repository.
#![forbid(unsafe_code)]

mod failure;
pub mod generate;
pub mod info;
mod levels;
mod output;
mod pattern;
mod picture;
pub mod view;
