//! The settings of the device and its network, from environment variables.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::formats::{Gid, LONG_INLINE};

/// Abilities of the device, with the numbers of an `enum` in `efa-abi.h`.
pub mod cap {
    /// Reads of peers' memory.
    pub const READ: u32 = 1;
    /// A limit of retries when the peer has no receive.
    pub const RNR_RETRY: u32 = 1 << 1;
    /// Completion channels.
    pub const NOTIFY: u32 = 1 << 2;
    /// Source GIDs in completions.
    pub const SGID: u32 = 1 << 3;
    /// Writes to peers' memory.
    pub const WRITE: u32 = 1 << 5;
    /// Writes with immediate data that consume no receive.
    pub const UNSOLICITED: u32 = 1 << 6;
}

/// The behaviour of the device of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder where processes find each other: `EFA_EMULATOR_DIR`. Without it there is no device.
    pub dir: PathBuf,
    /// Number of devices, which have the same settings: `EFA_EMULATOR_DEVICES`, at most 8. Default: 1.
    pub devices: u8,
    /// The first device's address: `EFA_EMULATOR_GID`, 32 hexadecimal digits. Further devices have the next ones. By
    /// default each process has its own, so peers appear to be on other hosts.
    pub gid: Option<Gid>,
    /// The seed for the random faults: `EFA_EMULATOR_SEED`. Default: 1.
    pub seed: u64,
    /// Maximum bytes of one send: `EFA_EMULATOR_MTU`. Default: 8,928, as on real devices.
    pub mtu: u32,
    /// The device's abilities: `EFA_EMULATOR_CAPS`, some of `read,write,sgid,rnr,unsolicited`. Default: all.
    pub caps: u32,
    /// Maximum inline bytes of a request of 128 bytes, or 0 without such requests: `EFA_EMULATOR_INLINE`. Default: 80.
    pub inline: u32,
    /// Percentage of packets that are overtaken by later ones: `EFA_EMULATOR_REORDER`. Default: 0.
    pub reorder: u32,
    /// Percentage of sends that find no receive although one is posted: `EFA_EMULATOR_RNR`. Default: 0.
    pub rnr: u32,
    /// Maximum number of consecutive times that one message finds no receive for that reason: `EFA_EMULATOR_RNR_TIMES`.
    /// Default: no limit.
    pub rnr_times: u8,
    /// Maximum number of registrations; the device refuses more (`ENOMEM`): `EFA_EMULATOR_REGIONS`. Default: 262,144.
    pub regions: usize,
    /// The request with this number (from 1) ends with this status of the device: `EFA_EMULATOR_FAIL`, as
    /// `STATUS@NUMBER`. Default: none.
    pub fail: Option<(u8, u64)>,
    /// When the device processes the request of this number (from 1), it reports this asynchronous event of a device or
    /// a port (`enum ibv_event_type`): `EFA_EMULATOR_EVENT`, as `TYPE@NUMBER`. Default: none.
    pub event: Option<(u8, u64)>,
    /// Number of packets, in and out, after which the device neither sends nor receives: `EFA_EMULATOR_LOSE_AFTER`.
    /// Default: never.
    pub lose_after: Option<u64>,
    /// The device with this number (from 0) is mute while a file `mute` is in the folder: `EFA_EMULATOR_MUTE`. It
    /// neither sends nor receives, loses nothing, and continues when the file is removed. Default: none.
    pub mute: Option<u8>,
    /// Time after which a silent peer is lost: `EFA_EMULATOR_TIMEOUT_MS`. Default: 10,000.
    pub timeout: Duration,
}

impl Settings {
    /// Reads the environment; `None` without `EFA_EMULATOR_DIR`.
    ///
    /// # Errors
    /// A text that names the invalid variable, its valid values, and its value.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let Some(dir) = get("EFA_EMULATOR_DIR").filter(|dir| !dir.is_empty()) else { return Ok(None) };
        let number = |name: &str, default: u64, most: u64| {
            let Some(text) = get(name) else { return Ok(default) };
            let value = text.trim().parse().ok().filter(|value| *value <= most);
            value.ok_or_else(|| format!("{name} must be a number from 0 to {most}, not {text:?}"))
        };
        let small = |name: &str, default: u32, most: u32| {
            number(name, u64::from(default), u64::from(most)).map(|value| value as u32)
        };
        let lose_after = number("EFA_EMULATOR_LOSE_AFTER", u64::MAX, u64::MAX)?;
        let mute = match get("EFA_EMULATOR_MUTE") {
            Some(_) => small("EFA_EMULATOR_MUTE", 0, DEVICES - 1)?,
            None => DEVICES,
        };
        Ok(Some(Self {
            dir: PathBuf::from(dir),
            devices: small("EFA_EMULATOR_DEVICES", 1, DEVICES)?.max(1) as u8,
            gid: get("EFA_EMULATOR_GID").map(|text| gid(&text)).transpose()?,
            seed: number("EFA_EMULATOR_SEED", 1, u64::MAX)?,
            mtu: small("EFA_EMULATOR_MTU", 8928, 65_536)?.max(256),
            caps: get("EFA_EMULATOR_CAPS").map_or(Ok(ALL), |text| caps(&text))?,
            inline: small("EFA_EMULATOR_INLINE", LONG_INLINE, LONG_INLINE)?,
            reorder: small("EFA_EMULATOR_REORDER", 0, 100)?,
            rnr: small("EFA_EMULATOR_RNR", 0, 100)?,
            rnr_times: small("EFA_EMULATOR_RNR_TIMES", u8::MAX.into(), u8::MAX.into())? as u8,
            regions: small("EFA_EMULATOR_REGIONS", REGIONS, REGIONS)? as usize,
            fail: get("EFA_EMULATOR_FAIL").map(|text| fail(&text)).transpose()?,
            event: get("EFA_EMULATOR_EVENT").map(|text| event(&text)).transpose()?,
            lose_after: (lose_after != u64::MAX).then_some(lose_after),
            mute: (mute < DEVICES).then_some(mute as u8),
            timeout: Duration::from_millis(number("EFA_EMULATOR_TIMEOUT_MS", 10_000, 3_600_000)?),
        }))
    }
}

/// Maximum number of devices of a process.
const DEVICES: u32 = 8;
/// Maximum number of registrations of a device.
const REGIONS: u32 = 262_144;
const ALL: u32 = cap::READ | cap::RNR_RETRY | cap::NOTIFY | cap::SGID | cap::WRITE | cap::UNSOLICITED;

fn gid(text: &str) -> Result<Gid, String> {
    let wrong = || format!("EFA_EMULATOR_GID is 32 hexadecimal digits, not {text:?}");
    if text.len() != 32 || !text.is_ascii() {
        return Err(wrong());
    }
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|_| wrong())
}

fn caps(text: &str) -> Result<u32, String> {
    let mut found = cap::NOTIFY;
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        found |= match name {
            "read" => cap::READ,
            "write" => cap::WRITE,
            "sgid" => cap::SGID,
            "rnr" => cap::RNR_RETRY,
            "unsolicited" => cap::UNSOLICITED,
            _ => {
                return Err(format!(
                    "EFA_EMULATOR_CAPS takes some of read,write,sgid,rnr,unsolicited, not {name:?}"
                ));
            }
        };
    }
    Ok(found)
}

/// Parses `VALUE@NUMBER`, with the number of a request.
fn at(text: &str, valid: impl Fn(u8) -> bool) -> Option<(u8, u64)> {
    let (what, number) = text.split_once('@')?;
    Some((u8::from_str(what).ok().filter(|what| valid(*what))?, u64::from_str(number).ok()?))
}

fn fail(text: &str) -> Result<(u8, u64), String> {
    let found = at(text, |status| status < 32);
    found.ok_or_else(|| format!("EFA_EMULATOR_FAIL is STATUS@NUMBER, such as 10@3, not {text:?}"))
}

fn event(text: &str) -> Result<(u8, u64), String> {
    // Other events name an object of the program.
    let found = at(text, |event| matches!(event, 8..=13 | 17 | 18));
    found.ok_or_else(|| {
        format!(
            "EFA_EMULATOR_EVENT is TYPE@NUMBER of an event of a device or a port, such as 8@3, not {text:?}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn without_a_directory_there_is_no_device() {
        assert_eq!(read(&[("EFA_EMULATOR_MTU", "nonsense")]), Ok(None));
    }

    #[test]
    fn settings_are_read_and_wrong_ones_named() {
        let dir = ("EFA_EMULATOR_DIR", "/tmp/x");
        let found = read(&[dir, ("EFA_EMULATOR_FAIL", "10@3"), ("EFA_EMULATOR_CAPS", "read,sgid")]);
        let found = found.unwrap().unwrap();
        assert_eq!((found.fail, found.mtu, found.regions), (Some((10, 3)), 8928, 262_144));
        assert_eq!(found.caps, cap::READ | cap::SGID | cap::NOTIFY);
        assert_eq!(found.mute, None);
        assert_eq!(read(&[dir, ("EFA_EMULATOR_MUTE", "1")]).unwrap().unwrap().mute, Some(1));
        let gid =
            read(&[dir, ("EFA_EMULATOR_GID", "fe8000000000000000000000000000a1")]).unwrap().unwrap().gid;
        assert_eq!(gid.map(|gid| (gid[0], gid[15])), Some((0xfe, 0xa1)));
        for (name, wrong) in [
            ("EFA_EMULATOR_GID", "fe80::1"),
            ("EFA_EMULATOR_REORDER", "101"),
            ("EFA_EMULATOR_DEVICES", "9"),
            ("EFA_EMULATOR_INLINE", "81"),
            ("EFA_EMULATOR_RNR", "-1"),
            ("EFA_EMULATOR_RNR_TIMES", "256"),
            ("EFA_EMULATOR_MUTE", "8"),
            ("EFA_EMULATOR_REGIONS", "262145"),
            ("EFA_EMULATOR_FAIL", "10"),
            ("EFA_EMULATOR_FAIL", "77@1"),
            ("EFA_EMULATOR_EVENT", "1@1"),
            ("EFA_EMULATOR_CAPS", "teleport"),
            ("EFA_EMULATOR_MTU", "99999999"),
        ] {
            let error = read(&[dir, (name, wrong)]).unwrap_err();
            assert!(error.contains(name) && error.contains(wrong), "{error}");
        }
    }
}
