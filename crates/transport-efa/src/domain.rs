//! A domain: a device, by its name.

use std::sync::Arc;

use ofi_api::{Errno, Error, Info, Result};

use crate::srd::{self, Device};

/// See the module.
pub struct Domain {
    /// Whose queue pairs its endpoints have.
    pub device: Arc<dyn Device>,
}

impl Domain {
    /// Opens the device of the info's name.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is none.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = &info.domain_attr.name;
        let all = srd::devices().unwrap_or_default();
        let found = all.iter().find(|device| domain_name(device.name()) == *wanted);
        let device = found.cloned().ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|device| domain_name(device.name())).collect();
            Error::wanted(
                Errno::ENODEV,
                "fi_info.domain_attr.name",
                format!("one of {}", names.join(", ")),
                wanted.clone(),
                "use an info that getinfo answered",
            )
        })?;
        Ok(Self { device })
    }
}

/// What C libfabric calls the domain of a device.
pub fn domain_name(device: &str) -> String {
    format!("{device}-rdm")
}
