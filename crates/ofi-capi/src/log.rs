//! `fi_log*`: passes log lines of plug-ins and programs to the library's own log.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use ofi_core::log::{Filter, Level, SUBSYSTEMS};

use crate::{ffi_guard, log_import, memory};

fn filter() -> Option<&'static Filter> {
    static FILTER: OnceLock<Option<Filter>> = OnceLock::new();
    FILTER.get_or_init(|| Filter::from_env(Some(Level::Warn))).as_ref()
}

fn enabled(provider: &str, number: c_int, subsystem: c_int) -> bool {
    let import = log_import::current();
    if let Some(wanted) = import.and_then(|import| import.wants(provider, number, subsystem)) {
        return wanted;
    }
    let level = u32::try_from(number).ok().and_then(Level::from_c);
    let (Some(filter), Some(level)) = (filter(), level) else { return false };
    filter.allows(provider, name(subsystem), level)
}

/// The name of the subsystem with this C number.
fn name(subsystem: c_int) -> &'static str {
    let known = usize::try_from(subsystem).ok().and_then(|at| SUBSYSTEMS.get(at));
    known.copied().unwrap_or("core")
}

/// `fi_log_enabled`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_log_enabled(
    provider: *const c_char,
    number: c_int,
    subsystem: c_int,
) -> c_int {
    ffi_guard::value(0, || {
        // SAFETY: the C caller's promise.
        let provider = unsafe { memory::text(provider) };
        c_int::from(enabled(provider.as_deref().unwrap_or("core"), number, subsystem))
    })
}

/// `fi_log_ready`: whether a rate-limited message may be logged now. Always true, unless the program has imported the
/// log and refuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_log_ready(
    provider: *const c_char,
    number: c_int,
    subsystem: c_int,
    time: *mut u64,
) -> c_int {
    ffi_guard::value(0, || {
        // SAFETY: the C caller's promise, here and below.
        let provider = unsafe { memory::text(provider) };
        let provider = provider.as_deref().unwrap_or("core");
        let import = log_import::current();
        // SAFETY: as above.
        let asked = import.and_then(|import| unsafe { import.is_ready(provider, number, subsystem, time) });
        c_int::from(asked.unwrap_or_else(|| enabled(provider, number, subsystem)))
    })
}

/// `fi_log`, with the text already formatted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_log(
    provider: *const c_char,
    number: c_int,
    subsystem: c_int,
    function: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    ffi_guard::value((), || {
        // SAFETY: the C caller's promise, here and below.
        let provider = unsafe { memory::text(provider) }.unwrap_or_else(|| "core".into());
        // SAFETY: as above.
        let function = unsafe { memory::text(function) }.unwrap_or_default();
        // SAFETY: as above.
        let text = unsafe { memory::text(text) }.unwrap_or_default();
        let (prov, subsys, func) = (provider.as_str(), name(subsystem), function.as_str());
        let text = text.trim_end();
        // As in C, the caller has already called `fi_log_enabled`.
        let import = log_import::current();
        if import.is_some_and(|import| import.log(prov, number, subsystem, func, line, text)) {
            return;
        }
        match u32::try_from(number).ok().and_then(Level::from_c) {
            Some(Level::Warn) => {
                tracing::warn!(target: "ofi::core::core", prov, subsys, func, line, "{text}")
            }
            Some(Level::Trace) => {
                let c_level = Level::Trace as u64; // `tracing` has no level between warn and info
                tracing::info!(target: "ofi::core::core", prov, subsys, func, line, c_level, "{text}")
            }
            Some(Level::Info) => {
                tracing::info!(target: "ofi::core::core", prov, subsys, func, line, "{text}")
            }
            Some(Level::Debug) => {
                tracing::debug!(target: "ofi::core::core", prov, subsys, func, line, "{text}")
            }
            None => {}
        }
    });
}
