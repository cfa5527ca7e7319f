//! Structures of the C interface.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

use mxl::Status;
use mxl_fabrics::{Options, Provider};
use mxl_ffi::border::{Outcome, text};

use crate::status::refused;

/// `MXL_FABRICS_API_VERSION`.
const VERSION: c_int = 0;
/// `MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS`.
pub(crate) const BLOCKING: u64 = 1;
/// `MXL_FABRICS_IFACE_CAP_REMOTE_WRITE`.
pub(crate) const REMOTE_WRITE: u64 = 2;
/// `MXL_FABRICS_IFACE_CAP_SEND_RECEIVE`.
pub(crate) const SEND_RECEIVE: u64 = 4;

/// `mxlFabricsInterfaceCaps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Caps {
    pub version: c_int,
    pub flags: u64,
    /// Maximum length of a message, in bytes.
    pub max_message: u64,
}

/// `mxlFabricsEndpointAddress`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Address {
    pub node: *const c_char,
    pub service: *const c_char,
}

/// `mxlFabricsInterfaceConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Interface {
    pub version: c_int,
    pub provider: c_int,
    pub caps: Caps,
    pub address: Address,
    pub attr: *const c_char,
}

/// `mxlFabricsInterfaceList`.
#[derive(Debug)]
#[repr(C)]
pub struct List {
    pub next: *mut List,
    pub interface: Interface,
}

/// `mxlFabricsTargetConfig` and `mxlFabricsInitiatorConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    pub version: c_int,
    pub interface: Interface,
    /// The writer of a target, the reader of an initiator.
    pub flow: *const u8,
}

const _: () = {
    assert!(size_of::<Interface>() == 56 && size_of::<Config>() == 72 && size_of::<List>() == 64);
    assert!(offset_of!(Interface, provider) == 4 && offset_of!(Interface, caps) == 8);
    assert!(
        offset_of!(Caps, flags) == 8
            && offset_of!(Interface, address) == 32
            && offset_of!(Interface, attr) == 48
    );
    assert!(offset_of!(Config, interface) == 8 && offset_of!(Config, flow) == 64);
};

/// The `mxlFabricsProvider` number of a provider. 5 is an addition.
pub(crate) const fn number(provider: Provider) -> c_int {
    match provider {
        Provider::Tcp => 1,
        Provider::Verbs => 2,
        Provider::Efa => 3,
        Provider::Shm => 4,
        _ => 5,
    }
}

/// The provider with this number; `None` for any provider.
pub(crate) fn provider(of: c_int) -> Outcome<Option<Provider>> {
    if of == 0 {
        return Ok(None);
    }
    let found = Provider::ALL.into_iter().find(|provider| number(*provider) == of);
    found.map(Some).ok_or_else(|| refused(format!("provider {of} is not in 0 to {}", Provider::ALL.len())))
}

/// Reads a structure of the caller.
pub(crate) fn given<T: Copy>(pointer: *const T) -> Outcome<T> {
    if pointer.is_null() {
        return Err(Status::InvalidArg.into());
    }
    // SAFETY: not null, and the C caller's promise: it is a `T`, and it does not change during the call.
    Ok(unsafe { pointer.read() })
}

/// An optional text: null and the empty text mean none.
pub(crate) fn optional<'a>(pointer: *const c_char) -> Outcome<Option<&'a str>> {
    if pointer.is_null() {
        Ok(None)
    } else {
        text(pointer).map(|text| Some(text).filter(|text| !text.is_empty()))
    }
}

/// The settings of an interface for a new endpoint.
pub(crate) struct Setup<'a> {
    pub provider: Provider,
    /// Node and service.
    pub place: (Option<&'a str>, Option<&'a str>),
    pub options: Options,
}

impl Interface {
    /// Checks the interface. A service of "0" means any. Payloads travel by remote writes, unless the program
    /// requests messages only, and are split to `max_message` bytes, unless that is 0.
    pub fn check(&self) -> Outcome<Setup<'_>> {
        for version in [self.version, self.caps.version] {
            if version != VERSION {
                return Err(refused(format!("structure of version {version}, not {VERSION}")));
            }
        }
        let provider = provider(self.provider)?.ok_or_else(|| refused("set one provider, not any"))?;
        let ways = self.caps.flags & (REMOTE_WRITE | SEND_RECEIVE);
        if ways == 0 {
            return Err(refused("neither remote writes nor messages are requested: set caps.flags"));
        }
        let mut options = Options::default();
        options.messages_only = ways == SEND_RECEIVE;
        options.max_message = usize::try_from(self.caps.max_message).ok().filter(|most| *most > 0);
        let service = optional(self.address.service)?.filter(|service| *service != "0");
        Ok(Setup { provider, place: (optional(self.address.node)?, service), options })
    }
}

impl Config {
    /// Checks the configuration as [`Interface::check`] does.
    pub fn check(&self) -> Outcome<Setup<'_>> {
        if self.version != VERSION {
            return Err(refused(format!("structure of version {}, not {VERSION}", self.version)));
        }
        self.interface.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_providers_are_the_sdks() {
        let names: Vec<_> = (1..=5).map(|of| provider(of).unwrap().unwrap().name()).collect();
        assert_eq!(names, ["tcp", "verbs", "efa", "shm", "udp"]);
        assert!(provider(0).unwrap().is_none() && provider(6).is_err() && provider(-1).is_err());
    }
}
