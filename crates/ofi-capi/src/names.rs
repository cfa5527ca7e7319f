//! Strings that C programs may keep: `fi_strerror` and similar functions return strings that are never freed.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{LazyLock, Mutex, PoisonError};

use ofi_api::Errno;

/// Maximum texts that are kept. Fewer exist.
const MAX_TEXTS: usize = 4096;

/// A C string of this text, which is never freed. Equal texts share one.
pub(crate) fn interned(text: &str) -> *const c_char {
    static TEXTS: LazyLock<Mutex<HashMap<String, &'static CStr>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known.as_ptr();
    }
    if texts.len() >= MAX_TEXTS {
        return c"".as_ptr();
    }
    let kept: &'static CStr = match CString::new(text) {
        Ok(text) => Box::leak(text.into_boxed_c_str()),
        Err(_) => c"",
    };
    texts.insert(text.to_owned(), kept);
    kept.as_ptr()
}

/// `fi_strerror`, for numbers of either sign.
pub(crate) fn error(number: c_int) -> *const c_char {
    if number == 0 {
        return c"success".as_ptr();
    }
    interned(Errno::from_raw(number).text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_is_kept_once() {
        assert_eq!(interned("a text"), interned("a text"));
        assert_ne!(error(22), error(11));
        assert_eq!(error(-22), error(22));
    }
}
