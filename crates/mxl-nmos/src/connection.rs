//! Senders and receivers as IS-05 sees them: what is staged, what is active, and activations.

use mxl::Uuid;
use serde_json::{Map, Value, json};

/// Where a sender sends to, or a receiver receives from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// `master_enable`.
    pub is_enabled: bool,
    /// The sender of a receiver, or the receiver of a sender, if a controller has named one.
    pub peer: Option<Uuid>,
    /// The MXL domain.
    pub domain: Option<Uuid>,
    /// The MXL flow.
    pub flow: Option<Uuid>,
}

/// What the program does when a controller has activated something.
pub trait Activate: Send {
    /// A receiver receives by this route from now on, or nothing if it is not enabled or names no flow. It must not
    /// wait for the flow.
    ///
    /// # Errors
    /// Why it cannot: the former route stays active.
    fn receive(&mut self, receiver: Uuid, route: &Route) -> Result<(), String>;

    /// An MXL flow is offered to others from now on, or not.
    ///
    /// # Errors
    /// Why it cannot: nothing has changed.
    fn send(&mut self, flow: Uuid, is_enabled: bool) -> Result<(), String>;
}

/// Every activation succeeds, and has no effect.
impl Activate for () {
    fn receive(&mut self, _: Uuid, _: &Route) -> Result<(), String> {
        Ok(())
    }

    fn send(&mut self, _: Uuid, _: bool) -> Result<(), String> {
        Ok(())
    }
}

/// Senders and receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A sender. Its domain and flow are given.
    Sender,
    /// A receiver.
    Receiver,
}

impl Side {
    /// The name of the collection in paths.
    pub const fn collection(self) -> &'static str {
        match self {
            Self::Sender => "senders",
            Self::Receiver => "receivers",
        }
    }

    /// The name of the other side's id.
    const fn peer(self) -> &'static str {
        match self {
            Self::Sender => "receiver_id",
            Self::Receiver => "sender_id",
        }
    }
}

/// What is staged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Staged {
    is_enabled: bool,
    peer: Option<Uuid>,
    domain: Parameter,
    flow: Parameter,
}

/// A transport parameter that is staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Parameter {
    #[default]
    Null,
    /// Whoever has the parameter chooses.
    Auto,
    Id(Uuid),
}

impl Parameter {
    fn parse(value: &Value, key: &str) -> Result<Self, String> {
        match value {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            value => Ok(id(value, key)?.map_or(Self::Null, Self::Id)),
        }
    }

    fn shown(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Auto => "auto".into(),
            Self::Id(id) => id.to_string().into(),
        }
    }
}

/// A sender or a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminal {
    side: Side,
    /// What `auto` stands for: a sender's domain and flow, a receiver's domain.
    own: (Uuid, Option<Uuid>),
    staged: Staged,
    active: Route,
    /// When the active route was activated, as a version; null before.
    activated: Option<String>,
}

/// A request that was refused: the status, and the reason.
pub type Refusal = (u16, String);

impl Terminal {
    /// A sender of a flow of a domain, which sends.
    pub fn sender(domain: Uuid, flow: Uuid) -> Self {
        let active = Route { is_enabled: true, peer: None, domain: Some(domain), flow: Some(flow) };
        let (of_domain, of_flow) = (Parameter::Id(domain), Parameter::Id(flow));
        let staged = Staged { is_enabled: true, peer: None, domain: of_domain, flow: of_flow };
        Self { side: Side::Sender, own: (domain, Some(flow)), staged, active, activated: None }
    }

    /// A receiver of a domain, which receives nothing.
    pub fn receiver(domain: Uuid) -> Self {
        let (staged, active) = (Staged::default(), Route::default());
        Self { side: Side::Receiver, own: (domain, None), staged, active, activated: None }
    }

    /// The active route.
    pub fn route(&self) -> &Route {
        &self.active
    }

    /// The endpoint `staged`.
    pub fn staged(&self) -> Value {
        self.shown_staged(None)
    }

    /// The endpoint `active`.
    pub fn active(&self) -> Value {
        let Route { is_enabled, peer, domain, flow } = self.active;
        self.shown((is_enabled, peer), [text(domain), text(flow)], self.activated.as_deref())
    }

    /// The endpoint `constraints`: a sender has one domain and one flow, and a receiver takes any.
    pub fn constraints(&self) -> Value {
        match self.side {
            Side::Sender => {
                let (domain, flow) = (text(Some(self.own.0)), text(self.own.1));
                json!([{ "mxl_domain_id": { "enum": [domain] }, "mxl_flow_id": { "enum": [flow] } }])
            }
            Side::Receiver => json!([{ "mxl_domain_id": {}, "mxl_flow_id": {} }]),
        }
    }

    fn shown_staged(&self, activated: Option<&str>) -> Value {
        let Staged { is_enabled, peer, domain, flow } = self.staged;
        self.shown((is_enabled, peer), [domain.shown(), flow.shown()], activated)
    }

    fn shown(
        &self,
        (is_enabled, peer): (bool, Option<Uuid>),
        [domain, flow]: [Value; 2],
        activated: Option<&str>,
    ) -> Value {
        let mode = activated.map(|_| IMMEDIATE);
        let mut shown = json!({
            "master_enable": is_enabled,
            "activation": { "mode": mode, "requested_time": null, "activation_time": activated },
            "transport_params": [{ "mxl_domain_id": domain, "mxl_flow_id": flow }],
        });
        shown[self.side.peer()] = text(peer);
        if self.side == Side::Receiver {
            shown["transport_file"] = json!({ "data": null, "type": null });
        }
        shown
    }

    /// Changes what is staged, and activates it if the request says so. Returns the answer, and whether the active
    /// route may have changed. `now` is a version. `activate` does what the new route says.
    ///
    /// # Errors
    /// What is wrong, with status 400; an activation that has failed, with 500; one with a time, with 501. Nothing has
    /// changed then.
    pub fn patch(
        &mut self,
        request: &Value,
        now: &str,
        activate: impl FnOnce(&Route) -> Result<(), String>,
    ) -> Result<(Value, bool), Refusal> {
        let wrong = |why: String| (400, why);
        let request = request.as_object().ok_or_else(|| wrong("an object was wanted".into()))?;
        let (mut staged, mut is_now) = (self.staged.clone(), false);
        for (key, value) in request {
            match key.as_str() {
                "master_enable" => {
                    let is_enabled = value.as_bool();
                    staged.is_enabled =
                        is_enabled.ok_or_else(|| wrong("master_enable is true or false".into()))?;
                }
                key if key == self.side.peer() => staged.peer = id(value, key).map_err(wrong)?,
                "activation" => is_now = is_immediate(value)?,
                "transport_params" => self.parameters(value, &mut staged).map_err(wrong)?,
                "transport_file" if self.side == Side::Receiver => {
                    let is_none = value.as_object().is_some_and(|file| file.values().all(Value::is_null));
                    if !is_none && !value.is_null() {
                        return Err(wrong("MXL has no transport files".into()));
                    }
                }
                other => return Err(wrong(format!("{other} is unknown"))),
            }
        }
        if is_now {
            let route = self.resolved(&staged);
            activate(&route).map_err(|why| (500, why))?;
            self.activated = Some(now.into());
            self.active = route;
        }
        self.staged = staged;
        Ok((self.shown_staged(is_now.then_some(now)), is_now))
    }

    /// The route that is active after an activation. A sender that names no domain or flow has its own.
    fn resolved(&self, staged: &Staged) -> Route {
        let resolved = |parameter, own: Option<Uuid>| match parameter {
            Parameter::Null if self.side == Side::Receiver => None,
            Parameter::Null | Parameter::Auto => own,
            Parameter::Id(id) => Some(id),
        };
        Route {
            is_enabled: staged.is_enabled,
            peer: staged.peer,
            domain: resolved(staged.domain, Some(self.own.0)),
            flow: resolved(staged.flow, self.own.1),
        }
    }

    /// The one set of transport parameters.
    fn parameters(&self, value: &Value, staged: &mut Staged) -> Result<(), String> {
        let one = value.as_array().and_then(|sets| match &sets[..] {
            [Value::Object(one)] => Some(one),
            _ => None,
        });
        for (key, value) in one.ok_or("transport_params is a list of one object")? {
            let (to, own) = match key.as_str() {
                "mxl_domain_id" => (&mut staged.domain, Some(self.own.0)),
                "mxl_flow_id" => (&mut staged.flow, self.own.1),
                other => return Err(format!("transport parameter {other} is unknown")),
            };
            *to = match (self.side, Parameter::parse(value, key)?) {
                (Side::Sender, Parameter::Id(id)) if own != Some(id) => {
                    return Err(format!("{key} of this sender can only be {}", text(own)));
                }
                (Side::Receiver, Parameter::Auto) if own.is_none() => {
                    return Err(format!("{key} of a receiver is a UUID or null"));
                }
                (_, wanted) => wanted,
            };
        }
        Ok(())
    }
}

/// The mode of activations that are served.
const IMMEDIATE: &str = "activate_immediate";

/// Whether an activation is to be made now; otherwise there is none.
fn is_immediate(value: &Value) -> Result<bool, Refusal> {
    let none = Map::new();
    let fields = match value {
        Value::Null => &none,
        Value::Object(fields) => fields,
        _ => return Err((400, "activation is an object".into())),
    };
    let known = ["mode", "requested_time", "activation_time"];
    if let Some(other) = fields.keys().find(|key| !known.contains(&key.as_str())) {
        return Err((400, format!("activation has no {other}")));
    }
    match fields.get("mode") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::String(mode)) if mode == IMMEDIATE => Ok(true),
        Some(Value::String(mode)) if mode.starts_with("activate_scheduled_") => Err((
            501,
            "activations at a time are not implemented here: send activate_immediate at that time".into(),
        )),
        Some(mode) => Err((400, format!("activation mode {mode} is unknown"))),
    }
}

/// An id, or null.
fn id(value: &Value, key: &str) -> Result<Option<Uuid>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.len() == 36 => {
            Uuid::try_parse(text).map(Some).map_err(|_| format!("{key} is no UUID"))
        }
        _ => Err(format!("{key} is a UUID or null")),
    }
}

fn text(id: Option<Uuid>) -> Value {
    id.map_or(Value::Null, |id| id.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = Uuid::from_u128(0xa);
    const B: Uuid = Uuid::from_u128(0xb);

    fn patch(terminal: &mut Terminal, request: Value) -> Result<(Value, bool), Refusal> {
        terminal.patch(&request, "5:6", |_| Ok(()))
    }

    #[test]
    fn a_receiver_receives_what_was_staged_once_it_is_activated() {
        let mut receiver = Terminal::receiver(A);
        let params = json!([{ "mxl_domain_id": A.to_string(), "mxl_flow_id": B.to_string() }]);
        let (_, is_now) =
            patch(&mut receiver, json!({ "transport_params": params, "sender_id": null })).unwrap();
        assert!(!is_now && receiver.route() == &Route::default());
        assert_eq!(
            (&receiver.staged()["transport_params"], &receiver.active()["activation"]["mode"]),
            (&params, &Value::Null)
        );
        let request = json!({ "master_enable": true, "activation": { "mode": "activate_immediate" } });
        let (answer, is_now) = patch(&mut receiver, request).unwrap();
        let wanted = Route { is_enabled: true, peer: None, domain: Some(A), flow: Some(B) };
        assert!(is_now && receiver.route() == &wanted);
        assert_eq!(
            (&answer["activation"]["activation_time"], &answer["master_enable"]),
            (&"5:6".into(), &true.into())
        );
        assert_eq!(receiver.active()["activation"]["mode"], "activate_immediate");
        // Nothing is staged for later.
        assert_eq!(
            receiver.staged()["activation"],
            json!({ "mode": null, "requested_time": null, "activation_time": null })
        );
    }

    #[test]
    fn an_activation_that_fails_changes_nothing() {
        let mut receiver = Terminal::receiver(A);
        let before = receiver.clone();
        let request = json!({ "master_enable": true, "activation": { "mode": "activate_immediate" } });
        let refusal = receiver.patch(&request, "5:6", |_| Err("no room".into()));
        assert_eq!((refusal, receiver), (Err((500, "no room".into())), before));
    }

    #[test]
    fn a_sender_keeps_its_flow() {
        let mut sender = Terminal::sender(A, B);
        assert_eq!(sender.constraints()[0]["mxl_flow_id"]["enum"][0], B.to_string());
        let same = json!({ "master_enable": false, "transport_params": [{ "mxl_flow_id": B.to_string() }] });
        assert!(patch(&mut sender, same).is_ok());
        let other = json!({ "transport_params": [{ "mxl_flow_id": A.to_string() }] });
        assert_eq!(patch(&mut sender, other).unwrap_err().0, 400);
        // Whoever leaves it to the sender gets the same: once it is activated.
        for any in [json!("auto"), Value::Null] {
            let params = json!([{ "mxl_domain_id": any, "mxl_flow_id": any }]);
            let request =
                json!({ "transport_params": params, "activation": { "mode": "activate_immediate" } });
            assert_eq!(patch(&mut sender, request).unwrap().0["transport_params"], params);
            assert_eq!(sender.staged()["transport_params"], params);
            let active = json!([{ "mxl_domain_id": A.to_string(), "mxl_flow_id": B.to_string() }]);
            assert_eq!(sender.active()["transport_params"], active);
        }
    }

    #[test]
    fn a_receiver_may_choose_its_domain() {
        let mut receiver = Terminal::receiver(A);
        let params = json!([{ "mxl_domain_id": "auto", "mxl_flow_id": B.to_string() }]);
        let request = json!({ "transport_params": params, "activation": { "mode": "activate_immediate" } });
        patch(&mut receiver, request).unwrap();
        assert_eq!((receiver.route().domain, receiver.route().flow), (Some(A), Some(B)));
        assert_eq!(receiver.staged()["transport_params"], params);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (request, status) in [
            (json!([]), 400),
            (json!({ "master_enable": 1 }), 400),
            (json!({ "colour": 1 }), 400),
            (json!({ "receiver_id": A.to_string() }), 400),
            (json!({ "sender_id": "x" }), 400),
            (json!({ "transport_params": [] }), 400),
            (json!({ "transport_params": [{}, {}] }), 400),
            (json!({ "transport_params": [{ "mxl_flow_id": "auto" }] }), 400),
            (json!({ "transport_params": [{ "port": 1 }] }), 400),
            (json!({ "transport_file": { "data": "v=0", "type": "application/sdp" } }), 400),
            (
                json!({ "activation": { "mode": "activate_scheduled_relative", "requested_time": "1:0" } }),
                501,
            ),
            (json!({ "activation": { "mode": "soon" } }), 400),
            (json!({ "activation": { "when": 1 } }), 400),
        ] {
            let mut receiver = Terminal::receiver(A);
            let refusal = patch(&mut receiver, request.clone()).unwrap_err();
            assert_eq!((refusal.0, receiver), (status, Terminal::receiver(A)), "{request}");
        }
    }
}
