//! Answers to requests of the Node API (IS-04 v1.3) and of the Connection API (IS-05 v1.2). Nothing here
//! keeps a connection: the program brings the HTTP server.

use mxl::Uuid;
use serde_json::{Value, json};

use crate::TRANSPORT;
use crate::connection::{Refusal, Side};
use crate::node::Node;
use crate::resources::ResourceKind;

/// Maximum entries of a request in bulk.
const MAX_BULK: usize = 256;

/// An answer: JSON, with a status of HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Value,
    /// The methods of the resource, for field `Allow` of an answer with status 405, and of one to `OPTIONS`.
    pub allow: &'static str,
}

impl Answer {
    /// The fields that let a controller in a browser use the APIs, which IS-04 and IS-05 demand.
    pub fn cors(&self) -> [(&'static str, &'static str); 4] {
        [
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Allow-Methods", self.allow),
            ("Access-Control-Allow-Headers", "Content-Type, Accept"),
            ("Access-Control-Max-Age", "3600"),
        ]
    }
}

/// What a path names.
enum Found {
    /// A value, which is read.
    Value(Value),
    /// The staged parameters of a sender or a receiver.
    Staged(Side, Uuid, Value),
    /// Requests to many of them.
    Bulk(Side),
}

impl Node {
    /// Answers a request to a path that begins with `/x-nmos`. `None` for other paths. Bodies have a bound: the
    /// server's.
    pub fn answer(&self, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let Some((&"x-nmos", parts)) = parts.split_first() else { return None };
        let found = self.find(parts);
        let allow = match &found {
            Some(Found::Value(_)) | None => "GET, HEAD, OPTIONS",
            Some(Found::Staged(..)) => "GET, HEAD, PATCH, OPTIONS",
            Some(Found::Bulk(_)) => "POST, OPTIONS",
        };
        let result = match (method, found) {
            (_, None) => Err((404, "no such resource".to_string())),
            ("OPTIONS", _) => Ok((200, Value::Null)),
            ("GET" | "HEAD", Some(Found::Value(value) | Found::Staged(.., value))) => Ok((200, value)),
            ("PATCH", Some(Found::Staged(side, id, _))) => {
                parsed(body).and_then(|request| self.patch(side, id, &request))
            }
            ("POST", Some(Found::Bulk(side))) => {
                parsed(body).and_then(|request| Ok((200, self.bulk(side, &request)?)))
            }
            _ => Err((405, format!("only {allow}"))),
        };
        let (status, body) = result.unwrap_or_else(|(status, why)| (status, error(status, &why)));
        Some(Answer { status, body, allow })
    }

    fn find(&self, parts: &[&str]) -> Option<Found> {
        let value = match parts {
            [] => json!(["node/", "connection/"]),
            ["node"] => json!(["v1.3/"]),
            ["node", "v1.3", rest @ ..] => self.find_resource(rest)?,
            ["connection"] => json!(["v1.2/"]),
            ["connection", "v1.2"] => json!(["bulk/", "single/"]),
            ["connection", "v1.2", "bulk" | "single"] => json!(["senders/", "receivers/"]),
            ["connection", "v1.2", "bulk", side] => return Some(Found::Bulk(side_of(side)?)),
            ["connection", "v1.2", "single", side, rest @ ..] => {
                return self.find_terminal(side_of(side)?, rest);
            }
            _ => return None,
        };
        Some(Found::Value(value))
    }

    /// A resource of the Node API.
    fn find_resource(&self, parts: &[&str]) -> Option<Value> {
        let resources = self.resources();
        let kind_of =
            |name: &str| ResourceKind::ALL[1..].iter().copied().find(|kind| kind.collection() == name);
        match parts {
            [] => {
                let kinds = ResourceKind::ALL[1..].iter().map(|kind| format!("{}/", kind.collection()));
                Some(json!(std::iter::once("self/".to_string()).chain(kinds).collect::<Vec<_>>()))
            }
            ["self"] => Some(resources.get(&(ResourceKind::Node, self.id()))?.value.clone()),
            [name] => {
                let kind = kind_of(name)?;
                let of_kind = resources.iter().filter(|((of, _), _)| *of == kind);
                Some(of_kind.map(|(_, resource)| resource.value.clone()).collect())
            }
            [name, id] => Some(resources.get(&(kind_of(name)?, Uuid::try_parse(id).ok()?))?.value.clone()),
            _ => None,
        }
    }

    /// A resource of the Connection API, below `single`.
    fn find_terminal(&self, side: Side, parts: &[&str]) -> Option<Found> {
        let [id, rest @ ..] = parts else {
            let ids = self.terminals(side).into_iter().map(|id| format!("{id}/"));
            return Some(Found::Value(json!(ids.collect::<Vec<_>>())));
        };
        let id = Uuid::try_parse(id).ok()?;
        let terminal = self.terminal(side, id)?;
        let value = match rest {
            // There is no transport file: a sender lists its place, and it answers 404.
            [] if side == Side::Sender => {
                json!(["constraints/", "staged/", "active/", "transportfile/", "transporttype/"])
            }
            [] => json!(["constraints/", "staged/", "active/", "transporttype/"]),
            ["constraints"] => terminal.constraints(),
            ["staged"] => return Some(Found::Staged(side, id, terminal.staged())),
            ["active"] => terminal.active(),
            ["transporttype"] => json!(TRANSPORT),
            _ => return None,
        };
        Some(Found::Value(value))
    }

    /// Patches many senders or receivers. One that fails does not stop the others.
    fn bulk(&self, side: Side, request: &Value) -> Result<Value, Refusal> {
        let entries = request.as_array().filter(|entries| entries.len() <= MAX_BULK);
        let entries =
            entries.ok_or_else(|| (400, format!("a list of at most {MAX_BULK} objects was wanted")))?;
        let one = |entry: &Value| {
            let id = entry.get("id").and_then(Value::as_str).unwrap_or_default();
            let known = Uuid::try_parse(id).map_err(|_| (400, "id is no UUID".to_string()));
            let patched =
                known.and_then(|known| self.patch(side, known, entry.get("params").unwrap_or(&Value::Null)));
            match patched {
                Ok((status, _)) => json!({ "id": id, "code": status }),
                Err((status, why)) => json!({ "id": id, "code": status, "error": why, "debug": null }),
            }
        };
        Ok(entries.iter().map(one).collect())
    }
}

fn side_of(name: &str) -> Option<Side> {
    [Side::Sender, Side::Receiver].into_iter().find(|side| side.collection() == name)
}

fn parsed(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| (400, format!("JSON was wanted: {error}")))
}

fn error(status: u16, why: &str) -> Value {
    json!({ "code": status, "error": why, "debug": null })
}
