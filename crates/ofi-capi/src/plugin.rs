//! One of our providers inside a stock libfabric. `link/plugin.c` contains `fi_prov_ini`, and selects the provider and
//! its name. The host library fills in names and versions in the results, and frees them with `free`.

use std::ffi::{c_char, c_int, c_void};

use ofi_api::{Errno, Error, GetinfoFlags, Hints, Request, Result, Version};

use crate::abi::{Abi, fi_fabric_attr, fid_fabric};
use crate::ffi_guard::{self, null};
use crate::{fabric, info, memory};

/// The host's internal flag by which a utility provider asks for core providers (`OFI_CORE_PROV_ONLY` in C libfabric).
/// An answer would be listed before our own offers, and cannot work.
const CORE_PROV_ONLY: u64 = 1 << 59;

/// Translates a program's prov_name, which calls our provider `alias`. Other providers in a stack are kept.
fn translated(wanted: &str, provider: &str, alias: &str) -> String {
    let ours = |name: &str| match name.strip_prefix('^') {
        Some(name) if name.eq_ignore_ascii_case(alias) => format!("^{provider}"),
        _ if name.eq_ignore_ascii_case(alias) => provider.to_owned(),
        _ => name.to_owned(),
    };
    wanted.split(';').map(ours).collect::<Vec<_>>().join(";")
}

/// `fi_provider.getinfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_plugin_getinfo(
    provider: *const c_char,
    alias: *const c_char,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const c_void,
    out: *mut *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        if out.is_null() {
            return Err(null("the pointer for the infos"));
        }
        // SAFETY: the host's promise, here and below.
        unsafe { out.write(std::ptr::null_mut()) };
        if flags & CORE_PROV_ONLY != 0 {
            return Err(Error::with(
                Errno::ENODATA,
                "this provider needs no utility provider over it; it has every endpoint type itself",
            ));
        }
        // SAFETY: as above.
        let (provider, alias) = unsafe { names(provider, alias)? };
        let version = Version::from_c(version).min(Version::API);
        let mut wanted = if hints.is_null() {
            Hints::default()
        } else {
            // SAFETY: as above; the structure has the host's version, which is at least the program's.
            Hints { info: unsafe { info::from_c(hints.cast(), Abi::of(version))? } }
        };
        let named = &mut wanted.info.fabric_attr;
        named.prov_name = match named.prov_name.as_str() {
            "" => provider.clone(),
            given => translated(given, &provider, &alias),
        };
        // Versions of the host's providers say nothing about ours.
        named.prov_version = Version::default();
        if hints.is_null() {
            wanted.info.domain_attr.mr_mode = ofi_api::MrMode::all() - ofi_api::MrMode::DEPRECATED;
        }
        // SAFETY: as above.
        let (node, service) = unsafe { both(node, service) };
        // The host adds flags of its own.
        let flags = GetinfoFlags::from_bits_truncate(flags);
        let (node, service) = (node.as_deref(), service.as_deref());
        let request = Request { version, node, service, flags, hints: Some(&wanted) };
        ofi::log_from_env();
        let mut infos = ofi::getinfo_of(&provider, &request)?;
        for info in &mut infos {
            info::name_source(info);
            // The host fills in its name for our provider.
            info.fabric_attr.prov_name.clear();
        }
        let list = info::to_c(&infos)?;
        // SAFETY: as above.
        unsafe { out.write(list.cast()) };
        Ok(())
    })
}

/// # Safety
/// Strings of the host.
unsafe fn names(provider: *const c_char, alias: *const c_char) -> Result<(String, String)> {
    // SAFETY: the same promise.
    let provider = unsafe { memory::text(provider) }.ok_or_else(|| null("the provider"))?;
    // SAFETY: the same promise.
    let alias = unsafe { memory::text(alias) }.ok_or_else(|| null("the provider's name"))?;
    Ok((provider, alias))
}

/// # Safety
/// Strings of the host, or null.
unsafe fn both(node: *const c_char, service: *const c_char) -> (Option<String>, Option<String>) {
    // SAFETY: the same promise.
    let node = unsafe { memory::text(node) };
    // SAFETY: the same promise.
    (node, unsafe { memory::text(service) })
}

/// `fi_provider.fabric`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_plugin_fabric(
    provider: *const c_char,
    attr: *const c_void,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the host's promise, here and below.
        let provider = unsafe { memory::text(provider) }.ok_or_else(|| null("the provider"))?;
        // SAFETY: as above.
        let given = unsafe { info::read(attr.cast::<fi_fabric_attr>(), size_of::<fi_fabric_attr>()) };
        let given = given.ok_or_else(|| null("fi_fabric_attr"))?;
        // SAFETY: as above.
        let fabric_attr = unsafe { info::fabric_attr(&given) };
        // SAFETY: as above.
        unsafe { fabric::open_of(fabric_attr, Some(provider), out.cast::<*mut fid_fabric>(), context) }
    })
}

#[cfg(test)]
mod tests {
    use super::translated;

    #[test]
    fn our_name_is_translated_and_others_stay() {
        assert_eq!(translated("rshm", "shm", "rshm"), "shm");
        assert_eq!(translated("^rshm", "shm", "rshm"), "^shm");
        assert_eq!(translated("tcp;ofi_rxm", "shm", "rshm"), "tcp;ofi_rxm");
        // The host has a provider of that name, which is not ours.
        assert_eq!(translated("RSHM;ofi_x", "shm", "rshm"), "shm;ofi_x");
    }
}
