//! Endpoint options of C's provider `efa` (fi_efa(7), "PROVIDER SPECIFIC ENDPOINT LEVEL OPTION").
//!
//! Programs can read all of them; of C's options, only four can be read. They are set before the endpoint is enabled.

use ofi_api::{EpOption, Errno, Error, Info, Result};

use crate::domain::{DIRECT, Domain};
use crate::settings;
use crate::srd::DeviceLimits;

/// Retries without limit, in the devices' encoding.
const NO_END: usize = 7;
/// The retries that C's endpoints request.
const RNR_RETRY: usize = 3;

/// The options of an endpoint that take effect here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How often the device retries a receiver that is not ready.
    pub rnr_retry: Option<u8>,
    /// Whether the device must not access peers' memory.
    pub no_rdma: bool,
    /// Whether writes with data consume receives, on demand.
    pub solicited: bool,
    /// Longest untagged message in bytes.
    pub longest: Option<usize>,
}

impl Options {
    /// Whether the application has limited the device's retries.
    pub fn gives_up(&self) -> bool {
        self.rnr_retry.is_some_and(|most| usize::from(most) < NO_END)
    }

    /// The device's number of RNR retries. `None`: as on fabric `efa`. On fabric `efa-direct` it retries without limit,
    /// as in C's provider: a message that was reported as sent then arrives even if the application does not poll any
    /// more.
    pub fn device_retries(&self, direct: bool) -> Option<u8> {
        self.rnr_retry.or(direct.then_some(NO_END as u8))
    }

    /// Stores an option.
    pub fn set(&mut self, option: EpOption, value: usize) {
        match option {
            EpOption::EfaRnrRetry => self.rnr_retry = u8::try_from(value).ok(),
            EpOption::EfaUseDeviceRdma => self.no_rdma = value == 0,
            EpOption::EfaUseUnsolicitedWriteRecv => self.solicited = value == 0,
            EpOption::MaxMsgSize => self.longest = Some(value),
            _ => {}
        }
    }
}

/// Maximum length of one device request in bytes, even if the device allows more.
const MAX_REQUEST_LEN: usize = 1 << 30;

/// The abilities of this end's device to access peers' memory.
#[derive(Clone, Copy, Debug)]
pub struct Rdma {
    pub read: bool,
    pub write: bool,
    pub unsolicited: bool,
    /// Maximum bytes of one request.
    pub longest: usize,
}

impl Rdma {
    /// Combines the limits of the device, the settings and an endpoint's options.
    pub fn of(limits: &DeviceLimits, options: &Options) -> Self {
        let on = settings::USE_DEVICE_RDMA.get() && limits.rdma > 0 && !options.no_rdma;
        Self {
            read: on && limits.read,
            write: on && limits.write,
            unsolicited: on && is_unsolicited(limits) && !options.solicited,
            longest: limits.rdma.clamp(1, MAX_REQUEST_LEN),
        }
    }
}

/// Whether the device can receive writes with data without a receive for each, and the user lets it.
fn is_unsolicited(limits: &DeviceLimits) -> bool {
    limits.unsolicited && settings::USE_UNSOLICITED_WRITE_RECV.get()
}

fn is_direct(info: &Info) -> bool {
    info.fabric_attr.name == DIRECT
}

/// See [`ofi_core::transport::Transport::option`].
pub fn value(domain: &Domain, info: &Info, set: &[(EpOption, usize)], option: EpOption) -> Option<usize> {
    let mut options = Options::default();
    set.iter().for_each(|&(option, value)| options.set(option, value));
    let rdma = Rdma::of(&domain.device.limits(), &options);
    let unset = match option {
        EpOption::EfaRnrRetry if is_direct(info) => NO_END,
        EpOption::EfaRnrRetry => RNR_RETRY,
        EpOption::EfaEmulatedRead => (!rdma.read).into(),
        EpOption::EfaEmulatedWrite => (!rdma.write).into(),
        EpOption::EfaEmulatedAtomics => 1,
        EpOption::EfaUseDeviceRdma => (rdma.read || rdma.write).into(),
        EpOption::EfaUseUnsolicitedWriteRecv => rdma.unsolicited.into(),
        EpOption::EfaSendrecvInOrder | EpOption::EfaWriteInOrder | EpOption::EfaHomogeneousPeers => 0,
        _ => return None,
    };
    Some(set.iter().find(|(other, _)| *other == option).map_or(unset, |(_, value)| *value))
}

/// See [`ofi_core::transport::Transport::check_option`].
pub fn check(domain: &Domain, info: &Info, option: EpOption, value: usize) -> Result<()> {
    let (limits, on) = (domain.device.limits(), value == 1);
    let can_rdma = settings::USE_DEVICE_RDMA.get() && limits.rdma > 0;
    let (errno, wanted) = match option {
        EpOption::EfaRnrRetry if value > NO_END => (Errno::EINVAL, "0 to 7, where 7 means without limit"),
        EpOption::EfaRnrRetry if !domain.device.asks_again() => {
            (Errno::ENOSYS, "a device whose number of RNR retries can be set")
        }
        EpOption::EfaEmulatedRead | EpOption::EfaEmulatedWrite | EpOption::EfaEmulatedAtomics => {
            (Errno::ENOPROTOOPT, "no value: the option is read-only")
        }
        EpOption::EfaUseDeviceRdma if on && !can_rdma => (
            Errno::EOPNOTSUPP,
            "false: the device does not access peers' memory, or FI_EFA_USE_DEVICE_RDMA forbids it",
        ),
        EpOption::EfaUseDeviceRdma if !on && is_direct(info) => {
            (Errno::EOPNOTSUPP, "true: on fabric efa-direct only the device executes accesses")
        }
        EpOption::EfaSendrecvInOrder | EpOption::EfaWriteInOrder if on => {
            (Errno::EOPNOTSUPP, "false: the provider does not guarantee an order within 128 bytes")
        }
        EpOption::EfaUseUnsolicitedWriteRecv if on && !is_unsolicited(&limits) => (
            Errno::EOPNOTSUPP,
            "false: writes with data consume receives of the device, or FI_EFA_USE_UNSOLICITED_WRITE_RECV demands it",
        ),
        _ => return Ok(()),
    };
    let advice = "leave the option as it is";
    Err(Error::wanted(errno, format!("endpoint option {option:?}"), wanted, value.to_string(), advice))
}
