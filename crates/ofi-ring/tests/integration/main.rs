//! The rings with real threads and processes, and with hostile neighbours.

mod common;
mod hostile;
mod process;
mod record;
mod stress;
