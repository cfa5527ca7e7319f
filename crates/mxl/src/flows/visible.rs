//! Text of others, for terminals and logs.

use std::borrow::Cow;

/// Text with its control characters as escapes, for a terminal or a log. Whoever may write the domain chooses labels
/// and definitions, and a terminal would obey the control characters in them. Characters that change the direction or
/// the line of the text count as control characters, because they can disguise it.
///
/// ```
/// assert_eq!(mxl::visible("camera\u{1b}[2J\n1"), "camera\\u{1b}[2J\\u{a}1");
/// assert_eq!(mxl::visible("Kamera 1 äöü"), "Kamera 1 äöü");
/// ```
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_hidden(char) {
            shown.extend(char.escape_unicode());
        } else {
            shown.push(char);
        }
    }
    Cow::Owned(shown)
}

/// Whether a character controls the terminal or the layout of the text.
fn is_hidden(char: char) -> bool {
    // Characters for format and direction, and line and paragraph separators.
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{206f}' | '\u{feff}')
}
