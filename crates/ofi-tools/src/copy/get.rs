//! `ofi cp get`: checks the destination and fetches.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ofi_progress_bar::Progress;

use super::Net;
use super::job::{CopyTarget, Item, Job, LIMIT, PAUSE, Server};
use super::keep::Keep;
use super::link::End;
use super::place::{FileDestination, Trunk};
use super::tree::{Finished, Tree, join};
use super::wire::MAX_MESSAGE_LEN;
use crate::failure::{Failure, Result};
use crate::output;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The server's address: HOST:PORT, or the address that it printed
    address: String,
    /// The file's path at the server; with --recursive a directory's path, `.` for everything that is served
    file: String,
    /// Destination: a file, or a directory; with --recursive the directory that the contents go into
    #[arg(default_value = ".")]
    destination: PathBuf,
    /// Copy a directory with everything below it
    #[arg(short, long)]
    recursive: bool,
    /// Number of parallel connections
    #[arg(short = 'n', long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    streams: u16,
    /// Replace existing files
    #[arg(short, long)]
    force: bool,
    /// Keep all permission bits and the times of modification; without it the umask clears bits, as with cp
    #[arg(long)]
    preserve: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Give up after this many seconds without a block; run the command again to resume
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    #[command(flatten)]
    net: Net,
}

/// Fetches the file, or the directory.
///
/// # Errors
/// The reason why the copy is missing or incomplete.
pub fn run(options: &Options) -> Result<()> {
    let server = Server {
        hints: options.net.hints()?,
        address: super::address(&options.address)?,
        text: options.address.clone(),
    };
    if options.recursive { directory(options, server) } else { file(options, server) }
}

fn job(options: &Options, server: Server, target: CopyTarget, items: Vec<Item>) -> Job {
    let patience = Duration::from_secs(options.patience);
    let how = (options.force, options.quiet, Keep::here(options.preserve));
    Job::new(server, target, items, how, patience, Progress::bytes(options.quiet))
}

fn file(options: &Options, server: Server) -> Result<()> {
    let destination = place(&options.destination, &options.file)?;
    let place = FileDestination::at(&destination)?;
    if destination.exists() && !options.force {
        return Err(is_there(&destination));
    }
    let items = vec![Item::new(options.file.clone(), String::new())];
    let (bytes, _) =
        job(options, server, CopyTarget::File(Mutex::new(Some(place))), items).run(options.streams)?;
    output::print(&format!("{}: {bytes} bytes\n", options.file))
}

fn directory(options: &Options, server: Server) -> Result<()> {
    let tree = listed(options, &server)?;
    let trunk = Trunk::open(&options.destination)?;
    let finished = Finished::open(trunk.journal()?)?;
    tree.folders.iter().try_for_each(|(folder, kept)| trunk.make(folder, kept))?;
    let mut here = 0;
    for name in &tree.files {
        let place = trunk.place(name)?;
        match (finished.here(name, &place), place.found()) {
            (Some(_), _) => here += 1,
            // Fail before anything is fetched.
            (None, Some(_)) if !options.force => return Err(is_there(place.shown())),
            _ => {}
        }
    }
    if here > 0 && !options.quiet {
        output::tell(&format!("ofi: resuming: {here} of {} files are here", tree.files.len()));
    }
    let files = tree.files.len();
    let items = tree.files.into_iter().map(|name| Item::new(join(&options.file, &name), name)).collect();
    let target = CopyTarget::Tree(trunk, finished);
    let (bytes, target) = job(options, server, target, items).run(options.streams)?;
    if let CopyTarget::Tree(trunk, finished) = target {
        if options.preserve {
            // The deepest first: changes below a folder update its time, and its mode may deny all access.
            let keep = Keep { all: true, umask: 0 };
            tree.folders.iter().rev().try_for_each(|(folder, kept)| trunk.keep(folder, keep, kept))?;
        }
        finished.end();
    }
    if tree.skipped > 0 {
        let skipped = tree.skipped;
        output::tell(&format!("ofi: {skipped} entries were not copied: links, special files, odd names"));
    }
    output::print(&format!("{}: {files} files, {bytes} bytes\n", options.file))
}

/// Lists everything below the directory. Retries while the server is away.
fn listed(options: &Options, server: &Server) -> Result<Tree> {
    let begin = Instant::now();
    let top = if options.file == "." { "." } else { options.file.trim_end_matches('/') };
    let ask = || -> std::result::Result<Tree, End> {
        let mut link = server.connect(MAX_MESSAGE_LEN)?;
        let tree = Tree::ask(&mut link, top, LIMIT)?;
        link.finish(LIMIT);
        Ok(tree)
    };
    loop {
        match ask() {
            Ok(tree) => return Ok(tree),
            Err(End::Lost(_)) if begin.elapsed() < Duration::from_secs(options.patience) => {
                std::thread::sleep(PAUSE);
            }
            Err(End::Lost(failure) | End::Final(failure)) => return Err(failure),
        }
    }
}

fn is_there(path: &Path) -> Failure {
    Failure::Usage(format!("{} exists; --force replaces it", path.display()))
}

/// The file to write.
fn place(destination: &Path, file: &str) -> Result<PathBuf> {
    if !destination.is_dir() {
        return Ok(destination.into());
    }
    match Path::new(file).file_name() {
        Some(name) => Ok(destination.join(name)),
        None => Err(Failure::Usage(format!("{file:?} does not name a file"))),
    }
}
