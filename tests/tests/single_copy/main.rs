//! Single copies from memory to memory, forced: the conformance suite, contents of every shape, and two processes of
//! which one closes, dies, is denied or does not want it in the middle.

mod accesses;
mod contents;
mod endings;

use accesses::{accessor, owner};
use endings::{pusher, sink, source};
use ofi::raw::{EpType, Hints};
use ofi_testkit::Kit;
use ofi_tests::denied::{may_copy, set_early};

ofi_testkit::roles!(pusher, sink, source, accessor, owner);

extern "C" fn first() {
    set_early(c"FI_SHM_SINGLE_COPY", c"always");
    set_early(c"FI_SHM_SINGLE_COPY_SIZE", c"1");
}

/// Runs before `main`: the environment of all tests here, and of their children but where these are given another.
#[used]
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = first;

/// Why single copies cannot be tested here.
fn missing() -> Option<String> {
    (!may_copy()).then(|| "process_vm_readv is forbidden here".into())
}

/// Shared memory, reliable datagram endpoints.
struct Single;

impl Kit for Single {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm)
    }

    fn missing(&self) -> Option<String> {
        missing()
    }
}

ofi_testkit::conformance!(shm_single: Single);
