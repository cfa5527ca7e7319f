//! The name of a constant says what it bounds, the name of a type what it is, and a doc comment what its item is.

use std::collections::{BTreeMap, BTreeSet};

use super::tracked;

/// The number of crates in whose production code one name may be defined as a type. A name that stands in more says
/// nothing: `State`, `Shared`, `Place`.
const CRATES_PER_TYPE: usize = 5;

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

/// The crate of a file of production code.
fn crate_of(file: &str) -> Option<&str> {
    let (name, path) = file.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = |part: &str| ["tests", "tests.rs", "model.rs", "models.rs"].contains(&part);
    (!path.split('/').any(|part| is_test(part) || part.ends_with("_tests.rs"))).then_some(name)
}

/// The types that a file defines, without the associated ones and those of a module of tests.
fn types(source: &str) -> impl Iterator<Item = &str> {
    let production = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    production.lines().filter_map(|line| {
        let is_nested = line.starts_with(' ');
        let mut words =
            line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
        match words.next()? {
            "struct" | "enum" | "trait" | "union" => words.next(),
            "type" if !is_nested => words.next(),
            _ => None,
        }
        .and_then(|name| name.split(|end: char| !end.is_alphanumeric() && end != '_').next())
        .filter(|name| name.starts_with(char::is_uppercase))
    })
}

/// The names that too many crates give to a type.
fn worn<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut crates: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, source) in files {
        if let Some(name) = crate_of(file) {
            for defined in types(source) {
                crates.entry(defined).or_default().insert(name);
            }
        }
    }
    crates.retain(|_, crates| crates.len() > CRATES_PER_TYPE);
    crates.into_iter().map(|(name, crates)| format!("{name}: {crates:?}")).collect()
}

#[test]
fn names_of_types_stand_in_few_crates() {
    let files = tracked(&["crates/*.rs"]);
    let worn = worn(files.iter().map(|(file, source)| (file.as_str(), source.as_str())));
    assert!(
        worn.is_empty(),
        "a type's name is defined in at most {CRATES_PER_TYPE} crates: say what each of these is:\n{}",
        worn.join("\n")
    );
}

#[test]
fn worn_names_are_found() {
    let source = "pub(super) struct State<T>(T);\n    type Op = u8;\ntype Line = u8;\n// struct Row;\n\
                  pub unsafe trait Memory: Send {}\n#[cfg(test)]\nmod tests {\n    struct Place;\n}\n";
    assert_eq!(types(source).collect::<Vec<_>>(), ["State", "Line", "Memory"]);
    let file = |name: u32, path: &str| format!("crates/{name}/src/{path}");
    let of = |files: &[String]| worn(files.iter().map(|file| (file.as_str(), source)));
    let few: Vec<_> = (0..5).chain(0..5).map(|name| file(name, "lib.rs")).collect();
    assert_eq!(of(&few), [""; 0]);
    let with = |path: &str| [few.clone(), vec![file(5, path)]].concat();
    assert_eq!(of(&with("tests/mod.rs")), [""; 0]);
    assert_eq!(of(&with("wire/packet_tests.rs")), [""; 0]);
    assert_eq!(of(&with("wire/mod.rs")).len(), 3);
    assert_eq!(of(&[few.clone(), vec!["xtask/src/main.rs".into()]].concat()), [""; 0]);
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
