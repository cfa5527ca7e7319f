//! Documents that are generated from the code, so that they stay correct.

use std::fs;

use crate::step::{Outcome, root};
use crate::{StepResult, commands, conformance, features, links, settings, speed};

/// The place of the program in the README.
const PROGRAM: [&str; 2] = ["<!-- program:begin -->", "<!-- program:end -->"];
/// The program: an example, which is therefore compiled and run.
const EXAMPLE: &str = "crates/ofi/examples/two_hosts.rs";

/// Writes the documents, or checks that they are up to date.
///
/// # Errors
/// A document is missing or outdated, lacks the marks between which a part belongs, or has a dead link or an invalid
/// command.
pub fn run(check: bool) -> StepResult {
    let readme = read("README.md")?;
    let readme = replaced(&readme, PROGRAM, &format!("```rust\n{}```\n", read(EXAMPLE)?))?;
    let speed = speed::figure(&readme)?;
    let documents = [
        ("README.md", readme),
        ("docs/pictures/speed.svg", speed),
        ("docs/providers.md", features::document()),
        ("docs/settings.md", settings::document()),
    ];
    conformance::run(true)?;
    let mut stale = Vec::new();
    for (path, text) in documents {
        if fs::read_to_string(root().join(path)).is_ok_and(|old| old == text) {
            continue;
        }
        if check {
            stale.push(path);
        } else {
            fs::write(root().join(path), text).map_err(|error| format!("{path}: {error}"))?;
            println!("wrote {path}");
        }
    }
    if !stale.is_empty() {
        return Err(format!("not fresh: {} (cargo xtask docs)", stale.join(", ")));
    }
    let documents = links::documents()?;
    let dead = links::broken(&documents)?;
    if !dead.is_empty() {
        return Err(format!("dead links: {}", dead.join(", ")));
    }
    let outside = links::outside_the_book(&documents)?;
    if !outside.is_empty() {
        return Err(format!("pages that docs/SUMMARY.md does not name: {}", outside.join(", ")));
    }
    let wrong = commands::broken(&documents)?;
    if !wrong.is_empty() {
        return Err(format!("commands that cannot run: {}", wrong.join("; ")));
    }
    Ok(Outcome::Passed)
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// `text` with `part` between the two marks.
fn replaced(text: &str, [begin, end]: [&str; 2], part: &str) -> Result<String, String> {
    let missing = |mark| format!("README.md has no {mark}");
    let (before, rest) = text.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, after) = rest.split_once(end).ok_or_else(|| missing(end))?;
    Ok(format!("{before}{begin}\n\n{part}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The front page says what the project is, has a program, a figure and a table, and links to everything else.
    #[test]
    fn the_readme_is_one_page() {
        let readme = read("README.md").unwrap();
        assert!(readme.lines().count() <= 100, "README.md has {} lines", readme.lines().count());
        for part in [
            "```toml\n[dependencies]",
            PROGRAM[0],
            "docs/pictures/speed.svg",
            "**Use it:**",
            "**Work on it:**",
        ] {
            assert_eq!(readme.matches(part).count(), 1, "{part}");
        }
    }

    #[test]
    fn a_part_is_replaced_between_its_marks_alone() {
        let text = format!("a\n{}\nold\n{}\nb\n", PROGRAM[0], PROGRAM[1]);
        let new = replaced(&text, PROGRAM, "new\n").unwrap();
        assert_eq!(new, format!("a\n{}\n\nnew\n\n{}\nb\n", PROGRAM[0], PROGRAM[1]));
        assert_eq!(replaced(&new, PROGRAM, "new\n").unwrap(), new);
        assert!(replaced("nothing", PROGRAM, "").is_err());
    }
}
