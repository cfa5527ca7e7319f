//! `mxl-fabrics-demo`: carries a flow from one host to another, with the options of the C++ SDK's program of that name.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use mxl::{Domain, FlowDefinition, Geometry, Uuid, Wait};

use crate::{Error, Initiator, PeerState, Provider, Received, Result, Target, TargetInfo, Transfer};

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
    /// Be an initiator, which sends [default: a target, which receives].
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
    /// Target: the file to write its info to, as JSON. Initiator: a target's info in base64, or as `@FILE`; repeat
    /// the option for each target
    #[arg(short, long, value_name = "INFO")]
    target_info: Vec<String>,
    /// The id of a target that must be found again after a restart, at the same node and service
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
    /// End after this many grains, or batches of 10 ms [default: never].
    #[arg(short = 'c', long, value_name = "COUNT")]
    count: Option<u64>,
}

/// The program.
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // A closed standard output cannot be helped here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    let ran = if options.initiator { send(&options) } else { receive(&options) };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mxl-fabrics-demo: {error}");
            ExitCode::from(1)
        }
    }
}

fn place(options: &Options) -> (Option<&str>, Option<&str>) {
    (options.node.as_deref(), options.service.as_deref())
}

fn ways(options: &Options) -> crate::Options {
    let pacing = options.pace.map(|spread| crate::Pacing { spread, phase: options.phase });
    crate::Options { messages_only: options.messages_only, max_message: options.max_message, pacing }
}

fn file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Error::Argument(format!("{}: {error}", path.display())))
}

fn receive(options: &Options) -> Result<()> {
    let domain = Domain::open(&options.domain)?;
    let definition = FlowDefinition::parse(&file(Path::new(&options.flow))?)?;
    let mut target = Target::open_with(
        &domain,
        &definition,
        options.provider,
        place(options),
        options.target_id,
        &ways(options),
    )?;
    let json = target.info().to_json();
    // For an initiator's command line.
    println!("target-info {}", STANDARD.encode(&json));
    for path in &options.target_info {
        std::fs::write(path, &json).map_err(|error| Error::Argument(format!("{path}: {error}")))?;
    }
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut said = Instant::now();
    while left > 0 {
        match target.read(Duration::from_secs(1))? {
            Some(Received::Grain { .. } | Received::Samples { .. }) => left -= 1,
            Some(Received::Lost { first, count }) => println!("lost {count} from {first}"),
            Some(other) => println!("{other:?}"),
            None => {}
        }
        if said.elapsed() > EXPORT_EVERY {
            said = Instant::now();
            println!("{:?}", target.stats());
            export(options, || target.metrics())?;
        }
    }
    println!("{:?}", target.stats());
    export(options, || target.metrics())?;
    Ok(())
}

/// Writes what was counted where it was asked for.
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
                    STANDARD.decode(given).map_err(|error| Error::Info(format!("no base64: {error}")))?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
        };
        TargetInfo::parse(&text)
    };
    options.target_info.iter().map(parse).collect()
}

fn send(options: &Options) -> Result<()> {
    let domain = Domain::open(&options.domain)?;
    let id: Uuid =
        options.flow.parse().map_err(|error| Error::Argument(format!("{}: {error}", options.flow)))?;
    let geometry = domain.definition(id)?.geometry();
    let mut initiator = Initiator::open_with(&domain, id, options.provider, place(options), &ways(options))?;
    let targets = targets(options)?;
    if targets.is_empty() {
        return Err(Error::Argument("no target: give --target-info".into()));
    }
    targets.iter().try_for_each(|target| initiator.add(target))?;
    let count = options.count.unwrap_or(u64::MAX);
    match geometry {
        Geometry::Grains { .. } => send_grains(options, &domain, &mut initiator, count)?,
        Geometry::Samples { rate, .. } => {
            let batch = (rate.numerator / (rate.denominator * 100)).max(1) as u64;
            send_samples(options, &domain, &mut initiator, (batch, count))?;
        }
    }
    initiator.flush(Duration::from_secs(5))?;
    say(&mut initiator);
    export(options, || initiator.metrics())?;
    for target in targets {
        if let Some((state, stats)) = initiator.target(target.id) {
            println!("{} {state:?} {stats:?}", target.id);
        }
    }
    Ok(())
}

/// Says what happened that is not everyday.
fn say(initiator: &mut Initiator) {
    while let Some(event) = initiator.event() {
        if !matches!(event, Transfer::Done { .. }) {
            println!("{event:?}");
        }
    }
}

/// How often it says what was counted.
const EXPORT_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the source before it looks after its targets.
const TURN: Duration = Duration::from_millis(1);

/// Whether somebody takes what is sent: what nobody takes is not counted.
fn is_connected(initiator: &Initiator) -> bool {
    initiator.targets().any(|(_, state, _)| state == PeerState::Connected)
}

fn send_grains(options: &Options, domain: &Domain, initiator: &mut Initiator, count: u64) -> Result<()> {
    let reader = domain.read_grains(initiator.flow())?;
    let mut said = Instant::now();
    let mut next = reader.head().max(1);
    let mut left = count;
    while left > 0 {
        initiator.poll()?;
        say(initiator);
        if said.elapsed() > EXPORT_EVERY {
            said = Instant::now();
            export(options, || initiator.metrics())?;
        }
        match reader.read(next, Wait::For(TURN)) {
            Ok(_) => {
                left -= u64::from(is_connected(initiator));
                initiator.send(next)?;
                next += 1;
            }
            Err(mxl::Error::TooEarly { .. }) => {}
            // The source went on, or was late: what there is now.
            Err(mxl::Error::TooLate { .. } | mxl::Error::Skipped { .. }) => {
                next = reader.head().max(next + 1)
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn send_samples(
    options: &Options,
    domain: &Domain,
    initiator: &mut Initiator,
    (batch, count): (u64, u64),
) -> Result<()> {
    let reader = domain.read_samples(initiator.flow())?;
    let mut said = Instant::now();
    let whole = |index: u64| index / batch * batch;
    let mut next = whole(reader.head()).max(batch);
    let mut left = count;
    while left > 0 {
        initiator.poll()?;
        say(initiator);
        if said.elapsed() > EXPORT_EVERY {
            said = Instant::now();
            export(options, || initiator.metrics())?;
        }
        match reader.read(next, batch, Wait::For(TURN)) {
            Ok(_) => {
                left -= u64::from(is_connected(initiator));
                initiator.send_samples(next, batch)?;
                next += batch;
            }
            Err(mxl::Error::TooEarly { .. }) => {}
            Err(mxl::Error::TooLate { .. }) => next = whole(reader.head()).max(next + batch),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
