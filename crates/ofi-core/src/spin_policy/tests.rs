use super::*;

/// A source whose polls find nothing, a look every `step`, on a thread that has been put aside `aside` times.
struct Spinner {
    patience: SpinPolicy,
    now: Instant,
    aside: i64,
}

const STEP: Duration = Duration::from_micros(2);

impl Spinner {
    fn new() -> Self {
        Self { patience: SpinPolicy { on: true, ..SpinPolicy::default() }, now: Instant::now(), aside: 0 }
    }

    fn look_after(&mut self, time: Duration) -> Turn {
        self.now += time;
        let aside = self.aside;
        self.patience.look(self.now, || aside)
    }

    fn find_after(&mut self, time: Duration) {
        self.now += time;
        let aside = self.aside;
        self.patience.end(self.now, || aside);
    }

    /// Looks in vain until one asks to give way, a hundred times at most.
    fn spin(&mut self) -> Turn {
        (0..100).map(|_| self.look_after(STEP)).find(|&turn| turn > Turn::Idle).unwrap_or(Turn::Idle)
    }

    /// Spins, and is put aside for a time slice.
    fn lose_the_core(&mut self) -> Turn {
        self.look_after(STEP);
        self.aside += 1;
        self.look_after(Duration::from_millis(3))
    }
}

#[test]
fn a_thread_on_a_core_of_its_own_never_gives_way() {
    let mut spinner = Spinner::new();
    for _ in 0..10_000 {
        assert!(spinner.look_after(STEP) <= Turn::Idle);
    }
}

#[test]
fn a_thread_that_lost_its_core_gives_way_after_ten_microseconds_in_vain() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.find_after(STEP);
    let first = spinner.look_after(STEP);
    assert_eq!(first, Turn::Busy);
    let begun = spinner.now;
    assert_eq!(spinner.spin(), Turn::Yield);
    assert_eq!(spinner.now - begun, SPIN);
}

#[test]
fn a_message_that_came_while_the_thread_was_aside_tells_the_same() {
    let mut spinner = Spinner::new();
    spinner.look_after(STEP);
    spinner.aside += 1;
    spinner.find_after(Duration::from_millis(3));
    assert_eq!(spinner.spin(), Turn::Yield);
}

#[test]
fn a_pause_of_the_threads_own_is_no_loss_of_the_core() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    spinner.now += 2 * CONTENDED;
    for _ in 0..100 {
        assert!(spinner.look_after(Duration::from_millis(3)) <= Turn::Idle);
    }
    assert_eq!(spinner.spin(), Turn::Idle);
}

#[test]
fn a_thread_that_does_something_else_between_polls_keeps_its_core() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    for _ in 0..100 {
        assert_eq!(spinner.look_after(DENSE + STEP), Turn::Busy);
    }
}

#[test]
fn what_was_learnt_is_forgotten_after_a_second() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    assert_eq!(spinner.spin(), Turn::Yield);
    spinner.find_after(STEP);
    spinner.now += CONTENDED;
    assert_eq!(spinner.spin(), Turn::Idle);
}

#[test]
fn who_yields_to_somebody_that_does_not_yield_rests_from_then_on() {
    let mut spinner = Spinner::new();
    spinner.lose_the_core();
    assert_eq!(spinner.spin(), Turn::Yield);
    assert_eq!(spinner.look_after(Duration::from_millis(3)), Turn::Rest);
    assert_eq!(spinner.look_after(REST), Turn::Rest);
    spinner.now += RUDE;
    spinner.find_after(STEP);
    spinner.now += RUDE;
    assert_eq!(spinner.spin(), Turn::Yield, "for a tenth of a second");
}

#[test]
fn a_source_that_was_not_long_in_vain_keeps_the_thread_for_all() {
    assert_eq!(Turn::Yield.and(Turn::Busy), Turn::Busy);
    assert_eq!(Turn::Busy.and(Turn::Rest), Turn::Busy);
    assert_eq!(Turn::Idle.and(Turn::Yield), Turn::Yield);
    assert_eq!(Turn::Rest.and(Turn::Yield), Turn::Rest);
}

#[test]
fn the_clock_is_looked_at_after_32_polls_in_vain() {
    let mut patience = SpinPolicy { on: true, ..SpinPolicy::default() };
    for _ in 1..POLLS_PER_CLOCK_READ {
        patience.polled(false);
    }
    assert!(patience.row.is_none());
    patience.polled(true);
    for _ in 1..POLLS_PER_CLOCK_READ {
        patience.polled(false);
    }
    assert!(patience.row.is_none());
    patience.polled(false);
    assert!(patience.row.is_some());
    patience.polled(true);
    assert!(patience.row.is_none());
}
