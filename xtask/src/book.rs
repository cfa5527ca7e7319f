//! The book: `docs/SUMMARY.md` and what it names, as HTML under `target/book`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::step::{Outcome, not_run, root, target_dir};
use crate::{StepResult, trixie};

/// Where files of the repository are read that are no pages of the book.
const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Builds it with Debian's mdBook, unpacked beside the build.
///
/// # Errors
/// What mdBook says of a chapter or a file that is missing; links that lead nowhere.
pub fn build() -> StepResult {
    let mut mdbook = match trixie::mdbook() {
        Ok(mdbook) => mdbook,
        Err(why) => return not_run("the book", &why),
    };
    let output = mdbook.arg("build").arg(root().join("docs")).output();
    let output = output.map_err(|error| format!("starting mdbook: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    // A file that cannot be included is only reported, and mdBook goes on.
    if !output.status.success() || text.contains("[ERROR]") {
        return Err(text.into_owned());
    }
    let book = target_dir("book");
    let dead = settle(&book, &root().join("docs"), root())?;
    if !dead.is_empty() {
        return Err(format!("links of the book that lead nowhere: {}", dead.join(", ")));
    }
    println!("{}", book.join("index.html").display());
    Ok(Outcome::Passed)
}

/// Has links to files that are no pages lead to the repository, and answers those that lead nowhere, as `page: target`.
fn settle(book: &Path, docs: &Path, repository: &Path) -> Result<Vec<String>, String> {
    let (mut dead, mut folders) = (Vec::new(), vec![book.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?.flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().unwrap_or_default();
            // The page for addresses that are wrong stands at none of its own; the one for printing repeats the others.
            if path.extension().is_none_or(|extension| extension != "html")
                || name == "404.html"
                || name == "print.html"
            {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let source = docs.join(folder.strip_prefix(book).unwrap_or(Path::new("")));
            let told =
                |target: &str| format!("{}: {target}", path.strip_prefix(book).unwrap_or(&path).display());
            let settled = links(&text, |target| {
                let file = target.split(['#', '?']).next().unwrap_or_default();
                if file.is_empty() || folder.join(file).exists() {
                    return None;
                }
                let place = plain(&source.join(file));
                match place.strip_prefix(repository) {
                    Ok(place_in) if place.exists() => Some(format!("{FILES}{}", place_in.display())),
                    _ => {
                        dead.push(told(target));
                        None
                    }
                }
            });
            if settled != text {
                fs::write(&path, settled).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
    }
    dead.sort();
    Ok(dead)
}

/// `text` with each link within the site replaced by what `change` makes of it.
fn links(text: &str, mut change: impl FnMut(&str) -> Option<String>) -> String {
    const MARK: &str = "<a href=\"";
    let mut parts = text.split(MARK);
    let mut all = parts.next().unwrap_or_default().to_string();
    for part in parts {
        all.push_str(MARK);
        let (target, rest) = part.split_once('"').unwrap_or((part, ""));
        let is_outside = target.contains(':') || target.starts_with('/');
        all.push_str(&if is_outside { None } else { change(target) }.unwrap_or_else(|| target.to_string()));
        if part.len() > target.len() {
            all.push('"');
            all.push_str(rest);
        }
    }
    all
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_files_lead_to_the_repository_and_dead_links_are_named() {
        let base = std::env::temp_dir().join(format!("ofi-book-{}", std::process::id()));
        let (book, docs) = (base.join("target/book"), base.join("docs"));
        for folder in [&book.join("lab"), &docs, &base.join("crates/ofi")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(base.join("crates/ofi/lib.rs"), "").unwrap();
        let page = "<a href=\"b.html#x\">b</a> <a href=\"../crates/ofi/lib.rs\">c</a> <a href=\"https://e.example/\">e</a> <a href=\"#d\">d</a>";
        fs::write(book.join("a.html"), page).unwrap();
        fs::write(book.join("b.html"), "<a href=\"gone.html\">g</a>").unwrap();
        fs::write(
            book.join("lab/c.html"),
            "<a href=\"../a.html\">a</a> <a href=\"../../crates/ofi/lib.rs\">c</a>",
        )
        .unwrap();
        assert_eq!(settle(&book, &docs, &base).unwrap(), ["b.html: gone.html"]);
        let settled = fs::read_to_string(book.join("a.html")).unwrap();
        assert_eq!(settled, page.replace("../", FILES));
        let lab = fs::read_to_string(book.join("lab/c.html")).unwrap();
        assert!(lab.contains(&format!("{FILES}crates/ofi/lib.rs")) && lab.contains("\"../a.html\""), "{lab}");
        fs::remove_dir_all(base).unwrap();
    }
}
