//! Escapes text for use in SVG and HTML.

/// Escapes the special characters of XML and HTML in a text, also for use between quotes. U+FFFD
/// replaces the characters that XML forbids: control characters except tabs and ends of lines.
///
/// ```
/// let escaped = upshift_trace::escape("<a\tb> & \u{1b}'c'");
/// assert_eq!(escaped, "&lt;a\tb&gt; &amp; \u{fffd}&#39;c&#39;");
/// ```
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(c),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
