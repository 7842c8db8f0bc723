//! Breaks text into lines.

/// Breaks a text at spaces, but not within a command in backticks, which can then be copied as a
/// whole. Returns at least one line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut in_command = false;
    let words = text.split(|c: char| {
        in_command ^= c == '`';
        c == ' ' && !in_command
    });
    for word in words {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn a_text_is_broken_at_spaces_outside_of_commands() {
        assert_eq!(wrap("", 9), [""]);
        assert_eq!(wrap("one two three", 9), ["one two", "three"]);
        let lines = wrap("Run `echo 9 | tee FILE`, then look", 12);
        assert_eq!(lines, ["Run", "`echo 9 | tee FILE`,", "then look"]);
    }
}
