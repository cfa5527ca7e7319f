//! The book's page of conformance: the tests that show libfabric's rules.
//!
//! The table is `docs/conformance.toml`, the deviations are `docs/deviations.toml`. A test named by either must exist
//! in the tree: tests are found by parsing the sources, so that a renamed one is noticed without running anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::StepResult;
use crate::step::{Outcome, root};

const TABLE: &str = "docs/conformance.toml";
const DEVIATIONS: &str = "docs/deviations.toml";
/// A page of the book that is written when the book is built.
pub const DOCUMENT: &str = "docs/conformance.md";
/// The folders that may contain tests.
const FOLDERS: [&str; 4] = ["crates", "tests", "benches", "xtask"];
/// The files that instantiate the suite for a transport.
const INSTANCES: [&str; 9] = [
    "tests/tests/conformance.rs",
    "tests/tests/processes/composite/mod.rs",
    "tests/tests/suites/udp.rs",
    "tests/tests/devices/efa.rs",
    "tests/tests/sockets/tcp.rs",
    "tests/tests/verbs.rs",
    "tests/tests/devices/verbs_simulated.rs",
    "tests/tests/suites/connected.rs",
    "tests/tests/suites/verbs_connected.rs",
];
/// Macros that run the suite without the cases that several transports do not need.
const SHARED_SKIPS: [&str; 4] = ["connected", "on_efa", "on_verbs", "verbs_connected"];
/// Width of a line of names.
const WIDTH: usize = 118;

/// Writes the document, which git ignores, or only checks its sources.
///
/// # Errors
/// A rule without a test, a deviation or a reason to wait; a test that does not exist; an unused deviation.
pub fn run(check: bool) -> StepResult {
    let text = document()?;
    if !check {
        fs::write(root().join(DOCUMENT), text).map_err(|error| format!("{DOCUMENT}: {error}"))?;
        println!("wrote {DOCUMENT}");
    }
    Ok(Outcome::Passed)
}

/// The document.
///
/// # Errors
/// Those of [`run`].
pub fn document() -> Result<String, String> {
    let table: Table = parse(TABLE)?;
    let deviations: Deviations = parse(DEVIATIONS)?;
    let tests = tests()?;
    let problems = problems(&table, &deviations, &tests);
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    Ok(render(&table, &deviations, &tests, &instances()?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    section: Vec<Section>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    rule: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    id: String,
    text: String,
    #[serde(default)]
    tests: Vec<String>,
    deviation: Option<String>,
    later: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Deviations {
    deviation: Vec<Deviation>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Deviation {
    id: String,
    page: String,
    quote: String,
    ours: String,
    reason: String,
}

/// A test of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    /// Relative to the root.
    path: PathBuf,
    /// Whether it is a case of the suite, which runs for every transport.
    case: bool,
}

type Tests = BTreeMap<String, Test>;

fn parse<T: for<'a> Deserialize<'a>>(path: &str) -> Result<T, String> {
    let text = fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

/// All tests, by name. A unit test may have the name of a case; the case takes precedence.
fn tests() -> Result<Tests, String> {
    let mut all = Tests::new();
    for (path, name, case) in all_tests()? {
        if case || !all.contains_key(&name) {
            all.insert(name, Test { path, case });
        }
    }
    Ok(all)
}

/// All tests: the file relative to the root, the name, and whether it is a case of the suite.
///
/// # Errors
/// A source cannot be read.
pub fn all_tests() -> Result<Vec<(PathBuf, String, bool)>, String> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        collect(&root().join(folder), &mut all)?;
    }
    Ok(all)
}

/// The names under which the suite runs.
///
/// # Errors
/// A source cannot be read.
pub fn instance_names() -> Result<Vec<String>, String> {
    let names = instances()?.into_iter().map(|(name, _)| name);
    Ok(names.filter(|name| !name.ends_with('!')).collect())
}

fn collect(folder: &Path, all: &mut Vec<(PathBuf, String, bool)>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort(); // so that the document does not depend on the machine
    for path in paths {
        if path.is_dir() {
            collect(&path, all)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let path = path.strip_prefix(root()).unwrap_or(&path);
            all.extend(tests_of(&text).map(|(name, case)| (path.to_path_buf(), name.to_string(), case)));
        }
    }
    Ok(())
}

/// The tests of one source: functions with `#[test]`, and cases of the suite.
fn tests_of(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut announced = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[test]") {
            announced = true;
        }
        let signature = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("fn ")?;
        let (name, rest) = signature.split_once('(')?;
        let case = rest.starts_with("kit: &dyn Kit)") && line.starts_with("pub ");
        let test = std::mem::take(&mut announced);
        (test || case).then_some((name, case))
    })
}

/// A run of the suite: its name, and the skipped cases with their reasons.
type Instance = (String, Vec<(String, String)>);

/// The transports for which the suite runs.
fn instances() -> Result<Vec<Instance>, String> {
    let mut all = Vec::new();
    for file in INSTANCES {
        let text = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
        all.extend(instances_of(&text));
    }
    Ok(all)
}

/// A row for each `ofi_testkit::conformance!(name: ...)`, and for each `connected!(name: ...)` and similar macro. The
/// skips that such a macro has in common are in its definition, as the instance `$name`, and are a row of their own.
fn instances_of(text: &str) -> Vec<Instance> {
    let mut all = Vec::new();
    for (at, call) in text.match_indices("!(") {
        let before = &text[..at];
        let shared = SHARED_SKIPS.iter().find(|name| before.ends_with(&format!("\n{name}")));
        if shared.is_none() && !before.ends_with("ofi_testkit::conformance") {
            continue;
        }
        let rest = &text[at + call.len()..];
        let Some((name, rest)) = rest.split(");").next().unwrap_or(rest).split_once(':') else { continue };
        let skips = rest.split_once('[').map_or("", |(_, list)| list.trim_end().trim_end_matches(']'));
        let skips = skips.lines().flat_map(|line| line.split("\",")).map(str::trim);
        let skips = skips.filter(|skip| !skip.is_empty() && !skip.starts_with('$'));
        let skips = skips.filter_map(|skip| skip.trim_end_matches(',').split_once(": "));
        let skips = skips.map(|(case, reason)| (case.to_string(), reason.trim_matches('"').to_string()));
        let common = shared.map(|name| (format!("all of {name}!"), String::new()));
        let name = match (name, before.rsplit("macro_rules! ").next()) {
            ("$name", Some(inside)) => format!("{}!", inside.split_whitespace().next().unwrap_or("")),
            _ => name.trim().to_string(),
        };
        all.push((name, common.into_iter().chain(skips).collect()));
    }
    all
}

/// A run of the suite as a list: each reason with the cases skipped for it.
fn skips((name, skips): &Instance) -> String {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for (case, reason) in skips {
        match by_reason.iter_mut().find(|(other, _)| other == reason) {
            Some((_, cases)) => cases.push(case),
            None => by_reason.push((reason, vec![case])),
        }
    }
    let mut text = if skips.is_empty() {
        format!("- **{name}** skips nothing\n")
    } else {
        format!("- **{name}** skips\n")
    };
    for (reason, cases) in by_reason {
        let why = if reason.is_empty() { String::new() } else { format!("{reason}: ") };
        let mut line = format!("  - {why}");
        for (at, case) in cases.iter().enumerate() {
            let word = if at + 1 == cases.len() { (*case).to_string() } else { format!("{case}, ") };
            if line.len() + word.trim_end().len() > WIDTH {
                let _ = writeln!(text, "{}", line.trim_end());
                line = String::from("    ");
            }
            line.push_str(&word);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// All problems of the two files.
fn problems(table: &Table, deviations: &Deviations, tests: &Tests) -> Vec<String> {
    let mut all = Vec::new();
    let mut ids = BTreeSet::new();
    let mut referred = BTreeSet::new();
    for rule in table.section.iter().flat_map(|section| &section.rule) {
        if !ids.insert(&rule.id) {
            all.push(format!("{TABLE}: two rules {}", rule.id));
        }
        if rule.tests.is_empty() && rule.deviation.is_none() && rule.later.is_none() {
            all.push(format!("{TABLE}: rule {} has no test, no deviation, and no reason to wait", rule.id));
        }
        for test in rule.tests.iter().filter(|test| !tests.contains_key(*test)) {
            all.push(format!("{TABLE}: rule {}: no test {test} in the tree", rule.id));
        }
        referred.extend(&rule.deviation);
    }
    let known: BTreeSet<&String> = deviations.deviation.iter().map(|deviation| &deviation.id).collect();
    all.extend(referred.difference(&known).map(|id| format!("{DEVIATIONS}: no deviation {id}")));
    all.extend(known.difference(&referred).map(|id| format!("{DEVIATIONS}: no rule refers to {id}")));
    for deviation in &deviations.deviation {
        if [&deviation.page, &deviation.quote, &deviation.ours, &deviation.reason]
            .iter()
            .any(|text| text.is_empty())
        {
            all.push(format!(
                "{DEVIATIONS}: {} needs a page, a quote, our behaviour, and a reason",
                deviation.id
            ));
        }
    }
    all
}

fn render(table: &Table, deviations: &Deviations, tests: &Tests, instances: &[Instance]) -> String {
    let rules = || table.section.iter().flat_map(|section| &section.rule);
    let named: BTreeSet<&String> = rules().flat_map(|rule| &rule.tests).collect();
    let cases = tests.values().filter(|test| test.case).count();
    let (shown, later) = (
        rules().filter(|rule| !rule.tests.is_empty()).count(),
        rules().filter(|rule| rule.later.is_some()).count(),
    );
    let mut text = format!(
        "# Conformance\n\n\
         <!-- Generated by `cargo xtask conformance` from conformance.toml, deviations.toml and the names of tests. -->\n\n\
         Rules of libfabric's man pages by topic, each with the tests that show it, by file. The suite runs its cases\n\
         (marked \\*) for every transport and endpoint type; [skipped cases](#skipped-cases) lists the exceptions. All\n\
         other tests check one thing. {} rules: {shown} shown by tests, {} not followed on purpose, {later} waiting.\n\
         The suite has {cases} cases.\n",
        rules().count(),
        deviations.deviation.len(),
    );
    for section in &table.section {
        let _ = write!(text, "\n## {}\n", section.title);
        text.extend(section.rule.iter().map(|rule| of_rule(rule, tests)));
    }
    text.push_str("\n## Deviations\n");
    for deviation in &deviations.deviation {
        let Deviation { id, page, quote, ours, reason } = deviation;
        let (rule, answer) = (filled(&format!("{page}: \"{quote}\"")), filled(&format!("{ours} {reason}")));
        let _ = write!(text, "\n### {id}\n\n{rule}\n\n{answer}\n");
    }
    let others = tests.iter().filter(|(name, test)| test.case && !named.contains(name));
    let others: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
    if !others.is_empty() {
        let _ = write!(text, "\n## Cases beyond these rules\n\n{}", by_file(&others, tests));
    }
    text.push_str("\n## Skipped cases\n\nEach run of the suite, with the cases that it skips and why.\n\n");
    text.extend(instances.iter().map(skips));
    text
}

/// A rule: its text, then a list of the tests that show it, or the text in their place.
fn of_rule(rule: &Rule, tests: &Tests) -> String {
    let names: Vec<&str> = rule.tests.iter().map(String::as_str).collect();
    let mut text =
        format!("\n{}\n\n{}", filled(&format!("**{}** {}", rule.id, rule.text)), by_file(&names, tests));
    if let Some(id) = &rule.deviation {
        let _ = writeln!(text, "- not followed: [{id}](#{id})");
    }
    if let Some(what) = &rule.later {
        let _ = writeln!(text, "{}", item(&format!("waits for {what}")));
    }
    text
}

/// Tests as a list, with an item for each file.
fn by_file(names: &[&str], tests: &Tests) -> String {
    let mut files: Vec<(&Path, Vec<String>)> = Vec::new();
    for name in names {
        let Some(test) = tests.get(*name) else { continue }; // `problems` has already reported it
        let name = format!("`{name}`{}", if test.case { "\\*" } else { "" });
        match files.iter_mut().find(|(path, _)| *path == test.path) {
            Some((_, names)) => names.push(name),
            None => files.push((&test.path, vec![name])),
        }
    }
    let mut text = String::new();
    for (path, names) in files {
        let _ = writeln!(text, "{}", item(&format!("[{0}](../{0}): {1}", path.display(), names.join(", "))));
    }
    text
}

/// An item of a list.
fn item(text: &str) -> String {
    format!("- {}", filled(text).replace('\n', "\n  "))
}

/// A paragraph in lines of [`WIDTH`], as far as its words allow.
fn filled(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn one() {\n}\n    #[test]\n    #[ignore]\n    fn two() {}\nfn helper() {}\n\
                          pub fn three(kit: &dyn Kit) {\nfn four(kit: &dyn Kit) {\n";

    fn found() -> Tests {
        let test = |case| Test { path: "a.rs".into(), case };
        tests_of(SOURCE).map(|(name, case)| (name.to_string(), test(case))).collect()
    }

    fn table(rule: &str) -> Table {
        toml::from_str(&format!("[[section]]\ntitle = 'T'\n[[section.rule]]\nid = '1'\ntext = 't'\n{rule}"))
            .unwrap()
    }

    #[test]
    fn tests_and_cases_are_found_and_helpers_are_not() {
        let all: Vec<(&str, bool)> = tests_of(SOURCE).collect();
        assert_eq!(all, [("one", false), ("two", false), ("three", true)]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let none = Deviations { deviation: Vec::new() };
        let wrong = |rule: &str| problems(&table(rule), &none, &found());
        assert!(wrong("tests = ['one', 'three']").is_empty());
        assert!(wrong("")[0].contains("rule 1 has no test"));
        assert!(wrong("tests = ['helper']")[0].contains("no test helper"));
        assert!(wrong("deviation = 'd'")[0].contains("no deviation d"));
        assert!(wrong("later = 'x'").is_empty());
        let deviation =
            toml::from_str("[[deviation]]\nid='d'\npage='p'\nquote='q'\nours='o'\nreason='r'").unwrap();
        assert!(problems(&table("later = 'x'"), &deviation, &found())[0].contains("no rule refers to d"));
    }

    #[test]
    fn instances_and_their_skips_are_found() {
        let text = "ofi_testkit::conformance!(shm: ShmPair);\nofi_testkit::conformance!(dgram: UdpDgramPair, skip = [\n    \
                    order: \"none, promised\",\n    loss: \"some\",\n]);\nmacro_rules! connected {\n        ofi_testkit::conformance!($name: $kit, skip = [\n\
                    $($case: $reason,)*\n    vectors: \"none\",\n]);\nconnected!(shm_msg: ShmConnected, skip = [\n    waits: \"one\",\n]);";
        let all = instances_of(text);
        assert_eq!(all[0], ("shm".to_string(), Vec::new()));
        let told: Vec<String> = all.iter().map(skips).collect();
        assert_eq!(told[0], "- **shm** skips nothing\n");
        assert_eq!(told[1], "- **dgram** skips\n  - none, promised: order\n  - some: loss\n");
        assert_eq!(told[2], "- **connected!** skips\n  - none: vectors\n");
        assert_eq!(told[3], "- **shm_msg** skips\n  - all of connected!\n  - one: waits\n");
    }

    #[test]
    fn a_rule_lists_its_tests_by_file() {
        let rule = |rest| table(rest).section.remove(0).rule.remove(0);
        let shown = of_rule(&rule("tests = ['one', 'three']\ndeviation = 'd'"), &found());
        assert_eq!(shown, "\n**1** t\n\n- [a.rs](../a.rs): `one`, `three`\\*\n- not followed: [d](#d)\n");
        let long = "later = 'a word and another, until the line has no room for any more of them, so that the rest of it goes on a line of its own'";
        let lines = of_rule(&rule(long), &found());
        assert!(
            lines.lines().all(|line| line.len() <= 120) && lines.ends_with("\n  of its own\n"),
            "{lines}"
        );
    }

    #[test]
    fn the_files_of_this_tree_agree_with_it() {
        document().unwrap();
    }
}
