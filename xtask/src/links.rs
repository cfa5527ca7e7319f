//! Checks links between documents: each must lead to an existing file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::conformance;
use crate::step::root;

/// The dead links of the documents, as `document: target`. The page of conformance exists once the book has been built.
///
/// # Errors
/// A document cannot be read.
pub fn broken(documents: &[PathBuf]) -> Result<Vec<String>, String> {
    let book_only = root().join(conformance::DOCUMENT);
    let mut broken = Vec::new();
    for document in documents {
        let text =
            fs::read_to_string(document).map_err(|error| format!("{}: {error}", document.display()))?;
        let folder = document.parent().unwrap_or(Path::new("."));
        let missing = targets(&text).filter(|target| {
            let path = folder.join(target);
            !path.exists() && path != book_only
        });
        let name = document.strip_prefix(root()).unwrap_or(document).display();
        broken.extend(missing.map(|target| format!("{name}: {target}")));
    }
    Ok(broken)
}

/// The Markdown files at the top and in `docs`.
///
/// # Errors
/// A folder cannot be read.
pub fn documents() -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for folder in [root().to_path_buf(), root().join("docs")] {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        found.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    found.sort();
    Ok(found)
}

/// The documents of `docs` that the book's summary does not list.
///
/// # Errors
/// The summary cannot be read.
pub fn outside_the_book(documents: &[PathBuf]) -> Result<Vec<String>, String> {
    let folder = root().join("docs");
    let summary = folder.join("SUMMARY.md");
    let text = fs::read_to_string(&summary).map_err(|error| format!("{}: {error}", summary.display()))?;
    let named: Vec<PathBuf> = targets(&text).map(|target| folder.join(target)).collect();
    let pages = documents.iter().filter(|page| page.parent() == Some(&folder) && **page != summary);
    Ok(pages.filter(|page| !named.contains(page)).map(|page| page.display().to_string()).collect())
}

/// The targets of `](…)` within the repository, without the anchor.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        (!target.is_empty() && !target.contains("://")).then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_within_the_repository_are_found() {
        let text = "[a](docs/a.md), [b](https://b.example/), [c](#place), [d](d.md#place)";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["docs/a.md", "d.md"]);
    }
}
