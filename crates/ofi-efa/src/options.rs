//! Endpoint options of C's provider `efa` (fi_efa(7), "PROVIDER SPECIFIC ENDPOINT LEVEL OPTION").
//!
//! All can be read, where C's reads but four of them, and are set before the endpoint is enabled.

use ofi_api::{EpOption, Errno, Error, Info, Result};

use crate::domain::{DIRECT, Domain};
use crate::settings;
use crate::srd::Limits;

/// Without end, as devices count.
const NO_END: usize = 7;
/// What C's endpoints have their devices do.
const RNR_RETRY: usize = 3;

/// What was set of an endpoint that has consequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How often the device asks a receiver again.
    pub rnr_retry: Option<u8>,
    /// The device leaves peers' memory alone.
    pub no_rdma: bool,
    /// Bytes of the longest message without a tag.
    pub longest: Option<usize>,
}

impl Options {
    /// Takes note of one.
    pub fn set(&mut self, option: EpOption, value: usize) {
        match option {
            EpOption::EfaRnrRetry => self.rnr_retry = u8::try_from(value).ok(),
            EpOption::EfaUseDeviceRdma => self.no_rdma = value == 0,
            EpOption::MaxMsgSize => self.longest = Some(value),
            _ => {}
        }
    }
}

/// The longest request, whatever more the device can.
const LONGEST: usize = 1 << 30;

/// What this end's device does with peers' memory.
#[derive(Clone, Copy, Debug)]
pub struct Rdma {
    pub read: bool,
    pub write: bool,
    pub unsolicited: bool,
    /// Bytes of one request.
    pub longest: usize,
}

impl Rdma {
    /// As the device, the settings and an endpoint's options have it.
    pub fn of(limits: &Limits, options: &Options) -> Self {
        let on = settings::USE_DEVICE_RDMA.get() && limits.rdma > 0 && !options.no_rdma;
        Self {
            read: on && limits.read,
            write: on && limits.write,
            unsolicited: on && limits.unsolicited,
            longest: limits.rdma.clamp(1, LONGEST),
        }
    }
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
        EpOption::EfaRnrRetry if value > NO_END => (Errno::EINVAL, "0 to 7, which is without end"),
        EpOption::EfaRnrRetry if !domain.device.asks_again() => {
            (Errno::ENOSYS, "a device that can be told how often it asks a receiver again")
        }
        EpOption::EfaEmulatedRead | EpOption::EfaEmulatedWrite | EpOption::EfaEmulatedAtomics => {
            (Errno::ENOPROTOOPT, "nothing: it is read-only")
        }
        EpOption::EfaUseDeviceRdma if on && !can_rdma => (
            Errno::EOPNOTSUPP,
            "false: the device does not access peers' memory, or FI_EFA_USE_DEVICE_RDMA forbids it",
        ),
        EpOption::EfaUseDeviceRdma if !on && is_direct(info) => {
            (Errno::EOPNOTSUPP, "true: fabric efa-direct has no accesses but the device's")
        }
        EpOption::EfaSendrecvInOrder | EpOption::EfaWriteInOrder if on => {
            (Errno::EOPNOTSUPP, "false: nobody promises an order within 128 bytes")
        }
        EpOption::EfaUseUnsolicitedWriteRecv if on != limits.unsolicited => {
            (Errno::EOPNOTSUPP, "what the device does: writes with data take receives as it says")
        }
        _ => return Ok(()),
    };
    let advice = "leave the option as it is";
    Err(Error::wanted(errno, format!("endpoint option {option:?}"), wanted, value.to_string(), advice))
}
