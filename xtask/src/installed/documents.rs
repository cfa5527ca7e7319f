//! Runs the documents' read-only commands on the installed programs. The tests of `ofi-tools` check the options of all
//! commands.

use std::fs;

use super::{Installed, ended};
use crate::StepResult;
use crate::step::{Outcome, root};

/// Commands of the documents that are run: they end by themselves and change nothing.
const READ_ONLY_COMMANDS: [&str; 5] = ["fi_info", "mr-topo", "mxl-fabrics-info", "ofi doctor", "ofi stats"];
/// Minimum number of such commands. If fewer are found, the documents are parsed wrongly.
const MIN_COMMANDS: usize = 10;

/// Runs each such command once. It must understand its command line, whatever it finds.
pub fn run(at: &Installed) -> StepResult {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    let folders = ["", "docs"].map(|folder| root().join(folder));
    for entry in folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            found.extend(commands(&text));
        }
    }
    found.sort_unstable();
    found.dedup();
    if found.len() < MIN_COMMANDS {
        return Err(format!("the documents have only {} such commands: {found:?}", found.len()));
    }
    for line in found {
        let mut words = line.split_whitespace();
        let settings: Vec<_> = words.clone().map_while(|word| word.split_once('=')).collect();
        let Some(name) = words.nth(settings.len()) else { continue };
        let (status, text) = ended(at.start(name).args(words).envs(settings))?;
        // A program killed by a signal has no status, and an invalid command line is answered with the usage.
        if status.is_none() || text.contains("\nUsage: ") {
            wrong.push(format!("{line}: ends with {status:?}:\n{text}"));
        }
    }
    if wrong.is_empty() { Ok(Outcome::Passed) } else { Err(wrong.join("\n")) }
}

/// The read-only commands among the lines of shell blocks and the text between backquotes. Commands with a placeholder
/// (`HOST`), or with characters that a shell would interpret, are excluded.
fn commands(text: &str) -> Vec<String> {
    let (mut found, mut language) = (Vec::new(), None);
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), language) {
            (Some(_), Some(_)) => language = None,
            (Some(name), None) => language = Some(name),
            (None, Some("sh")) => found.push(line),
            (None, Some(_)) => {}
            (None, None) => found.extend(line.split('`').skip(1).step_by(2)),
        }
    }
    found.into_iter().filter_map(read_only).collect()
}

/// The command of a line, if it is read-only.
fn read_only(line: &str) -> Option<String> {
    let line = line.split(" #").next()?.trim();
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_choice = |word: &str| {
        word.split(['=', ',', ':', '/'])
            .any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
    };
    let settings = words.iter().take_while(|word| word.contains('=')).count();
    let command = words[settings..].join(" ");
    let command = command.strip_prefix("target/release/").unwrap_or(&command);
    let known =
        READ_ONLY_COMMANDS.iter().any(|name| command == *name || command.starts_with(&format!("{name} ")));
    let plain = !line.contains(['$', '|', '<', '>', '&', ';', '"', '\'', '(', '[', '\\', '…', '*'])
        && !line.contains("...")
        && !words[settings..].iter().any(|word| is_choice(word));
    // These two run until they are stopped.
    let ends = !words.iter().any(|word| word.starts_with("--watch") || word.starts_with("--interval"));
    let settings = words[..settings].iter().map(|word| format!("{word} ")).collect::<String>();
    (known && plain && ends).then(|| settings + command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_look_are_found() {
        let text = "Use `fi_info -p efa` or `ofi cp get HOST`.\n```sh\nFI_LOG_LEVEL=info fi_info -l  # all\ntarget/release/mr-topo --json\n\
                    fi_info -d $DEVICE\nfi_info -n HOST\nfi_pingpong -p shm\nofi doctor\nofi stats --watch 1\n```\n\
                    ```text\nfi_info\n```\n";
        let found = ["fi_info -p efa", "FI_LOG_LEVEL=info fi_info -l", "mr-topo --json", "ofi doctor"];
        assert_eq!(commands(text), found);
    }
}
