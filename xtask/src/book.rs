//! The book: `docs/SUMMARY.md` and what it names, as HTML under `target/book`.

use crate::step::{Outcome, not_run, root};
use crate::{StepResult, trixie};

/// Builds it with Debian's mdBook, unpacked beside the build.
///
/// # Errors
/// What mdBook says of a chapter or a file that is missing.
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
    println!("{}", crate::step::target_dir("book").join("index.html").display());
    Ok(Outcome::Passed)
}
