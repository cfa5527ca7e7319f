//! Test filters in documents: each must select a test. cargo exits with 0 if a filter selects none.

use std::path::{Component, Path};

use crate::conformance;

/// The paths of all tests, as cargo prints them. They come from the sources, so nothing has to be built.
///
/// # Errors
/// A source cannot be read.
pub fn tests() -> Result<Vec<String>, String> {
    let (mut all, mut cases) = (Vec::new(), Vec::new());
    for (path, name, is_case) in conformance::all_tests()? {
        match is_case {
            true => cases.push(format!("{}::{name}", path.file_stem().unwrap_or_default().display())),
            false => all.push(format!("{}::{name}", modules(&path).join("::"))),
        }
    }
    for instance in conformance::instance_names()? {
        all.extend(cases.iter().map(|case| format!("{instance}::{case}")));
    }
    Ok(all)
}

/// The modules that lead to a source file. A module `tests` in a file of another name is one of them.
fn modules(path: &Path) -> Vec<String> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_string_lossy().trim_end_matches(".rs").to_string()),
        _ => None,
    });
    let all: Vec<String> = names.collect();
    let roots = ["src", "tests", "benches"];
    let from = all.iter().rposition(|name| roots.contains(&name.as_str())).map_or(0, |at| at + 1);
    // `src/a/tests.rs` has the root's name, but is a module.
    let from = if from == all.len() { from - 1 } else { from };
    let mut modules = all[from..].to_vec();
    modules.retain(|name| !["lib", "main", "mod"].contains(&name.as_str()));
    if modules.last().is_none_or(|last| last != "tests") && all.contains(&"src".to_string()) {
        modules.push("tests".into());
    }
    modules
}

/// The filters of a command: the first word of `cargo test` that is no option or an option's value, and the names in
/// `test(...)` of an expression of nextest.
pub fn of_command(command: &str) -> Vec<String> {
    const WITH_VALUE: [&str; 14] = [
        "-p",
        "--package",
        "--bin",
        "--example",
        "--test",
        "--bench",
        "--features",
        "--profile",
        "--target",
        "-j",
        "--jobs",
        "-E",
        "--filter-expr",
        "--test-threads",
    ];
    let mut found = Vec::new();
    for (at, _) in command.match_indices("test(") {
        let name = command[at + 5..].split(')').next().unwrap_or_default();
        found.push(name.trim_start_matches(['=', '~', '/', '^']).trim_end_matches(['/', '$']).to_string());
    }
    let mut words = command.split_whitespace().skip_while(|word| *word != "cargo").skip(1);
    if words.next() != Some("test") {
        return found;
    }
    while let Some(word) = words.next() {
        match word {
            "--" | "#" | "|" | "&&" | ";" => break,
            _ if WITH_VALUE.contains(&word) => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => {
                found.push(word.to_string());
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_found_and_other_words_are_not() {
        let filters = |command| of_command(command);
        assert_eq!(filters("cargo test -p ofi-tests --test conformance shm::rma"), ["shm::rma"]);
        assert_eq!(filters("cargo test -p ofi-testkit --test protocol"), [""; 0]);
        assert_eq!(filters("X=1 cargo test --features verbs -- --ignored"), [""; 0]);
        assert_eq!(filters("cargo nextest run -E 'test(/^udp::rma/)'"), ["udp::rma"]);
        assert_eq!(filters("cargo nextest run -E 'test(multi) or test(=a::b)'"), ["multi", "a::b"]);
    }

    #[test]
    fn tests_of_the_tree_have_the_paths_that_cargo_prints() {
        let all = tests().unwrap();
        for wanted in [
            "filters::tests::tests_of_the_tree_have_the_paths_that_cargo_prints",
            "shm::rma::every_size_on_application_memory",
        ] {
            assert!(all.iter().any(|name| name == wanted), "{wanted}");
        }
        assert!(!all.iter().any(|name| name.contains("shm::message")));
    }
}
