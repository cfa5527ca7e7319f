//! A description of a host for the page, and obstacles to measuring on it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::step::{command, output, root};

/// The path of C's program in Amazon's installation.
const AMAZONS: &str = "/opt/amazon/efa/bin/fi_pingpong";

/// Named facts for people, and the facts that the run depends on.
#[derive(Debug)]
pub struct Facts(Map<String, Value>);

impl Facts {
    /// Collects the facts of this host. `info` is our `fi_info`.
    pub fn of_this_host(info: &Path) -> Self {
        let first = |program: &str, args: &[&str]| {
            let text = output(command(program).args(args)).unwrap_or_default();
            text.lines().next().unwrap_or("unknown").trim().to_string()
        };
        let read = |path: &str| {
            std::fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_string())
        };
        let devices = output(command(info).args(["-p", "efa", "--json"]));
        let c = [AMAZONS, "/usr/bin/fi_pingpong"].into_iter().find(|path| Path::new(path).exists());
        let c_version = c.map(|path| {
            let info = Path::new(path).with_file_name("fi_info");
            output(command(info).arg("--version"))
                .unwrap_or_default()
                .lines()
                .take(2)
                .collect::<Vec<_>>()
                .join(", ")
        });
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let facts = json!({
            "commit": first("git", &["-C", &root().to_string_lossy(), "rev-parse", "HEAD"]),
            "machine": read("/sys/devices/virtual/dmi/id/product_name"),
            "processor": cpu.trim_start_matches([':', '\t', ' ']),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "efa driver": first("modinfo", &["-F", "version", "efa"]),
            "locked memory": first("sh", &["-c", "ulimit -l"]),
            "huge pages": read("/proc/sys/vm/nr_hugepages"),
            "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "devices": devices.as_ref().map_or_else(|text| why_none(text), |text| names(text)),
            "emulated": std::env::var_os("EFA_EMULATOR_DIR").is_some(),
            "has efa": devices.is_ok(),
            "C's program": c,
            "C libfabric": c_version,
            "when": first("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        });
        Self(facts.as_object().cloned().unwrap_or_default())
    }

    /// Encodes the facts as one line for the other host.
    pub fn to_line(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }

    /// Parses the other host's line.
    ///
    /// # Errors
    /// The line is something else.
    pub fn of_line(line: &str) -> Result<Self, String> {
        serde_json::from_str(line)
            .map(Self)
            .map_err(|error| format!("the other end is not efa-bench: {error} in {line:.100?}"))
    }

    /// The commit from which its programs were built.
    pub fn commit(&self) -> &str {
        self.text("commit")
    }

    /// C's `fi_pingpong` on that host, if it is installed.
    pub fn c_program(&self) -> Option<&Path> {
        self.0.get("C's program")?.as_str().map(Path::new)
    }

    /// Whether its device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.0.get("emulated").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The reason why nothing can be measured, if there is one.
    pub fn missing(&self) -> Option<&str> {
        let has = self.0.get("has efa").and_then(Value::as_bool).unwrap_or(false);
        (!has).then(|| self.text("devices"))
    }

    /// Settings that make figures worse than they could be.
    pub fn warnings(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        if self.text("locked memory") != "unlimited" {
            all.push("locked memory is limited: ulimit -l unlimited, or large registrations fail");
        }
        if self.text("huge pages") == "0" {
            all.push("no huge pages are reserved: sysctl vm.nr_hugepages=1024 takes load off the device's translation");
        }
        if self.text("governor") == "powersave" {
            all.push("the processor saves power: cpupower frequency-set -g performance");
        }
        all
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or("unknown")
    }

    /// Names and values for the page.
    pub fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        let hidden = ["has efa", "C's program"];
        self.0.iter().filter(move |(name, _)| !hidden.contains(&name.as_str())).map(|(name, value)| {
            (name.as_str(), value.as_str().map_or_else(|| value.to_string(), str::to_string))
        })
    }
}

/// The domains in the output of `fi_info --json`.
fn names(text: &str) -> String {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    let mut names: Vec<&str> = Vec::new();
    for info in answer.get("infos").and_then(Value::as_array).into_iter().flatten() {
        let name = info.pointer("/domain_attr/name").and_then(Value::as_str).unwrap_or("unnamed");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The obstacle, from the output `text` of a `fi_info --json` that found nothing.
fn why_none(text: &str) -> String {
    let printed = text.find('{').map_or("", |at| &text[at..]);
    let answer = serde_json::Deserializer::from_str(printed).into_iter::<Value>().next();
    let answer = answer.and_then(Result::ok).unwrap_or_default();
    let refusals = answer.get("refusals").and_then(Value::as_array).into_iter().flatten();
    let mut ours =
        refusals.filter(|refusal| refusal.get("provider").is_some_and(|provider| provider == "efa"));
    let why = ours.find_map(|refusal| refusal.get("offered").and_then(Value::as_str));
    why.unwrap_or(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_travel_as_one_line_and_others_are_refused() {
        let facts = Facts::of_this_host(Path::new("/nonexistent"));
        assert!(facts.missing().is_some() && !facts.to_line().contains('\n'));
        let there = Facts::of_line(&facts.to_line()).unwrap();
        assert_eq!(there.commit(), facts.commit());
        assert!(Facts::of_line("GET / HTTP/1.1").is_err() && Facts::of_line("").is_err());
    }

    #[test]
    fn what_fi_info_prints_says_what_is_in_the_way() {
        let refusals = r#"{"infos": [], "refusals": [{"provider": "shm", "offered": "shm"}, {"provider": "efa", "offered": "no device"}]}"#;
        assert_eq!(why_none(&format!("fi_info ended with 61\n{refusals}\nmore")), "no device");
        assert_eq!(why_none("fi_info: not found"), "fi_info: not found");
        assert_eq!(
            names(r#"{"infos": [{"domain_attr": {"name": "a"}}, {"domain_attr": {"name": "a"}}]}"#),
            "a"
        );
    }
}
