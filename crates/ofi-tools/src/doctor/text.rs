//! The checks as text.

use super::check::{Check, CheckState};

/// First the recommended changes in order of effect, then the good results.
pub fn report(checks: &[Check]) -> String {
    let mut text = String::new();
    let lacking: Vec<&Check> = checks.iter().filter(|check| check.state == CheckState::Lacking).collect();
    if lacking.is_empty() {
        text.push_str("nothing to change\n");
    } else {
        text.push_str("to change, the largest effect first:\n");
    }
    for (place, check) in lacking.iter().enumerate() {
        let Check { name, found, effect, change, .. } = check;
        text.push_str(&format!("{:>3}. {name}: {found}\n     {effect}\n     -> {change}\n", place + 1));
    }
    for (title, state) in
        [("good", CheckState::Good), ("does not apply, or is not visible", CheckState::Unknown)]
    {
        let rest: Vec<&Check> = checks.iter().filter(|check| check.state == state).collect();
        if !rest.is_empty() {
            text.push_str(&format!("{title}:\n"));
        }
        rest.iter().for_each(|check| text.push_str(&format!("     {}: {}\n", check.name, check.found)));
    }
    text
}
