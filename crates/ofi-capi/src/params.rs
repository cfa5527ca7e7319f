//! `fi_param_*` and `fi_getparams`: settings of this library, and those that programs and plug-ins define.

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use ofi_api::{Errno, Error, Result};

use crate::abi::fi_param;
use crate::ffi_guard::{self, invalid, null};
use crate::memory::{self, whole_string};
use crate::names;

/// `enum fi_param_type`.
const STRING: u32 = 0;
const INT: u32 = 1;
const BOOL: u32 = 2;
const SIZE: u32 = 3;

/// A setting from `fi_param_define`.
#[derive(Clone)]
struct Defined {
    env: String,
    kind: u32,
    help: String,
}

static DEFINED: Mutex<Vec<Defined>> = Mutex::new(Vec::new());

/// Maximum settings that are kept. Further ones are refused.
const MAX_SETTINGS: usize = 4096;

/// `FI_<PROVIDER>_<NAME>`, or `FI_<NAME>` for the library itself.
fn env_name(provider: Option<&str>, name: &str) -> String {
    let whole = match provider {
        None | Some("core") => format!("FI_{name}"),
        Some(provider) => format!("FI_{provider}_{name}"),
    };
    whole.to_ascii_uppercase()
}

/// `fi_param_define`, with the help already formatted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_param_define(
    provider: *const c_char,
    name: *const c_char,
    kind: u32,
    help: *const c_char,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let provider = unsafe { memory::text(provider) };
        // SAFETY: as above.
        let name = unsafe { memory::text(name) }.ok_or_else(|| null("the name of a parameter"))?;
        // SAFETY: as above.
        let help = unsafe { memory::text(help) }.unwrap_or_default();
        if name.is_empty() || help.is_empty() || kind > SIZE {
            return Err(invalid("a parameter", "a name, a type and a help text", format!("{name:?}")));
        }
        let env = env_name(provider.as_deref(), &name);
        let mut defined = DEFINED.lock().unwrap_or_else(PoisonError::into_inner);
        if defined.iter().all(|other| other.env != env) {
            if defined.len() >= MAX_SETTINGS {
                return Err(Error::new(Errno::ENOSPC));
            }
            defined.push(Defined { env, kind, help });
        }
        Ok(())
    })
}

/// `fi_param_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_param_get(
    provider: *const c_char,
    name: *const c_char,
    out: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let provider = unsafe { memory::text(provider) };
        // SAFETY: as above.
        let name = unsafe { memory::text(name) }.ok_or_else(|| null("the name of a parameter"))?;
        if out.is_null() {
            return Err(null("the pointer for the value"));
        }
        let env = env_name(provider.as_deref(), &name);
        let kind = {
            let defined = DEFINED.lock().unwrap_or_else(PoisonError::into_inner);
            defined.iter().find(|other| other.env == env).map(|other| other.kind)
        };
        let kind = kind.ok_or_else(|| {
            Error::with(Errno::ENOENT, format!("{env} is not defined; call fi_param_define first"))
        })?;
        let value = std::env::var_os(&env).ok_or(Error::new(Errno::ENODATA))?;
        // SAFETY: as above: a pointer to the parameter's type.
        unsafe { put(kind, &String::from_utf8_lossy(value.as_bytes()), out) }
    })
}

/// Parses a value and stores it at `out`.
///
/// # Safety
/// The C caller's promise: `out` points to a value of this type.
unsafe fn put(kind: u32, text: &str, out: *mut c_void) -> Result<()> {
    let wrong = |wanted: &str| invalid("the value of a parameter", wanted, format!("{text:?}"));
    match kind {
        // SAFETY: the caller's promise, in each branch.
        STRING => unsafe { out.cast::<*const c_char>().write(names::interned(text)) },
        INT => {
            let value = whole(text).and_then(|value| c_int::try_from(value).ok());
            // SAFETY: as above.
            unsafe { out.cast::<c_int>().write(value.ok_or_else(|| wrong("an int"))?) }
        }
        BOOL => {
            let value = match text.trim().to_ascii_lowercase().as_str() {
                "1" | "yes" | "true" | "on" => 1,
                "0" | "no" | "false" | "off" => 0,
                _ => return Err(wrong("one of 0, 1, no, yes, false, true, off, on")),
            };
            // SAFETY: as above.
            unsafe { out.cast::<c_int>().write(value) }
        }
        _ => {
            let value = whole(text).and_then(|value| usize::try_from(value).ok());
            // SAFETY: as above.
            unsafe { out.cast::<usize>().write(value.ok_or_else(|| wrong("a size"))?) }
        }
    }
    Ok(())
}

/// Parses an integer, decimal or hexadecimal.
fn whole(text: &str) -> Option<i128> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
        None => text.parse().ok(),
    }
}

/// `fi_getparams`: all settings, with this library's first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_getparams(out: *mut *mut c_void, count: *mut c_int) -> c_int {
    ffi_guard::done(|| {
        if out.is_null() || count.is_null() {
            return Err(null("the pointer for the parameters, or of their number"));
        }
        let mut all: Vec<(Defined, Option<String>)> = ofi::config::list()
            .into_iter()
            .map(|listed| {
                let value = listed.is_set.then_some(listed.current);
                (Defined { env: listed.env, kind: listed.kind.as_c(), help: listed.help.into() }, value)
            })
            .collect();
        let defined = DEFINED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(defined.into_iter().map(|defined| {
            let value = std::env::var_os(&defined.env).map(|value| value.to_string_lossy().into_owned());
            (defined, value)
        }));
        // An additional entry of zeroes ends the list for `fi_freeparams`.
        // SAFETY: any size may be asked for.
        let list = unsafe { libc::calloc(all.len() + 1, size_of::<fi_param>()) }.cast::<fi_param>();
        if list.is_null() {
            return Err(Error::new(Errno::ENOMEM));
        }
        for (at, (defined, value)) in all.iter().enumerate() {
            let param = fi_param {
                name: whole_string(&defined.env).unwrap_or(std::ptr::null_mut()),
                r#type: defined.kind,
                help_string: whole_string(&defined.help).unwrap_or(std::ptr::null_mut()),
                value: value.as_deref().and_then(|value| whole_string(value).ok()).unwrap_or_default_null(),
            };
            // SAFETY: `at` is below the count that was allocated.
            let slot = unsafe { list.add(at) };
            // SAFETY: as above.
            unsafe { slot.write(param) };
        }
        // SAFETY: not null, and the caller's.
        unsafe { out.write(list.cast()) };
        // SAFETY: as above.
        unsafe { count.write(c_int::try_from(all.len()).unwrap_or(c_int::MAX)) };
        Ok(())
    })
}

/// A null pointer for `None`.
trait OrNull {
    fn unwrap_or_default_null(self) -> *mut c_char;
}

impl OrNull for Option<*mut c_char> {
    fn unwrap_or_default_null(self) -> *mut c_char {
        self.unwrap_or(std::ptr::null_mut())
    }
}

/// `fi_freeparams`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_freeparams(list: *mut c_void) {
    let list = list.cast::<fi_param>();
    if list.is_null() {
        return;
    }
    let mut at = list;
    loop {
        // SAFETY: the C caller's promise: a list from `fi_getparams`, which ends with zeroes.
        let param = unsafe { at.read() };
        if param.name.is_null() {
            break;
        }
        for text in [param.name, param.help_string, param.value] {
            // SAFETY: as above: of malloc.
            unsafe { memory::free(text.cast_mut()) };
        }
        at = at.wrapping_add(1);
    }
    // SAFETY: as above.
    unsafe { memory::free(list) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_of_a_provider_has_its_name_in_front() {
        assert_eq!(env_name(Some("tcp"), "iface"), "FI_TCP_IFACE");
        assert_eq!(env_name(None, "log_level"), "FI_LOG_LEVEL");
    }

    #[test]
    fn values_are_read_as_their_type() {
        let mut int: c_int = 0;
        // SAFETY: a pointer to an int.
        unsafe { put(INT, " -3", (&raw mut int).cast()) }.unwrap();
        assert_eq!(int, -3);
        // SAFETY: as above.
        unsafe { put(BOOL, "Yes", (&raw mut int).cast()) }.unwrap();
        assert_eq!(int, 1);
        // SAFETY: as above.
        assert!(unsafe { put(INT, "99999999999", (&raw mut int).cast()) }.is_err());
        let mut size = 0_usize;
        // SAFETY: a pointer to a size.
        unsafe { put(SIZE, "0x10", (&raw mut size).cast()) }.unwrap();
        assert_eq!(size, 16);
        // SAFETY: as above.
        assert!(unsafe { put(SIZE, "-1", (&raw mut size).cast()) }.is_err());
    }

    #[test]
    fn what_was_defined_is_listed_and_freed() {
        // SAFETY: strings of C.
        let defined =
            unsafe { ofi_capi_param_define(c"mine".as_ptr(), c"knob".as_ptr(), INT, c"Turns.".as_ptr()) };
        assert_eq!(defined, 0);
        let (mut list, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: pointers to both.
        assert_eq!(unsafe { ofi_capi_getparams(&raw mut list, &raw mut count) }, 0);
        let names: Vec<String> = (0..usize::try_from(count).unwrap())
            .map(|at| {
                let param = list.cast::<fi_param>().wrapping_add(at);
                // SAFETY: below the count.
                let name = unsafe { (*param).name };
                // SAFETY: a string of the list.
                unsafe { memory::text(name) }.unwrap()
            })
            .collect();
        assert!(
            names.contains(&"FI_MINE_KNOB".into()) && names.contains(&"FI_LOG_LEVEL".into()),
            "{names:?}"
        );
        // SAFETY: the list from above.
        unsafe { ofi_capi_freeparams(list) };
    }
}
