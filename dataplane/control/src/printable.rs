//! Replaces the characters that a terminal would interpret. Text of another program or of a file may contain such
//! characters.

/// Returns whether the character is a control character or a bidirectional control character (Unicode `Bidi_Control`).
/// Replace such characters before you print text of another program.
pub fn is_terminal_control(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text with U+FFFD in place of each control character and each bidirectional control character
/// ([`is_terminal_control`]).
pub fn printable(text: &str) -> String {
    text.replace(is_terminal_control, "\u{fffd}")
}

/// Replaces the same characters as [`printable`], except line breaks and tabs.
pub fn printable_lines(text: &str) -> String {
    text.replace(|char: char| is_terminal_control(char) && !matches!(char, '\n' | '\t'), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_lines_keeps_line_breaks_and_tabs() {
        let text = "a\x1b[2J\tb\n\u{9b}\u{202e}é";
        assert_eq!(printable(text), "a\u{fffd}[2J\u{fffd}b\u{fffd}\u{fffd}\u{fffd}é");
        assert_eq!(printable_lines(text), "a\u{fffd}[2J\tb\n\u{fffd}\u{fffd}é");
    }
}
