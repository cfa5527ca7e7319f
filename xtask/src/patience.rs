//! Time limits of programs: a program beyond its limit counts as hung.

use std::fs::DirEntry;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::StepResult;
use crate::step::Outcome;

/// Time limit of a program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a program, for at most [`PROGRAM_TIMEOUT`].
pub fn patient(command: &mut Command) -> StepResult {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    ended(&mut child, &name, PROGRAM_TIMEOUT).map(|()| Outcome::Passed)
}

/// Maximum time, over the threads of a process, for which a thread was ready but had no processor (`schedstat` of
/// Linux).
fn unserved(pid: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let waited = |thread: DirEntry| -> Option<u64> {
        std::fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
    };
    Duration::from_nanos(threads.flatten().filter_map(waited).max().unwrap_or(0))
}

/// Waits until a program has ended successfully. Kills it if it runs longer than `patience`. Time in which it was ready
/// but had no processor does not count, up to four times the limit: on a shared machine a slow program is not a hung
/// one.
///
/// # Errors
/// The program failed or was killed.
pub fn ended(child: &mut Child, name: &str, patience: Duration) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{name} ended with {status}")),
            None if begin.elapsed() > patience
                && begin.elapsed().saturating_sub(unserved(child.id()).min(4 * patience)) > patience =>
            {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} did not end within {} s", patience.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_stands_still_is_killed() {
        let mut still = Command::new("sleep").arg("600").spawn().unwrap();
        let why = ended(&mut still, "sleep", Duration::from_millis(50)).unwrap_err();
        assert!(why.starts_with("sleep did not end within"), "{why}");
    }

    #[test]
    fn time_without_a_processor_is_seen() {
        // Two that always have work share one processor, so each waits for it.
        let busy = || {
            let mut shell = Command::new("taskset");
            shell.args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().unwrap()
        };
        let mut both = [busy(), busy()];
        let begin = Instant::now();
        while unserved(both[0].id()) < Duration::from_millis(5) {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        for one in &mut both {
            one.kill().unwrap();
            one.wait().unwrap();
        }
    }
}
