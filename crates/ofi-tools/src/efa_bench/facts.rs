//! A description of a host for the page, and obstacles to measuring on it.

use std::path::Path;
use std::process::Command;

use ofi::raw::{EpType, GetinfoFlags, Request, Version};
use ofi::{Hints, Info};
use serde_json::{Map, Value, json};

use super::libraries::{self, WRITES_SINCE};
use super::side::Programs;
use crate::failure::{Failure, Result};

/// The paths of C's program: in Amazon's installation, and the system's.
const C_PROGRAMS: [&str; 2] = ["/opt/amazon/efa/bin/fi_pingpong", "/usr/bin/fi_pingpong"];

/// Named facts for people, and the facts that the run depends on.
#[derive(Debug)]
pub struct Facts(Map<String, Value>);

impl Facts {
    /// Collects the facts of this host.
    pub fn of_this_host(programs: &Programs, commit: Option<&str>) -> Self {
        let hints = Hints::new().provider("efa").ep_type(EpType::Rdm);
        let flags = GetinfoFlags::empty();
        let asked = Request { version: Version::API, node: None, service: None, flags, hints: Some(&hints) };
        let offers = ofi::explain(&asked).unwrap_or_default();
        let why = offers.refusals.iter().find(|refusal| refusal.provider == "efa");
        let why = why.map_or("provider efa is not in this build", |refusal| refusal.offered.as_str());
        let mut nics: Vec<(String, f64)> = Vec::new();
        for info in &offers.infos {
            // Fabric efa-direct has the same devices.
            let name = &info.domain_attr.name;
            if !nics.iter().any(|(other, _)| other == name) {
                nics.push((name.clone(), gigabits(info)));
            }
        }
        // fi_info lists in directory order, which differs between hosts.
        nics.sort_by(|(one, _), (other, _)| one.cmp(other));
        let accesses = offers.infos.iter().find(|info| info.fabric_attr.name == "efa").map(accesses);
        let speeds = nics.iter().map(|(name, speed)| format!("{name} ({speed} Gbit/s)")).collect::<Vec<_>>();
        let libraries =
            nics.first().map(|_| ["libibverbs.so.1", "libefa.so.1"].map(libraries::described).join("; "));
        let c = C_PROGRAMS.map(Path::new).into_iter().find_map(|path| c_library(programs, path, false));
        let (c, c_library_text) = c.map_or((None, None), |(path, text)| (Some(path), Some(text)));
        let on_ours = c.as_deref().map(Path::new).filter(|_| programs.library.is_some());
        let on_ours = on_ours.and_then(|path| c_library(programs, path, true)).map(|(_, text)| text);
        let read = |path: &str| {
            std::fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_string())
        };
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let gpus = multirail::memory::cuda::count().unwrap_or(0);
        let release = libraries::loaded("libefa.so.1").and_then(|path| libraries::release(&path));
        let facts = json!({
            "ofi": env!("CARGO_PKG_VERSION"),
            "commit": commit,
            "programs": fingerprint(programs),
            "machine": read("/sys/devices/virtual/dmi/id/product_name"),
            "processor": cpu.trim_start_matches([':', '\t', ' ']),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "efa driver": read("/sys/module/efa/version"),
            "locked memory": locked_memory(&read("/proc/self/limits")),
            "huge pages": read("/proc/sys/vm/nr_hugepages"),
            "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "devices": if speeds.is_empty() { why.to_string() } else { speeds.join(", ") },
            "nics": nics.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            "rdma-core": libraries,
            "rdma-core release": release.map(|(major, _)| major),
            "accesses": accesses,
            "gpus": gpus,
            "emulated": std::env::var_os("EFA_EMULATOR_DIR").is_some(),
            "C's program": c,
            "C's library": c_library_text,
            "our library": on_ours,
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
    pub fn of_line(line: &str) -> Result<Self> {
        serde_json::from_str(line).map(Self).map_err(|error| {
            Failure::Peer(format!("the other end is not efa-bench: {error} in {line:.100?}"))
        })
    }

    /// Both ends must run the same code. Without a commit, programs that differ are only noted on the page.
    ///
    /// # Errors
    /// The versions or the commits differ.
    pub fn check_same_build(&self, theirs: &Self) -> Result<()> {
        for name in ["ofi", "commit"] {
            if self.0.get(name) != theirs.0.get(name) {
                let (ours, other) = (self.shown(name), theirs.shown(name));
                let advice = "install the same commit on both";
                return Err(Failure::Usage(format!(
                    "{name}: {ours} here, {other} on the other instance: {advice}"
                )));
            }
        }
        Ok(())
    }

    /// C's `fi_pingpong` on this host, if it is installed.
    pub fn c_program(&self) -> Option<&Path> {
        self.0.get("C's program")?.as_str().map(Path::new)
    }

    /// Whether C's programs can run on our library here.
    pub fn has_our_library(&self) -> bool {
        self.0.get("our library").is_some_and(Value::is_string)
    }

    /// The domains of the NICs, in order.
    pub fn nics(&self) -> Vec<String> {
        let names = self.0.get("nics").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
    }

    /// CUDA devices.
    pub fn gpus(&self) -> u64 {
        self.0.get("gpus").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Whether its device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.0.get("emulated").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The reason why nothing can be measured, if there is one.
    pub fn missing(&self) -> Option<&str> {
        self.nics().is_empty().then(|| self.text("devices"))
    }

    /// Notes for readers of the figures, and reasons why they are worse than possible.
    pub fn notes(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut add = |is_so: bool, note: &str| all.extend(is_so.then(|| note.to_string()));
        add(
            self.text("locked memory") != "unlimited",
            "locked memory is limited: ulimit -l unlimited, or large registrations fail",
        );
        add(
            self.text("huge pages") == "0",
            "no huge pages are reserved: sysctl vm.nr_hugepages=1024 takes load off the device's translation",
        );
        add(
            self.text("governor") == "powersave",
            "the processor saves power: cpupower frequency-set -g performance",
        );
        let release = self.0.get("rdma-core release").and_then(Value::as_u64);
        if let Some(release) = release.filter(|&release| release < WRITES_SINCE.into()) {
            all.push(format!(
                "libefa is of rdma-core {release}: before {WRITES_SINCE} it has no writes of the device, and every write is packets that the peer's process copies; install Amazon's rdma-core"
            ));
        } else if self.text("accesses").contains("writes by the peer's process") {
            all.push(
                "the device (or libefa) has no writes: every write is packets that the peer's process copies"
                    .into(),
            );
        }
        all
    }

    /// The text of a fact.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or("unknown")
    }

    fn shown(&self, name: &str) -> String {
        match self.0.get(name) {
            None | Some(Value::Null) => "none told".into(),
            Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_string),
        }
    }

    /// Names and values for the page.
    pub fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        let hidden = ["nics", "rdma-core release"];
        let names = self.0.keys().filter(move |name| !hidden.contains(&name.as_str()));
        names.map(|name| (name.as_str(), self.shown(name)))
    }
}

fn gigabits(info: &Info) -> f64 {
    info.nic.as_ref().map_or(0.0, |nic| nic.link_attr.speed as f64 / 1e9)
}

/// The executor of memory accesses: the devices, or the process that owns the memory.
fn accesses(info: &Info) -> String {
    use ofi::EpOption::{EfaEmulatedRead, EfaEmulatedWrite};
    let ask = || {
        let domain = ofi::open_fabric(info)?.open_domain(info)?;
        let endpoint = domain.open_endpoint(info)?;
        Ok::<_, ofi::Error>([endpoint.option(EfaEmulatedRead)?, endpoint.option(EfaEmulatedWrite)?])
    };
    let who = |emulated| if emulated == 0 { "the device" } else { "the peer's process" };
    match ask() {
        Ok([read, write]) => format!("reads by {}, writes by {}", who(read), who(write)),
        Err(error) => format!("unknown: {error}"),
    }
}

/// C's program, and the libfabric that it loads: C's own, or ours. `None` without the program.
fn c_library(programs: &Programs, path: &Path, on_ours: bool) -> Option<(String, String)> {
    let info = path.with_file_name("fi_info");
    if !path.exists() || !info.exists() {
        return None;
    }
    let text = libraries::libfabric_of(programs.of_c(&info, on_ours))?;
    Some((path.to_string_lossy().into_owned(), text))
}

/// The first digits of the hash of the programs that measure.
fn fingerprint(programs: &Programs) -> String {
    let mut hasher = blake3::Hasher::new();
    for path in [&programs.pingpong, &programs.rails] {
        hasher.update(&std::fs::read(path).unwrap_or_default());
    }
    hasher.finalize().to_hex()[..16].to_string()
}

/// The limit in a process's limits.
fn locked_memory(limits: &str) -> String {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown").to_string()
}

fn first(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(value: Value) -> Facts {
        Facts::of_line(&value.to_string()).unwrap()
    }

    #[test]
    fn facts_travel_as_one_line_and_others_are_refused() {
        let here = facts(json!({ "ofi": "1", "commit": null, "nics": [], "devices": "no\ndevice" }));
        assert!(here.missing() == Some("no\ndevice") && !here.to_line().contains('\n'));
        assert!(here.check_same_build(&Facts::of_line(&here.to_line()).unwrap()).is_ok());
        let other = facts(json!({ "ofi": "1", "commit": "abc", "nics": ["a"] }));
        let error = here.check_same_build(&other).unwrap_err().to_string();
        assert!(error.contains("none told here, abc on the other"), "{error}");
        assert_eq!(other.missing(), None);
        assert!(Facts::of_line("GET / HTTP/1.1").is_err() && Facts::of_line("").is_err());
    }

    #[test]
    fn an_old_libefa_is_named() {
        let notes = |value| facts(value).notes().join("\n");
        let plain = json!({ "locked memory": "unlimited", "huge pages": "9", "rdma-core release": 44 });
        assert!(notes(plain).contains("libefa is of rdma-core 44: before 50 it has no writes"));
        let newer = json!({
            "locked memory": "8192", "huge pages": "0", "governor": "powersave", "rdma-core release": 56,
            "accesses": "reads by the device, writes by the peer's process",
        });
        let told = notes(newer);
        for word in ["ulimit -l", "vm.nr_hugepages", "cpupower", "has no writes"] {
            assert!(told.contains(word), "{told}");
        }
        let good = json!({ "locked memory": "unlimited", "rdma-core release": 56, "accesses": "writes by the device" });
        assert_eq!(notes(good), "");
    }

    #[test]
    fn the_limit_of_locked_memory_is_read() {
        let text = "Limit     Soft Limit  Hard Limit  Units\nMax locked memory  8388608  8388608  bytes\n";
        assert_eq!(locked_memory(text), "8388608");
        assert_eq!(
            locked_memory("Max locked memory         unlimited            unlimited            bytes"),
            "unlimited"
        );
        assert_eq!(locked_memory(""), "unknown");
    }
}
