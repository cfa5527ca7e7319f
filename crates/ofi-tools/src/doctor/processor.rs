//! Cores and their clock frequency.

use std::thread::available_parallelism;

use super::check::Check;
use super::files::Files;

/// Whether two threads can spin at the same time.
pub fn cores() -> Check {
    const NAME: &str = "cores";
    const EFFECT: &str =
        "each polling thread needs a core of its own; two on one core pay a context switch for each message";
    match available_parallelism() {
        Ok(cores) if cores.get() > 1 => Check::good(NAME, EFFECT, format!("{cores} cores for this process")),
        Ok(_) => {
            let change = "widen the affinity (taskset), the container's CPU quota or the machine; else wait with \
                          FI_WAIT_FD instead of polling";
            Check::lacking(NAME, EFFECT, "one core for this process", change)
        }
        Err(error) => Check::unknown(NAME, EFFECT, format!("the system does not say: {error}")),
    }
}

/// Whether the clock frequency may rise immediately.
pub fn governor(files: &Files) -> Check {
    const NAME: &str = "governor";
    const EFFECT: &str = "a core that idles between messages handles the next one at a low clock frequency";
    const FOLDER: &str = "/sys/devices/system/cpu";
    let mut governors: Vec<String> = files
        .names(FOLDER)
        .iter()
        .filter_map(|cpu| files.text(&format!("{FOLDER}/{cpu}/cpufreq/scaling_governor")))
        .collect();
    governors.sort();
    governors.dedup();
    let found = governors.join(", ");
    match &governors[..] {
        [] => Check::unknown(NAME, EFFECT, "not visible here (the hypervisor or the firmware decides)"),
        [one] if one == "performance" => Check::good(NAME, EFFECT, found),
        _ => Check::lacking(NAME, EFFECT, found, "cpupower frequency-set -g performance"),
    }
}
