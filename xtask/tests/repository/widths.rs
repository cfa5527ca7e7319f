//! Comments of Rust and shell, and pages, are at most 120 characters wide. rustfmt enforces the width of code only.

use std::path::Path;

use super::tracked;

/// Maximum characters of a line.
const WIDTH: usize = 120;

/// The numbers of the lines that are too wide. `words` returns the part of a line that can be wrapped. Tables and
/// fenced blocks cannot.
fn wide<'a>(text: &'a str, words: impl Fn(&'a str) -> Option<&'a str>) -> Vec<usize> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(words) = words(line).map(str::trim) else {
            fenced = false;
            continue;
        };
        if words.starts_with("```") {
            fenced = !fenced;
        }
        let is_fixed = fenced || words.starts_with('|') || !breaks(words);
        if !is_fixed && line.chars().count() > WIDTH {
            found.push(at + 1);
        }
    }
    found
}

/// Whether there is a space outside of code spans and brackets.
fn breaks(words: &str) -> bool {
    let (mut code, mut depth) = (false, 0_i32);
    words.chars().any(|letter| {
        match letter {
            '`' => code = !code,
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ' ' && !code && depth <= 0
    })
}

/// The text of a comment line in Rust.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark))
}

/// The text of a comment line in shell.
fn shell_comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("# ")
}

#[test]
fn comments_and_pages_fit_on_a_screen() {
    let mut found = Vec::new();
    for (file, text) in tracked(&["*.rs", "*.md", "*.sh", ".ci/run"]) {
        let lines = match Path::new(&file).extension().and_then(|extension| extension.to_str()) {
            Some("md") => wide(&text, Some),
            Some("rs") => wide(&text, comment),
            _ => wide(&text, shell_comment),
        };
        found.extend(lines.into_iter().map(|line| format!("{file}:{line}")));
    }
    assert!(found.is_empty(), "more than {WIDTH} characters: {}", found.join(", "));
}

#[test]
fn prose_is_told_from_tables_and_programs() {
    let (long, short) = ("a ".repeat(61), "a");
    assert_eq!(wide(&format!("{short}\n{long}\n| {long}\n```\n{long}\n```\n{long}"), Some), [2, 7]);
    assert_eq!(wide(&format!("/// {long}\nlet a = \"{long}\";\n    // {long}"), comment), [1, 3]);
    assert_eq!(wide(&format!("# {short}\n# {long}\n{long}"), shell_comment), [2]);
    let words = ["a".repeat(200), format!("`{long}`"), format!("![{long}](picture.svg)")];
    assert!(words.iter().all(|word| wide(word, Some).is_empty()), "one word each");
}
