//! The two processes of a stream.

use std::time::{Duration, Instant};

use mxl::{
    BatchHints, Domain, FlowDefinition, Geometry, GrainReader, GrainWriter, SampleReader, SampleWriter, Wait,
    time,
};
use serde_json::json;

use super::Options;
use super::content;
use crate::bench::beat::{Schedule, sleep_until};
use crate::bench::cores::pin;
use crate::bench::pair::{self, EVENT_TIMEOUT, place};
use crate::bench::usage::Usage;
use crate::{Drive, Driven, Error, Initiator, Provider, Received, Result, Target};

/// The index of the first grain, and of the sample before the first.
const FIRST: u64 = 1000;

/// Time before the measurement, in which every slot of the rings is touched for the first time.
const WARM: Duration = Duration::from_millis(500);

/// An end that is driven by its own thread, or by this one.
enum Moved<T: Drive> {
    Thread(Driven<T>),
    Here(T),
}

impl<T: Drive> Moved<T> {
    fn new(end: T, busy: bool) -> Result<Self> {
        Ok(if busy { Self::Here(end) } else { Self::Thread(Driven::start(end)?) })
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> R {
        match self {
            Self::Thread(driven) => driven.with(call),
            Self::Here(end) => call(end),
        }
    }

    fn into_inner(self) -> T {
        match self {
            Self::Thread(driven) => driven.stop(),
            Self::Here(end) => end,
        }
    }
}

impl Moved<Initiator> {
    fn rest_until(&mut self, due: Instant) -> Result<()> {
        match self {
            Self::Thread(_) => sleep_until(due),
            Self::Here(initiator) => {
                while Instant::now() < due {
                    initiator.poll()?;
                }
            }
        }
        Ok(())
    }

    /// Drives submitted transfers until they have ended or `due` has come, before this thread does something else.
    fn settle(&mut self, due: Instant) -> Result<()> {
        if let Self::Here(initiator) = self {
            while !initiator.is_idle() && Instant::now() < due {
                initiator.poll()?;
            }
        }
        Ok(())
    }
}

impl Moved<Target> {
    fn next(&mut self) -> Result<Option<Received>> {
        let target = match self {
            Self::Thread(driven) => return driven.wait(EVENT_TIMEOUT),
            Self::Here(target) => target,
        };
        let begin = Instant::now();
        loop {
            let received = target.poll()?;
            if received.is_some() || begin.elapsed() > EVENT_TIMEOUT {
                return Ok(received);
            }
        }
    }
}

enum StreamWriter {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

/// Writes a flow at its rate and sends it, and prints when each grain or batch was committed.
pub fn send(
    options: &Options,
    domain: &Domain,
    definition: &FlowDefinition,
    provider: Provider,
    core: usize,
) -> Result<()> {
    let info = pair::begin(core)?;
    let beat = options.beat(definition)?;
    let hints = BatchHints::default();
    let mut writer = match definition.geometry() {
        Geometry::Grains { .. } => StreamWriter::Grains(domain.create_grains(definition, &hints)?.writer),
        Geometry::Samples { .. } => {
            StreamWriter::Samples(Box::new(domain.create_samples(definition, &hints)?.writer))
        }
    };
    let mut initiator = Initiator::open(domain, definition.id, provider, place(provider))?;
    initiator.add(&info)?;
    if !initiator.connect(EVENT_TIMEOUT)? {
        return Err(Error::Argument(format!("the target did not answer over {provider}")));
    }
    let mut initiator = Moved::new(initiator, options.busy)?;
    let mut usage = Usage::of_this_process();
    let warm = beat.rounds_in(WARM);
    let start = Instant::now() + beat.period();
    let mut committed = Vec::new();
    for round in 0..warm + beat.rounds {
        if round == warm {
            usage = Usage::of_this_process();
        }
        let stream = Round { beat, start, round, parts: options.parts.into() };
        let sent = match &mut writer {
            StreamWriter::Grains(writer) => stream.grain(writer, &mut initiator)?,
            StreamWriter::Samples(writer) => stream.samples(writer, &mut initiator, options.batch.into())?,
        };
        if round >= warm {
            committed.push(sent);
        }
    }
    let seconds = beat.due(start, warm, 0.0).elapsed().as_secs_f64();
    let core = usage.share();
    let mut initiator = initiator.into_inner();
    if !initiator.flush(EVENT_TIMEOUT)? {
        return Err(Error::Argument(format!("the last transfers did not end over {provider}")));
    }
    let (_, stats) =
        initiator.target(info.id).ok_or_else(|| Error::Argument("the initiator lost its target".into()))?;
    initiator.remove(info.id)?;
    let said = json!({
        "committed": committed,
        "torn": stats.torn,
        "core": core,
        "seconds": seconds,
    });
    println!("{said}");
    Ok(())
}

/// A grain or a batch, and when it is due.
#[derive(Clone, Copy)]
struct Round {
    beat: Schedule,
    start: Instant,
    round: u64,
    parts: u64,
}

impl Round {
    /// Commits a grain in parts and sends each. Returns its index, and when the last part was committed.
    fn grain(&self, writer: &GrainWriter, initiator: &mut Moved<Initiator>) -> Result<(u64, u64)> {
        let index = FIRST + self.round;
        let mut grain = writer.open(index)?;
        let slices = u64::from(grain.info().total_slices);
        let parts = self.parts.min(slices);
        let until = |part: u64| (slices * part / parts) as u16;
        let len = grain.len();
        let byte = |part: u64| (len as u64 * u64::from(until(part)) / slices) as usize;
        // A part is written when it is due, as a camera does: the time before it is the initiator's.
        for part in 1..parts {
            initiator.rest_until(self.due(part - 1, parts))?;
            content::fill_grain(&mut grain, byte(part - 1)..byte(part))?;
            grain.commit_slices(until(part))?;
            initiator.with(|initiator| initiator.send_slices(index, until(part - 1), until(part)))?;
        }
        initiator.rest_until(self.due(parts - 1, parts))?;
        content::fill_grain(&mut grain, byte(parts - 1)..len)?;
        let now = time::now();
        grain.commit()?;
        initiator.with(|initiator| initiator.send_slices(index, until(parts - 1), until(parts)))?;
        initiator.settle(self.due(parts, parts))?;
        Ok((index, now))
    }

    /// Commits a batch of samples and sends it. Returns its end index, and when it was committed.
    fn samples(
        &self,
        writer: &mut SampleWriter,
        initiator: &mut Moved<Initiator>,
        count: u64,
    ) -> Result<(u64, u64)> {
        let first = FIRST + self.round * count;
        let channels = writer.channels();
        let mut batch = writer.open(first + count, count)?;
        content::fill_samples(&mut batch, first, channels)?;
        initiator.rest_until(self.due(0, 1))?;
        let now = time::now();
        batch.commit()?;
        initiator.with(|initiator| initiator.send_samples(first + count, count))?;
        initiator.settle(self.due(1, 1))?;
        Ok((first + count, now))
    }

    fn due(&self, part: u64, parts: u64) -> Instant {
        self.beat.due(self.start, self.round, part as f64 / parts as f64)
    }
}

enum StreamReader {
    Grains(GrainReader),
    Samples(SampleReader),
}

impl StreamReader {
    /// The index of the received data if it is complete, and whether it equals the sent data. Data that the next lap of
    /// the ring overwrote before the check gives no result, and counts as missing.
    fn check(&self, received: Received) -> Result<Option<(u64, bool)>> {
        match self.look(received) {
            Err(Error::Flow(mxl::Error::TooLate { .. })) => Ok(None),
            looked => looked,
        }
    }

    fn look(&self, received: Received) -> Result<Option<(u64, bool)>> {
        match (self, received) {
            (Self::Grains(reader), Received::Grain { index, slices, invalid: false }) => {
                let grain = reader.read_slices(index, slices, Wait::Not)?;
                if slices < grain.info().total_slices {
                    return Ok(None);
                }
                let is_right = content::is_grain(&grain)?;
                Ok(grain.still_valid().then_some((index, is_right)))
            }
            (Self::Samples(reader), Received::Samples { index, count }) => {
                let batch = reader.read(index, count, Wait::Not)?;
                let is_right = content::is_samples(&batch, index - count, reader.channels())?;
                Ok(batch.still_valid().then_some((index, is_right)))
            }
            _ => Ok(None),
        }
    }
}

/// Receives until the initiator disconnects, and prints when each grain or batch was published.
pub fn receive(
    options: &Options,
    domain: &Domain,
    definition: &FlowDefinition,
    provider: Provider,
    core: usize,
) -> Result<()> {
    pin(core)?;
    let target = Target::open(domain, definition, provider, place(provider), None)?;
    println!("{}", target.info().to_json());
    let reader = match definition.geometry() {
        Geometry::Grains { .. } => StreamReader::Grains(domain.read_grains(definition.id)?),
        Geometry::Samples { .. } => StreamReader::Samples(domain.read_samples(definition.id)?),
    };
    let mut target = Moved::new(target, options.busy)?;
    let mut usage = Usage::of_this_process();
    let (mut published, mut wrong, mut invalid) = (Vec::new(), 0, 0);
    loop {
        let received = target.next()?;
        let now = time::now();
        match received {
            Some(Received::Connected) => usage = Usage::of_this_process(),
            Some(Received::Disconnected) => break,
            Some(Received::Grain { invalid: true, .. }) => invalid += 1,
            Some(received) => match reader.check(received)? {
                Some((index, true)) => published.push((index, now)),
                Some((_, false)) => wrong += 1,
                None => {}
            },
            None => {
                let silent = EVENT_TIMEOUT.as_secs();
                return Err(Error::Argument(format!("the initiator has been silent for {silent} s")));
            }
        }
    }
    let core = usage.share();
    println!("{}", json!({ "published": published, "wrong": wrong, "invalid": invalid, "core": core }));
    Ok(())
}
