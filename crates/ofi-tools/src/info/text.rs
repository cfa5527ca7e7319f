//! The text output for people and scripts, in the formats of C's `fi_info`.

use std::fmt::Write as _;

use ofi::config::Listed;
use ofi::raw::{Info, Refusal, Version};

/// Six lines for each interface.
pub fn short(infos: &[Info]) -> String {
    let mut out = String::new();
    for info in infos {
        let (fabric, name) = (&info.fabric_attr, &info.domain_attr.name);
        let _ = writeln!(out, "provider: {}", fabric.prov_name);
        let _ = writeln!(out, "    fabric: {}", fabric.name);
        let _ = writeln!(out, "    domain: {name}");
        let _ = writeln!(out, "    version: {}", fabric.prov_version);
        let _ = writeln!(out, "    type: {}", info.ep_attr.ep_type);
        let _ = writeln!(out, "    protocol: {}", info.ep_attr.protocol);
    }
    out
}

/// Every attribute of each interface whose text contains `filter`.
pub fn long(infos: &[Info], filter: Option<&str>) -> String {
    let texts = infos.iter().map(ToString::to_string);
    texts.filter(|text| contains(text, filter)).fold(String::new(), |out, text| out + "---\n" + &text)
}

/// Two lines for each provider.
pub fn providers(providers: &[(String, Version)]) -> String {
    providers.iter().fold(String::new(), |mut out, (name, version)| {
        let _ = writeln!(out, "{name}:\n    version: {version}");
        out
    })
}

/// A paragraph for each setting: its type, its purpose, and its value if the environment sets one.
pub fn settings(settings: &[Listed], filter: Option<&str>) -> String {
    let mut out = String::new();
    for setting in settings.iter().filter(|setting| contains(&setting.env, filter)) {
        let _ = writeln!(out, "# {}: {}", setting.env, type_name(setting));
        let default = match &setting.default[..] {
            "" => String::new(),
            default => format!(" (default: {default})"),
        };
        let _ = writeln!(out, "# {}: {}{default}", setting.provider, setting.help);
        if let Some(problem) = &setting.problem {
            let _ = writeln!(out, "# {problem}; the default is used");
        } else if setting.is_set {
            let quote = if setting.current.contains(' ') { "\"" } else { "" };
            let _ = writeln!(out, "{}={quote}{}{quote}", setting.env, setting.current);
        }
        out.push('\n');
    }
    out
}

/// Four lines for each refusal.
pub fn refusals(refusals: &[Refusal]) -> String {
    if refusals.is_empty() {
        return "refused: nothing\n".into();
    }
    let mut out = String::new();
    for refusal in refusals {
        let _ = writeln!(out, "refused: {}", refusal.provider);
        let _ = writeln!(out, "    field: {}", refusal.field);
        let _ = writeln!(out, "    wanted: {}", refusal.wanted);
        let _ = writeln!(out, "    offered: {}", refusal.offered);
    }
    out
}

/// Versions of the program, the library and its interface.
pub fn version() -> String {
    let package = env!("CARGO_PKG_VERSION");
    format!("fi_info: {package}\nlibfabric: {package} (ofi)\nlibfabric api: {}\n", Version::API)
}

/// C's name for the type of a setting; C has no durations.
fn type_name(setting: &Listed) -> &'static str {
    match setting.kind.name() {
        "string" => "String",
        "integer" => "Integer",
        "boolean" => "Boolean (0/1, on/off, true/false, yes/no)",
        "size" => "size_t",
        "duration" => "Duration (20us, 1.5s; a bare number is in ms)",
        other => other,
    }
}

/// Whether `text` contains `filter`, ignoring case.
pub fn contains(text: &str, filter: Option<&str>) -> bool {
    filter.is_none_or(|filter| text.to_lowercase().contains(&filter.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_six_lines() {
        let mut info = Info::default();
        info.fabric_attr.prov_name = "shm".into();
        info.fabric_attr.prov_version = Version::new(2, 6);
        let text = short(&[info]);
        assert!(text.starts_with(
            "provider: shm\n    fabric: \n    domain: \n    version: 2.6\n    type: FI_EP_UNSPEC\n"
        ));
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn long_texts_are_separated_and_filtered() {
        let infos = [Info::default(), Info::default()];
        assert_eq!(long(&infos, None).matches("---\nfi_info:\n").count(), 2);
        assert_eq!(long(&infos, Some("FORMAT_unspec")).matches("---\n").count(), 2);
        assert_eq!(long(&infos, Some("nothing like it")), "");
    }
}
