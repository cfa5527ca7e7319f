//! Single copies from memory to memory, forced: the conformance suite, contents of every shape, and two
//! processes, one of which closes, dies, loses permission or refuses single copies in the middle.

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

/// Runs before `main`. Sets the environment of all tests here, and of children that are not given another
/// one.
#[used]
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = first;

/// The reason why single copies cannot be tested here, if any.
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
