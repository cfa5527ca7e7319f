//! Every program in one file: `ofi`, `fi_info`, `mxl-info` and the others. The file has a link for each name, and runs
//! the program that it is called by. Linking is most of the work of a release build, and this way it is done once.
//!
//! By its own name, `ofi-programs pages DIR` writes the man pages and completions of all programs.
//!
//! The links are hard ones: a program that starts itself again does so by its path (`/proc/self/exe`), which for a hard
//! link has the program's name.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A program: its name, and its function.
type Program = (&'static str, fn() -> ExitCode);

const PROGRAMS: [Program; 14] = [
    ("ofi", ofi_tools::cli::main),
    ("fi_info", ofi_tools::info::main),
    ("fi_pingpong", ofi_tools::pingpong::main),
    ("fi_dump", ofi_tools::dump::main),
    ("fi_write_demo", ofi_tools::write_demo::main),
    ("mr-topo", ofi_tools::topo::main),
    ("mr-bench", ofi_tools::bench::main),
    ("mxl-info", mxl_tools::info::main),
    ("mxl-generate", mxl_tools::generate::main),
    ("mxl-view", mxl_tools::view::main),
    ("mxl-fabrics-info", mxl_fabrics::list::main),
    ("mxl-fabrics-demo", mxl_fabrics::demo::main),
    ("mxl-gateway", mxl_fabrics::gateway::main),
    ("mxl-bench", mxl_fabrics::bench::main),
];

/// The command lines of all programs.
fn commands() -> Vec<clap::Command> {
    let mut commands = ofi_tools::cli::commands();
    commands.extend([
        mxl_tools::info::command(),
        mxl_tools::generate::command(),
        mxl_tools::view::command(),
        mxl_fabrics::list::command(),
        mxl_fabrics::demo::command(),
        mxl_fabrics::gateway::command(),
        mxl_fabrics::bench::command(),
    ]);
    commands
}

fn main() -> ExitCode {
    // The name of the call; where a caller gave it another one (`exec -a`), that of the file.
    let called = std::env::args_os().next().map(PathBuf::from);
    let candidates = [called, std::env::current_exe().ok()];
    match candidates.iter().flatten().find_map(|path| named(path)) {
        Some((_, program)) => program(),
        None => own(&std::env::args_os().skip(1).collect::<Vec<_>>()),
    }
}

/// The command line of the file by its own name.
fn own(arguments: &[OsString]) -> ExitCode {
    match arguments {
        [word, dir] if word == "pages" => {
            let dir = Path::new(dir);
            if let Err(error) = ofi_tools::cli::write_pages(dir, &commands()) {
                eprintln!("ofi-programs: writing below {}: {error}", dir.display());
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        _ => {
            let names = PROGRAMS.map(|(name, _)| name).join(", ");
            eprintln!("ofi-programs: a link to this file runs the program that it is named after: {names}");
            ExitCode::from(2)
        }
    }
}

/// The program that a path names.
fn named(path: &Path) -> Option<Program> {
    let name = path.file_name().and_then(OsStr::to_str)?;
    PROGRAMS.into_iter().find(|(known, _)| *known == name)
}
