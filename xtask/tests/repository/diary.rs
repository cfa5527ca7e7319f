//! Pages and comments describe the tree as it is: they name no day, and no issue, decision or review that a reader does
//! not have. Dates belong to the report of measurements and to the changelog.

use std::path::Path;

use super::tracked;

/// Pages of which dates are a part.
const DATED: [&str; 2] = ["docs/performance.md", "CHANGELOG.md"];
/// Words that name one of a numbered list outside of the repository, if a number follows.
const NUMBERED: [&str; 4] = ["issue", "issues", "decision", "decisions"];
/// Words that say nothing to a reader of the repository.
const NAMELESS: [&str; 2] = ["audit", "audits"];

/// The diary entries of a text, in lower case.
fn entries(text: &str) -> Vec<String> {
    let is_edge = |letter: char| !letter.is_alphanumeric() && letter != '-';
    let words: Vec<&str> = text.split_whitespace().map(|word| word.trim_matches(is_edge)).collect();
    let next = |at: usize| words.get(at + 1).copied().unwrap_or_default();
    let found = words.iter().enumerate().filter_map(|(at, word)| {
        let word = word.to_lowercase();
        let is_numbered =
            NUMBERED.contains(&&*word) && next(at).starts_with(|letter: char| letter.is_ascii_digit());
        match () {
            () if is_numbered => Some(format!("{word} {}", next(at))),
            () if NAMELESS.contains(&&*word) => Some(word),
            () => None,
        }
    });
    found.chain(dates(text)).collect()
}

/// Dates: year, month and day.
fn dates(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|letter: char| !letter.is_ascii_digit() && letter != '-');
    parts.filter(|part| is_date(part)).map(str::to_string)
}

fn is_date(part: &str) -> bool {
    let numbers: Vec<&str> = part.split('-').collect();
    matches!(numbers[..], [year, month, day] if [year, month, day].map(str::len) == [4, 2, 2] && year.starts_with("20"))
}

/// The comments of a source, whose lines are joined: a name and its number may be on two lines.
fn comments(source: &str, mark: &str) -> String {
    let lines = source.lines().filter_map(|line| line.trim_start().strip_prefix(mark));
    lines.map(|line| line.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join("\n")
}

#[test]
fn pages_and_comments_are_no_diary() {
    let mut found = Vec::new();
    for (file, text) in tracked(&["*.rs", "*.md", "*.sh", "*.py", "*.c", "*.h", "*.cpp", "*.toml", ".ci/run"])
    {
        if DATED.contains(&file.as_str()) {
            continue;
        }
        let prose = match Path::new(&file).extension().and_then(|extension| extension.to_str()) {
            Some("md") => text,
            Some("rs" | "c" | "h" | "cpp") => comments(&text, "//"),
            _ => comments(&text, "#"),
        };
        found.extend(entries(&prose).into_iter().map(|entry| format!("{file}: {entry}")));
    }
    assert!(
        found.is_empty(),
        "a page or comment must stand alone (xtask/tests/repository/diary.rs): {}",
        found.join(", ")
    );
}

#[test]
fn entries_of_a_diary_are_told_from_other_words() {
    assert_eq!(
        entries("As Issue 12 asks (decision\n9), since 2026-11-27 10:22."),
        ["issue 12", "decision 9", "2026-11-27"]
    );
    assert_eq!(entries("See the audit."), ["audit"]);
    assert_eq!(
        entries("an issue of order, decisions differ, 2020-11, RFC-2026-11-270, auditory, 120-11-27"),
        [""; 0]
    );
    assert_eq!(
        comments("let a = \"issue 1\"; // no\n    //! of issue\n    /// 2.\n", "//"),
        " of issue\n 2."
    );
}
