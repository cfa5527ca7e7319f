//! One event as one line of text.
//!
//! Four fields are not printed but override where the event says it comes from, for messages that are passed
//! on for somebody else (C's `fi_log`): `prov`, `subsys`, `func` and `line`.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::Event;
use tracing::field::{Field, FieldSet, Visit};

use super::origin::Origin;
use super::{Filter, Level};

const PROVIDER: &str = "prov";
const SUBSYSTEM: &str = "subsys";
const FUNCTION: &str = "func";
const LINE: &str = "line";

/// Whether events of a call site may name their own provider or subsystem.
pub(super) fn is_origin_in_fields(fields: &FieldSet) -> bool {
    fields.field(PROVIDER).is_some() || fields.field(SUBSYSTEM).is_some()
}

/// The line to print for `event`, with its line end; `None` if `filter` does not let it through.
pub(super) fn compose(event: &Event<'_>, filter: &Filter) -> Option<String> {
    let metadata = event.metadata();
    let level = Level::from(*metadata.level());
    let origin = Origin::of(metadata.target())?;
    let mut fields = Fields::default();
    event.record(&mut fields);
    let provider = fields.provider.as_deref().unwrap_or(origin.provider);
    let subsystem = fields.subsystem.as_deref().unwrap_or(origin.subsystem);
    if !filter.allows(provider, subsystem, level) {
        return None;
    }

    let module = metadata.module_path().unwrap_or_default();
    let function = fields.function.as_deref().unwrap_or(module.rsplit("::").next().unwrap_or_default());
    let number = fields.line.unwrap_or(metadata.line().unwrap_or_default().into());
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let pid = std::process::id();
    let mut text =
        format!("libfabric:{pid}:{seconds}::{provider}:{subsystem}:{function}():{number}<{}> ", level.name());
    text.push_str(fields.message.trim_end());
    text.push_str(&fields.rest);
    escape_controls(&mut text);
    text.push('\n');
    Some(text)
}

/// What an event carries, sorted into what the line needs.
#[derive(Default)]
struct Fields {
    provider: Option<String>,
    subsystem: Option<String>,
    function: Option<String>,
    line: Option<u64>,
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let overridden = match field.name() {
            PROVIDER => &mut self.provider,
            SUBSYSTEM => &mut self.subsystem,
            FUNCTION => &mut self.function,
            "message" => {
                let _ = write!(self.message, "{value:?}");
                return;
            }
            name => {
                let _ = write!(self.rest, " {name}={value:?}");
                return;
            }
        };
        *overridden = Some(format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}")); // no quotation marks
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            LINE => self.line = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match (field.name(), u64::try_from(value)) {
            (LINE, Ok(value)) => self.line = Some(value),
            _ => self.record_debug(field, &value),
        }
    }
}

/// Makes a text from outside unable to start a line of its own or to drive a terminal.
fn escape_controls(text: &mut String) {
    if text.contains(char::is_control) {
        let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        *text = text.chars().map(escaped).collect();
    }
}
