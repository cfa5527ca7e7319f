//! `ofi cp serve`: one thread per connection, and the limits of connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ofi::{Incoming, Listener};

use super::Net;
use super::link::Link;
use super::root::{Listing, Root, Served};
use super::wire::{Answer, CopyRequest, GREETING, MAX_MESSAGE_LEN, WINDOW};
use crate::failure::{Failure, Result};
use crate::output;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The directory to serve
    dir: PathBuf,
    /// Address to listen at, as HOST:PORT [default: chosen by the provider]
    #[arg(short, long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Maximum number of simultaneous connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    #[command(flatten)]
    net: Net,
}

/// Time that a client may be idle.
const IDLE: Duration = Duration::from_secs(60);
/// Time that a client may take to connect, and to receive what it requested.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves until the process ends.
///
/// # Errors
/// The directory cannot be opened, or the address cannot be used.
pub fn run(options: &Options) -> Result<()> {
    let doing = |error| Failure::system(format!("opening {}", options.dir.display()), error);
    let root = Arc::new(Root::open(&options.dir).map_err(doing)?);
    let hints = options.net.hints()?;
    let listener = match &options.listen {
        None => Listener::open(&hints),
        Some(place) => {
            let Some((host, port)) = place.rsplit_once(':') else {
                return Err(Failure::Usage(format!("--listen: wanted HOST:PORT, found {place:?}")));
            };
            Listener::open_at(&hints, host.trim_matches(['[', ']']), port)
        }
    }
    .map_err(Failure::stack("listening"))?;
    let name = listener.name().map_err(Failure::stack("listening"))?;
    output::print(&format!("listening at {name}\n"))?;
    if options.net.key.is_none() {
        output::tell(
            "ofi: anyone who reaches this address can read these files; restrict access with --key FILE",
        );
    }
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let incoming = listener.wait(None).map_err(Failure::stack("listening"))?;
        let Some(incoming) = incoming else { continue };
        if incoming.data() != GREETING {
            // A client that has disconnected needs no answer.
            let _ = incoming.reject(b"this is ofi-cp 2");
            continue;
        }
        if open.fetch_add(1, Ordering::Relaxed) >= options.connections as usize {
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = incoming.reject(b"too many connections");
            continue;
        }
        let (root, held) = (Arc::clone(&root), ConnectionSlot(Arc::clone(&open)));
        let thread = std::thread::Builder::new().name("ofi-cp".into());
        let started = thread.spawn(move || {
            let _held = held;
            if let Err(failure) = serve(incoming, &root) {
                output::tell(&format!("ofi: a client: {failure}"));
            }
        });
        if let Err(error) = started {
            output::tell(&format!("ofi: rejected a client: {error}"));
        }
    }
}

/// A slot among the allowed connections.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The files and listings that a client has open.
#[derive(Default)]
struct Open {
    file: Option<Served>,
    listing: Option<Listing>,
}

/// Serves one client until it disconnects.
fn serve(incoming: Incoming, root: &Root) -> Result<()> {
    let accepted = incoming.accept(GREETING, CLIENT_TIMEOUT);
    let mut link = Link::new(accepted.map_err(|refused| Failure::Peer(refused.to_string()))?);
    for _ in 0..2 * WINDOW {
        link.receive(vec![0; MAX_MESSAGE_LEN], CLIENT_TIMEOUT)?;
    }
    let mut open = Open::default();
    loop {
        let (buffer, len) = match link.next("waiting for a request", IDLE) {
            Ok(next) => next,
            // Clients also disconnect this way.
            Err(Failure::Peer(_)) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let mut message = link.spare();
        let answered = match serde_json::from_slice(&buffer[..len.min(buffer.len())]) {
            Ok(request) => answer(request, root, &mut open, &mut message),
            Err(error) => Err(format!("a request: {error}")),
        };
        let block_follows = answered.unwrap_or_else(|why| {
            message = json(&Answer::Refused(why));
            false
        });
        link.receive(buffer, CLIENT_TIMEOUT)?;
        // A client that sends requests but receives nothing occupies this many buffers until the time limit.
        link.send(message, WINDOW, CLIENT_TIMEOUT)?;
        if block_follows {
            let mut message = link.spare();
            if let Err(why) = answer(CopyRequest::Read(0), root, &mut open, &mut message) {
                message = json(&Answer::Refused(why));
            }
            link.send(message, WINDOW, CLIENT_TIMEOUT)?;
        }
    }
}

/// Builds the answer to a request in `message`, overwriting it. Returns whether the file's only block follows.
fn answer(
    request: CopyRequest,
    root: &Root,
    open: &mut Open,
    message: &mut Vec<u8>,
) -> std::result::Result<bool, String> {
    let fetches = matches!(request, CopyRequest::Fetch(_));
    match request {
        CopyRequest::Open(name) | CopyRequest::Fetch(name) => {
            let opened = open.file.insert(root.file(&name)?);
            *message = json(&Answer::Opened(opened.id().clone()));
            return Ok(fetches && opened.id().blocks() == 1);
        }
        CopyRequest::Read(number) => open.file.as_ref().ok_or("no file is open")?.block(number, message)?,
        CopyRequest::List { dir, after } => {
            // All parts of a listing are from one moment.
            let known = open.listing.take().filter(|known| known.name() == dir && !after.is_empty());
            let listing = known.map_or_else(|| root.listing(&dir), Ok)?;
            *message = json(&open.listing.insert(listing).behind(&after));
        }
    }
    Ok(false)
}

fn json(answer: &Answer) -> Vec<u8> {
    // Numbers and text: serialization cannot fail. A reason may quote a name, whose length is bounded by the request's.
    serde_json::to_vec(answer).unwrap_or_default()
}
