//! The address of a target: JSON that the C++ SDK's tools read and write, with additional keys of ours that they
//! ignore.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mxl::Geometry;
use serde_json::{Map, Value, json};

use crate::message::{MAX_ADDRESS_LEN, VERSION};
use crate::sdk::{plant, wire};
use crate::{Error, Provider, Result, shape};

/// Maximum regions of one target. No ring has so many slots.
pub(crate) const MAX_REGIONS: usize = 65_536;

/// The address and identity of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Identifies the target. A target that is set up again at its old address keeps its id if the caller
    /// passes it.
    pub id: u64,
    /// The provider that reaches it.
    pub provider: Provider,
    /// libfabric's number for the address format.
    pub format: u32,
    /// The address of its endpoint.
    pub address: Vec<u8>,
    /// Writable memory, as the C++ SDK lists it: each slot of a ring of grains, header and payload, or each entry of a
    /// bounce buffer. Our targets lend such memory to initiators of the C++ SDK where the provider carries its
    /// protocol. Otherwise they list their slots, or all rings of samples as one region, with addresses and keys of 0:
    /// these entries only state the sizes and grant nothing. Initiators of this library do not use the entries of our
    /// targets, as memory is granted to them for each write.
    pub regions: Vec<RegionInfo>,
    /// Bounce buffer into which the C++ SDK's initiators write samples: number of entries, and bytes of each. Ours
    /// write into the rings of our targets.
    pub bounce: Option<(u64, u64)>,
    /// Properties of a target of this library; `None` for one of the C++ SDK.
    pub ours: Option<OwnKeys>,
}

/// The part of an info that only this library writes: key `ofi`, which the C++ SDK ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKeys {
    /// The target's protocol version.
    pub version: u16,
    /// The properties that both flows must have ([`crate::message::geometry`]). An initiator refuses to add a target
    /// with other properties. `None` in older infos, which lack this key: then only the target refuses.
    pub geometry: Option<[u64; 8]>,
    /// Whether its memory can be written remotely. If not, payloads come in messages, as they do when an initiator
    /// cannot write. The target's answer to a greeting is authoritative.
    pub has_writes: bool,
    /// When the target was set up, in nanoseconds of TAI: of two infos with the same id, the newer is valid.
    /// 0 if unknown.
    pub epoch: u64,
    /// Where this library's protocol is spoken, if that is not the address for the C++ SDK's: format, and address.
    pub address: Option<(u32, Vec<u8>)>,
}

/// The protocol of a pair of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// This library's own, with credits, verdicts and reports.
    Own,
    /// The C++ SDK's: plain writes.
    Sdk,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "ofi",
            Self::Sdk => "mxl-sdk",
        })
    }
}

/// The capability of [`OwnKeys::has_writes`]. Every target takes messages.
const WRITES: &str = "writes";

impl OwnKeys {
    fn parse(ours: &Value) -> Result<Self> {
        let ours = ours.as_object().ok_or_else(|| bad("ofi is not an object"))?;
        let version = field(ours, "version")?.as_u64().and_then(|wide| u16::try_from(wide).ok());
        let geometry = match ours.get("geometry") {
            None => None,
            Some(list) => {
                let numbers = list.as_array().map(|list| list.iter().map(Value::as_u64).collect());
                let numbers: Vec<u64> =
                    numbers.flatten().ok_or_else(|| bad("ofi.geometry is not a list of numbers"))?;
                let count = numbers.len();
                Some(
                    numbers
                        .try_into()
                        .map_err(|_| bad(format!("ofi.geometry has {count} numbers, not 8")))?,
                )
            }
        };
        let has_writes = match ours.get("capabilities") {
            None => true,
            Some(list) => {
                let list = list.as_array().ok_or_else(|| bad("ofi.capabilities is not a list"))?;
                list.iter().any(|capability| capability == WRITES)
            }
        };
        let epoch = if ours.contains_key("epoch") { number(ours, "epoch")? } else { 0 };
        let version = version.ok_or_else(|| bad("ofi.version is not a version number"))?;
        let address = match ours.contains_key("fabricAddress") {
            false => None,
            true => Some(address_of(ours)?),
        };
        Ok(Self { version, geometry, has_writes, epoch, address })
    }

    fn to_json(&self) -> Value {
        let capabilities: &[&str] = if self.has_writes { &["messages", WRITES] } else { &["messages"] };
        let mut ours = json!({
            "capabilities": capabilities,
            "epoch": self.epoch.to_string(),
            "version": self.version,
        });
        if let Some(geometry) = self.geometry {
            ours["geometry"] = json!(geometry);
        }
        if let Some((format, address)) = &self.address {
            ours["addressFormat"] = json!(format);
            ours["fabricAddress"] = json!(STANDARD.encode(address));
        }
        ours
    }
}

/// Memory of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u64,
}

fn bad(what: impl Into<String>) -> Error {
    Error::Info(what.into())
}

fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value> {
    object.get(name).ok_or_else(|| bad(format!("{name} is missing")))
}

fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str> {
    let value = field(object, name)?;
    value.as_str().ok_or_else(|| bad(format!("{name} is {value}, not a string")))
}

/// A 64-bit number, which is written as a string.
fn number(object: &Map<String, Value>, name: &str) -> Result<u64> {
    let text = text(object, name)?;
    text.parse().map_err(|_| bad(format!("{name} is \"{text}\", not a number of 64 bits")))
}

/// The address in an object.
fn address_of(object: &Map<String, Value>) -> Result<(u32, Vec<u8>)> {
    let format = field(object, "addressFormat")?.as_u64().and_then(|format| u32::try_from(format).ok());
    let format = format.ok_or_else(|| bad("addressFormat is not a format number"))?;
    let address = STANDARD
        .decode(text(object, "fabricAddress")?)
        .map_err(|error| bad(format!("fabricAddress is not base64: {error}")))?;
    if address.is_empty() || address.len() > MAX_ADDRESS_LEN {
        return Err(bad(format!("an address of {} bytes", address.len())));
    }
    Ok((format, address))
}

impl TargetInfo {
    /// Parses JSON. Unknown keys are ignored.
    ///
    /// # Errors
    /// [`Error::Info`] names the invalid key.
    pub fn parse(text_of: &str) -> Result<Self> {
        let root: Value =
            serde_json::from_str(text_of).map_err(|error| bad(format!("malformed JSON: {error}")))?;
        let root = root.as_object().ok_or_else(|| bad("the JSON is not an object"))?;
        let (format, address) = address_of(root)?;
        let regions = field(root, "regions")?.as_array().ok_or_else(|| bad("regions is not a list"))?;
        if regions.len() > MAX_REGIONS {
            return Err(bad(format!("{} regions, at most {MAX_REGIONS}", regions.len())));
        }
        let region = |value: &Value| {
            let region =
                value.as_object().ok_or_else(|| bad(format!("a region is {value}, not an object")))?;
            let (addr, len, rkey) =
                (number(region, "addr")?, number(region, "len")?, number(region, "rkey")?);
            Ok(RegionInfo { addr, len, rkey })
        };
        let ours = root.get("ofi").map(OwnKeys::parse).transpose()?;
        let bounce = match root.get("bounceBufferInfo") {
            None => None,
            Some(bounce) => {
                let bounce = bounce.as_object().ok_or_else(|| bad("bounceBufferInfo is not an object"))?;
                Some((number(bounce, "entryCount")?, number(bounce, "entrySize")?))
            }
        };
        Ok(Self {
            bounce,
            id: number(root, "id")?,
            provider: text(root, "provider")?.parse().map_err(|error: Error| bad(error.to_string()))?,
            format,
            address,
            regions: regions.iter().map(region).collect::<Result<_>>()?,
            ours,
        })
    }

    /// The info as one line of JSON, the keys in their order.
    pub fn to_json(&self) -> String {
        let region = |RegionInfo { addr, len, rkey }: &RegionInfo| json!({ "addr": addr.to_string(), "len": len.to_string(), "rkey": rkey.to_string() });
        let mut root = json!({
            "addressFormat": self.format,
            "fabricAddress": STANDARD.encode(&self.address),
            "id": self.id.to_string(),
            "provider": self.provider.name(),
            "regions": self.regions.iter().map(region).collect::<Vec<_>>(),
        });
        if let Some((count, size)) = self.bounce {
            root["bounceBufferInfo"] =
                json!({ "entryCount": count.to_string(), "entrySize": size.to_string() });
        }
        if let Some(ours) = &self.ours {
            root["ofi"] = ours.to_json();
        }
        root.to_string()
    }

    /// The protocol that an initiator of this library speaks to the target.
    pub fn protocol(&self) -> Protocol {
        if self.ours.is_some() { Protocol::Own } else { Protocol::Sdk }
    }

    /// The address at which this library's protocol is spoken.
    pub(crate) fn own_address(&self) -> (u32, &[u8]) {
        match self.ours.as_ref().and_then(|ours| ours.address.as_ref()) {
            Some((format, address)) => (*format, address),
            None => (self.format, &self.address),
        }
    }

    /// Checks that a flow can be sent to the target by this library's protocol.
    ///
    /// # Errors
    /// [`Error::Info`] otherwise.
    pub(crate) fn check(&self, flow: &Geometry) -> Result<()> {
        let Some(ours) = &self.ours else { return Err(bad("the target is the C++ SDK's")) };
        if ours.version != VERSION {
            return Err(bad(format!("the target has protocol version {}, not {VERSION}", ours.version)));
        }
        match ours.geometry.and_then(|theirs| shape::difference(&shape::numbers(flow), &theirs)) {
            None => Ok(()),
            Some(difference) => Err(bad(format!("the target's flow differs: {difference}"))),
        }
    }

    /// Checks that a flow can be sent to the target by the C++ SDK's protocol: its regions must be what such a flow
    /// has.
    ///
    /// # Errors
    /// [`Error::Info`] otherwise.
    pub(crate) fn check_sdk(&self, flow: &Geometry) -> Result<()> {
        if !plant::carries(self.provider) {
            return Err(bad(format!(
                "the target belongs to the C++ SDK, whose protocol this library speaks over tcp and verbs, not over {}",
                self.provider
            )));
        }
        plant::address(self.format, &self.address).map_err(|error| {
            bad(format!("the address ({} bytes) cannot be reached: {error}", self.address.len()))
        })?;
        let count = self.regions.len();
        if count == 0 {
            return Err(bad("the target has no regions"));
        }
        if self.regions.iter().any(|region| region.addr.checked_add(region.len).is_none()) {
            return Err(bad("a region is longer than memory"));
        }
        let wanted = match (flow, self.bounce) {
            (Geometry::Grains { payload, .. }, None) => wire::GRAIN_HEADER as u64 + u64::from(*payload),
            (Geometry::Samples { channels, word, .. }, Some((entries, bytes))) => {
                if entries != count as u64 {
                    return Err(bad(format!("{entries} entries in {count} regions")));
                }
                if wire::samples_of(bytes, *channels, u64::from(*word)) == 0 {
                    return Err(bad(format!(
                        "entries of {bytes} bytes have no room for {channels} channels"
                    )));
                }
                bytes
            }
            (Geometry::Grains { .. }, Some(_)) => {
                return Err(bad("the target's flow differs: samples there, grains here"));
            }
            (Geometry::Samples { .. }, None) => {
                return Err(bad("the target has no bounceBufferInfo: grains there, samples here"));
            }
        };
        match self.regions.iter().find(|region| region.len != wanted) {
            None => Ok(()),
            Some(other) => Err(bad(format!(
                "the target's flow differs: regions of {} bytes there, {wanted} here",
                other.len
            ))),
        }
    }

    /// Whether this info is from a later setup of the same target than the other.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        let epoch = |info: &Self| info.ours.as_ref().map_or(0, |ours| ours.epoch);
        self.id == other.id && epoch(self) > epoch(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mxl::Rational;

    /// An info from the C++ SDK, for a target over TCP.
    const OF_CPP: &str = r#"{"addressFormat":2,"fabricAddress":"AgCZ+X8AAAEAAAAAAAAAAA==","id":"10481740762860756472","provider":"tcp","regions":[{"addr":"0","len":"5537792","rkey":"10160052299842048269"}]}"#;

    #[test]
    fn an_info_of_cpp_is_read_and_written_as_it_is() {
        let info = TargetInfo::parse(OF_CPP).unwrap();
        assert_eq!((info.id, info.format, info.address.len()), (10_481_740_762_860_756_472, 2, 16));
        assert_eq!(info.regions, [RegionInfo { addr: 0, len: 5_537_792, rkey: 10_160_052_299_842_048_269 }]);
        assert_eq!(info.to_json(), OF_CPP);
        assert!(info.check(&GRAINS).unwrap_err().to_string().contains("C++ SDK"));
        let audio = r#""bounceBufferInfo":{"entryCount":"41","entrySize":"3856"},"fabricAddress""#;
        let audio = OF_CPP.replacen(r#""fabricAddress""#, audio, 1);
        let info = TargetInfo::parse(&audio).unwrap();
        assert_eq!((info.bounce, info.to_json()), (Some((41, 3856)), audio));
    }

    /// The SDK's JSON library escapes a slash of base64 like this.
    #[test]
    fn an_escaped_slash_of_cpp_is_a_slash() {
        let text = OF_CPP.replacen("AgCZ+X8AAAEAAAAAAAAAAA==", r"Ag\/Z+X8AAAEAAAAAAAAAAA==", 1);
        let info = TargetInfo::parse(&text).unwrap();
        assert_eq!(info.address[..3], [2, 15, 0xd9]);
        assert!(info.to_json().contains("Ag/Z+X8AAAEAAAAAAAAAAA=="));
    }

    const GRAINS: Geometry = Geometry::Grains {
        rate: Rational::new(50, 1),
        payload: 2560,
        slices: 20,
        slice_sizes: [128, 0, 0, 0],
    };

    fn of_ours() -> TargetInfo {
        let geometry = Some(shape::numbers(&GRAINS));
        let ours = OwnKeys { version: VERSION, geometry, has_writes: true, epoch: 1 << 60, address: None };
        TargetInfo { ours: Some(ours), ..TargetInfo::parse(OF_CPP).unwrap() }
    }

    #[test]
    fn keys_of_ours_survive_and_unknown_ones_are_ignored() {
        for has_writes in [true, false] {
            let mut info = of_ours();
            info.ours.as_mut().unwrap().has_writes = has_writes;
            let text = info.to_json();
            assert_eq!(TargetInfo::parse(&text).unwrap(), info);
            info.check(&GRAINS).unwrap();
            let more = text.replacen('{', r#"{"aNewKey":{"deep":[1]},"#, 1);
            let more = more.replacen("[\"messages\"", "[\"telepathy\",\"messages\"", 1);
            assert_eq!(TargetInfo::parse(&more).unwrap(), info);
        }
        // The older format, with only the version.
        let text = OF_CPP.replacen('}', r#","old":1}"#, 1).replacen("]}", r#"],"ofi":{"version":3}}"#, 1);
        let old = TargetInfo::parse(&text).unwrap();
        assert_eq!(
            old.ours,
            Some(OwnKeys { version: 3, geometry: None, has_writes: true, epoch: 0, address: None })
        );
        assert!(of_ours().is_newer_than(&old) && !old.is_newer_than(&of_ours()));
        assert!(!of_ours().is_newer_than(&of_ours()));
        assert!(!of_ours().is_newer_than(&TargetInfo { id: 1, ..old }));
    }

    #[test]
    fn a_target_of_another_flow_is_refused_by_the_difference() {
        let sound = Geometry::Samples { rate: Rational::new(48_000, 1), channels: 2, word: 4 };
        let Geometry::Grains { rate, payload, slices, slice_sizes } = GRAINS else { unreachable!() };
        for (flow, why) in [
            (sound, "grains there, samples here"),
            (
                Geometry::Grains { rate: Rational::new(25, 1), payload, slices, slice_sizes },
                "a rate of 50/1 there",
            ),
            (Geometry::Grains { rate, payload: 5120, slices, slice_sizes }, "2560 bytes there, 5120 here"),
            (Geometry::Grains { rate, payload, slices: 40, slice_sizes }, "20 slices there, 40 here"),
            (Geometry::Grains { rate, payload, slices, slice_sizes: [64, 64, 0, 0] }, "other slice sizes"),
        ] {
            let error = of_ours().check(&flow).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_no_info_is_refused_with_its_reason() {
        for (from, to, why) in [
            (r#""id":"10481740762860756472""#, r#""id":12"#, "id is 12"),
            (r#""id":"10481740762860756472","#, "", "id is missing"),
            ("AgCZ", "?", "base64"),
            ("AgCZ+X8AAAEAAAAAAAAAAA==", "", "address of 0 bytes"),
            (r#""tcp""#, r#""carrier pigeon""#, "provider"),
            (r#""addressFormat":2"#, r#""addressFormat":-1"#, "addressFormat"),
            ("5537792", "-1", "len"),
            ("[{", "[7,{", "a region is 7"),
        ] {
            let text = OF_CPP.replacen(from, to, 1);
            let error = TargetInfo::parse(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let text = of_ours().to_json();
        for (from, to, why) in [
            (r#""version":4"#, r#""version":-4"#, "ofi.version"),
            (r#""version":4"#, r#""versio":4"#, "version is missing"),
            (r#""epoch":"1"#, r#""epoch":"x"#, "epoch"),
            (r#"["messages","writes"]"#, "7", "ofi.capabilities"),
            (r#""geometry":[1,"#, r#""geometry":["#, "7 numbers"),
            (r#""geometry":[1,"#, r#""geometry":[-1,"#, "ofi.geometry"),
        ] {
            let error = TargetInfo::parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for text in ["", "[]", "{"] {
            assert!(TargetInfo::parse(text).is_err());
        }
    }

    const SOUND: Geometry = Geometry::Samples { rate: Rational::new(48_000, 1), channels: 2, word: 4 };

    /// Infos of the C++ SDK, over provider tcp.
    fn of_cpp(bounce: bool) -> String {
        let (count, len) = if bounce { (41, 3856) } else { (5, 8192 + 2560) };
        let region = format!(r#"{{"addr":"0","len":"{len}","rkey":"10160052299842048269"}}"#);
        let regions = vec![region; count].join(",");
        let bounce =
            if bounce { r#""bounceBufferInfo":{"entryCount":"41","entrySize":"3856"},"# } else { "" };
        // 127.0.0.1, port 39289.
        format!(
            r#"{{"addressFormat":2,{bounce}"fabricAddress":"AgCZeX8AAAEAAAAAAAAAAA==","id":"7","provider":"tcp","regions":[{regions}]}}"#
        )
    }

    #[test]
    fn a_target_of_cpp_is_taken_if_its_regions_are_those_of_the_flow() {
        let (grains, sound) = (of_cpp(false), of_cpp(true));
        for (text, flow) in [(&grains, GRAINS), (&sound, SOUND)] {
            let info = TargetInfo::parse(text).unwrap();
            assert_eq!((info.to_json(), info.protocol()), (text.clone(), Protocol::Sdk));
            info.check_sdk(&flow).unwrap();
        }
        let cases = [
            (&grains, SOUND, "", "", "no bounceBufferInfo"),
            (&sound, GRAINS, "", "", "samples there, grains here"),
            (&grains, GRAINS, "10752", "10753", "regions of 10753 bytes"),
            (&grains, GRAINS, r#""addr":"0""#, r#""addr":"18446744073709551615""#, "longer than memory"),
            (&grains, GRAINS, "AgCZeX8AAAEAAAAAAAAAAA==", "AgCZ", "cannot be reached"),
            (&grains, GRAINS, "AgCZeX8AAAEAAAAAAAAAAA==", "AgAAAH8AAAEAAAAAAAAAAA==", "cannot be reached"),
            (&grains, GRAINS, r#""addressFormat":2"#, r#""addressFormat":4294967295"#, "cannot be reached"),
            (&grains, GRAINS, r#""provider":"tcp""#, r#""provider":"efa""#, "not over efa"),
            (
                &sound,
                SOUND,
                r#""entryCount":"41""#,
                r#""entryCount":"18446744073709551615""#,
                "in 41 regions",
            ),
            (&sound, SOUND, r#""entrySize":"3856""#, r#""entrySize":"23""#, "no room for 2 channels"),
            (&sound, SOUND, r#""entrySize":"3856""#, r#""entrySize":"4000""#, "regions of 3856 bytes there"),
        ];
        for (text, flow, from, to, why) in cases {
            let text = text.replacen(from, to, 1);
            let error = TargetInfo::parse(&text).unwrap().check_sdk(&flow).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let none = TargetInfo { regions: Vec::new(), ..TargetInfo::parse(&grains).unwrap() };
        assert!(none.check_sdk(&GRAINS).unwrap_err().to_string().contains("no regions"));
    }

    #[test]
    fn the_address_of_our_protocol_is_beside_that_of_the_sdk_s() {
        let mut info = of_ours();
        info.ours.as_mut().unwrap().address = Some((2, vec![2, 0, 1, 1, 127, 0, 0, 1]));
        let text = info.to_json();
        assert_eq!(TargetInfo::parse(&text).unwrap(), info);
        assert_eq!(info.own_address(), (2, &[2, 0, 1, 1, 127, 0, 0, 1][..]));
        assert_eq!(of_ours().own_address().1, info.address);
        let broken = text.replacen("AgABAX8AAAE=", "?", 1);
        assert!(TargetInfo::parse(&broken).unwrap_err().to_string().contains("base64"));
    }

    proptest::proptest! {
        /// Whatever is done to an info, it is an info or an error, and what is taken is written as it was read.
        #[test]
        fn a_mangled_info_is_an_info_or_an_error(
            kind in 0_usize..3, cuts in proptest::collection::vec((0_usize..9000, proptest::prelude::any::<u8>()), 0..6),
        ) {
            let text = vec![of_cpp(false), of_cpp(true), of_ours().to_json()].swap_remove(kind);
            let mut bytes = text.into_bytes();
            for (at, byte) in cuts {
                let at = at % bytes.len();
                if byte < 64 {
                    bytes.remove(at);
                } else {
                    bytes[at] = byte;
                }
            }
            if let Ok(info) = TargetInfo::parse(&String::from_utf8_lossy(&bytes)) {
                proptest::prop_assert_eq!(&TargetInfo::parse(&info.to_json()).unwrap(), &info);
                for flow in [GRAINS, SOUND] {
                    let _ = (info.check(&flow), info.check_sdk(&flow));
                }
            }
        }
    }
}
