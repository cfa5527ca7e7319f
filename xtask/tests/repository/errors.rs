//! Every error number that the libraries return has a cause and a remedy in `docs/troubleshooting.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ofi::Errno;

/// Crates whose errors never reach users.
const NOT_FOR_USERS: [&str; 3] = ["ofi-testkit", "efa-emulator", "cuda-emulator"];

/// The error numbers in code outside of tests, such as `Errno::EINVAL` or `Error::AGAIN`.
fn numbers(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let named = |mark: &str, prefix: &str| -> Vec<String> {
        let rests = code.split(mark).skip(1);
        let names =
            rests.map(|rest| rest.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or(""));
        let numbers =
            names.filter(|name| name.len() > 2 && !name.contains(|letter: char| letter.is_ascii_lowercase()));
        numbers.map(|name| format!("{prefix}{name}")).collect()
    };
    let named = [named("Errno::E", "FI_E"), named("Error::", "FI_E")].into_iter().flatten();
    // Skips other libraries' names, such as `Errno::EXIST`.
    named.filter(|name| Errno::ALL.iter().any(|errno| errno.name() == name)).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests" || name == "fuzz");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            found.push(path);
        }
    }
}

#[test]
fn every_error_has_a_remedy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("crates")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        // MXL's libraries return their own statuses.
        if !NOT_FOR_USERS.contains(&&*name) && !["mxl", "mxl-capi", "mxl-ffi"].contains(&&*name) {
            sources(&entry.path().join("src"), &mut files);
        }
    }
    let mut returned: BTreeSet<String> = BTreeSet::new();
    for file in &files {
        returned.extend(numbers(&fs::read_to_string(file).unwrap()));
    }
    assert!(
        returned.len() > 30 && returned.contains("FI_EAGAIN") && returned.contains("FI_ETIMEDOUT"),
        "{returned:?}"
    );
    let missing: Vec<_> = returned.iter().filter(|number| !page.contains(&format!("`{number}`"))).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md lacks {missing:?}");
}

#[test]
fn numbers_are_found_outside_of_comments_and_tests() {
    let source = "return Err(Errno::EINVAL);\n// Errno::EIO\nif error == Error::AGAIN || Error::new(Errno::ETRUNC) {}\n\
                  #[cfg(test)]\nmod tests {\n    Errno::ENOMEM\n}\n";
    assert_eq!(numbers(source).into_iter().collect::<Vec<_>>(), ["FI_EAGAIN", "FI_EINVAL", "FI_ETRUNC"]);
}
