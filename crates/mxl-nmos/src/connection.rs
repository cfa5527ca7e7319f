//! Senders and receivers as IS-05 sees them: what is staged, what is active, and activations.

use mxl::Uuid;
use serde_json::{Value, json};

use crate::activation::{Activation, Asked};

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

    /// An activation of a sender or a receiver at a time has failed. No request waits for it: nobody else is told why.
    fn failed(&mut self, id: Uuid, why: &str) {
        let _ = (id, why);
    }
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
    /// The last activation.
    activated: Option<Activation>,
    /// The next one. What is staged is locked until then.
    scheduled: Option<Activation>,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    /// It has changed what is staged.
    Staged,
    /// It was activated.
    Activated,
    /// It will be activated.
    Scheduled,
}

/// A request that was refused: the status, and the reason.
pub type Refusal = (u16, String);

impl Terminal {
    /// A sender of a flow of a domain, which sends.
    pub fn sender(domain: Uuid, flow: Uuid) -> Self {
        let active = Route { is_enabled: true, peer: None, domain: Some(domain), flow: Some(flow) };
        let (of_domain, of_flow) = (Parameter::Id(domain), Parameter::Id(flow));
        let staged = Staged { is_enabled: true, peer: None, domain: of_domain, flow: of_flow };
        let own = (domain, Some(flow));
        Self { side: Side::Sender, own, staged, active, activated: None, scheduled: None }
    }

    /// A receiver of a domain, which receives nothing.
    pub fn receiver(domain: Uuid) -> Self {
        let (staged, active) = (Staged::default(), Route::default());
        let own = (domain, None);
        Self { side: Side::Receiver, own, staged, active, activated: None, scheduled: None }
    }

    /// The active route.
    pub fn route(&self) -> &Route {
        &self.active
    }

    /// The endpoint `staged`.
    pub fn staged(&self) -> Value {
        self.shown_staged(self.scheduled.as_ref())
    }

    /// The endpoint `active`.
    pub fn active(&self) -> Value {
        let Route { is_enabled, peer, domain, flow } = self.active;
        self.shown((is_enabled, peer), [text(domain), text(flow)], self.activated.as_ref())
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

    fn shown_staged(&self, activation: Option<&Activation>) -> Value {
        let Staged { is_enabled, peer, domain, flow } = self.staged;
        self.shown((is_enabled, peer), [domain.shown(), flow.shown()], activation)
    }

    fn shown(
        &self,
        (is_enabled, peer): (bool, Option<Uuid>),
        [domain, flow]: [Value; 2],
        activation: Option<&Activation>,
    ) -> Value {
        let mut shown = json!({
            "master_enable": is_enabled,
            "activation": Activation::shown(activation),
            "transport_params": [{ "mxl_domain_id": domain, "mxl_flow_id": flow }],
        });
        shown[self.side.peer()] = text(peer);
        if self.side == Side::Receiver {
            shown["transport_file"] = json!({ "data": null, "type": null });
        }
        shown
    }

    /// Changes what is staged, and activates it at once or later if the request says so. Returns the answer. `now` is
    /// TAI in nanoseconds. `activate` does what the new route says.
    ///
    /// # Errors
    /// What is wrong, with status 400; a change while an activation is scheduled, with 423; an activation that has
    /// failed, with 500. Nothing has changed then.
    pub fn patch(
        &mut self,
        request: &Value,
        now: u64,
        activate: impl FnOnce(&Route) -> Result<(), String>,
    ) -> Result<(Value, Patched), Refusal> {
        let wrong = |why: String| (400, why);
        let request = request.as_object().ok_or_else(|| wrong("an object was wanted".into()))?;
        let (mut staged, mut asked) = (self.staged.clone(), Asked::Nothing);
        for (key, value) in request {
            match key.as_str() {
                "master_enable" => {
                    let is_enabled = value.as_bool();
                    staged.is_enabled =
                        is_enabled.ok_or_else(|| wrong("master_enable is true or false".into()))?;
                }
                key if key == self.side.peer() => staged.peer = id(value, key).map_err(wrong)?,
                "activation" => asked = Asked::parse(value, now)?,
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
        if self.scheduled.is_some() && asked != Asked::Cancel {
            let why = "an activation is scheduled: activation mode null cancels it";
            return Err((423, why.into()));
        }
        match asked {
            Asked::Nothing | Asked::Cancel => {
                (self.staged, self.scheduled) = (staged, None);
                Ok((self.staged(), Patched::Staged))
            }
            Asked::Activate(activation) if activation.is_immediate() => {
                self.make_active(self.resolved(&staged), activation.clone(), activate)
                    .map_err(|why| (500, why))?;
                self.staged = staged;
                Ok((self.shown_staged(Some(&activation)), Patched::Activated))
            }
            Asked::Activate(activation) => {
                (self.staged, self.scheduled) = (staged, Some(activation));
                Ok((self.staged(), Patched::Scheduled))
            }
        }
    }

    /// When the next activation is due, in nanoseconds of TAI.
    pub fn due(&self) -> Option<u64> {
        self.scheduled.as_ref().map(|activation| activation.at)
    }

    /// Makes the activation that is scheduled, whose time has come, and unlocks what is staged.
    ///
    /// # Errors
    /// Why it has failed: the former route stays active.
    pub fn activate(
        &mut self,
        now: u64,
        activate: impl FnOnce(&Route) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(scheduled) = self.scheduled.take() else { return Ok(()) };
        self.make_active(self.resolved(&self.staged), scheduled.made(now), activate)
    }

    fn make_active(
        &mut self,
        route: Route,
        activation: Activation,
        activate: impl FnOnce(&Route) -> Result<(), String>,
    ) -> Result<(), String> {
        activate(&route)?;
        (self.active, self.activated) = (route, Some(activation));
        Ok(())
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
    use crate::clock;

    const A: Uuid = Uuid::from_u128(0xa);
    const B: Uuid = Uuid::from_u128(0xb);

    /// 5 s and 6 ns.
    const NOW: u64 = 5_000_000_006;

    fn patch(terminal: &mut Terminal, request: Value) -> Result<(Value, Patched), Refusal> {
        terminal.patch(&request, NOW, |_| Ok(()))
    }

    fn activation(mode: Option<&str>, requested: Option<&str>, at: Option<&str>) -> Value {
        json!({ "mode": mode, "requested_time": requested, "activation_time": at })
    }

    #[test]
    fn a_receiver_receives_what_was_staged_once_it_is_activated() {
        let mut receiver = Terminal::receiver(A);
        let params = json!([{ "mxl_domain_id": A.to_string(), "mxl_flow_id": B.to_string() }]);
        let (_, patched) =
            patch(&mut receiver, json!({ "transport_params": params, "sender_id": null })).unwrap();
        assert!(patched == Patched::Staged && receiver.route() == &Route::default());
        assert_eq!(
            (&receiver.staged()["transport_params"], &receiver.active()["activation"]["mode"]),
            (&params, &Value::Null)
        );
        let request = json!({ "master_enable": true, "activation": { "mode": "activate_immediate" } });
        let (answer, patched) = patch(&mut receiver, request).unwrap();
        let wanted = Route { is_enabled: true, peer: None, domain: Some(A), flow: Some(B) };
        assert!(patched == Patched::Activated && receiver.route() == &wanted);
        assert_eq!(
            (&answer["activation"]["activation_time"], &answer["master_enable"]),
            (&"5:6".into(), &true.into())
        );
        assert_eq!(receiver.active()["activation"]["mode"], "activate_immediate");
        // Nothing is staged for later.
        assert_eq!(receiver.staged()["activation"], activation(None, None, None));
    }

    /// A receiver that is to receive flow B at a time.
    fn scheduled(mode: &str, requested: &str) -> Result<(Terminal, Value), Refusal> {
        let mut receiver = Terminal::receiver(A);
        let request = json!({
            "master_enable": true,
            "transport_params": [{ "mxl_flow_id": B.to_string() }],
            "activation": { "mode": mode, "requested_time": requested },
        });
        let (answer, patched) = patch(&mut receiver, request)?;
        assert_eq!(patched, Patched::Scheduled);
        Ok((receiver, answer))
    }

    #[test]
    fn an_activation_at_a_time_locks_what_is_staged_until_then() {
        for (mode, requested, at) in [
            ("activate_scheduled_absolute", "6:0", "6:0"),
            ("activate_scheduled_relative", "1:5", "6:11"),
            // Due already.
            ("activate_scheduled_absolute", "2:0", "5:6"),
            ("activate_scheduled_relative", "0:0", "5:6"),
        ] {
            let (mut receiver, answer) = scheduled(mode, requested).unwrap();
            let pending = activation(Some(mode), Some(requested), Some(at));
            assert_eq!((&answer["activation"], &answer["master_enable"]), (&pending, &json!(true)));
            assert_eq!((&receiver.staged(), receiver.due()), (&answer, clock::parse(at)));
            assert_eq!(receiver.active()["activation"], activation(None, None, None));
            // Neither a change nor another activation.
            let locked = receiver.clone();
            for request in [
                json!({}),
                json!({ "master_enable": false }),
                json!({ "activation": { "mode": "activate_immediate" } }),
                json!({ "activation": { "mode": mode, "requested_time": requested } }),
            ] {
                assert_eq!(patch(&mut receiver, request.clone()).unwrap_err().0, 423, "{request}");
            }
            assert_eq!(receiver, locked);
            receiver.activate(7_000_000_000, |_| Ok(())).unwrap();
            assert_eq!((receiver.route().is_enabled, receiver.route().flow), (true, Some(B)));
            assert_eq!(receiver.active()["activation"], activation(Some(mode), Some(requested), Some("7:0")));
            assert_eq!(receiver.staged()["activation"], activation(None, None, None));
            assert!(patch(&mut receiver, json!({ "master_enable": false })).is_ok());
        }
    }

    #[test]
    fn an_activation_at_a_time_can_be_cancelled() {
        let (mut receiver, _) = scheduled("activate_scheduled_relative", "1:0").unwrap();
        let request = json!({ "master_enable": false, "activation": { "mode": null } });
        let (answer, patched) = patch(&mut receiver, request).unwrap();
        assert_eq!((patched, receiver.due()), (Patched::Staged, None));
        assert_eq!(answer["activation"], activation(None, None, None));
        // What was staged stays, but for what the same request changes.
        assert_eq!(answer["transport_params"][0]["mxl_flow_id"], B.to_string());
        assert_eq!(answer["master_enable"], false);
        assert_eq!(receiver.route(), &Route::default());
    }

    #[test]
    fn an_activation_at_a_time_that_fails_unlocks_what_is_staged() {
        let (mut receiver, _) = scheduled("activate_scheduled_relative", "1:0").unwrap();
        assert_eq!(receiver.activate(NOW, |_| Err("no room".into())), Err("no room".into()));
        assert_eq!((receiver.due(), receiver.route()), (None, &Route::default()));
        assert_eq!(receiver.staged()["master_enable"], true);
    }

    #[test]
    fn a_time_is_within_a_day() {
        assert!(scheduled("activate_scheduled_relative", "86400:0").is_ok());
        assert!(scheduled("activate_scheduled_absolute", "86405:6").is_ok());
        for (mode, requested) in [
            ("activate_scheduled_relative", "86400:1"),
            ("activate_scheduled_relative", "99999999999999999999:0"),
            ("activate_scheduled_absolute", "86405:7"),
        ] {
            let (status, why) = scheduled(mode, requested).unwrap_err();
            assert!(status == 400 && why.contains("more than a day ahead"), "{why}");
        }
    }

    #[test]
    fn an_activation_that_fails_changes_nothing() {
        let mut receiver = Terminal::receiver(A);
        let before = receiver.clone();
        let request = json!({ "master_enable": true, "activation": { "mode": "activate_immediate" } });
        let refusal = receiver.patch(&request, NOW, |_| Err("no room".into()));
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
            (json!({ "activation": { "mode": "activate_scheduled_relative", "requested_time": "1" } }), 400),
            (json!({ "activation": { "mode": "activate_scheduled_absolute" } }), 400),
            (json!({ "activation": { "mode": "soon" } }), 400),
            (json!({ "activation": { "when": 1 } }), 400),
        ] {
            let mut receiver = Terminal::receiver(A);
            let refusal = patch(&mut receiver, request.clone()).unwrap_err();
            assert_eq!((refusal.0, receiver), (status, Terminal::receiver(A)), "{request}");
        }
    }
}
