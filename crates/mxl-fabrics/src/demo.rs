//! `mxl-fabrics-demo`: carries a flow from one host to another, with the options of the C++ SDK's program of that name.

mod receive;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use mxl::{BatchHints, Domain, Geometry, GrainReader, SampleReader, Uuid, Wait};
use ofi_progress_bar::Progress;

use crate::{Driven, Error, Initiator, PeerState, Provider, Result, TargetInfo, Transfer, disk, program};

/// Carries a flow from one host to another: a target creates the flow and receives it, an initiator sends it.
#[derive(Debug, Parser)]
#[command(name = "mxl-fabrics-demo", version)]
struct Options {
    /// The domain's directory.
    #[arg(short, long, value_name = "DIR")]
    domain: PathBuf,
    /// Initiator: the flow's id. Target: the file with the flow's definition.
    #[arg(short, long, value_name = "ID|FILE")]
    flow: String,
    /// Send the flow, as an initiator [default: receive it, as a target].
    #[arg(short, long)]
    initiator: bool,
    /// An address of this host, or `fi_shm://NAME`.
    #[arg(short, long)]
    node: Option<String>,
    /// A port of this host.
    #[arg(short, long)]
    service: Option<String>,
    /// tcp, udp or shm.
    #[arg(short, long, default_value = "tcp")]
    provider: Provider,
    /// Target: the file to write its info to, as JSON; with --path, one file for the path of --node and one
    /// for each further path. Initiator: a target's info in base64, or `@FILE`; repeat it for each target
    #[arg(short, long, value_name = "INFO")]
    target_info: Vec<String>,
    /// Target: a further path of the same flow, as PROVIDER, PROVIDER,NODE or PROVIDER,NODE,SERVICE. Start
    /// one initiator for each path: the first copy to arrive wins, and no data is lost if one path fails.
    /// Repeat it for up to 7 further paths
    #[arg(long, value_name = "PATH", conflicts_with = "initiator")]
    path: Vec<String>,
    /// The id of a target that must be found again after a restart, at the same node and service. Further
    /// paths use the following numbers
    #[arg(long, value_name = "NUMBER")]
    target_id: Option<u64>,
    /// Write metrics to this file every two seconds, in Prometheus's text format; the file is replaced atomically
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Send payloads in messages, which the target copies into its ring. Automatic for providers without remote writes
    #[arg(long)]
    messages_only: bool,
    /// The longest write or message in bytes, at least 512; longer transfers are split
    #[arg(long, value_name = "BYTES")]
    max_message: Option<usize>,
    /// Spread a grain's writes over this share of its period, such as 0.5, instead of sending them at once.
    #[arg(long, value_name = "SHARE", requires = "initiator")]
    pace: Option<f64>,
    /// With --pace: the phase of the period at which to begin, 0 to below 1 [default: chosen by the process].
    #[arg(long, value_name = "SHARE", requires = "pace")]
    phase: Option<f64>,
    /// File with a secret of 16 to 64 bytes that both ends share, which nobody else can connect without; over
    /// udp it encrypts the flow
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Publish or send in a progress thread
    #[arg(long)]
    progress_thread: bool,
    /// Target: a file with the flow's options, as JSON: `maxCommitBatchSizeHint`, `maxSyncBatchSizeHint`
    #[arg(long, value_name = "FILE", conflicts_with = "initiator")]
    flow_options: Option<PathBuf>,
    /// Grains, or batches of 10 ms, after which the program ends [default: no limit].
    #[arg(short = 'c', long, value_name = "COUNT")]
    count: Option<u64>,
    /// Show no progress on standard error, where it is a terminal
    #[arg(short, long)]
    quiet: bool,
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    let run = |options: &Options| if options.initiator { send(options) } else { receive::receive(options) };
    program::run("mxl-fabrics-demo", run)
}

fn domain(options: &Options) -> Result<Domain> {
    let domain = Domain::open(&options.domain)?;
    disk::warn("mxl-fabrics-demo", &options.domain);
    Ok(domain)
}

fn place(options: &Options) -> (Option<&str>, Option<&str>) {
    (options.node.as_deref(), options.service.as_deref())
}

fn ways(options: &Options) -> Result<crate::Options> {
    let pacing = options.pace.map(|spread| crate::Pacing { spread, phase: options.phase });
    let key = options.key.as_deref().map(program::key).transpose()?;
    let (messages_only, max_message) = (options.messages_only, options.max_message);
    let batches = match &options.flow_options {
        Some(path) => BatchHints::parse(&file(path)?)?,
        None => BatchHints::default(),
    };
    Ok(crate::Options { messages_only, max_message, pacing, key, batches })
}

fn file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::Argument(format!("{}: {error}", path.display())))
}

/// Writes the metrics to the requested file.
fn export(options: &Options, metrics: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = &options.metrics else { return Ok(()) };
    let mut beside = path.clone().into_os_string();
    beside.push(".new");
    let written = std::fs::write(&beside, metrics()).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| Error::Argument(format!("{}: {error}", path.display())))
}

fn targets(options: &Options) -> Result<Vec<TargetInfo>> {
    let parse = |given: &String| {
        let text = match given.strip_prefix('@') {
            Some(path) => file(Path::new(path))?,
            None => {
                let bytes =
                    STANDARD.decode(given).map_err(|error| Error::Info(format!("not base64: {error}")))?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
        };
        TargetInfo::parse(&text)
    };
    options.target_info.iter().map(parse).collect()
}

fn send(options: &Options) -> Result<()> {
    let domain = domain(options)?;
    let id: Uuid =
        options.flow.parse().map_err(|error| Error::Argument(format!("{}: {error}", options.flow)))?;
    let geometry = domain.definition(id)?.geometry();
    let mut initiator = Initiator::open_with(&domain, id, options.provider, place(options), &ways(options)?)?;
    let targets = targets(options)?;
    if targets.is_empty() {
        return Err(Error::Argument("no target: give --target-info".into()));
    }
    targets.iter().try_for_each(|target| initiator.add(target))?;
    let mut sender = if options.progress_thread {
        Sender::Driven(Driven::start(initiator)?)
    } else {
        Sender::Polled(Box::new(initiator))
    };
    let progress = Progress::steps(options.quiet, options.count);
    progress.begin("sent");
    match geometry {
        Geometry::Grains { .. } => send_grains(options, &domain.read_grains(id)?, &mut sender, &progress)?,
        Geometry::Samples { rate, .. } => {
            let batch = program::batch(rate);
            send_samples(options, &domain.read_samples(id)?, &mut sender, batch, &progress)?;
        }
    }
    let mut initiator = match sender {
        Sender::Polled(initiator) => *initiator,
        Sender::Driven(driven) => driven.stop(),
    };
    initiator.flush(Duration::from_secs(5))?;
    say(&mut initiator, &progress);
    drop(progress);
    export(options, || initiator.metrics())?;
    for target in targets {
        if let Some((state, stats)) = initiator.target(target.id) {
            println!("{} {state:?} {stats:?}", target.id);
        }
    }
    Ok(())
}

/// An initiator, and its driver.
enum Sender {
    Polled(Box<Initiator>),
    Driven(Driven<Initiator>),
}

impl Sender {
    fn with<T>(&mut self, call: impl FnOnce(&mut Initiator) -> T) -> T {
        match self {
            Self::Polled(initiator) => call(initiator),
            Self::Driven(initiator) => initiator.with(call),
        }
    }

    /// Drives an initiator without a thread, reports events, and exports the metrics when they are due. Returns how
    /// long the program may wait for the source: not at all while this end has something to send. A wait there would
    /// send one socket buffer in each turn, and a long grain would take longer than its period.
    fn turn(&mut self, options: &Options, said: &mut Instant, progress: &Progress) -> Result<Wait> {
        let mut wait = Wait::For(TURN);
        match self {
            Self::Polled(initiator) => {
                if !initiator.flush(TURN)? {
                    wait = Wait::Not;
                }
                say(initiator, progress);
            }
            Self::Driven(initiator) => {
                while let Some(event) = initiator.wait(Duration::ZERO)? {
                    say_one(&event, progress);
                }
            }
        }
        self.with(|initiator| initiator.check())?;
        if said.elapsed() > EXPORT_EVERY {
            *said = Instant::now();
            export(options, || self.with(|initiator| initiator.metrics()))?;
        }
        Ok(wait)
    }
}

/// Reports unusual events.
fn say(initiator: &mut Initiator, progress: &Progress) {
    while let Some(event) = initiator.event() {
        say_one(&event, progress);
    }
}

fn say_one(event: &Transfer, progress: &Progress) {
    if !matches!(event, Transfer::Done { .. } | Transfer::Published { .. }) {
        progress.aside(|| println!("{event:?}"));
    }
}

/// Counts a transfer, if there was a target for it. Returns the rest of `left`.
fn counted(left: u64, sender: &mut Sender, progress: &Progress) -> u64 {
    if !sender.with(|initiator| is_connected(initiator)) {
        return left;
    }
    progress.done();
    left - 1
}

/// Interval of exports of the metrics.
const EXPORT_EVERY: Duration = Duration::from_secs(2);
/// Maximum wait for the source, or for the targets, before the program looks after the other.
const TURN: Duration = Duration::from_millis(1);

/// Whether a target receives the transfers: otherwise they are not counted.
fn is_connected(initiator: &Initiator) -> bool {
    initiator.targets().any(|(_, state, _)| state == PeerState::Connected)
}

/// The result for an index to send.
#[derive(Debug, PartialEq, Eq)]
enum SendOutcome {
    Sent,
    /// The source's writer has not written it yet.
    Early,
    /// The writer has gone on, or skipped it: the next index is the current one.
    Gone,
}

impl SendOutcome {
    /// Sends an index that was read. Its data may be overwritten in between, if this process is preempted.
    fn of(read: Result<(), mxl::Error>, send: impl FnOnce() -> Result<()>) -> Result<Self> {
        match read.map_err(Error::from).and_then(|()| send()) {
            Ok(()) => Ok(Self::Sent),
            Err(Error::Flow(mxl::Error::TooEarly { .. })) => Ok(Self::Early),
            Err(Error::Flow(mxl::Error::TooLate { .. } | mxl::Error::Skipped { .. })) => Ok(Self::Gone),
            Err(error) => Err(error),
        }
    }
}

fn send_grains(
    options: &Options,
    reader: &GrainReader,
    sender: &mut Sender,
    progress: &Progress,
) -> Result<()> {
    let mut said = Instant::now();
    let mut next = reader.head().max(1);
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        let wait = sender.turn(options, &mut said, progress)?;
        let read = reader.read(next, wait).map(drop);
        match SendOutcome::of(read, || sender.with(|initiator| initiator.send(next)))? {
            SendOutcome::Sent => {
                left = counted(left, sender, progress);
                next += 1;
            }
            SendOutcome::Early => {}
            SendOutcome::Gone => next = reader.head().max(next + 1),
        }
    }
    Ok(())
}

fn send_samples(
    options: &Options,
    reader: &SampleReader,
    sender: &mut Sender,
    batch: u64,
    progress: &Progress,
) -> Result<()> {
    let mut said = Instant::now();
    let whole = |index: u64| index / batch * batch;
    let mut next = whole(reader.head()).max(batch);
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        let wait = sender.turn(options, &mut said, progress)?;
        let read = reader.read(next, batch, wait).map(drop);
        match SendOutcome::of(read, || sender.with(|initiator| initiator.send_samples(next, batch)))? {
            SendOutcome::Sent => {
                left = counted(left, sender, progress);
                next += batch;
            }
            SendOutcome::Early => {}
            SendOutcome::Gone => next = whole(reader.head()).max(next + batch),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mxl::{FlowDefinition, Rational};

    use super::*;
    use crate::Target;
    use crate::folder::Folder;

    /// Regression test: an initiator ended when data was overwritten after it had been read.
    #[test]
    fn what_is_overwritten_is_gone_whether_it_was_read_or_not() {
        let late = || mxl::Error::TooLate { index: 7, oldest: 8 };
        assert_eq!(
            SendOutcome::of(Err(late()), || panic!("sent without a read")).unwrap(),
            SendOutcome::Gone
        );
        assert_eq!(SendOutcome::of(Ok(()), || Err(late().into())).unwrap(), SendOutcome::Gone);
        assert_eq!(SendOutcome::of(Ok(()), || Ok(())).unwrap(), SendOutcome::Sent);
        assert!(SendOutcome::of(Ok(()), || Err(Error::Argument("closed".into()))).is_err());
    }

    /// Regression test: the program waited for the source while a grain was being sent, and gave the connection one
    /// turn in a millisecond: a 2160p initiator fell behind its source for ever.
    #[test]
    fn it_does_not_wait_for_the_source_while_something_is_to_be_sent() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = FlowDefinition::video("camera", 1920, 1080, Rational::new(50, 1)).unwrap();
        let source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
        let place = (Some("127.0.0.1"), None);
        let mut target = Target::open(&far.domain(), &camera, Provider::Tcp, place, None).unwrap();
        let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Tcp, place).unwrap();
        initiator.add(target.info()).unwrap();
        while !initiator.is_idle() {
            initiator.poll().unwrap();
            target.poll().unwrap();
        }
        let mut sender = Sender::Polled(Box::new(initiator));
        let options = Options::parse_from(["mxl-fabrics-demo", "-d", ".", "-f", "x", "-q"]);
        let (progress, mut said) = (Progress::steps(true, None), Instant::now());
        let mut turn = |sender: &mut Sender| sender.turn(&options, &mut said, &progress).unwrap();
        assert_eq!(turn(&mut sender), Wait::For(TURN));
        // More than the target grants before it polls.
        for index in 1000..1008 {
            source.open(index).unwrap().commit().unwrap();
            sender.with(|initiator| initiator.send(index)).unwrap();
        }
        assert_eq!(turn(&mut sender), Wait::Not);
        let begin = Instant::now();
        while turn(&mut sender) == Wait::Not {
            target.poll().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60), "timeout");
        }
    }
}
