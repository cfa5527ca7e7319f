//! The control protocol: lines of JSON, one object each, with the protocol's version. Parsing has no other effects.
//!
//! | the mirror | the serving side |
//! |---|---|
//! | `list` | a `flow` for each flow that is offered, then `listed` |
//! | `follow` a flow | its `definition`, now and whenever it changes; `absent` as long as there is no such flow |
//! | `target` of a flow, with its info | `sending`, or `refused` |
//! | `leave` a flow | nothing |
//! | `ping` | `pong` |
//!
//! What makes no sense is answered by `refused` without an id, and the end of the connection.

use mxl::{FlowDefinition, Format, Rational, Uuid};
use serde_json::{Map, Value, json};

use crate::TargetInfo;

/// The version of the protocol.
pub const VERSION: u64 = 1;
/// Maximum flows of one list.
pub const MAX_LISTED: usize = 1024;
/// Maximum characters of a label, and of a group, in a list, and of a reason. Longer ones are cut.
const MAX_TEXT: usize = 256;
/// Maximum groups of a flow in a list.
const MAX_GROUPS: usize = 16;

/// What a mirror asks for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ControlRequest {
    /// The flows that are offered.
    List,
    /// The definition of a flow, now and after each change.
    Follow {
        /// The flow.
        id: Uuid,
    },
    /// No more of a flow.
    Leave {
        /// The flow.
        id: Uuid,
    },
    /// Send a flow to this target.
    Target {
        /// The flow.
        id: Uuid,
        /// The target.
        info: Box<TargetInfo>,
    },
    /// A sign of life.
    Ping,
}

/// What the serving side says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ControlReply {
    /// A flow that is offered.
    Flow(Description),
    /// All flows were listed.
    Listed {
        /// Whether some were left out, because there are too many.
        more: bool,
    },
    /// The definition of a flow, as its creator wrote it.
    Definition {
        /// The flow.
        id: Uuid,
        /// The text.
        text: String,
    },
    /// There is no such flow, or it cannot be read.
    Absent {
        /// The flow.
        id: Uuid,
        /// Why.
        why: String,
    },
    /// The flow is sent to the target.
    Sending {
        /// The flow.
        id: Uuid,
    },
    /// A request cannot be met. Without an id the connection ends.
    Refused {
        /// The flow of the request.
        id: Option<Uuid>,
        /// Why.
        why: String,
    },
    /// The answer to a sign of life.
    Pong,
}

/// A flow in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its id.
    pub id: Uuid,
    /// Its label.
    pub label: String,
    /// Its media type.
    pub format: String,
    /// Grains or samples per second.
    pub rate: Rational,
    /// Its groups, as in its definition.
    pub groups: Vec<String>,
    /// Whether a process writes it.
    pub is_active: bool,
}

impl Description {
    /// The description of a flow.
    pub fn new(definition: &FlowDefinition, is_active: bool) -> Self {
        let format = match &definition.format {
            Format::Video(video) if video.alpha => "video/v210a".into(),
            Format::Video(_) => "video/v210".into(),
            Format::Audio(audio) => format!("audio/float{}", audio.word * 8),
            Format::Data(_) => "video/smpte291".into(),
        };
        Self {
            id: definition.id,
            label: cut(&definition.label),
            format,
            rate: definition.geometry().rate(),
            groups: definition
                .group_hints
                .iter()
                .take(MAX_GROUPS)
                .map(|hint| cut(&hint.to_string()))
                .collect(),
            is_active,
        }
    }

    /// The description as JSON.
    pub fn to_json(&self) -> Value {
        let Self { id, label, format, rate, groups, is_active } = self;
        json!({ "id": id.to_string(), "label": label, "format": format, "rate": rate, "groups": groups, "active": is_active })
    }

    fn parse(of: &Map<String, Value>) -> Result<Self, String> {
        let rate = of.get("rate").cloned().unwrap_or_default();
        let rate: Rational = serde_json::from_value(rate).map_err(|error| format!("rate: {error}"))?;
        let groups = of.get("groups").and_then(Value::as_array).ok_or("groups is not a list")?;
        let group = |group: &Value| group.as_str().map(cut).ok_or("a group is not a string");
        Ok(Self {
            id: id(of)?,
            label: cut(text(of, "label")?),
            format: cut(text(of, "format")?),
            rate,
            groups: groups.iter().take(MAX_GROUPS).map(group).collect::<Result<_, _>>()?,
            is_active: of.get("active").and_then(Value::as_bool).ok_or("active is not true or false")?,
        })
    }
}

impl ControlRequest {
    /// Parses a line. Keys that the version does not have are ignored.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let of = object(line)?;
        match text(&of, "request")? {
            "list" => Ok(Self::List),
            "follow" => Ok(Self::Follow { id: id(&of)? }),
            "leave" => Ok(Self::Leave { id: id(&of)? }),
            "target" => {
                let info =
                    of.get("target").filter(|info| info.is_object()).ok_or("target is not an object")?;
                let info = TargetInfo::parse(&info.to_string()).map_err(|error| error.to_string())?;
                Ok(Self::Target { id: id(&of)?, info: Box::new(info) })
            }
            "ping" => Ok(Self::Ping),
            other => Err(format!("request \"{other}\" is unknown")),
        }
    }

    /// The line, with its end.
    pub fn to_line(&self) -> String {
        let mut of = match self {
            Self::List => json!({ "request": "list" }),
            Self::Follow { id } => json!({ "request": "follow", "id": id.to_string() }),
            Self::Leave { id } => json!({ "request": "leave", "id": id.to_string() }),
            Self::Target { id, info } => {
                // Parsed again, since it goes into the line as an object; what `to_json` wrote parses.
                let info: Value = serde_json::from_str(&info.to_json()).unwrap_or_default();
                json!({ "request": "target", "id": id.to_string(), "target": info })
            }
            Self::Ping => json!({ "request": "ping" }),
        };
        of["version"] = json!(VERSION);
        format!("{of}\n")
    }
}

impl ControlReply {
    /// Parses a line. Keys that the version does not have are ignored.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let of = object(line)?;
        match text(&of, "reply")? {
            "flow" => Ok(Self::Flow(Description::parse(&of)?)),
            "listed" => {
                let more = of.get("more").and_then(Value::as_bool).ok_or("more is not true or false")?;
                Ok(Self::Listed { more })
            }
            "definition" => Ok(Self::Definition { id: id(&of)?, text: text(&of, "definition")?.to_owned() }),
            "absent" => Ok(Self::Absent { id: id(&of)?, why: cut(text(&of, "why")?) }),
            "sending" => Ok(Self::Sending { id: id(&of)? }),
            "refused" => {
                let id = if of.contains_key("id") { Some(id(&of)?) } else { None };
                Ok(Self::Refused { id, why: cut(text(&of, "why")?) })
            }
            "pong" => Ok(Self::Pong),
            other => Err(format!("reply \"{other}\" is unknown")),
        }
    }

    /// The line, with its end.
    pub fn to_line(&self) -> String {
        let mut of = match self {
            Self::Flow(flow) => {
                let mut of = flow.to_json();
                of["reply"] = json!("flow");
                of
            }
            Self::Listed { more } => json!({ "reply": "listed", "more": more }),
            Self::Definition { id, text } => {
                json!({ "reply": "definition", "id": id.to_string(), "definition": text })
            }
            Self::Absent { id, why } => json!({ "reply": "absent", "id": id.to_string(), "why": why }),
            Self::Sending { id } => json!({ "reply": "sending", "id": id.to_string() }),
            Self::Refused { id: Some(id), why } => {
                json!({ "reply": "refused", "id": id.to_string(), "why": why })
            }
            Self::Refused { id: None, why } => json!({ "reply": "refused", "why": why }),
            Self::Pong => json!({ "reply": "pong" }),
        };
        of["version"] = json!(VERSION);
        format!("{of}\n")
    }
}

/// The object of a line, if it has this version.
fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    let value = serde_json::from_slice(line).map_err(|error| format!("a line is no JSON: {error}"))?;
    let Value::Object(of) = value else { return Err("a line is no JSON object".into()) };
    match of.get("version") {
        Some(version) if version.as_u64() == Some(VERSION) => Ok(of),
        Some(other) => Err(format!("version {other} is not spoken here: this is version {VERSION}")),
        None => Err("version is missing".into()),
    }
}

/// The beginning of a text, which another host has chosen, or the creator of a flow.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

fn text<'a>(of: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    of.get(name).and_then(Value::as_str).ok_or_else(|| format!("{name} is missing, or not a string"))
}

fn id(of: &Map<String, Value>) -> Result<Uuid, String> {
    let id = text(of, "id")?;
    let valid = Some(id).filter(|id| id.len() == 36).and_then(|id| Uuid::try_parse(id).ok());
    valid.ok_or_else(|| format!("id \"{id}\" is not a UUID"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provider;

    const ID: Uuid = Uuid::from_u128(0x5fbe_c3b1_1b0f_417d_9059_8b94_a471_97ed);

    fn info() -> TargetInfo {
        let (provider, address) = (Provider::Tcp, vec![2, 0, 0x13, 0x88, 127, 0, 0, 1]);
        TargetInfo { id: 7, provider, format: 2, address, regions: vec![], bounce: None, ours: None }
    }

    #[test]
    fn what_is_written_is_read() {
        for request in [
            ControlRequest::List,
            ControlRequest::Follow { id: ID },
            ControlRequest::Leave { id: ID },
            ControlRequest::Target { id: ID, info: Box::new(info()) },
            ControlRequest::Ping,
        ] {
            let line = request.to_line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(ControlRequest::parse(line.trim_end().as_bytes()), Ok(request));
        }
        let definition = FlowDefinition::video("Kamera\n\"1\"", 192, 40, Rational::new(50, 1)).unwrap();
        for reply in [
            ControlReply::Flow(Description::new(&definition, true)),
            ControlReply::Listed { more: false },
            ControlReply::Definition { id: ID, text: definition.to_json() },
            ControlReply::Absent { id: ID, why: "no flow".into() },
            ControlReply::Sending { id: ID },
            ControlReply::Refused { id: Some(ID), why: "no".into() },
            ControlReply::Refused { id: None, why: "no".into() },
            ControlReply::Pong,
        ] {
            let line = reply.to_line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(ControlReply::parse(line.trim_end().as_bytes()), Ok(reply));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (line, why) in [
            ("GET / HTTP/1.1", "no JSON"),
            ("[]", "no JSON object"),
            ("{}", "version is missing"),
            (r#"{"version":2,"request":"list"}"#, "version 2 is not spoken here"),
            (r#"{"version":"1","request":"list"}"#, "is not spoken here"),
            (r#"{"version":1}"#, "request is missing"),
            (r#"{"version":1,"request":"erase"}"#, "\"erase\" is unknown"),
            (r#"{"version":1,"request":"follow"}"#, "id is missing"),
            (r#"{"version":1,"request":"follow","id":"../../etc"}"#, "is not a UUID"),
            (r#"{"version":1,"request":"follow","id":"5fbec3b11b0f417d90598b94a47197ed"}"#, "is not a UUID"),
            (r#"{"version":1,"request":"target","target":7}"#, "target is not an object"),
            (r#"{"version":1,"request":"target","target":{}}"#, "addressFormat is missing"),
        ] {
            let error = ControlRequest::parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(ControlRequest::parse(&[0xff, 0xfe]).is_err() && ControlReply::parse(b"").is_err());
        let deep = "[".repeat(100_000);
        assert!(ControlRequest::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_list_has_no_long_texts() {
        let label = "ü".repeat(100_000);
        let definition = FlowDefinition::audio(&label, 2, Rational::new(48_000, 1)).unwrap();
        let flow = Description::new(&definition, false);
        assert_eq!((flow.label.chars().count(), flow.format.as_str()), (MAX_TEXT, "audio/float32"));
        assert!(ControlReply::Flow(flow).to_line().len() < 8192);
        // Nor those of another host.
        let longer = Description { label, format: "f".repeat(1000), ..Description::new(&definition, true) };
        let flow = ControlReply::parse(ControlReply::Flow(longer).to_line().as_bytes()).unwrap();
        assert!(flow.to_line().len() < 8192);
        for id in [None, Some(ID)] {
            let line = ControlReply::Refused { id, why: "ü".repeat(1000) }.to_line();
            let why = "ü".repeat(MAX_TEXT);
            assert_eq!(ControlReply::parse(line.as_bytes()), Ok(ControlReply::Refused { id, why }));
        }
    }
}
