//! One event as one line of text.
//!
//! Five fields are not printed but override the origin of the event, for messages that are forwarded (C's `fi_log`):
//! `prov`, `subsys`, `func`, `line` and `c_level`, the level's number in C. A sixth, `unfiltered`, makes the message
//! pass the filters of providers and subsystems, for messages about invalid filters.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, FieldSet, Visit};
use tracing::{Event, Metadata};

use super::Level;
use super::origin::Origin;

const PROVIDER: &str = "prov";
const SUBSYSTEM: &str = "subsys";
const FUNCTION: &str = "func";
const LINE: &str = "line";
const C_LEVEL: &str = "c_level";
const UNFILTERED: &str = "unfiltered";

/// Whether events of a call site can name their own provider or subsystem, or bypass those filters.
pub(super) fn is_origin_in_fields(fields: &FieldSet) -> bool {
    [PROVIDER, SUBSYSTEM, UNFILTERED].into_iter().any(|name| fields.field(name).is_some())
}

/// Whether each event must be decided separately: the call site lets an event name its origin, or it is a query
/// (`tracing::enabled!`) before such events.
pub(super) fn is_decided_late(metadata: &Metadata<'_>) -> bool {
    !metadata.is_event() || is_origin_in_fields(metadata.fields())
}

/// A message, and where it comes from.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The provider, or `core`.
    pub provider: String,
    /// One of [`super::SUBSYSTEMS`], or a plug-in's own.
    pub subsystem: String,
    /// Its level.
    pub level: Level,
    /// The function, or the module.
    pub function: String,
    /// The line of the source.
    pub line: u64,
    /// The text, in one line, without a line end.
    pub text: String,
    /// Exempt from `FI_LOG_PROV` and `FI_LOG_SUBSYS`.
    pub(super) unfiltered: bool,
}

/// The message of `event`; `None` for other libraries' events.
pub(super) fn read(event: &Event<'_>) -> Option<Entry> {
    let metadata = event.metadata();
    let origin = Origin::of(metadata.target())?;
    let mut fields = Fields::default();
    event.record(&mut fields);
    let module = metadata.module_path().unwrap_or_default();
    let mut text = fields.message.trim_end().to_owned();
    text.push_str(&fields.rest);
    escape_controls(&mut text);
    Some(Entry {
        provider: fields.provider.unwrap_or_else(|| origin.provider.into()),
        subsystem: fields.subsystem.unwrap_or_else(|| origin.subsystem.into()),
        level: fields.level.unwrap_or_else(|| Level::from(*metadata.level())),
        function: fields.function.unwrap_or_else(|| module.rsplit("::").next().unwrap_or_default().into()),
        line: fields.line.unwrap_or(metadata.line().unwrap_or_default().into()),
        text,
        unfiltered: fields.unfiltered,
    })
}

impl Entry {
    /// The line to print, with its line end.
    pub(super) fn printed(&self) -> String {
        let Self { provider, subsystem, level, function, line, text, unfiltered: _ } = self;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (pid, level) = (std::process::id(), level.name());
        let mut printed =
            format!("libfabric:{pid}:{seconds}::{provider}:{subsystem}:{function}():{line}<{level}> {text}");
        escape_controls(&mut printed);
        printed.push('\n');
        printed
    }
}

/// The fields of an event, sorted for the line.
#[derive(Default)]
struct Fields {
    provider: Option<String>,
    subsystem: Option<String>,
    function: Option<String>,
    line: Option<u64>,
    level: Option<Level>,
    unfiltered: bool,
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

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            UNFILTERED => self.unfiltered = value,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            LINE => self.line = Some(value),
            C_LEVEL => self.level = u32::try_from(value).ok().and_then(Level::from_c),
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

/// Escapes a text from outside, so that it cannot start a new line or control a terminal.
fn escape_controls(text: &mut String) {
    if text.contains(char::is_control) {
        let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        *text = text.chars().map(escaped).collect();
    }
}
