//! The part of the CUDA driver that this project calls, for hosts without a GPU.
//!
//! Device memory is a memfd that is mapped twice: at its device address without any rights, so that a direct access by
//! the program causes `SIGSEGV`, and at another address, through which the functions here copy. Copies of a stream are
//! executed only once an event after them was queried `CUDA_EMULATOR_POLLS` times, or the stream was synchronized: a
//! program that does not wait finds old bytes.
//!
//! Result numbers are those of `CUresult` in `cuda.h`.

mod driver;
mod memory;
mod settings;
