//! Third-party providers: C plug-ins (`lib*-fi.so`) from `FI_PROVIDER_PATH`. getinfo lists them after ours.
//!
//! The fabric of a plug-in, and all objects opened in it, belong to the plug-in: calls go through its tables and never
//! enter this library. Infos cross the border as copies, so they have the newest structures whatever version the
//! plug-in was built for. A plug-in is trusted like a C program. An unusable plug-in is refused, and the log says why.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ofi_api::{Error, Result, Version};
use ofi_core::config::{PROVIDER, PROVIDER_PATH};
use ofi_core::provider_filter::ProviderFilter;

use crate::abi::{Abi, fi_fabric_attr, fi_info, fid_fabric};
use crate::ffi_guard::number;
use crate::{info, memory};

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// `struct fi_provider` of rdma/providers/fi_prov.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Table {
    version: u32,
    fi_version: u32,
    context: [*mut c_void; 4],
    name: *const c_char,
    getinfo: Option<GetInfo>,
    fabric: Option<OpenFabric>,
    cleanup: Option<unsafe extern "C" fn()>,
}

/// A usable plug-in. It stays loaded.
struct Foreign {
    name: String,
    version: Version,
    /// The version of its structures.
    abi: Abi,
    getinfo: GetInfo,
    fabric: OpenFabric,
    cleanup: Option<unsafe extern "C" fn()>,
}

/// The oldest supported interface version, as in C libfabric: before it, providers had a different structure.
const OLDEST: Version = Version::new(1, 3);

thread_local! {
    /// This thread is loading plug-ins. Their own requests meanwhile are answered without plug-ins.
    static LOADING: Cell<bool> = const { Cell::new(false) };
}

/// The plug-ins of this process, loaded at the first call.
fn all() -> &'static [Foreign] {
    static ALL: OnceLock<Vec<Foreign>> = OnceLock::new();
    if LOADING.get() {
        return &[];
    }
    ALL.get_or_init(|| {
        LOADING.set(true);
        let found = load(&PROVIDER_PATH.get());
        LOADING.set(false);
        if found.iter().any(|plugin| plugin.cleanup.is_some()) {
            // SAFETY: the function is never unloaded, because this library is not.
            unsafe { libc::atexit(cleanup) };
        }
        found
    })
}

extern "C" fn cleanup() {
    for call in all().iter().filter_map(|plugin| plugin.cleanup) {
        // SAFETY: the plug-in's own function, called once, at the end.
        unsafe { call() };
    }
}

/// Loads the plug-ins of a search path, which lists directories, and files after `@`.
fn load(search: &str) -> Vec<Foreign> {
    // Errors of a plug-in are logged.
    ofi::log_from_env();
    let own: Vec<String> = ofi::provider_names().into_iter().map(|(name, _)| name).collect();
    let mut all: Vec<Foreign> = Vec::new();
    for entry in search.split(':').filter(|entry| !entry.is_empty()) {
        for file in files(entry) {
            let taken = |name: &str| {
                let others = all.iter().map(|other| &other.name);
                own.iter().chain(others).any(|other| other.eq_ignore_ascii_case(name))
            };
            match open(&file, &taken) {
                Ok(plugin) => {
                    let (name, version) = (&plugin.name, plugin.version);
                    tracing::info!(target: "ofi::core::core", name, %version, "loaded a third-party provider");
                    all.push(plugin);
                }
                Err(reason) => {
                    let file = file.display();
                    tracing::warn!(target: "ofi::core::core", %file, reason, "refused a provider plug-in");
                }
            }
        }
    }
    all
}

fn files(entry: &str) -> Vec<PathBuf> {
    if let Some(file) = entry.strip_prefix('@') {
        return vec![file.into()];
    }
    let is_plugin = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"lib") && name.ends_with(b"-fi.so")
    };
    let Ok(folder) = std::fs::read_dir(entry) else {
        tracing::warn!(target: "ofi::core::core", entry, "FI_PROVIDER_PATH: no such directory");
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).filter(is_plugin).collect();
    found.sort_unstable();
    found
}

/// The loader's last error.
fn loader_error() -> String {
    // SAFETY: it has no arguments.
    let text = unsafe { libc::dlerror() };
    // SAFETY: the loader's own text, which stays until its next call on this thread.
    unsafe { memory::text(text) }.unwrap_or_default()
}

/// Loads a plug-in and calls its entry point.
fn open(file: &Path, taken: &dyn Fn(&str) -> bool) -> Result<Foreign, String> {
    let path = CString::new(file.as_os_str().as_bytes()).map_err(|_| "a file name with NUL".to_string())?;
    // SAFETY: a path that ends in NUL. The user has asked for its constructors to run.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(loader_error());
    }
    let found = describe(library, taken);
    if found.is_err() {
        // SAFETY: opened above, and no pointer into it is kept.
        unsafe { libc::dlclose(library) };
    }
    found
}

/// Reads the provider table of a loaded library.
fn describe(library: *mut c_void, taken: &dyn Fn(&str) -> bool) -> Result<Foreign, String> {
    // SAFETY: an open library, and a name that ends in NUL.
    let entry = unsafe { libc::dlsym(library, c"fi_prov_ini".as_ptr()) };
    if entry.is_null() {
        return Err("no fi_prov_ini".into());
    }
    // SAFETY: fi_prov.h says that a symbol of this name is such a function.
    let entry: unsafe extern "C" fn() -> *const Table = unsafe { std::mem::transmute(entry) };
    // SAFETY: as above.
    let table = unsafe { entry() };
    // SAFETY: fi_prov.h: null, or a table that stays valid.
    let Some(table) = (unsafe { table.as_ref() }) else { return Err("fi_prov_ini returned NULL".into()) };
    if table.name.is_null() {
        return Err("a provider without a name".into());
    }
    // SAFETY: as above: a string.
    let name = unsafe { CStr::from_ptr(table.name) }.to_string_lossy().into_owned();
    let (Some(getinfo), Some(fabric)) = (table.getinfo, table.fabric) else {
        return Err(format!("provider {name:?} without getinfo or fabric"));
    };
    let fi_version = Version::from_c(table.fi_version);
    if fi_version < OLDEST {
        return Err(format!(
            "provider {name:?} has interface version {fi_version}; the oldest supported is {OLDEST}"
        ));
    }
    if name.is_empty() || name.contains([';', ',', '^']) {
        return Err(format!("{name:?} is not a valid provider name"));
    }
    if taken(&name) {
        return Err(format!("provider {name:?} already exists"));
    }
    let (version, abi) = (Version::from_c(table.version), Abi::of(fi_version));
    Ok(Foreign { name, version, abi, getinfo, fabric, cleanup: table.cleanup })
}

/// The arguments of a program's getinfo.
#[derive(Clone, Copy)]
pub(crate) struct InfoRequest {
    pub version: u32,
    pub node: *const c_char,
    pub service: *const c_char,
    pub flags: u64,
    pub hints: *const fi_info,
    /// The version of the hints.
    pub abi: Abi,
}

/// `FI_PROV_ATTR_ONLY`.
const NAMES_ONLY: u64 = 1 << 54;
/// C libfabric's internal flag by which a layered provider asks for core providers only.
const CORE_PROV_ONLY: u64 = 1 << 59;
/// All of C libfabric's flags of this kind.
pub(crate) const LAYERS: u64 = 0xf << 58;

/// The offers of the plug-ins, as a list of structures of the newest version, or null.
///
/// # Errors
/// `FI_ENOMEM`.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn getinfo(asked: &InfoRequest) -> Result<*mut fi_info> {
    let plugins = all();
    let mut list = List::new();
    if plugins.is_empty() {
        return Ok(list.take());
    }
    let filter = ProviderFilter::parse(&PROVIDER.get());
    let mut hints = List::new();
    if !asked.hints.is_null() {
        // SAFETY: the C caller's promise.
        hints.push(unsafe { info::duplicate(asked.hints, asked.abi)? });
    }
    let wanted = hints.provider();
    for plugin in plugins {
        let layer = plugin.name.starts_with("ofi_");
        let top = wanted.rsplit(';').next().unwrap_or_default();
        if !filter.may_ask(&plugin.name)
            || !(top.is_empty() || top.eq_ignore_ascii_case(&plugin.name))
            || layer && asked.flags & CORE_PROV_ONLY != 0
        {
            continue;
        }
        // SAFETY: the C caller's promise, for its strings; the hints are this function's own.
        unsafe { plugin.offers(asked, hints.first, &mut list)? };
    }
    Ok(list.take())
}

impl Foreign {
    /// Appends the offers of this plug-in.
    ///
    /// # Safety
    /// The C caller's promise.
    unsafe fn offers(&self, asked: &InfoRequest, hints: *const fi_info, list: &mut List) -> Result<()> {
        if asked.flags & NAMES_ONLY != 0 {
            let only = info::allocate()?;
            list.push(only);
            // SAFETY: just allocated.
            return unsafe { self.sign(only, asked.version) };
        }
        let mut theirs = std::ptr::null_mut();
        let InfoRequest { version, node, service, flags, .. } = *asked;
        // SAFETY: the plug-in's function, with arguments of its interface.
        let answer = unsafe { (self.getinfo)(version, node, service, flags, hints, &raw mut theirs) };
        if answer != 0 {
            tracing::debug!(target: "ofi::core::core", name = self.name, answer, "the plug-in offers nothing");
            return Ok(());
        }
        let mut at = theirs.cast_const();
        let mut copy = || {
            // SAFETY: a list of the plug-in's structures.
            while let Some(one) = unsafe { info::read(at, self.abi.info()) } {
                // SAFETY: as above.
                let own = unsafe { info::duplicate(at, self.abi)? };
                list.push(own);
                // SAFETY: just copied.
                unsafe { self.sign(own, version)? };
                at = one.next;
            }
            Ok(())
        };
        let copied = copy();
        // SAFETY: the plug-in's list now belongs to this library, and was allocated with malloc.
        unsafe { info::release(theirs, self.abi) };
        copied
    }

    /// Marks an info with its provider's name and version, as C libfabric does.
    ///
    /// # Safety
    /// An info of this library's own.
    unsafe fn sign(&self, own: *mut fi_info, api: u32) -> Result<()> {
        // SAFETY: the caller's promise.
        let attr = unsafe { (*own).fabric_attr };
        // SAFETY: the caller's promise: copies have the attributes of the original.
        let Some(attr) = (unsafe { attr.as_mut() }) else { return Ok(()) };
        if attr.prov_name.is_null() {
            attr.prov_name = memory::string(&self.name)?;
        }
        (attr.prov_version, attr.api_version) = (self.version.as_c(), api);
        Ok(())
    }
}

/// Opens a fabric of a plug-in. `None` if the attributes name no plug-in.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn open_fabric(
    attr: *const fi_fabric_attr,
    abi: Abi,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the same promise, here and below.
    let mut attr = unsafe { info::read(attr, abi.fabric_attr()) }?;
    // SAFETY: as above.
    let name = unsafe { memory::text(attr.prov_name) }?;
    let top = name.rsplit(';').next().unwrap_or_default();
    let plugin = all().iter().find(|plugin| plugin.name.eq_ignore_ascii_case(top))?;
    if out.is_null() {
        return Some(number(crate::ffi_guard::null("the pointer for the fabric")) as c_int);
    }
    // SAFETY: as above.
    let answer = unsafe { (plugin.fabric)(&raw mut attr, out, context) };
    if answer == 0 {
        // SAFETY: as above.
        let fabric = unsafe { out.read() };
        // SAFETY: as above: a plug-in that reports success has made a fabric.
        if let Some(fabric) = unsafe { fabric.as_mut() } {
            fabric.api_version = attr.api_version;
        }
    }
    Some(answer)
}

/// A list of infos of the newest version, which is freed on drop unless taken.
struct List {
    first: *mut fi_info,
    last: *mut fi_info,
}

impl List {
    const fn new() -> Self {
        Self { first: std::ptr::null_mut(), last: std::ptr::null_mut() }
    }

    /// Appends an info that this library owns.
    fn push(&mut self, info: *mut fi_info) {
        // SAFETY: what is in the list is this library's own.
        match unsafe { self.last.as_mut() } {
            None => self.first = info,
            Some(last) => last.next = info,
        }
        self.last = info;
    }

    /// The provider's name in the first info.
    fn provider(&self) -> String {
        // SAFETY: as above.
        let attr = unsafe { self.first.as_ref() }.map_or(std::ptr::null_mut(), |info| info.fabric_attr);
        // SAFETY: as above.
        let name = unsafe { attr.as_ref() }.map_or(std::ptr::null_mut(), |attr| attr.prov_name);
        // SAFETY: as above.
        unsafe { memory::text(name) }.unwrap_or_default()
    }

    fn take(mut self) -> *mut fi_info {
        std::mem::replace(&mut self.first, std::ptr::null_mut())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { info::release(self.first, Abi::NEWEST) };
    }
}

/// Concatenates two lists.
///
/// # Errors
/// `otherwise` if both are empty.
///
/// # Safety
/// Lists of this library's own.
pub(crate) unsafe fn joined(ours: Result<*mut fi_info>, theirs: *mut fi_info) -> Result<*mut fi_info, Error> {
    let Ok(first) = ours else { return if theirs.is_null() { ours } else { Ok(theirs) } };
    let mut last = first;
    // SAFETY: the caller's promise.
    while let Some(info) = unsafe { last.as_ref() }.filter(|info| !info.next.is_null()) {
        last = info.next;
    }
    // SAFETY: the caller's promise.
    if let Some(last) = unsafe { last.as_mut() } {
        last.next = theirs;
    }
    Ok(first)
}
