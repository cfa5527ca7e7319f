//! The name of a constant says what it bounds, and a doc comment says what its item is.

use super::tracked;

/// Names that do not say what they bound, in lower case.
const VAGUE: [&str; 4] = ["most", "longest", "look", "patience"];
/// The words of a reference that stands in for a description.
const REFERENCE: [&str; 3] = ["See", "the", "module"];

/// The numbers of the lines that declare a constant or static of a vague name, or begin such a reference.
fn found(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let is_wrong = |at: &usize| declared(lines[*at]).is_some_and(is_vague) || refers(&lines[*at..]);
    (0..lines.len()).filter(is_wrong).map(|at| at + 1).collect()
}

fn is_vague(name: &str) -> bool {
    VAGUE.iter().any(|vague| name == vague.to_ascii_uppercase())
}

/// The name of the constant or static that a line declares.
fn declared(line: &str) -> Option<&str> {
    let code = line.split("//").next()?;
    let (head, _) = code.split_once(':')?;
    let mut words = head.split_whitespace().skip_while(|word| !["const", "static"].contains(word));
    words.find(|word| !["const", "static", "mut"].contains(word))
}

/// Whether a reference begins in the first of these lines. It may end in the second.
fn refers(lines: &[&str]) -> bool {
    let Some(first) = lines.first().and_then(|line| doc(line)) else { return false };
    let next = lines.get(1).and_then(|line| doc(line)).unwrap_or_default();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let reference = REFERENCE.join(" ");
    let has = |text: &str| words(text).contains(&reference);
    has(first) || (has(&format!("{first} {next}")) && !has(next))
}

/// The text of a line of documentation.
fn doc(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!"].iter().find_map(|mark| line.strip_prefix(mark))
}

#[test]
fn constants_and_docs_say_what_they_mean() {
    let mut places = Vec::new();
    for (file, source) in tracked(&["*.rs"]) {
        places.extend(found(&source).into_iter().map(|line| format!("{file}:{line}")));
    }
    assert!(
        places.is_empty(),
        "a name must say what it bounds, a comment what its item is (xtask/tests/repository/names.rs):\n{}",
        places.join("\n")
    );
}

#[test]
fn vague_names_and_references_are_found() {
    let [most, longest, look, patience] = VAGUE.map(str::to_ascii_uppercase);
    let source = format!(
        "const {most}: usize = 1;\npub(super) const {longest}: u64 = 2;\n    static mut {look}: u8 = 3;\n\
         const MAX_{most}: u8 = 4;\n// const {most}: u8 = 5;\nlet wait: Duration = {patience};\n\
         pub static {patience} : Duration = WAIT;"
    );
    assert_eq!(found(&source), [1, 2, 3, 7]);
    let [see, the, module] = REFERENCE;
    let source = format!(
        "/// {see} {the} {module}.\n    //! It ends. {see}\n    //! {the} {module}'s head.\n\
         // {see} {the} {module}.\n/// {see}\n\n/// {the} {module}.\n/// A line; {see} {the} {module} below."
    );
    assert_eq!(found(&source), [1, 2, 8]);
}
