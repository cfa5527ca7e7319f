//! An instance: the targets and initiators of a program.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use mxl::Status;
use mxl_ffi::border::{Outcome, out, status};
use mxl_ffi::log;
use mxl_ffi::object::{self, Kind, Object, magics};

use crate::initiator::Initiator;
use crate::target::Target;

/// The object behind `mxlFabricsInstance`.
#[derive(Default)]
pub struct Instance {
    targets: List<Target>,
    initiators: List<Initiator>,
}

impl Kind for Instance {
    const MAGIC: u64 = 0x6d78_6c66_5f69_6e73;
}

/// Objects that were created and not destroyed.
struct List<T>(Mutex<Vec<Arc<Object<T>>>>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Kind + Default> List<T> {
    fn make(&self) -> *const Object<T> {
        let object = Arc::new(Object::new(T::default()));
        let handle = Arc::as_ptr(&object);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        handle
    }

    /// Removes an object. The caller destroys it by dropping it outside the lock.
    fn take(&self, handle: *const Object<T>) -> Outcome<Arc<Object<T>>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The handle is only compared: an unknown one may point anywhere.
        let found = list.iter().position(|object| std::ptr::eq(Arc::as_ptr(object), handle));
        Ok(list.swap_remove(found.ok_or(Status::InvalidArg)?))
    }
}

/// The instance behind a C handle.
///
/// # Errors
/// [`Status::InvalidArg`] for null and for a handle that is not an instance.
pub(crate) fn instance<'a>(handle: *const Object<Instance>) -> Outcome<&'a Instance> {
    Object::get(handle).ok_or_else(|| Status::InvalidArg.into())
}

/// Starts the log: at the level of `MXL_LOG_LEVEL`, and for the transports at that of `FI_LOG_LEVEL` if it is set.
fn start_log() {
    let started = log::init_with(|| match std::env::var_os("FI_LOG_LEVEL") {
        None => log::Transport::AsOurs,
        Some(_) => ofi::log_subscriber().map_or(log::Transport::Off, |own| log::Transport::By(Box::new(own))),
    });
    if started {
        ofi::log_settings();
    }
}

/// `mxlFabricsCreateInstance`. There are no options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsCreateInstance(
    mxl: *const u8,
    _options: *const c_char,
    made: *mut *const Object<Instance>,
) -> c_int {
    start_log();
    status(|| {
        let place = out(made)?;
        if !object::is(mxl, magics::INSTANCE) {
            return Err(Status::InvalidArg.into());
        }
        place.set(Box::into_raw(Box::new(Object::new(Instance::default()))).cast_const());
        Ok(())
    })
}

/// `mxlFabricsDestroyInstance`. Its targets and initiators are destroyed too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsDestroyInstance(handle: *const Object<Instance>) -> c_int {
    status(|| {
        instance(handle)?;
        // SAFETY: an instance of ours, as just checked, made by `Box::into_raw`; the C caller's promise: it is not in
        // use now.
        drop(unsafe { Box::from_raw(handle.cast_mut()) });
        Ok(())
    })
}

/// `mxlFabricsCreateTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsCreateTarget(
    handle: *const Object<Instance>,
    made: *mut *const Object<Target>,
) -> c_int {
    status(|| {
        out(made)?.set(instance(handle)?.targets.make());
        Ok(())
    })
}

/// `mxlFabricsDestroyTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsDestroyTarget(
    handle: *const Object<Instance>,
    target: *const Object<Target>,
) -> c_int {
    status(|| {
        drop(instance(handle)?.targets.take(target)?);
        Ok(())
    })
}

/// `mxlFabricsCreateInitiator`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsCreateInitiator(
    handle: *const Object<Instance>,
    made: *mut *const Object<Initiator>,
) -> c_int {
    status(|| {
        out(made)?.set(instance(handle)?.initiators.make());
        Ok(())
    })
}

/// `mxlFabricsDestroyInitiator`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsDestroyInitiator(
    handle: *const Object<Instance>,
    initiator: *const Object<Initiator>,
) -> c_int {
    status(|| {
        drop(instance(handle)?.initiators.take(initiator)?);
        Ok(())
    })
}
