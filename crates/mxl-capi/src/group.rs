//! Groups of readers that wait together.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mxl::{Status, SyncGroup, Wait};

use crate::reader::{Reader, reader};
use mxl_ffi::border::{Outcome, status};
use mxl_ffi::object::{Kind, Object};

/// The object behind `mxlFlowSynchronizationGroup`.
#[derive(Default)]
pub struct Group {
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    group: SyncGroup,
    /// Number of changes. A wait runs on a copy, and its result is kept only if the group's flows have not changed.
    changes: u64,
}

impl Kind for Group {
    const MAGIC: u64 = 0x6d78_6c5f_6772_6f75;
}

impl Group {
    fn change(&self, change: impl FnOnce(&mut SyncGroup)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.group);
        state.changes += 1;
    }

    fn add(&self, reader: &Reader, slices: u16) {
        self.change(|group| match reader {
            Reader::Grains(reader) => group.add_grains(reader, slices),
            Reader::Samples(reader) => group.add_samples(reader),
        });
    }

    /// Removes a reader, if it is in the group.
    pub(crate) fn remove(&self, reader: &Reader) {
        self.change(|group| match reader {
            Reader::Grains(reader) => group.remove_grains(reader),
            Reader::Samples(reader) => group.remove_samples(reader),
        });
    }

    fn wait(&self, timestamp: u64, timeout: Duration) -> Result<(), mxl::Error> {
        let (mut group, changes) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.group.clone(), state.changes)
        };
        let waited = group.wait_for_data_at(timestamp, Wait::For(timeout));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.changes == changes {
            state.group = group;
        }
        waited
    }
}

fn group<'a>(handle: *const Object<Group>) -> Outcome<&'a Group> {
    Object::get(handle).ok_or_else(|| Status::InvalidArg.into())
}

/// `mxlFlowSynchronizationGroupAddReader`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowSynchronizationGroupAddReader(
    handle: *const Object<Group>,
    added: *const Object<Reader>,
) -> c_int {
    status(|| {
        group(handle)?.add(reader(added)?, u16::MAX);
        Ok(())
    })
}

/// `mxlFlowSynchronizationGroupAddPartialGrainReader`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowSynchronizationGroupAddPartialGrainReader(
    handle: *const Object<Group>,
    added: *const Object<Reader>,
    min_valid_slices: u16,
) -> c_int {
    status(|| {
        let group = group(handle)?;
        match reader(added)? {
            Reader::Samples(_) => Err(Status::InvalidReader.into()),
            grains @ Reader::Grains(_) => {
                group.add(grains, min_valid_slices);
                Ok(())
            }
        }
    })
}

/// `mxlFlowSynchronizationGroupRemoveReader`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowSynchronizationGroupRemoveReader(
    handle: *const Object<Group>,
    removed: *const Object<Reader>,
) -> c_int {
    status(|| {
        let group = group(handle)?;
        group.remove(Object::get(removed).ok_or(Status::InvalidArg)?);
        Ok(())
    })
}

/// `mxlFlowSynchronizationGroupWaitForDataAt`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFlowSynchronizationGroupWaitForDataAt(
    handle: *const Object<Group>,
    timestamp: u64,
    timeout_ns: u64,
) -> c_int {
    status(|| Ok(group(handle)?.wait(timestamp, Duration::from_nanos(timeout_ns))?))
}
