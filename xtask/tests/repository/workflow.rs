//! The hosted workflow runs the steps of `.ci/run`, each as one job.

use std::collections::BTreeMap;
use std::path::Path;

/// The steps of the script: names and commands.
fn steps(script: &str) -> BTreeMap<&str, &str> {
    script.lines().filter_map(|line| step(line.trim_start().strip_prefix("step ")?)).collect()
}

fn step(rest: &str) -> Option<(&str, &str)> {
    let (name, command) = rest.trim_start().split_once(' ')?;
    let command = command.trim_start().trim_start_matches("\"${idle[@]}\"");
    Some((name, command.split(" #").next().unwrap_or_default().trim()))
}

/// The jobs of the workflow: names and commands.
fn jobs(workflow: &str) -> BTreeMap<&str, &str> {
    let rows = workflow.lines().filter_map(|line| line.trim().strip_prefix("- { check: "));
    rows.filter_map(|row| {
        let (name, rest) = row.strip_suffix(" }")?.split_once(", run: ")?;
        Some((name, rest.trim_end_matches(", nightly: true")))
    })
    .collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

#[test]
fn the_workflow_has_the_steps_of_the_script() {
    let (script, workflow) = (read(".ci/run"), read(".github/workflows/ci.yml"));
    assert!(steps(&script).len() >= 12, "{:?}", steps(&script));
    assert_eq!(jobs(&workflow), steps(&script));
}

#[test]
fn steps_and_jobs_are_found() {
    let script = "step() {\n}\nstep a  cargo x   # why\n    step b \"${idle[@]}\" cargo y --z\n";
    let expected = BTreeMap::from([("a", "cargo x"), ("b", "cargo y --z")]);
    assert_eq!(steps(script), expected);
    let workflow = "- { check: a, run: cargo x }\n  - { check: b, run: cargo y --z, nightly: true }\n";
    assert_eq!(jobs(workflow), expected);
}
