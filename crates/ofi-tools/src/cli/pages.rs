//! Man pages and shell completions of all programs of this crate, written from their command lines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};

use crate::failure::{Failure, Result};
use crate::{bench, dump, info, pingpong, topo, write_demo};

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to write: man/man1, bash, zsh and fish below it
    dir: PathBuf,
}

/// The command lines of the programs of this crate.
pub fn commands() -> Vec<Command> {
    vec![
        super::Options::command(),
        info::Options::command(),
        pingpong::Options::command(),
        dump::Options::command(),
        write_demo::Options::command(),
        topo::Options::command(),
        bench::Options::command(),
    ]
}

/// Writes them.
///
/// # Errors
/// When a file cannot be written.
pub fn write(options: &Options) -> Result<()> {
    let doing = |error| Failure::system(format!("writing below {}", options.dir.display()), error);
    write_pages(&options.dir, &commands()).map_err(doing)
}

/// Writes man pages and shell completions of programs: `man/man1`, `bash`, `zsh` and `fish` below `dir`.
///
/// # Errors
/// A file cannot be written.
pub fn write_pages(dir: &Path, programs: &[Command]) -> io::Result<()> {
    let man = dir.join("man/man1");
    fs::create_dir_all(&man)?;
    for program in programs {
        // With a page for each subcommand.
        clap_mangen::generate_to(program.clone(), &man)?;
    }
    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        let folder = dir.join(name);
        fs::create_dir_all(&folder)?;
        for program in programs {
            let name = program.get_name().to_string();
            generate_to(shell, &mut program.clone(), name, &folder)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_page_a_completion_and_a_sound_command_line() {
        for program in commands() {
            program.debug_assert();
        }
        let dir = std::env::temp_dir().join(format!("ofi-pages-{}", std::process::id()));
        write_pages(&dir, &commands()).unwrap();
        let text =
            |path: &str| fs::read_to_string(dir.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        for name in ["ofi", "fi_info", "fi_pingpong", "fi_dump", "fi_write_demo", "mr-topo", "mr-bench"] {
            assert!(text(&format!("man/man1/{name}.1")).contains(".TH "), "{name}");
            assert!(text(&format!("bash/{name}.bash")).contains(name), "{name}");
            assert!(text(&format!("zsh/_{name}")).starts_with(&format!("#compdef {name}")), "{name}");
            assert!(text(&format!("fish/{name}.fish")).contains(name), "{name}");
        }
        assert!(text("man/man1/ofi-cp-get.1").contains("streams"));
        assert!(!dir.join("man/man1/ofi-read-memory.1").exists(), "hidden");
        fs::remove_dir_all(dir).unwrap();
    }
}
