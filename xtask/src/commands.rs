//! Checks the commands in documents: each must name an existing program, example, test or chore, and a test filter must
//! select a test.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde::Deserialize;

use crate::step::{cargo, output, root};
use crate::{Options, filters};

/// The commands of the documents that cannot run, as `document: command: reason`.
///
/// # Errors
/// A document cannot be read, or cargo does not describe the workspace.
pub fn broken(documents: &[PathBuf]) -> Result<Vec<String>, String> {
    let (workspace, tests) = (Workspace::of_cargo()?, filters::tests()?);
    let mut broken = Vec::new();
    for document in documents.iter().chain(&examples()?) {
        let text =
            fs::read_to_string(document).map_err(|error| format!("{}: {error}", document.display()))?;
        let name = document.strip_prefix(root()).unwrap_or(document).display();
        for command in commands(&text) {
            if let Err(why) = workspace.check(&command) {
                broken.push(format!("{name}: {command}: {why}"));
            }
            for filter in filters::of_command(&command) {
                if !tests.iter().any(|test| test.contains(&filter)) {
                    broken.push(format!("{name}: {command}: no test has {filter} in its name"));
                }
            }
        }
    }
    Ok(broken)
}

/// The examples, whose headers contain commands.
fn examples() -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let crates = entries(&root().join("crates"))?;
    let mut folders: Vec<PathBuf> = crates.iter().map(|entry| entry.join("examples")).collect();
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in entries(&folder)? {
            match entry.extension() {
                None => folders.push(entry),
                Some(extension) if extension == "rs" => found.push(entry),
                Some(_) => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Commands that start with `cargo`, from blocks of shell commands and between backquotes.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_shell = false;
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            in_shell = language == "sh";
        } else if in_shell {
            found.extend(line.contains("cargo ").then(|| line.trim().to_string()));
        } else {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.filter(|part| part.starts_with("cargo ")).map(str::to_string));
        }
    }
    found
}

/// The workspace according to `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Workspace {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Workspace {
    fn of_cargo() -> Result<Self, String> {
        let described = output(&mut cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]))?;
        serde_json::from_str(&described).map_err(|error| format!("cargo metadata: {error}"))
    }

    /// Checks that everything that a command names exists.
    fn check(&self, command: &str) -> Result<(), String> {
        let words: Vec<&str> = command.split_whitespace().skip_while(|word| *word != "cargo").collect();
        // A placeholder for the user's choice is not a name.
        let is_choice = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c == '"');
        match words.get(1) {
            Some(&"xtask") => {
                let chore = words[1..].iter().take_while(|word| !word.starts_with(['[', '#', '|', '&']));
                // Every chore accepts a number in place of the user's choice.
                let chore = chore.map(|word| if is_choice(word) { "1" } else { word });
                Options::try_parse_from(chore).map(|_| ()).or_else(|error| match error.use_stderr() {
                    // Help counts as success.
                    false => Ok(()),
                    true => Err(error.to_string().lines().next().unwrap_or_default().to_string()),
                })
            }
            Some(&("run" | "test" | "nextest" | "bench" | "build" | "install")) => {
                let mut package = None;
                for (word, value) in words.iter().zip(&words[1..]).take_while(|(word, _)| **word != "--") {
                    let found = match *word {
                        _ if is_choice(value) => true,
                        "-p" | "--package" => {
                            package = Some(*value);
                            self.packages.iter().any(|package| package.name == *value)
                        }
                        "--bin" | "--example" | "--test" | "--bench" => {
                            self.has_target(package, word.trim_start_matches('-'), value)
                        }
                        "--path" => root().join(value).join("Cargo.toml").exists(),
                        _ => true,
                    };
                    if !found {
                        return Err(format!("there is no {word} {value}"));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn has_target(&self, package: Option<&str>, kind: &str, name: &str) -> bool {
        let chosen = self.packages.iter().filter(|other| package.is_none_or(|name| other.name == name));
        let mut targets = chosen.flat_map(|package| &package.targets);
        targets.any(|target| target.name == name && target.kind.iter().any(|other| other == kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_shell_blocks_and_between_backquotes() {
        let text = "a `cargo run --bin b` c\n```sh\nX=1 cargo test\nls\n```\n```rust\ncargo here\n```\n";
        assert_eq!(commands(text), ["cargo run --bin b", "X=1 cargo test"]);
    }

    #[test]
    fn what_is_not_there_is_found() {
        let workspace = Workspace::of_cargo().unwrap();
        for good in [
            "cargo run --release --bin fi_pingpong -- --quick",
            "cargo run --release --bin NAME",
            "cargo run -p ofi --example hello",
            "cargo xtask capi --test",
            "cargo xtask install --prefix DIR",
            "cargo install --path crates/ofi-tools",
        ] {
            assert_eq!(workspace.check(good), Ok(()), "{good}");
        }
        for bad in [
            "cargo run --bin fi_nothing",
            "cargo run -p ofi-tools --example hello",
            "cargo test -p nobody",
            "cargo xtask nothing",
            "cargo install --path crates/none",
        ] {
            assert!(workspace.check(bad).is_err(), "{bad}");
        }
    }
}
