//! The part of the CUDA driver that this project calls, for hosts without a GPU.
//!
//! Device memory is a memfd that is mapped twice: at its device address without any right, so that a direct access of
//! the program dies of `SIGSEGV`, and at another address, by which the functions here copy. Copies of a stream are not
//! made before an event behind them was asked `CUDA_EMULATOR_POLLS` times, or the stream was waited for: who does not
//! wait finds old bytes.
//!
//! Numbers of results are those of `CUresult` in `cuda.h`.

mod driver;
mod memory;
mod settings;
