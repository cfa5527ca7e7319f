use super::*;

/// A source whose polls find nothing, with a read of the clock every `STEP`, on a thread with `preemptions`.
struct Spinner {
    spin: SpinPolicy,
    now: Instant,
    preemptions: i64,
}

const STEP: Duration = Duration::from_micros(2);

impl Spinner {
    fn new() -> Self {
        Self { spin: SpinPolicy { on: true, ..SpinPolicy::default() }, now: Instant::now(), preemptions: 0 }
    }

    fn check_after(&mut self, time: Duration) -> YieldHint {
        self.now += time;
        let preemptions = self.preemptions;
        self.spin.check_clock(self.now, || preemptions)
    }

    fn find_after(&mut self, time: Duration) {
        self.now += time;
        let preemptions = self.preemptions;
        self.spin.end(self.now, || preemptions);
    }

    /// Polls without success until a poll requests to yield, for a hundred reads of the clock at most.
    fn spin(&mut self) -> YieldHint {
        (0..100)
            .map(|_| self.check_after(STEP))
            .find(|&hint| hint > YieldHint::Idle)
            .unwrap_or(YieldHint::Idle)
    }

    /// Spins, and is preempted for a time slice.
    fn lose_the_core(&mut self) -> YieldHint {
        self.check_after(STEP);
        self.preemptions += 1;
        self.check_after(Duration::from_millis(3))
    }
}

#[test]
fn a_thread_on_a_core_of_its_own_never_yields() {
    let mut spinner = Spinner::new();
    for _ in 0..10_000 {
        assert!(spinner.check_after(STEP) <= YieldHint::Idle);
    }
}

#[test]
fn a_preempted_thread_yields_after_ten_microseconds_of_empty_polls() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.find_after(STEP);
    let first = spinner.check_after(STEP);
    assert_eq!(first, YieldHint::Busy);
    let begun = spinner.now;
    assert_eq!(spinner.spin(), YieldHint::Yield);
    assert_eq!(spinner.now - begun, SPIN);
}

#[test]
fn threads_that_yield_to_each_other_do_not_spin() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.find_after(STEP);
    assert_eq!(spinner.spin(), YieldHint::Yield);
    spinner.find_after(STEP);
    assert_eq!(spinner.check_after(STEP), YieldHint::Yield);
    spinner.find_after(Duration::from_millis(3));
    spinner.now += NO_YIELD_BACK;
    assert_eq!(spinner.check_after(STEP), YieldHint::Busy, "after a thread that did not yield back");
}

#[test]
fn a_thread_that_works_between_its_polls_does_not_yield_though_it_did_before() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.find_after(STEP);
    assert_eq!(spinner.spin(), YieldHint::Yield);
    spinner.find_after(STEP);
    for _ in 0..10 {
        let hint = spinner.check_after(Duration::from_millis(1));
        assert!(hint <= YieldHint::Idle, "{hint:?}");
    }
}

#[test]
fn what_comes_before_a_yield_is_spun_for() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    for _ in 0..100 {
        spinner.find_after(STEP);
        assert_eq!(spinner.check_after(STEP), YieldHint::Busy);
    }
}

#[test]
fn a_message_that_arrives_during_a_preemption_does_not_hide_it() {
    let mut spinner = Spinner::new();
    spinner.check_after(STEP);
    spinner.preemptions += 1;
    spinner.find_after(Duration::from_millis(3));
    assert_eq!(spinner.spin(), YieldHint::Yield);
}

#[test]
fn a_pause_of_the_threads_own_is_no_preemption() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.now += 2 * CONTENDED;
    for _ in 0..100 {
        assert!(spinner.check_after(Duration::from_millis(3)) <= YieldHint::Idle);
    }
    assert_eq!(spinner.spin(), YieldHint::Idle);
}

#[test]
fn a_thread_that_does_something_else_between_polls_keeps_its_core() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    for _ in 0..100 {
        assert_eq!(spinner.check_after(DENSE + STEP), YieldHint::Busy);
    }
}

#[test]
fn a_preemption_is_forgotten_after_a_second() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    assert_eq!(spinner.spin(), YieldHint::Yield);
    spinner.find_after(STEP);
    spinner.now += CONTENDED;
    assert_eq!(spinner.spin(), YieldHint::Idle);
}

#[test]
fn a_thread_that_yields_to_one_that_does_not_yield_back_sleeps() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    assert_eq!(spinner.spin(), YieldHint::Yield);
    assert_eq!(spinner.check_after(Duration::from_millis(3)), YieldHint::Sleep);
    assert_eq!(spinner.check_after(SLEEP), YieldHint::Sleep);
    spinner.now += NO_YIELD_BACK;
    spinner.find_after(STEP);
    spinner.now += NO_YIELD_BACK;
    assert_eq!(spinner.spin(), YieldHint::Yield, "for a tenth of a second");
}

#[test]
fn a_busy_source_keeps_the_thread_for_all() {
    assert_eq!(YieldHint::Yield.and(YieldHint::Busy), YieldHint::Busy);
    assert_eq!(YieldHint::Busy.and(YieldHint::Sleep), YieldHint::Busy);
    assert_eq!(YieldHint::Idle.and(YieldHint::Yield), YieldHint::Yield);
    assert_eq!(YieldHint::Sleep.and(YieldHint::Yield), YieldHint::Sleep);
}

#[test]
fn the_clock_is_read_after_32_empty_polls() {
    let mut spin = SpinPolicy { on: true, ..SpinPolicy::default() };
    for _ in 1..POLLS_PER_CLOCK_READ {
        spin.polled(false);
    }
    assert!(spin.run.is_none());
    spin.polled(true);
    for _ in 1..POLLS_PER_CLOCK_READ {
        spin.polled(false);
    }
    assert!(spin.run.is_none());
    spin.polled(false);
    assert!(spin.run.is_some());
    spin.polled(true);
    assert!(spin.run.is_none());
}
