//! Events of profiles: a program's callbacks for messages that arrive before a matching receive is posted.
//!
//! A callback runs while the registrations of its profile are locked. So once a call that closes the profile or removes
//! the callback has returned, no callback runs. A callback may read variables. Calls that would wait for that lock
//! return `-FI_EBUSY` inside a callback, where fi_profile(3) forbids them.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ofi_api::{Endpoint, Errno, Error, Result, UnexpectedEvent};

use crate::abi::{fi_profile_callback, fi_profile_desc, fid_profile};
use crate::ffi_guard::invalid;
use crate::names;

/// The events by number (`FI_EVENT_*`): C's names, and descriptions.
const EVENTS: [(&str, &str); 2] = [
    ("pevent_unexp_msg_recd", "a message came before its receive"),
    ("pevent_unexp_msg_matched", "such a message was found"),
];
/// `fi_primitive_type`, and its value `FI_VOID`: an event has no data.
const NO_DATA: (u32, u32) = (0, 256);

thread_local! {
    /// This thread is running a callback of the program.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a call inside a callback.
///
/// # Errors
/// `FI_EBUSY`.
pub(super) fn not_in_callback(call: &str) -> Result<()> {
    if CALLING.get() {
        let advice = "do it after the callback has returned";
        return Err(Error::wanted(Errno::EBUSY, call, "a call outside of callbacks", "one inside", advice));
    }
    Ok(())
}

/// The descriptions of the events, as C lists them.
pub(super) fn descriptions() -> Vec<fi_profile_desc> {
    (0..EVENTS.len()).map(description).collect()
}

fn description(at: usize) -> fi_profile_desc {
    let (name, desc) = EVENTS[at];
    fi_profile_desc {
        id: at as u32,
        datatype_sel: NO_DATA.0,
        datatype: NO_DATA.1,
        flags: 0,
        size: 0,
        name: names::interned(name),
        desc: names::interned(desc),
    }
}

/// A function of the program, and its context.
type Callback = (
    unsafe extern "C" fn(*mut fid_profile, *mut fi_profile_desc, *mut c_void, usize, *mut c_void) -> i32,
    usize,
);

/// The callbacks that a program has registered with one profile.
#[derive(Default)]
pub(super) struct Callbacks(Mutex<ProfileState>);

#[derive(Default)]
struct ProfileState {
    /// The profile's handle; null once it is closed.
    profile: usize,
    registered: [Option<Callback>; EVENTS.len()],
}

impl Callbacks {
    fn state(&self) -> MutexGuard<'_, ProfileState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a callback for an event of `profile`; null removes it.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unlisted event.
    pub(super) fn register(
        &self,
        profile: *mut fid_profile,
        event: u32,
        callback: fi_profile_callback,
        context: *mut c_void,
    ) -> Result<()> {
        let mut state = self.state();
        let Some(slot) = state.registered.get_mut(event as usize) else { return Err(unlisted(event)) };
        *slot = callback.map(|callback| (callback, context.expose_provenance()));
        state.profile = profile.expose_provenance();
        Ok(())
    }

    /// Removes all callbacks. When this returns, none is running.
    pub(super) fn end(&self) {
        *self.state() = ProfileState::default();
    }

    fn call(&self, event: UnexpectedEvent) {
        let at = event as usize;
        let state = self.state();
        let Some((callback, context)) = state.registered[at] else { return };
        let mut event = description(at);
        let profile = std::ptr::with_exposed_provenance_mut(state.profile);
        let context = std::ptr::with_exposed_provenance_mut(context);
        CALLING.set(true);
        // SAFETY: the program's function, with the arguments of fi_profile(3). The handle is open, because closing it
        // begins with `end`.
        let _ = unsafe { callback(profile, &raw mut event, std::ptr::null_mut(), 0, context) };
        CALLING.set(false);
    }
}

#[cold]
pub(super) fn unlisted(event: u32) -> Error {
    invalid("an event's id", "one that fi_profile_query_events lists", format!("{event:#x}"))
}

/// The profiles that receive one endpoint's events, on any of its handles.
#[derive(Default)]
pub(super) struct Told(Mutex<Vec<Weak<Callbacks>>>);

impl Told {
    /// Adds `callbacks` to those that receive the events of `endpoint`.
    ///
    /// # Errors
    /// Those of [`Endpoint::watch_unexpected`].
    pub(super) fn add(self: &Arc<Self>, callbacks: &Arc<Callbacks>, endpoint: &dyn Endpoint) -> Result<()> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|known| known.strong_count() > 0);
        if told.iter().any(|known| known.as_ptr() == Arc::as_ptr(callbacks)) {
            return Ok(());
        }
        if told.is_empty() {
            let all = Arc::clone(self);
            endpoint.watch_unexpected(Some(Arc::new(move |event| all.tell(event))))?;
        }
        told.push(Arc::downgrade(callbacks));
        Ok(())
    }

    /// Removes `callbacks`. After the last, the endpoint reports no more events.
    ///
    /// # Errors
    /// As [`Told::add`].
    pub(super) fn remove(&self, callbacks: &Arc<Callbacks>, endpoint: &dyn Endpoint) -> Result<()> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        told.retain(|known| known.as_ptr() != Arc::as_ptr(callbacks));
        if told.is_empty() && before > 0 { endpoint.watch_unexpected(None) } else { Ok(()) }
    }

    fn tell(&self, event: UnexpectedEvent) {
        let told: Vec<_> = {
            let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            told.iter().filter_map(Weak::upgrade).collect()
        };
        told.iter().for_each(|callbacks| callbacks.call(event));
    }
}
