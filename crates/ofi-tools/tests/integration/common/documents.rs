//! Checks the command lines in the documents: a command may use only options that its program has. Shared by
//! the tests of several crates.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program's name and path.
pub type Program = (&'static str, &'static str);

/// The lines of shell blocks, and the text between backquotes elsewhere.
pub fn commands(text: &str) -> Vec<String> {
    let (mut found, mut language) = (Vec::new(), None);
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), language) {
            (Some(_), Some(_)) => language = None,
            (Some(name), None) => language = Some(name),
            (None, Some("sh")) => found.push(line.split(" #").next().unwrap_or(line).trim().to_string()),
            (None, Some(_)) => {}
            (None, None) => found.extend(line.split('`').skip(1).step_by(2).map(str::to_string)),
        }
    }
    found
}

/// The program and arguments of a command such as `ofi cp get`, `target/release/ofi cp get` or `cargo run
/// --bin ofi -- cp get`.
fn ours<'a>(programs: &[Program], command: &'a str) -> Option<(Program, Vec<&'a str>)> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let named = |word: &str| {
        let word = word.strip_prefix("target/release/").unwrap_or(word);
        programs.iter().copied().find(|(name, _)| *name == word)
    };
    if let Some(at) = words.iter().position(|word| *word == "--bin") {
        let program = named(words.get(at + 1)?)?;
        let arguments = words.iter().skip_while(|word| **word != "--").skip(1);
        return Some((program, arguments.copied().collect()));
    }
    // Skips environment variables.
    let at = words.iter().position(|word| !word.contains('='))?;
    let arguments = words[at + 1..].iter().take_while(|word| !["|", "&&", ">", "||", "&"].contains(*word));
    Some((named(words[at])?, arguments.copied().collect()))
}

/// The help texts of programs and their subcommands.
#[derive(Default)]
pub struct Helps(HashMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, (name, path): Program, subcommands: &[&str]) -> &str {
        let key = [name].iter().chain(subcommands).map(ToString::to_string).collect();
        self.0.entry(key).or_insert_with(|| {
            let output = Command::new(path).args(subcommands).arg("--help").output().unwrap();
            assert!(output.status.success(), "{name} {subcommands:?} --help: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// The options of a command that its program does not have. `None` if the command runs none of the
    /// programs.
    pub fn unknown(&mut self, programs: &[Program], command: &str) -> Option<Vec<String>> {
        let (program, words) = ours(programs, command)?;
        let (mut subcommands, mut unknown) = (Vec::new(), Vec::new());
        for word in words {
            let help = self.of(program, &subcommands);
            let option = word.trim_start_matches('[').split(['=', ']', ',', '.', ';']).next().unwrap_or(word);
            if option.len() > 1 && option.starts_with('-') && option != "--" {
                let known = help.split([' ', ',', '\n', '[', '=']);
                if !known.chain(["-h", "--help", "-V", "--version"]).any(|known| known == option) {
                    unknown.push(option.to_string());
                }
                continue;
            }
            let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
            let mut names = commands.into_iter().flat_map(str::lines);
            if names.any(|line| line.split_whitespace().next() == Some(word)) {
                subcommands.push(word);
            }
        }
        Some(unknown)
    }
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.clone(), root.join("docs"), own];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|is| is == "md")).collect()
}

/// Checks that the documents have at least `at_least` commands of these programs, and that all of their
/// options exist.
pub fn check(programs: &[Program], at_least: usize) {
    let (mut helps, mut checked, mut wrong) = (Helps::default(), 0, Vec::new());
    for document in documents() {
        for command in commands(&fs::read_to_string(&document).unwrap()) {
            let Some(unknown) = helps.unknown(programs, &command) else { continue };
            checked += 1;
            wrong.extend(unknown.iter().map(|option| format!("{}: {command}: {option}", document.display())));
        }
    }
    assert!(checked >= at_least, "only {checked} commands found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
