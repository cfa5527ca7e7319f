//! Activations, as a request asks for them and as the endpoints show them.

use serde_json::{Map, Value, json};

use crate::clock;
use crate::connection::Refusal;

/// Maximum time from a request to its activation, in nanoseconds: a day. IS-05 wants no longer plans.
const MAX_AHEAD: u64 = 24 * 3600 * 1_000_000_000;

/// What a request says of activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing: a change of what is staged.
    Nothing,
    /// Mode null: an activation that is scheduled is cancelled.
    Cancel,
    /// An activation.
    Activate(Activation),
}

/// How an activation was asked for, and when it happens or has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    mode: Mode,
    /// As in the request.
    requested: Option<String>,
    /// Nanoseconds of TAI.
    pub at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Immediate,
    Absolute,
    Relative,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Immediate => "activate_immediate",
            Self::Absolute => "activate_scheduled_absolute",
            Self::Relative => "activate_scheduled_relative",
        }
    }
}

impl Asked {
    /// Reads the field `activation` of a request that has arrived at `now`.
    ///
    /// # Errors
    /// What is wrong, with status 400.
    pub fn parse(value: &Value, now: u64) -> Result<Self, Refusal> {
        let wrong = |why: String| (400, why);
        let none = Map::new();
        let fields = match value {
            Value::Null => &none,
            Value::Object(fields) => fields,
            _ => return Err(wrong("activation is an object".into())),
        };
        let known = ["mode", "requested_time", "activation_time"];
        if let Some(other) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(wrong(format!("activation has no {other}")));
        }
        let mode = match fields.get("mode") {
            None => return Ok(Self::Nothing),
            Some(Value::Null) => return Ok(Self::Cancel),
            Some(mode) => mode,
        };
        let all = [Mode::Immediate, Mode::Absolute, Mode::Relative];
        let mode = all.into_iter().find(|known| mode == known.name());
        let mode = mode.ok_or_else(|| wrong(format!("activation mode {} is unknown", fields["mode"])))?;
        if mode == Mode::Immediate {
            return Ok(Self::Activate(Activation { mode, requested: None, at: now }));
        }
        let requested = fields.get("requested_time").and_then(Value::as_str);
        let (requested, time) = requested
            .and_then(|text| Some((text, clock::parse(text)?)))
            .ok_or_else(|| wrong(format!("{} wants requested_time SECONDS:NANOSECONDS", mode.name())))?;
        // A time that has passed is due.
        let ahead = if mode == Mode::Relative { time } else { time.saturating_sub(now) };
        if ahead > MAX_AHEAD {
            let why = "requested_time is more than a day ahead; absolute times are TAI since 1970";
            return Err(wrong(why.into()));
        }
        let at = now.saturating_add(ahead);
        Ok(Self::Activate(Activation { mode, requested: Some(requested.into()), at }))
    }
}

impl Activation {
    /// Whether it happens within its request.
    pub fn is_immediate(&self) -> bool {
        self.mode == Mode::Immediate
    }

    /// This activation, made at a time.
    pub fn made(self, at: u64) -> Self {
        Self { at, ..self }
    }

    /// The field `activation` of an endpoint.
    pub fn shown(of: Option<&Self>) -> Value {
        json!({
            "mode": of.map(|of| of.mode.name()),
            "requested_time": of.and_then(|of| of.requested.as_deref()),
            "activation_time": of.map(|of| clock::text(of.at)),
        })
    }
}
