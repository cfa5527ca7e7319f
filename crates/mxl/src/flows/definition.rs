//! NMOS IS-04 flow definitions, as the C++ SDK accepts them, in a type that cannot hold values that the SDK refuses.
//!
//! Fields that have no meaning for flows are not parsed; a domain stores the original text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::time::Rational;
use super::{Error, v210};

/// Maximum width of a picture, in pixels. The minimum is 2.
pub const MAX_WIDTH: u32 = 7680;
/// Maximum height of a picture, in lines.
pub const MAX_HEIGHT: u32 = 4320;
/// Bytes of a grain of ancillary data.
pub const DATA_GRAIN_SIZE: u32 = 4096;
const GROUP_HINT: &str = "urn:x-nmos:tag:grouphint/v1.0";

/// A flow's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowDefinition {
    /// The flow's id, which is also the name of its directory.
    pub id: Uuid,
    /// A display name; not empty.
    pub label: String,
    /// A description for display.
    pub description: String,
    /// Groups that the flow belongs to; at least one.
    pub group_hints: Vec<GroupHint>,
    /// The kind of data.
    pub format: Format,
}

/// A group and the flow's role in it, written `<group>:<role>[:<scope>]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHint {
    /// Name of the group.
    pub group: String,
    /// The flow's role in the group.
    pub role: String,
    /// The scope in which the group's name is unique: `device` or `node`.
    pub scope: Option<Scope>,
}

/// The scope in which a group's name is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One device.
    Device,
    /// One node.
    Node,
}

/// The kind of data in a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Pictures.
    Video(Video),
    /// Samples.
    Audio(Audio),
    /// Ancillary data: SMPTE ST 291 packets in the format of RFC 8331, from the Length field on. The value is the grain
    /// rate.
    Data(Rational),
}

/// Pictures of 10 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Video {
    /// Pixels of a line.
    pub width: u32,
    /// Lines of a frame.
    pub height: u32,
    /// Frames per second.
    pub rate: Rational,
    /// Whether a grain is a frame or a field.
    pub interlace: Interlace,
    /// Whether a plane of 10-bit keys follows the picture (`video/v210a`).
    pub alpha: bool,
}

/// Whether a grain is a frame or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interlace {
    /// A grain is a frame.
    Progressive,
    /// A grain is a field, the top one first.
    TopFirst,
    /// A grain is a field, the bottom one first.
    BottomFirst,
}

impl Interlace {
    const fn name(self) -> &'static str {
        match self {
            Self::Progressive => "progressive",
            Self::TopFirst => "interlaced_tff",
            Self::BottomFirst => "interlaced_bff",
        }
    }
}

/// Samples of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audio {
    /// Samples per second.
    pub rate: Rational,
    /// Number of channels, at least 1.
    pub channels: u32,
    /// Bytes of a sample: 4 or 8.
    pub word: u32,
}

/// The layout of a flow's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// A ring of grains.
    Grains {
        /// Grains a second: fields, for interlaced video.
        rate: Rational,
        /// Bytes of a payload.
        payload: u32,
        /// Slices of a grain.
        slices: u16,
        /// Bytes of a slice in each plane.
        slice_sizes: [u32; 4],
    },
    /// A ring of samples for each channel.
    Samples {
        /// Samples per second.
        rate: Rational,
        /// Channels.
        channels: u32,
        /// Bytes of a sample.
        word: u32,
    },
}

impl Geometry {
    /// Grains or samples per second.
    pub fn rate(&self) -> Rational {
        let (Self::Grains { rate, .. } | Self::Samples { rate, .. }) = *self;
        rate
    }
}

impl FlowDefinition {
    fn new(label: &str, role: &str, format: Format) -> Result<Self, Error> {
        let hint = GroupHint { group: label.replace(':', " "), role: role.to_owned(), scope: None };
        let definition = Self {
            id: Uuid::new_v4(),
            label: label.to_owned(),
            description: String::new(),
            group_hints: vec![hint],
            format,
        };
        definition.check()?;
        Ok(definition)
    }

    /// Progressive `video/v210` with a random id.
    ///
    /// # Errors
    /// [`Error::Definition`] for an empty label, sizes out of range, or a rate that is not above 0.
    pub fn video(label: &str, width: u32, height: u32, rate: Rational) -> Result<Self, Error> {
        let interlace = Interlace::Progressive;
        let video = Video { width, height, rate: rate.reduced(), interlace, alpha: false };
        Self::new(label, "Video", Format::Video(video))
    }

    /// `audio/float32` with a random id.
    ///
    /// # Errors
    /// [`Error::Definition`] for an empty label, no channels, or a rate that is not above 0.
    pub fn audio(label: &str, channels: u32, rate: Rational) -> Result<Self, Error> {
        Self::new(label, "Audio", Format::Audio(Audio { rate: rate.reduced(), channels, word: 4 }))
    }

    /// `video/smpte291` with a random id.
    ///
    /// # Errors
    /// [`Error::Definition`] for an empty label, or a rate that is not above 0.
    pub fn data(label: &str, rate: Rational) -> Result<Self, Error> {
        Self::new(label, "Data", Format::Data(rate.reduced()))
    }

    /// Parses JSON by the rules of the C++ SDK. Like the SDK, it ignores text after the object.
    ///
    /// # Errors
    /// [`Error::Definition`] names the invalid field.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::from_object(&json_object(text)?)
    }

    fn from_object(root: &Map<String, Value>) -> Result<Self, Error> {
        let id = string(root, "id")?;
        let id = parse_id(id).ok_or_else(|| bad(format!("id \"{id}\" is not a UUID")))?;
        let format = string(root, "format")?;
        let format = match format.strip_prefix("urn:x-nmos:format:") {
            Some("video") => Format::Video(video(root)?),
            Some("audio") => Format::Audio(audio(root)?),
            Some("data") => match string(root, "media_type")? {
                "video/smpte291" => Format::Data(rate(root, "grain_rate")?),
                other => return Err(bad(format!("media_type {other} is not supported for data"))),
            },
            _ => return Err(bad(format!("format {format} is not supported"))),
        };
        let description = root.get("description").and_then(Value::as_str).unwrap_or_default();
        let definition = Self {
            id,
            label: string(root, "label")?.to_owned(),
            description: description.to_owned(),
            group_hints: group_hints(root)?,
            format,
        };
        definition.check()?;
        Ok(definition)
    }

    /// Checks the rules that hold for every definition, whether parsed or built by the program.
    ///
    /// # Errors
    /// [`Error::Definition`] names the violation.
    pub fn check(&self) -> Result<(), Error> {
        if self.label.is_empty() {
            return Err(bad("label is empty"));
        }
        if self.group_hints.is_empty() {
            return Err(bad(format!("no tag {GROUP_HINT}")));
        }
        for hint in &self.group_hints {
            if [&hint.group, &hint.role].iter().any(|part| part.is_empty() || part.contains(':')) {
                return Err(bad(format!("group hint \"{hint}\" is not <group>:<role>[:device|node]")));
            }
        }
        let rate = match &self.format {
            Format::Video(video) => {
                video.check()?;
                video.rate
            }
            Format::Audio(Audio { rate, channels, word }) => {
                if *channels == 0 || ![4, 8].contains(word) {
                    return Err(bad(format!("{channels} channels of {word} bytes a sample")));
                }
                *rate
            }
            Format::Data(rate) => *rate,
        };
        if !rate.is_positive() {
            return Err(bad(format!("rate {rate} is not above 0")));
        }
        Ok(())
    }

    /// The layout of the flow's memory.
    pub fn geometry(&self) -> Geometry {
        match &self.format {
            Format::Video(video) => video.geometry(),
            Format::Audio(Audio { rate, channels, word }) => {
                Geometry::Samples { rate: *rate, channels: *channels, word: *word }
            }
            Format::Data(rate) => Geometry::Grains {
                rate: *rate,
                payload: DATA_GRAIN_SIZE,
                slices: DATA_GRAIN_SIZE as u16,
                slice_sizes: [1, 0, 0, 0],
            },
        }
    }

    /// The definition as JSON that the C++ SDK and NMOS nodes accept.
    pub fn to_value(&self) -> Value {
        let hints: Vec<String> = self.group_hints.iter().map(ToString::to_string).collect();
        let mut value = json!({
            "id": self.id.to_string(),
            "label": self.label,
            "description": self.description,
            "tags": { GROUP_HINT: hints },
            "parents": [],
        });
        let fields = match &self.format {
            Format::Video(video) => video.fields(),
            Format::Audio(Audio { rate, channels, word }) => json!({
                "format": "urn:x-nmos:format:audio",
                "media_type": format!("audio/float{}", word * 8),
                "sample_rate": rate,
                "channel_count": channels,
                "bit_depth": word * 8,
            }),
            Format::Data(rate) => json!({
                "format": "urn:x-nmos:format:data",
                "media_type": "video/smpte291",
                "grain_rate": rate,
            }),
        };
        if let (Some(value), Value::Object(fields)) = (value.as_object_mut(), fields) {
            value.extend(fields);
        }
        value
    }

    /// [`to_value`](Self::to_value) as readable text.
    pub fn to_json(&self) -> String {
        format!("{:#}", self.to_value())
    }
}

impl Serialize for FlowDefinition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FlowDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let root = Map::deserialize(deserializer)?;
        Self::from_object(&root).map_err(serde::de::Error::custom)
    }
}

impl Video {
    fn check(&self) -> Result<(), Error> {
        let Self { width, height, rate, .. } = *self;
        if !(2..=MAX_WIDTH).contains(&width) || !(1..=MAX_HEIGHT).contains(&height) {
            return Err(bad(format!("{width}x{height} is not within 2x1 to {MAX_WIDTH}x{MAX_HEIGHT}")));
        }
        if self.interlace != Interlace::Progressive {
            if ![Rational::new(30000, 1001), Rational::new(25, 1)].contains(&rate) {
                return Err(bad(format!("grain_rate {rate}: interlaced video needs 30000/1001 or 25")));
            }
            if height % 2 != 0 {
                return Err(bad(format!("frame_height {height}: interlaced video needs an even one")));
            }
        }
        Ok(())
    }

    /// Lines of a grain.
    pub fn lines(&self) -> u32 {
        if self.interlace == Interlace::Progressive { self.height } else { self.height / 2 }
    }

    fn geometry(&self) -> Geometry {
        let lines = self.lines();
        let fill = v210::line_bytes(self.width);
        let key = if self.alpha { v210::key_line_bytes(self.width) } else { 0 };
        let fields = if self.interlace == Interlace::Progressive { 1 } else { 2 };
        Geometry::Grains {
            rate: Rational::new(self.rate.numerator.saturating_mul(fields), self.rate.denominator),
            payload: (fill + key) * lines,
            slices: lines as u16, // MAX_HEIGHT at most
            slice_sizes: [fill, key, 0, 0],
        }
    }

    fn fields(&self) -> Value {
        let mut components = vec![("Y", self.width), ("Cb", self.width / 2), ("Cr", self.width / 2)];
        if self.alpha {
            components.push(("A", self.width));
        }
        let component =
            |(name, width)| json!({ "name": name, "width": width, "height": self.height, "bit_depth": 10 });
        let components: Vec<Value> = components.into_iter().map(component).collect();
        json!({
            "format": "urn:x-nmos:format:video",
            "media_type": if self.alpha { "video/v210a" } else { "video/v210" },
            "grain_rate": self.rate,
            "frame_width": self.width,
            "frame_height": self.height,
            "interlace_mode": self.interlace.name(),
            "colorspace": "BT709",
            "components": components,
        })
    }
}

impl std::fmt::Display for GroupHint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.group, self.role)?;
        match self.scope {
            None => Ok(()),
            Some(Scope::Device) => f.write_str(":device"),
            Some(Scope::Node) => f.write_str(":node"),
        }
    }
}

fn bad(what: impl Into<String>) -> Error {
    Error::Definition(what.into())
}

/// The object at the start of `text`; the C++ SDK ignores text after it.
pub(crate) fn json_object(text: &str) -> Result<Map<String, Value>, Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    match Value::deserialize(&mut reader).map_err(|error| bad(format!("malformed JSON: {error}")))? {
        Value::Object(object) => Ok(object),
        _ => Err(bad("the JSON is not an object")),
    }
}

/// A UUID as the C++ SDK reads it: hyphens anywhere, with or without braces.
pub fn parse_id(text: &str) -> Option<Uuid> {
    let inner = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}')?,
        None => text,
    };
    let mut digits = inner.chars().filter(|&digit| digit != '-').map(|digit| digit.to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    digits.next().is_none().then(|| Uuid::from_bytes(bytes))
}

fn field<'a>(root: &'a Map<String, Value>, name: &str) -> Result<&'a Value, Error> {
    root.get(name).ok_or_else(|| bad(format!("{name} is missing")))
}

fn string<'a>(root: &'a Map<String, Value>, name: &str) -> Result<&'a str, Error> {
    let value = field(root, name)?;
    value.as_str().ok_or_else(|| bad(format!("{name} is {value}, not a string")))
}

fn number(root: &Map<String, Value>, name: &str) -> Result<f64, Error> {
    let value = field(root, name)?;
    value.as_f64().ok_or_else(|| bad(format!("{name} is {value}, not a number")))
}

/// A rate in lowest terms.
fn rate(root: &Map<String, Value>, name: &str) -> Result<Rational, Error> {
    let value = field(root, name)?;
    let object = value.as_object().ok_or_else(|| bad(format!("{name} is {value}, not an object")))?;
    let denominator = if object.contains_key("denominator") { number(object, "denominator")? } else { 1.0 };
    // As in C++, digits after the decimal point are cut off.
    Ok(Rational::new(number(object, "numerator")? as i64, denominator as i64).reduced())
}

fn video(root: &Map<String, Value>) -> Result<Video, Error> {
    let alpha = match string(root, "media_type")? {
        "video/v210" => false,
        "video/v210a" => true,
        other => return Err(bad(format!("media_type {other} is not supported for video"))),
    };
    let interlace = match root.get("interlace_mode") {
        None => "progressive",
        Some(_) => string(root, "interlace_mode")?,
    };
    let modes = [Interlace::Progressive, Interlace::TopFirst, Interlace::BottomFirst];
    let interlace = modes.into_iter().find(|mode| mode.name() == interlace);
    Ok(Video {
        width: number(root, "frame_width")? as u32,
        height: number(root, "frame_height")? as u32,
        rate: rate(root, "grain_rate")?,
        interlace: interlace.ok_or_else(|| bad("interlace_mode is not an interlaced or progressive mode"))?,
        alpha,
    })
}

fn audio(root: &Map<String, Value>) -> Result<Audio, Error> {
    let depth = number(root, "bit_depth")?;
    if depth != 32.0 && depth != 64.0 {
        return Err(bad(format!("bit_depth {depth} is neither 32 nor 64")));
    }
    let channels = match root.get("channel_count") {
        None => 1.0,
        Some(_) => number(root, "channel_count")?,
    };
    if channels.trunc() != channels || channels < 1.0 || channels > f64::from(u32::MAX) {
        return Err(bad(format!("channel_count {channels} is not a valid number of channels")));
    }
    let rate = rate(root, "sample_rate")?;
    Ok(Audio { rate, channels: channels as u32, word: if depth == 32.0 { 4 } else { 8 } })
}

fn group_hints(root: &Map<String, Value>) -> Result<Vec<GroupHint>, Error> {
    let none = || bad(format!("no tag {GROUP_HINT} with a list of group hints"));
    let tags = field(root, "tags")?.as_object().ok_or_else(none)?;
    let hints = tags.get(GROUP_HINT).and_then(Value::as_array).ok_or_else(none)?;
    hints.iter().map(group_hint).collect()
}

fn group_hint(value: &Value) -> Result<GroupHint, Error> {
    let wrong = || bad(format!("group hint {value} is not \"<group>:<role>[:device|node]\""));
    let text = value.as_str().ok_or_else(wrong)?;
    let mut parts = text.split(':');
    let (Some(group), Some(role)) = (parts.next(), parts.next()) else { return Err(wrong()) };
    let scope = match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some("device"), None) => Some(Scope::Device),
        (Some("node"), None) => Some(Scope::Node),
        _ => return Err(wrong()),
    };
    if group.is_empty() || role.is_empty() {
        return Err(wrong());
    }
    Ok(GroupHint { group: group.to_owned(), role: role.to_owned(), scope })
}

#[cfg(test)]
mod tests;
