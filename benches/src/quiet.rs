//! Waits for a moment in which the cores are idle.
//!
//! On a machine that compiles, most pairs would be dropped; the pauses between two compilations are long enough for one
//! pair.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::{Error, Result};

/// Interval over which the load of the cores is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum share of that interval that other users of the core take: the kernel's own threads, the host.
const BUSY: f64 = 0.05;

/// Waits until `cores` have been idle for a moment, at most for `patience`. Returns whether they were idle.
pub fn wait(cores: [usize; 2], patience: Duration) -> Result<bool> {
    let deadline = Instant::now() + patience;
    let mut before = read(cores)?;
    loop {
        thread::sleep(SAMPLE_INTERVAL);
        let after = read(cores)?;
        let busy = before.iter().zip(after).map(|(before, after)| after.busy_share_since(*before));
        if busy.fold(0.0, f64::max) <= BUSY {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        before = after;
    }
}

/// Ticks of one core since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    fn busy_share_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 / all as f64 }
    }
}

fn read(cores: [usize; 2]) -> Result<[Ticks; 2]> {
    let text = fs::read_to_string("/proc/stat").map_err(Error::io("/proc/stat"))?;
    let core =
        |core| parse(&text, core).ok_or_else(|| Error::Stack(format!("/proc/stat has no core {core}")));
    Ok([core(cores[0])?, core(cores[1])?])
}

/// `cpu0 user nice system idle iowait irq softirq steal …`: proc(5).
fn parse(text: &str, core: usize) -> Option<Ticks> {
    let name = format!("cpu{core}");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name.as_str()))?;
    let mut fields = line.split_whitespace().skip(1);
    let mut ticks = [0_u64; 8];
    for tick in &mut ticks {
        *tick = fields.next()?.parse().ok()?;
    }
    Some(Ticks { all: ticks.iter().sum(), idle: ticks[3] + ticks[4] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n";
        let ticks = parse(text, 0).unwrap();
        assert_eq!(ticks, Ticks { all: 72, idle: 45 });
        assert_eq!(parse(text, 7), None);
        let later = Ticks { all: 172, idle: 140 };
        assert!((later.busy_share_since(ticks) - 0.05).abs() < 1e-9);
    }
}
