//! Three datagram endpoints on a simulated lossy device, against a model: seed by seed, in simulated time. Each
//! received message was sent to this endpoint by its stated source, and arrives whole, once and in its sender's order;
//! each send completes once; each datagram arrives or is counted as lost.
//!
//! `OFI_DATAGRAM_SEEDS` sets the number of seeds, `OFI_DATAGRAM_FIRST` the first one.

use ofi_testkit::net::Random;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{Driven, driven, qp};

/// Receives of an endpoint's device.
const RECEIVES: usize = 512;
/// Maximum length of a message in bytes.
const MAX_MESSAGE_LEN: u64 = 1024;
/// Marks contexts of receives.
const RECEIVE: usize = 1 << 20;

struct Sent {
    from: usize,
    to: usize,
    len: usize,
    ended: bool,
    came: bool,
    /// Lent to the library until the send has ended.
    memory: Memory,
}

struct Model {
    sides: Vec<Option<TestEndpoint>>,
    /// `numbers[a][b]` is the number of `b` at `a`.
    numbers: Vec<Vec<FiAddr>>,
    sent: Vec<Sent>,
    /// Posted receives, and their endpoints.
    receives: Vec<(usize, Memory)>,
    /// The last received message of each pair of endpoints.
    last: [[Option<usize>; 3]; 3],
    delivered: u64,
}

fn pattern(number: usize) -> u8 {
    (number * 31 + 7) as u8
}

impl Model {
    fn poll(&mut self, at: usize) {
        let Some(side) = &self.sides[at] else { return };
        side.poll();
        let mut events = Vec::new();
        while let Some(event) = side.next() {
            events.push(event);
        }
        for event in events {
            let context = event.context();
            match (context.checked_sub(RECEIVE), event) {
                (None, event) => {
                    event.done();
                    let sent = &mut self.sent[context];
                    assert!(!std::mem::replace(&mut sent.ended, true), "message {context} ended twice");
                    assert_eq!(sent.from, at);
                }
                (Some(receive), Event::Done(entry, source)) => {
                    let number = entry.data as usize;
                    let from = self.sent[number].from;
                    assert_eq!(source, self.numbers[at][from], "who sent message {number}");
                    self.came(at, receive, number, entry.len);
                }
                (Some(receive), Event::Failed(error)) => {
                    assert_eq!((error.err, error.len), (Errno::ETRUNC, self.receives[receive].1.len()));
                    let number = error.data as usize;
                    assert_eq!(error.len + error.olen, self.sent[number].len);
                    self.came(at, receive, number, error.len);
                }
            }
        }
    }

    /// Checks a received message.
    fn came(&mut self, at: usize, receive: usize, number: usize, len: usize) {
        let (sent, (whose, into)) = (&mut self.sent[number], &self.receives[receive]);
        assert_eq!((sent.to, *whose), (at, at), "message {number}");
        assert!(!std::mem::replace(&mut sent.came, true), "message {number} came twice");
        assert_eq!(len, sent.len.min(into.len()), "message {number}");
        assert_eq!(into.bytes()[..len], sent.memory.bytes()[..len], "message {number}");
        let last = &mut self.last[sent.from][at];
        assert!(last.is_none_or(|last| last < number), "message {number} came after {last:?}");
        *last = Some(number);
        self.delivered += 1;
    }

    fn send(&mut self, random: &mut Random) {
        let (from, to) = (random.below(3) as usize, random.below(3) as usize);
        let Some(side) = &self.sides[from] else { return };
        let (number, len) = (self.sent.len(), random.below(MAX_MESSAGE_LEN + 1) as usize);
        let memory = Memory::patterned(len, pattern(number));
        let out = side.out(self.numbers[from][to], &memory).context(number).data(number as u64);
        match out.send() {
            Ok(()) => self.sent.push(Sent { from, to, len, ended: false, came: false, memory }),
            Err(error) => assert!(error.is_again(), "{error}"),
        }
    }

    fn receive(&mut self, random: &mut Random) {
        let at = random.below(3) as usize;
        let Some(side) = &self.sides[at] else { return };
        let len = if random.chance(200) { random.below(MAX_MESSAGE_LEN) } else { MAX_MESSAGE_LEN };
        let memory = Memory::new(len as usize);
        side.receive(&memory).context(RECEIVE + self.receives.len()).post().unwrap();
        self.receives.push((at, memory));
    }
}

fn run(device: &SimulatedDevice, kit: &dyn Kit, seed: u64) -> u64 {
    let mut random = Random(seed);
    let lost = [0, 0, 10, 60][random.below(4) as usize];
    device.begin(Plan { seed, lost, routes: [1, 2, 64][random.below(3) as usize], ..Plan::default() });
    let sides: Vec<TestEndpoint> = (0..3).map(|_| kit.side()).collect();
    let of = |a: &TestEndpoint| sides.iter().map(|b| a.insert(b)).collect::<Vec<_>>();
    let numbers = sides.iter().map(of).collect();
    let sides = sides.into_iter().map(Some).collect();
    let (sent, receives, last) = (Vec::new(), Vec::new(), [[None; 3]; 3]);
    let mut model = Model { sides, numbers, sent, receives, last, delivered: 0 };
    let steps = 200 + random.below(400);
    let stop = random.chance(250).then(|| random.below(steps));
    for step in 0..steps {
        match random.below(8) {
            0..=2 => (0..=random.below(40)).for_each(|_| model.send(&mut random)),
            3 | 4 => (0..=random.below(12)).for_each(|_| model.receive(&mut random)),
            _ => model.poll(random.below(3) as usize),
        }
        if stop == Some(step) {
            model.sides[2] = None;
        }
    }
    for _ in 0..5000 {
        (0..3).for_each(|at| model.poll(at));
        let ended = |sent: &Sent| sent.ended || model.sides[sent.from].is_none();
        if device.is_still() && model.sent.iter().all(ended) {
            break;
        }
    }
    (0..100 * 3).for_each(|turn| model.poll(turn % 3)); // what has come and was not looked at
    let open = model.sent.iter().filter(|sent| !sent.ended && model.sides[sent.from].is_some()).count();
    assert_eq!(open, 0, "sends that have not ended");
    let fates = device.fates();
    let total = fates.arrived + fates.lost + fates.stray + fates.dropped;
    let count = |name| model.sides.iter().flatten().map(|side| side.statistic(name)).sum::<u64>();
    if stop.is_none() {
        assert_eq!(total, count("verbs_tx_datagrams"), "{fates:?}");
        assert_eq!(total + count("tx_dropped"), model.sent.len() as u64, "what found no room is counted");
        assert_eq!(fates.stray, 0);
        let reports: Vec<String> = model.sides.iter().flatten().map(TestEndpoint::report).collect();
        let here = model.delivered + count("rx_dropped") + count("rx_unexpected_now");
        assert_eq!(here, fates.arrived, "{fates:?} {reports:#?}");
        assert_eq!(count("verbs_rx_datagrams"), fates.arrived);
    } else {
        assert!(total <= model.sent.len() as u64, "{fates:?}");
    }
    assert_eq!(lost == 0, fates.lost == 0 || total < 20, "{fates:?}");
    assert_eq!((count("verbs_malformed"), count("verbs_nameless")), (0, 0));
    for side in model.sides.iter().flatten() {
        assert_eq!(device.datagram_receives(qp(side)), RECEIVES, "receives that the device has");
    }
    model.delivered
}

#[test]
fn datagrams_keep_to_the_model_whatever_is_lost() {
    let (device, _alone) = driven();
    let number = |what: &str| {
        let value = std::env::var(format!("OFI_DATAGRAM_{what}")).ok()?;
        Some(value.parse::<u64>().expect("a number of seeds"))
    };
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(100));
    let mut delivered = 0;
    for seed in first..first + seeds {
        println!("seed {seed}: OFI_DATAGRAM_FIRST={seed} OFI_DATAGRAM_SEEDS=1");
        delivered += run(&device, &Driven, seed);
    }
    assert!(delivered > seeds * 20, "{delivered} messages in {seeds} seeds");
}
