//! Builds the book: `docs/SUMMARY.md` with its chapters and their pictures, as HTML under `target/book`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::step::{Outcome, not_run, root, target_dir};
use crate::{StepResult, conformance, trixie};

/// The address of repository files that are not pages of the book.
const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Writes the page of conformance, and builds the book with Debian's mdBook, unpacked beside the build.
///
/// # Errors
/// A rule without a test; a missing chapter or file, as mdBook reports it; dead links and missing pictures.
pub fn build() -> StepResult {
    let mut mdbook = match trixie::mdbook() {
        Ok(mdbook) => mdbook,
        Err(why) => return not_run("the book", &why),
    };
    conformance::run(false)?;
    let output = mdbook.arg("build").arg(root().join("docs")).output();
    let output = output.map_err(|error| format!("starting mdbook: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    // mdBook only reports a file that cannot be included, and continues.
    if !output.status.success() || text.contains("[ERROR]") {
        return Err(text.into_owned());
    }
    let book = target_dir("book");
    let dead = settle(&book, &root().join("docs"), root())?;
    if !dead.is_empty() {
        return Err(format!("dead links or missing pictures in the book: {}", dead.join(", ")));
    }
    println!("{}", book.join("index.html").display());
    Ok(Outcome::Passed)
}

/// Rewrites links to files that are not pages so that they lead to the repository. Returns links and pictures without a
/// target, as `page: target`.
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
            // The 404 page has no address of its own; the print page repeats the others.
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
            for picture in pictures(&text) {
                if !folder.join(picture).exists() {
                    dead.push(told(picture));
                }
            }
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

/// `text` with each link within the site replaced by the result of `change`.
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

/// The pictures of a page within the site. mdBook copies the files of `docs`; it would not show a picture elsewhere.
fn pictures(text: &str) -> impl Iterator<Item = &str> {
    text.split("<img ").skip(1).filter_map(|rest| {
        let source = rest.split('>').next()?.split_once("src=\"")?.1.split('"').next()?;
        (!source.contains(':') && !source.starts_with('/')).then_some(source)
    })
}

/// Normalizes a path: removes `..`.
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
        for folder in [&book.join("sub"), &docs, &base.join("crates/ofi")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(base.join("crates/ofi/lib.rs"), "").unwrap();
        let page = "<a href=\"b.html#x\">b</a> <a href=\"../crates/ofi/lib.rs\">c</a> <a href=\"https://e.example/\">e</a> <a href=\"#d\">d</a>";
        fs::write(book.join("a.html"), page).unwrap();
        let pictures = "<img src=\"pictures/there.svg\" alt=\"a\"> <img alt=\"\" src=\"pictures/gone.svg\"> <img src=\"https://p.example/p.svg\">";
        fs::write(book.join("b.html"), format!("<a href=\"gone.html\">g</a> {pictures}")).unwrap();
        fs::create_dir_all(book.join("pictures")).unwrap();
        fs::write(book.join("pictures/there.svg"), "").unwrap();
        fs::write(
            book.join("sub/c.html"),
            "<a href=\"../a.html\">a</a> <a href=\"../../crates/ofi/lib.rs\">c</a>",
        )
        .unwrap();
        assert_eq!(settle(&book, &docs, &base).unwrap(), ["b.html: gone.html", "b.html: pictures/gone.svg"]);
        let settled = fs::read_to_string(book.join("a.html")).unwrap();
        assert_eq!(settled, page.replace("../", FILES));
        let sub = fs::read_to_string(book.join("sub/c.html")).unwrap();
        assert!(sub.contains(&format!("{FILES}crates/ofi/lib.rs")) && sub.contains("\"../a.html\""), "{sub}");
        fs::remove_dir_all(base).unwrap();
    }
}
