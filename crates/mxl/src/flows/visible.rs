//! Text of others, for terminals and logs.

use std::borrow::Cow;

/// A text whose control characters are shown as escapes, for a terminal or a line of a log: labels and definitions come
/// from whoever may write the domain, and a terminal obeys what they say. Characters that change the direction or the
/// line of the text count as control characters, since they let it look like another.
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

/// Whether a character controls the terminal, or how the others are laid out.
fn is_hidden(char: char) -> bool {
    // Of format and direction, and separators of lines.
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{206f}' | '\u{feff}')
}
