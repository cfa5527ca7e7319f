//! `fi_open` of `logging`, and `fi_import_log`, by which a program's functions replace the library's log.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use ofi_api::{Errno, Error, Result, Version};
use ofi_core::config::{self, NameFilter};
use ofi_core::log::{self, Entry, Level, SUBSYSTEMS, Sink};

use crate::abi::{class, fi_ops, fi_ops_log, fid, fid_logging};
use crate::ffi_guard::{self, invalid};
use crate::object::{self, Fid, Graveyard};
use crate::{names, nosys};

/// The interface version that introduced it.
const SINCE: Version = Version::new(1, 13);
/// Tells the program that `FI_LOG_PROV` excludes the provider.
const PROVIDER_FILTERED: u64 = 1;
/// Maximum number of provider names kept for the program. Fewer exist.
const MAX_NAMES: usize = 256;

/// The log functions of a program.
pub(crate) struct Import {
    functions: fi_ops_log,
    /// The program's object. Closing it restores the library's own log.
    object: usize,
    providers: NameFilter,
}

static CURRENT: RwLock<Option<Arc<Import>>> = RwLock::new(None);

/// The program's log functions, if it has imported the log.
pub(crate) fn current() -> Option<Arc<Import>> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Import {
    fn flags(&self, provider: &str) -> u64 {
        if self.providers.allows(provider) { 0 } else { PROVIDER_FILTERED }
    }

    /// Asks the program whether it wants this message, if it supplies a function for that.
    pub(crate) fn wants(&self, provider: &str, level: c_int, subsystem: c_int) -> Option<bool> {
        let enabled = self.functions.enabled?;
        // SAFETY: the C caller's promise: a function of this type, and a provider that is never freed.
        Some(unsafe { enabled(named(provider), level, subsystem, self.flags(provider)) } != 0)
    }

    /// Asks whether the program wants a rate-limited message.
    ///
    /// # Safety
    /// The C caller's promise: `time` is null or may be read and written.
    pub(crate) unsafe fn is_ready(
        &self,
        provider: &str,
        level: c_int,
        subsystem: c_int,
        time: *mut u64,
    ) -> Option<bool> {
        let ready = self.functions.ready?;
        // SAFETY: as in `wants`, and the caller's promise.
        Some(unsafe { ready(named(provider), level, subsystem, self.flags(provider), time) } != 0)
    }

    /// Passes a message to the program's function, if there is one: one line with its newline.
    pub(crate) fn log(
        &self,
        provider: &str,
        level: c_int,
        subsystem: c_int,
        function: &str,
        line: c_int,
        text: &str,
    ) -> bool {
        let Some(write) = self.functions.log else { return false };
        let function = CString::new(function).unwrap_or_default();
        let text = CString::new(format!("{}\n", text.trim_end())).unwrap_or_default();
        log::unheard(|| {
            // SAFETY: as in `wants`; the strings live as long as the call.
            unsafe { write(named(provider), level, subsystem, function.as_ptr(), line, text.as_ptr()) };
        });
        true
    }
}

/// C's number of a subsystem.
fn subsystem(name: &str) -> c_int {
    SUBSYSTEMS.iter().position(|known| *known == name).unwrap_or(0) as c_int
}

impl Sink for Import {
    fn enabled(&self, provider: &str, name: &str, level: Level) -> Option<bool> {
        self.wants(provider, level as c_int, subsystem(name))
    }

    fn log(&self, entry: &Entry) -> bool {
        let line = c_int::try_from(entry.line).unwrap_or(c_int::MAX);
        let (level, subsystem) = (entry.level as c_int, subsystem(&entry.subsystem));
        self.log(&entry.provider, level, subsystem, &entry.function, line, &entry.text)
    }
}

/// The part of `struct fi_provider` that a program reads: the name. The rest is zero.
#[repr(C)]
struct Provider {
    version: u32,
    fi_version: u32,
    context: [usize; 4],
    name: *const c_char,
    functions: [usize; 3],
}

/// A provider of this name, which is never freed.
fn named(name: &str) -> *const c_void {
    static KNOWN: LazyLock<Mutex<HashMap<String, usize>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = if known.len() < MAX_NAMES || known.contains_key(name) { name } else { "core" };
    let at = *known.entry(name.to_owned()).or_insert_with(|| {
        let provider = Provider {
            version: Version::API.as_c(),
            fi_version: Version::API.as_c(),
            context: [0; 4],
            name: names::interned(name),
            functions: [0; 3],
        };
        std::ptr::from_mut(Box::leak(Box::new(provider))).expose_provenance()
    });
    std::ptr::with_exposed_provenance(at)
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_logging {
    type Body = ();
    const CLASS: usize = class::LOG;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        self.fid = object::closed();
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

/// The operations of the library's log object.
static FID_OPS: fi_ops = fi_ops { close, bind, ..fi_ops::NOSYS };
/// The operations of a program's imported object.
static IMPORTED_OPS: fi_ops = fi_ops { close: close_imported, ..fi_ops::NOSYS };

/// `fi_open` of `logging`.
///
/// # Errors
/// `FI_EINVAL` for an interface version before 1.13, and with attributes; `FI_EBADFLAGS`; `FI_EALREADY` while a program
/// has imported the log.
pub(crate) fn open(
    version: Version,
    attr_len: usize,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fid_logging> {
    if version < SINCE {
        return Err(invalid("the version for fi_open of \"logging\"", "1.13 or newer", version.to_string()));
    }
    if attr_len != 0 {
        return Err(invalid("the attributes of \"logging\"", "none", format!("{attr_len} bytes")));
    }
    ffi_guard::no_flags("fi_open", flags)?;
    if current().is_some() {
        return Err(Error::wanted(
            Errno::EALREADY,
            "fi_open of \"logging\"",
            "a log that the program has not taken yet",
            "functions that were imported",
            "close their fid_logging first",
        ));
    }
    let fid =
        fid_logging { fid: object::header::<fid_logging>(context, &FID_OPS), ops: std::ptr::null_mut() };
    Ok(object::open(fid, ()))
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::close::<fid_logging>(handle) }
    })
}

/// `fi_import_fid`: imports the functions of the program's object.
unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        unsafe { object::of_fid::<fid_logging>(handle)? };
        ffi_guard::no_flags("fi_import_fid", flags)?;
        // SAFETY: as above.
        match unsafe { other.as_ref() }.map(|fid| fid.fclass) {
            None => return Err(ffi_guard::null("the fid_logging to import")),
            Some(class::LOG) => {}
            Some(found) => {
                return Err(invalid("the object to import", "a fid_logging", format!("class {found}")));
            }
        }
        let program = other.cast::<fid_logging>();
        // SAFETY: the class says so.
        let functions = unsafe { (*program).ops };
        if functions.is_null() {
            return Err(ffi_guard::null("the functions to import"));
        }
        // SAFETY: the C caller's promise: a table of the size in its first field.
        let size = unsafe { (*functions).size };
        if size < size_of::<fi_ops_log>() {
            return Err(invalid("the size of fi_ops_log", "32 or more", size.to_string()));
        }
        // SAFETY: as above.
        let functions = unsafe { functions.read() };
        let providers = NameFilter::parse(&config::LOG_PROV.get());
        let import = Arc::new(Import { functions, object: other.expose_provenance(), providers });
        if !log::take_over(Arc::clone(&import) as Arc<dyn Sink>) {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_import_log",
                "a process without a subscriber of tracing, or ours",
                "one of the program's own",
                "read the events there",
            ));
        }
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(import);
        // SAFETY: as above: the program's object, which it lends for this.
        unsafe { (*other).ops = IMPORTED_OPS.table() };
        Ok(())
    })
}

/// Called when the program's object is closed: restores the library's own log, unless a later import has replaced it.
unsafe extern "C" fn close_imported(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        if handle.is_null() {
            return Err(ffi_guard::null("the object"));
        }
        // SAFETY: the C caller's promise: the program's own object.
        unsafe { (*handle).ops = nosys::FID.table() };
        let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|import| import.object == handle.addr()) {
            *current = None;
            drop(current);
            log::give_back();
        }
        Ok(())
    })
}
