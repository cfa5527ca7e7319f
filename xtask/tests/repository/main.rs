//! What this repository asks of its own files.

mod budgets;
mod calls;
mod diary;
mod errors;
mod glossary;
mod imports;
mod names;
mod widths;
mod workflow;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The files that git tracks of these patterns, with their texts. Removed ones that are not committed yet are left out.
fn tracked(patterns: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = Command::new("git").arg("ls-files").args(patterns).current_dir(&root).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let files = String::from_utf8(listed.stdout).unwrap();
    let texts =
        files.lines().filter_map(|file| Some((file.to_string(), fs::read_to_string(root.join(file)).ok()?)));
    let texts: Vec<_> = texts.collect();
    assert!(!texts.is_empty(), "no file is like {patterns:?}");
    texts
}
