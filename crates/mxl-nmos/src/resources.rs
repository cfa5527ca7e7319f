//! The resources of IS-04 v1.3, as JSON: how a Node, its device, and each flow describe themselves.

use mxl::{FlowDefinition, Format, Rational, Uuid};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::connection::Route;
use crate::{CONTROL, GATEWAY, TRANSPORT};

/// The kinds of resources, in the order in which a registry accepts them: each refers to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// The Node itself.
    Node,
    /// Its device.
    Device,
    /// Where the data of a flow comes from.
    Source,
    /// A flow.
    Flow,
    /// What sends a flow.
    Sender,
    /// What may receive a flow.
    Receiver,
}

impl ResourceKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Node, Self::Device, Self::Source, Self::Flow, Self::Sender, Self::Receiver];

    /// The name in the Registration API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Device => "device",
            Self::Source => "source",
            Self::Flow => "flow",
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// The name of the collection in paths.
    pub fn collection(self) -> String {
        format!("{}s", self.name())
    }
}

/// The media that a receiver takes, or a flow has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// Pictures.
    Video,
    /// Sound.
    Audio,
    /// Ancillary data.
    Data,
}

impl Medium {
    /// All media.
    pub const ALL: [Self; 3] = [Self::Video, Self::Audio, Self::Data];

    /// The medium of a flow.
    pub fn of(format: &Format) -> Self {
        match format {
            Format::Video(_) => Self::Video,
            Format::Audio(_) => Self::Audio,
            Format::Data(_) => Self::Data,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Video => "video",
            Self::Audio => "audio",
            Self::Data => "data",
        }
    }

    /// The media types of its flows.
    const fn media_types(self) -> &'static [&'static str] {
        match self {
            Self::Video => &["video/v210", "video/v210a"],
            Self::Audio => &["audio/float32", "audio/float64"],
            Self::Data => &["video/smpte291"],
        }
    }

    fn urn(self) -> String {
        format!("urn:x-nmos:format:{}", self.name())
    }
}

/// An id that depends on two names alone, such as a Node's seed and a resource, so that it is the same after a restart.
/// It has the form of a name-based UUID (RFC 9562, version 5), with SHA-256 in place of SHA-1.
pub fn id_of(of: &str, name: &str) -> Uuid {
    let digest = Sha256::new().chain_update(of).chain_update([0]).chain_update(name).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_sha1_bytes(bytes).into_uuid()
}

fn core(id: Uuid, label: &str, description: &str) -> Map<String, Value> {
    let fields = json!({ "id": id.to_string(), "label": label, "description": description, "tags": {} });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The core of a resource that stands for an MXL flow.
fn described(id: Uuid, definition: &FlowDefinition) -> Map<String, Value> {
    let hints: Vec<String> = definition.group_hints.iter().map(ToString::to_string).collect();
    let mut fields = core(id, &definition.label, &definition.description);
    fields.insert("tags".into(), json!({ "urn:x-nmos:tag:grouphint/v1.0": hints }));
    fields
}

fn with(mut fields: Map<String, Value>, more: Value) -> Value {
    if let Value::Object(more) = more {
        fields.extend(more);
    }
    Value::Object(fields)
}

/// What all resources of a Node refer to.
#[derive(Clone, Debug)]
pub struct Home {
    /// The Node.
    pub node: Uuid,
    /// Its device.
    pub device: Uuid,
    /// Its name for people.
    pub label: String,
    /// The host's name.
    pub hostname: String,
    /// The address of the Node's APIs, as host and port.
    pub host: (String, u16),
    /// Where mirrors ask for the flows.
    pub gateway: Option<String>,
    /// The version of what never changes.
    pub born: String,
}

impl Home {
    fn href(&self) -> String {
        let (host, port) = &self.host;
        if host.contains(':') { format!("http://[{host}]:{port}") } else { format!("http://{host}:{port}") }
    }

    /// The Node.
    pub fn node(&self) -> Value {
        let (host, port) = &self.host;
        let more = json!({
            "href": format!("{}/", self.href()),
            "hostname": self.hostname,
            "caps": {},
            "api": {
                "versions": ["v1.3"],
                "endpoints": [{ "host": host, "port": port, "protocol": "http", "authorization": false }],
            },
            "services": [],
            "clocks": [{ "name": "clk0", "ref_type": "internal" }],
            "interfaces": [],
        });
        with(core(self.node, &self.label, "A gateway of MXL flows"), more)
    }

    /// Its device. The lists of senders and receivers are empty: IS-04 v1.3 deprecates them, each sender and receiver
    /// names its device, and there are registries that refuse a device before its senders.
    pub fn device(&self) -> Value {
        let mut more = json!({
            "type": "urn:x-nmos:device:generic",
            "node_id": self.node.to_string(),
            "senders": [],
            "receivers": [],
            "controls": [{
                "type": CONTROL,
                "href": format!("{}/x-nmos/connection/v1.2/", self.href()),
                "authorization": false,
            }],
        });
        if let (Some(gateway), Some(controls)) = (&self.gateway, more["controls"].as_array_mut()) {
            controls.push(json!({ "type": GATEWAY, "href": gateway, "authorization": false }));
        }
        with(core(self.device, &self.label, "A domain of MXL flows"), more)
    }

    /// The source, the flow and the sender of an MXL flow.
    pub fn of_flow(&self, definition: &FlowDefinition, route: &Route) -> [(ResourceKind, Uuid, Value); 3] {
        let ids = FlowIds::new(self.node, definition.id);
        let medium = Medium::of(&definition.format);
        let mut source = json!({
            "caps": {},
            "device_id": self.device.to_string(),
            "parents": [],
            "clock_name": "clk0",
            "format": medium.urn(),
        });
        let rate = |rate: Rational| json!({ "numerator": rate.numerator, "denominator": rate.denominator });
        match &definition.format {
            Format::Video(video) => source["grain_rate"] = rate(video.rate),
            Format::Audio(audio) => {
                let channels =
                    (1..=audio.channels.min(MAX_CHANNELS)).map(|at| json!({ "label": at.to_string() }));
                source["channels"] = channels.collect();
            }
            Format::Data(grains) => source["grain_rate"] = rate(*grains),
        }
        let mut flow = definition.to_value();
        if let Some(fields) = flow.as_object_mut() {
            let more = json!({
                "id": ids.flow.to_string(),
                "source_id": ids.source.to_string(),
                "device_id": self.device.to_string(),
                "parents": [],
            });
            if let Value::Object(more) = more {
                fields.extend(more);
            }
        }
        [
            (ResourceKind::Source, ids.source, with(described(ids.source, definition), source)),
            (ResourceKind::Flow, ids.flow, flow),
            (ResourceKind::Sender, ids.sender, self.sender(definition, route)),
        ]
    }

    /// The sender of an MXL flow. It never names a receiver: any number of them read the flow.
    pub fn sender(&self, definition: &FlowDefinition, route: &Route) -> Value {
        let ids = FlowIds::new(self.node, definition.id);
        let more = json!({
            "flow_id": ids.flow.to_string(),
            "transport": TRANSPORT,
            "device_id": self.device.to_string(),
            "manifest_href": null,
            "interface_bindings": [],
            "subscription": { "receiver_id": null, "active": route.is_enabled },
        });
        with(described(ids.sender, definition), more)
    }

    /// A receiver.
    pub fn receiver(&self, id: Uuid, medium: Medium, number: u32, route: &Route) -> Value {
        let label = format!("{} {} {number}", self.label, medium.name());
        let types = medium.media_types();
        let more = json!({
            "format": medium.urn(),
            "transport": TRANSPORT,
            "device_id": self.device.to_string(),
            "interface_bindings": [],
            "caps": {
                "media_types": types,
                "version": self.born,
                "constraint_sets": [{ "urn:x-nmos:cap:format:media_type": { "enum": types } }],
            },
            "subscription": {
                "sender_id": route.peer.filter(|_| route.is_enabled).map(|peer| peer.to_string()),
                "active": route.is_enabled,
            },
        });
        with(core(id, &label, "Mirrors a flow of another host"), more)
    }
}

/// Maximum channels that a source lists.
const MAX_CHANNELS: u32 = 1024;

/// The ids of the resources that stand for an MXL flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowIds {
    /// Its source.
    pub source: Uuid,
    /// Its flow in IS-04. Another Node may have one for the same MXL flow, so it has another id than that.
    pub flow: Uuid,
    /// Its sender.
    pub sender: Uuid,
}

impl FlowIds {
    /// The ids on a Node.
    pub fn new(node: Uuid, flow: Uuid) -> Self {
        let id = |kind: ResourceKind| id_of(&node.to_string(), &format!("{} {flow}", kind.name()));
        Self {
            source: id(ResourceKind::Source),
            flow: id(ResourceKind::Flow),
            sender: id(ResourceKind::Sender),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_uuids() {
        let id = id_of("node", "sender a");
        assert_eq!(id, id_of("node", "sender a"));
        assert_ne!(id, id_of("node2", "sender a"));
        // IS-04 wants version 1 to 5, and the variant of RFC 9562.
        assert_eq!((id.get_version_num(), id.get_variant()), (5, uuid::Variant::RFC4122));
    }

    #[test]
    fn a_flow_becomes_resources_that_refer_to_each_other() {
        let (node, device) = (Uuid::new_v4(), Uuid::new_v4());
        let host = ("2001:db8::1".into(), 7481);
        let (label, hostname, born) = ("gateway".into(), "host".into(), "1:0".into());
        let gateway = Some("mxl://[2001:db8::1]:7480/".to_owned());
        let home = Home { node, device, label, hostname, host, gateway, born };
        let definition = FlowDefinition::audio("tone", 2, Rational::new(48_000, 1)).unwrap();
        let [(_, source, of_source), (_, flow, of_flow), (_, _, of_sender)] =
            home.of_flow(&definition, &Route { is_enabled: true, ..Route::default() });
        assert_eq!(of_source["id"], source.to_string());
        assert_eq!(of_source["channels"][1]["label"], "2");
        assert_eq!(
            (&of_flow["id"], &of_flow["source_id"]),
            (&flow.to_string().into(), &source.to_string().into())
        );
        assert_eq!((&of_flow["media_type"], &of_flow["bit_depth"]), (&"audio/float32".into(), &32.into()));
        assert_eq!(of_sender["flow_id"], flow.to_string());
        assert_eq!((&of_sender["transport"], &of_sender["manifest_href"]), (&TRANSPORT.into(), &Value::Null));
        let peer = Some(Uuid::from_u128(1));
        for (is_enabled, shown) in [(true, peer.map(|peer| peer.to_string())), (false, None)] {
            let route = Route { is_enabled, peer, ..Route::default() };
            let of_receiver = home.receiver(device, Medium::Audio, 1, &route);
            assert_eq!(of_receiver["subscription"], json!({ "sender_id": shown, "active": is_enabled }));
            let of_sender = home.sender(&definition, &route);
            assert_eq!(of_sender["subscription"], json!({ "receiver_id": null, "active": is_enabled }));
        }
        assert_eq!(home.node()["href"], "http://[2001:db8::1]:7481/");
        let of_device = home.device();
        assert_eq!(of_device["controls"][0]["href"], "http://[2001:db8::1]:7481/x-nmos/connection/v1.2/");
        assert_eq!(of_device["controls"][1]["href"], "mxl://[2001:db8::1]:7480/");
    }
}
