//! `mxl-gateway mirror`: mirrors flows of other hosts into a domain of this one.
//!
//! Each host has a thread for its control connection ([`host`]), and one thread drives all targets ([`Engine`]).

#[cfg(feature = "nmos")]
mod finder;
mod host;
mod local;
#[cfg(feature = "nmos")]
mod placed;
mod wanted;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mxl::{Domain, Uri};

use super::log::say;
use super::nmos::{Described, Hooks, NmosOptions, Registered};
use super::remote::Remote;
use super::stop::Stop;
use super::web::{self, About, Board, WebOptions};
use crate::{Engine, Error, Provider, Result, disk, program};
use host::Host;
use local::Local;
use wanted::{Share, Wanted};

/// Maximum wait at the end for the threads, which remove their flows: longer than one connects or writes, shorter than
/// the ten seconds that a container gets. Only one that looks for a host's address may take longer.
const FAREWELL: Duration = Duration::from_secs(8);
/// Maximum hosts of one program: each has a thread.
const MAX_HOSTS: usize = 64;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The domain's directory, for the mirrored flows
    #[arg(short, long, value_name = "DIR")]
    domain: PathBuf,
    /// A host that serves flows, as mxl://HOST[:PORT]/?id=ID&id=ID; without an id, all of its flows
    #[arg(value_name = "URI", required_unless_present = "nmos_query")]
    remotes: Vec<Uri>,
    /// The address of this host that flows are sent to [default: the one that the serving host sees]
    #[arg(short, long)]
    node: Option<String>,
    /// tcp, udp, shm, verbs or efa; the serving side's
    #[arg(short, long, default_value = "tcp")]
    provider: Provider,
    /// Seconds after which a flow is removed that has ended at the other side
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    keep: u32,
    /// File with a secret of 16 to 64 bytes that the serving side shares; over udp it encrypts the flows
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    web: WebOptions,
    #[command(flatten)]
    nmos: NmosOptions,
    /// NMOS receivers of video, of audio and of data each: at most 64. A receiver mirrors the flow that a controller
    /// connects it to, from the hosts of the URIs; then a URI without an id mirrors nothing else
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "nmos",
        value_parser = clap::value_parser!(u32).range(0..=64))]
    receivers: u32,
    /// Find the hosts of the flows that receivers are connected to in the registry with this Query API,
    /// http://HOST:PORT or auto: DNS-SD finds it
    #[arg(long, value_name = "URL", requires = "receivers")]
    nmos_query: Option<String>,
}

/// The command. Ends by a signal, and then removes the mirrored flows.
///
/// # Errors
/// [`Error::Argument`] for wrong options, and a domain that cannot be used.
pub fn run(options: &Options) -> Result<()> {
    let stop = Stop::block()?;
    let domain = Domain::open(&options.domain)?;
    disk::warn("mxl-gateway", &options.domain);
    let remotes = options.remotes.iter().map(Remote::of).collect::<Result<Vec<_>>>()?;
    if remotes.len() > MAX_HOSTS {
        return Err(Error::Argument(format!(
            "{} hosts: one program mirrors at most {MAX_HOSTS}",
            remotes.len()
        )));
    }
    if options.nmos_query.is_some() && options.receivers == 0 {
        return Err(Error::Argument("--nmos-query: without --receivers, nothing is looked for".into()));
    }
    let key = options.key.as_deref().map(program::key).transpose()?;
    let local = Arc::new(Local {
        domain,
        provider: options.provider,
        node: options.node.clone(),
        options: crate::Options { key, ..crate::Options::default() },
        engine: Engine::start()?,
    });
    let board = Arc::new(Board::default());
    let wanted = (options.receivers > 0).then(Arc::<Wanted>::default);
    let shown = show(options, &local.domain, &board, wanted.as_ref())?;
    let board = options.web.is_on().then_some(board);
    let is_over = Arc::new(AtomicBool::new(false));
    let keep = Duration::from_secs(options.keep.into());
    let mut threads = Vec::new();
    let start = {
        let local = Arc::clone(&local);
        move |remote, stops, wanted: Option<Arc<dyn Share>>| {
            let host = Host::new(remote, Arc::clone(&local), keep, stops, board.clone(), wanted);
            let thread = std::thread::Builder::new().name("mxl-mirror".into()).spawn(move || host.run());
            thread.map_err(|error| Error::Argument(format!("start a thread: {error}")))
        }
    };
    for remote in &remotes {
        let wanted = wanted.clone().map(|wanted| wanted as Arc<dyn Share>);
        threads.push(start(remote.clone(), vec![Arc::clone(&is_over)], wanted)?);
    }
    #[cfg(feature = "nmos")]
    if let (Some(registry), Some(wanted)) = (&options.nmos_query, wanted) {
        let (given, is_over) = (remotes.iter().map(Remote::to_string).collect(), Arc::clone(&is_over));
        let finder = finder::Finder::new(registry.clone(), given, wanted, is_over, Box::new(start))?;
        let thread = std::thread::Builder::new().name("mxl-mirror-find".into()).spawn(move || finder.run());
        threads.push(thread.map_err(|error| Error::Argument(format!("start a thread: {error}")))?);
    }
    // Without NMOS, option --nmos was refused, which this one needs.
    #[cfg(not(feature = "nmos"))]
    drop((&options.nmos_query, wanted, start));
    say(format_args!("mirrors into {}", local.domain.path().display()));
    while !stop.wait(Duration::from_secs(3600)) {}
    say("ends");
    is_over.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    drop(shown);
    while threads.iter().any(|thread| !thread.is_finished()) && begin.elapsed() < FAREWELL {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What ends with the program: the NMOS Node before the server of its APIs.
type Shown = (Option<Registered>, web::Server);

/// Starts the page and the NMOS Node, if they are wanted.
fn show(
    options: &Options,
    domain: &Domain,
    board: &Arc<Board>,
    wanted: Option<&Arc<Wanted>>,
) -> Result<Option<Shown>> {
    let Some(listener) = options.web.listen()? else { return Ok(None) };
    let about = About { role: "mirror", provider: options.provider, domain: domain.clone() };
    let described = Described {
        role: "mirror",
        domain: domain.clone(),
        at: listener.1,
        gateway: None,
        receivers: options.receivers,
    };
    let (flows, wanted) = (domain.clone(), wanted.cloned());
    let hooks = Hooks {
        flows: Box::new(move || flows.flows().ok()),
        receive: Box::new(move |receiver, flow| {
            if let Some(wanted) = &wanted {
                wanted.set(receiver, flow);
            }
            Ok(())
        }),
        send: Box::new(|_, is_enabled| {
            if is_enabled { Ok(()) } else { Err("a mirrored flow ends at its receiver: disable that".into()) }
        }),
    };
    let (node, api) = options.nmos.start(described, hooks)?.unzip();
    let server = web::start(listener, about, board, Box::new(Vec::new), api)?;
    Ok(Some((node, server)))
}
