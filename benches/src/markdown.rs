//! Tables in a Markdown document, identified by their heads, that programs read and write.

/// The rows under `head`, without the line of dashes.
pub fn rows<'a, const N: usize>(text: &'a str, head: [&str; N]) -> impl Iterator<Item = [&'a str; N]> {
    let table = text.lines().skip_while(move |line| cells(line) != Some(head)).skip(2);
    table.map_while(cells)
}

/// `text` with the row of the same first cell under `head` replaced by `row`.
pub fn with_row<const N: usize>(text: &str, head: [&str; N], row: [&str; N]) -> String {
    let mut in_table = false;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let cells = cells(line);
        in_table = cells == Some(head) || (in_table && cells.is_some());
        match cells {
            Some(old) if in_table && old[0] == row[0] => lines.push(format!("| {} |", row.join(" | "))),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

fn cells<const N: usize>(line: &str) -> Option<[&str; N]> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
    cells.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "| a | b |\n|---|---|\n| x | 1 |\n\n| c | d |\n|---|---|\n| x | 2 |\n| y | 3 |\n\nText.\n";

    #[test]
    fn a_table_is_known_by_its_head() {
        assert_eq!(rows(DOCUMENT, ["c", "d"]).collect::<Vec<_>>(), [["x", "2"], ["y", "3"]]);
        assert_eq!(rows(DOCUMENT, ["a", "c"]).count(), 0);
        assert_eq!(rows(DOCUMENT, ["c", "d", "e"]).count(), 0);
    }

    #[test]
    fn a_row_is_written_into_its_table_alone() {
        let written = with_row(DOCUMENT, ["c", "d"], ["x", "7"]);
        assert!(written.contains("| x | 1 |") && written.contains("| x | 7 |"), "{written}");
        assert_eq!(with_row(&written, ["c", "d"], ["no such row", "1"]), written);
    }
}
