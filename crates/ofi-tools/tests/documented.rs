//! The command lines of the documents: each option of our programs is one that its program has.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [(&str, &str); 7] = [
    ("ofi", env!("CARGO_BIN_EXE_ofi")),
    ("fi_info", env!("CARGO_BIN_EXE_fi_info")),
    ("fi_pingpong", env!("CARGO_BIN_EXE_fi_pingpong")),
    ("fi_dump", env!("CARGO_BIN_EXE_fi_dump")),
    ("fi_write_demo", env!("CARGO_BIN_EXE_fi_write_demo")),
    ("mr-topo", env!("CARGO_BIN_EXE_mr-topo")),
    ("mr-bench", env!("CARGO_BIN_EXE_mr-bench")),
];

/// The lines of shell blocks, and what stands between backquotes elsewhere.
fn commands(text: &str) -> Vec<String> {
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

/// The program of a command, and its words: `ofi cp get`, or `cargo run --bin ofi -- cp get`.
fn ours(command: &str) -> Option<(usize, Vec<&str>)> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let named = |word: &str| PROGRAMS.iter().position(|(name, _)| *name == word);
    if let Some(at) = words.iter().position(|word| *word == "--bin") {
        let program = named(words.get(at + 1)?)?;
        let arguments = words.iter().skip_while(|word| **word != "--").skip(1);
        return Some((program, arguments.copied().collect()));
    }
    // After variables of the environment.
    let at = words.iter().position(|word| !word.contains('='))?;
    let arguments = words[at + 1..].iter().take_while(|word| !["|", "&&", ">", "||"].contains(*word));
    Some((named(words[at])?, arguments.copied().collect()))
}

/// What programs and their subcommands print as help.
#[derive(Default)]
struct Helps(HashMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, program: usize, subcommands: &[&str]) -> &str {
        let (name, path) = PROGRAMS[program];
        let key = [name].iter().chain(subcommands).map(ToString::to_string).collect();
        self.0.entry(key).or_insert_with(|| {
            let output = Command::new(path).args(subcommands).arg("--help").output().unwrap();
            assert!(output.status.success(), "{name} {subcommands:?} --help: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// The options of a command that its program does not have.
    fn unknown(&mut self, program: usize, words: &[&str]) -> Vec<String> {
        let mut subcommands: Vec<&str> = Vec::new();
        for word in words {
            let help = self.of(program, &subcommands);
            let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
            let is_one =
                |commands: &str| commands.lines().any(|line| line.split_whitespace().next() == Some(word));
            match commands.is_some_and(is_one) {
                true => subcommands.push(word),
                false => break,
            }
        }
        let help = self.of(program, &subcommands);
        let options = help.split([' ', ',', '\n', '[', '=']).filter(|word| word.starts_with('-'));
        let options: Vec<&str> = options.chain(["-h", "--help", "-V", "--version"]).collect();
        let given = words.iter().filter_map(|word| {
            let option = word.trim_start_matches('[').split(['=', ']', ',', '.', ';']).next()?;
            let is_option = option.len() > 1 && option.starts_with('-') && option != "--";
            is_option.then_some(option)
        });
        given.filter(|option| !options.contains(option)).map(str::to_string).collect()
    }
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.clone(), root.join("docs"), root.join("docs/lab"), root.join("crates/ofi-tools")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|is| is == "md")).collect()
}

#[test]
fn every_documented_option_exists() {
    let (mut helps, mut checked, mut wrong) = (Helps::default(), 0, Vec::new());
    for document in documents() {
        for command in commands(&fs::read_to_string(&document).unwrap()) {
            let Some((program, words)) = ours(&command) else { continue };
            checked += 1;
            for option in helps.unknown(program, &words) {
                wrong.push(format!("{}: {command}: {option}", document.display()));
            }
        }
    }
    assert!(checked > 60, "{checked} commands");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_option_that_does_not_exist_is_found() {
    let text = "`ofi cp get --patience 5` and\n```sh\nA=1 ofi cp serve . --nothing # no\ncargo run --bin mr-topo -- -z\nls\n```\n";
    let found: Vec<_> = commands(text)
        .iter()
        .filter_map(|command| {
            let (program, words) = ours(command)?;
            Some(Helps::default().unknown(program, &words))
        })
        .collect();
    assert_eq!(found, [vec![], vec!["--nothing".to_string()], vec!["-z".to_string()]]);
}
