//! Pacing: when each part of a transfer may be posted.
//!
//! Flows of one rate are written at the same moments, so without pacing all initiators of a host fill its link at the
//! start of each period and leave it idle afterwards. With pacing a transfer's parts are spread over a share of its
//! period, and flows begin at different phases of it: while one pauses, another sends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mxl::Geometry;

use crate::options::Pacing;
use crate::shape::Limits;
use crate::{Error, Result};

/// Target number of parts of a paced grain.
const PARTS: u64 = 32;
/// Minimum length of such a part, in bytes.
const MIN_PART_LEN: u64 = 4 << 10;
/// Maximum length of such a part, in bytes.
const MAX_PART_LEN: u64 = 64 << 10;

/// Maximum delay of a transfer, whatever its flow's rate.
const MAX_PERIOD: Duration = Duration::from_secs(1);

/// Initiators of this process that have chosen a phase.
static CHOSEN: AtomicU32 = AtomicU32::new(0);

/// The schedule for posting parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Share of a transfer's period over which its parts are spread.
    spread: f64,
    /// Share of the period after which the transfer begins.
    phase: f64,
}

impl Pace {
    /// Creates the schedule from the caller's options. Without a given phase it chooses one far from those that this
    /// process has chosen before.
    pub fn new(wish: &Pacing) -> Result<Self> {
        let Pacing { spread, phase } = *wish;
        if !(spread > 0.0 && spread <= 1.0) {
            return Err(Error::Argument(format!(
                "pacing over {spread} of a period: give more than 0 and at most 1"
            )));
        }
        match phase {
            Some(phase) if !(0.0..1.0).contains(&phase) => {
                Err(Error::Argument(format!("a phase of {phase}: give 0 to below 1")))
            }
            Some(phase) => Ok(Self { spread, phase }),
            None => {
                let turn = CHOSEN.fetch_add(1, Ordering::Relaxed);
                Ok(Self { spread, phase: nth_phase(std::process::id(), turn) })
            }
        }
    }

    /// When part `part` of `parts` may be posted, for a transfer that was submitted at `since` with a period of
    /// `period`.
    pub fn due(&self, since: Instant, period: Duration, part: usize, parts: usize) -> Instant {
        let share = self.phase + self.spread * part as f64 / parts.max(1) as f64;
        since + period.mul_f64(share.clamp(0.0, 2.0))
    }

    /// The limits for a part of a grain of `bytes`, such that there are parts to spread.
    pub fn limits(bytes: u64, limits: Limits) -> Limits {
        Limits { bytes: limits.bytes.min((bytes / PARTS).clamp(MIN_PART_LEN, MAX_PART_LEN)), ..limits }
    }
}

/// The phases of one process, each in the widest gap between the earlier ones (by the golden ratio), from a start that
/// depends on the process.
fn nth_phase(process: u32, turn: u32) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    // Another irrational number, for neighbouring process numbers.
    const START: f64 = 0.754_877_666_246_693;
    (f64::from(process) * START + f64::from(turn) * GOLDEN).fract()
}

/// The duration of `amount` slices or samples at the flow's rate.
pub(super) fn period(geometry: &Geometry, amount: u64) -> Duration {
    let (rate, of_one) = match *geometry {
        Geometry::Grains { rate, slices, .. } => (rate, 1.0 / f64::from(slices.max(1))),
        Geometry::Samples { rate, .. } => (rate, 1.0),
    };
    let seconds = amount as f64 * of_one * rate.denominator as f64 / (rate.numerator.max(1)) as f64;
    Duration::try_from_secs_f64(seconds).map_or(MAX_PERIOD, |period| period.min(MAX_PERIOD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mxl::Rational;

    const PERIOD: Duration = Duration::from_millis(20);
    const PARTS_OF_A_GRAIN: usize = 32;

    fn pace(spread: f64, phase: Option<f64>) -> Result<Pace> {
        Pace::new(&Pacing { spread, phase })
    }

    /// Flows that get a grain at the same moment of a fake clock, every period. Returns the most parts posted within a
    /// 16th of a period, and the longest delay of a post after its submission.
    fn busiest(paces: &[Pace]) -> (usize, Duration) {
        let begin = Instant::now();
        let (mut busiest, mut latest) = (0, Duration::ZERO);
        let mut posted = vec![Vec::new(); paces.len()];
        // One part after the other, as in an initiator's queue.
        for tick in 0..640_u32 {
            let now = begin + PERIOD / 160 * tick;
            for (pace, posted) in paces.iter().zip(&mut posted) {
                while posted.len() < PARTS_OF_A_GRAIN * 4 {
                    let (grain, part) = (posted.len() / PARTS_OF_A_GRAIN, posted.len() % PARTS_OF_A_GRAIN);
                    let since = begin + PERIOD * grain as u32;
                    if pace.due(since, PERIOD, part, PARTS_OF_A_GRAIN) > now {
                        break;
                    }
                    latest = latest.max(now - since);
                    posted.push(tick);
                }
            }
            // After all have begun.
            if tick >= 320 {
                let recent = posted.iter().flatten().filter(|&&at| at + 10 > tick).count();
                busiest = busiest.max(recent);
            }
        }
        assert!(posted.iter().all(|posted| posted.len() >= PARTS_OF_A_GRAIN * 2));
        (busiest, latest)
    }

    #[test]
    fn eight_flows_of_one_host_share_a_period() {
        // All at once: without pacing, all parts are posted at the submission.
        let at_once = vec![pace(f64::MIN_POSITIVE, Some(0.0)).unwrap(); 8];
        let (most, _) = busiest(&at_once);
        assert_eq!(most, 8 * PARTS_OF_A_GRAIN);
        // Spread, at one phase: half of the period carries everything.
        let same = vec![pace(0.5, Some(0.0)).unwrap(); 8];
        let (most, latest) = busiest(&same);
        assert!(most <= 8 * (PARTS_OF_A_GRAIN / 8 + 1) && latest < PERIOD / 2, "{most} {latest:?}");
        // At different phases: not far above the even 16, and everything is posted within a period after it began.
        let own: Vec<Pace> = (0..8).map(|turn| Pace { spread: 0.5, phase: nth_phase(4711, turn) }).collect();
        let (fewer, latest) = busiest(&own);
        assert!(fewer <= 24 && most >= 32 && latest < PERIOD * 3 / 2, "{fewer} of {most}, {latest:?}");
    }

    #[test]
    fn phases_of_a_process_are_far_apart() {
        for process in [1, 2, 4711, u32::MAX] {
            let mut phases: Vec<f64> = (0..8).map(|turn| nth_phase(process, turn)).collect();
            assert!(phases.iter().all(|phase| (0.0..1.0).contains(phase)));
            phases.sort_by(f64::total_cmp);
            let closest = phases.windows(2).map(|pair| pair[1] - pair[0]).fold(1.0, f64::min);
            assert!(closest > 0.05, "{process}: {phases:?}");
        }
        let chosen = [pace(0.5, None).unwrap(), pace(0.5, None).unwrap()];
        assert_ne!(chosen[0].phase, chosen[1].phase);
    }

    #[test]
    fn a_transfer_has_the_time_of_what_it_carries() {
        let grains = Geometry::Grains {
            rate: Rational::new(50, 1),
            payload: 5_529_600,
            slices: 1080,
            slice_sizes: [5120, 0, 0, 0],
        };
        assert_eq!(period(&grains, 1080).as_millis(), 20);
        assert_eq!(period(&grains, 108).as_millis(), 2);
        let sound = Geometry::Samples { rate: Rational::new(48_000, 1), channels: 64, word: 4 };
        assert_eq!(period(&sound, 48).as_millis(), 1);
        // An absurd rate in a file does not delay transfers for long.
        let slow = Geometry::Samples { rate: Rational::new(1, i64::MAX), channels: 1, word: 4 };
        assert_eq!(period(&slow, u64::MAX).as_secs(), 1);
    }

    #[test]
    fn parts_are_long_enough_to_be_worth_a_write_and_short_enough_to_be_spread() {
        let unlimited = Limits { pieces: 8, bytes: u64::MAX };
        assert_eq!(Pace::limits(5_529_600, unlimited).bytes, 65_536);
        assert_eq!(Pace::limits(1 << 20, unlimited).bytes, 32_768);
        assert_eq!(Pace::limits(20_480, unlimited).bytes, 4096);
        assert_eq!(Pace::limits(5_529_600, Limits { pieces: 8, bytes: 1000 }).bytes, 1000);
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for (spread, phase) in [
            (0.0, None),
            (1.1, None),
            (f64::NAN, None),
            (0.5, Some(-0.1)),
            (0.5, Some(1.0)),
            (0.5, Some(f64::NAN)),
        ] {
            assert!(pace(spread, phase).is_err(), "{spread} {phase:?}");
        }
    }
}
