//! Writes the text of the picture and chooses its colours.

use std::fmt::Write as _;

use upshift_core::{LEVELS, Level};

use crate::markup::escape;

/// Colours from the most urgent level to the least: distinct side by side, and in a visible order.
const COLOURS: [(u8, u8, u8); 8] = [
    (0xb3, 0x12, 0x3f),
    (0xe0, 0x55, 0x2b),
    (0xe8, 0x9a, 0x1a),
    (0xb8, 0xa6, 0x0c),
    (0x5f, 0x9c, 0x2e),
    (0x1f, 0x9a, 0x80),
    (0x2a, 0x7f, 0xc0),
    (0x5b, 0x5f, 0xc7),
];

/// Returns the last `max_len` characters of a text, after an ellipsis if there are more.
pub(super) fn tail(text: &str, max_len: usize) -> String {
    let count = text.chars().count();
    if count <= max_len {
        return text.into();
    }
    let rest: String = text.chars().skip(count - max_len + 1).collect();
    format!("…{rest}")
}

/// The side of its position on which a text stands.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Writes a text with an inline style, because the page around the picture may have styles of its
/// own.
pub(super) fn label(out: &mut String, x: f64, y: f64, anchor: Anchor, style: &str, text: &str) {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"text-anchor:{anchor};{style}\">{}</text>",
        escape(text)
    );
}

/// Colours for the levels in use, spread over the whole range.
pub(super) struct Palette {
    pub(super) levels: Vec<Level>,
    colours: Vec<String>,
}

impl Palette {
    /// Creates the palette for the levels whose bits are set.
    pub(super) fn of(used: u64) -> Palette {
        let levels = (0..LEVELS as u8).filter_map(|n| Level::new(n).ok());
        let levels: Vec<Level> = levels.filter(|level| used & level.bit() != 0).collect();
        let last = levels.len().saturating_sub(1).max(1) as f64;
        let colours = (0..levels.len())
            .map(|n| colour_at(n as f64 / last))
            .collect();
        Palette { levels, colours }
    }

    pub(super) fn colour(&self, level: Level) -> &str {
        let index = self.levels.iter().position(|used| *used == level);
        index.map_or("#888888", |n| &self.colours[n])
    }
}

/// Returns the colour at a position in the range of colours, 0 to 1.
fn colour_at(position: f64) -> String {
    let place = position * (COLOURS.len() - 1) as f64;
    let n = (place as usize).min(COLOURS.len() - 2);
    let (from, to, share) = (COLOURS[n], COLOURS[n + 1], place - n as f64);
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        mix(from.0, to.0),
        mix(from.1, to.1),
        mix(from.2, to.2)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_distinct_colours() {
        for used in [0, 1, 1 << 63, 0b1010, u64::MAX] {
            let palette = Palette::of(used);
            let mut colours = palette.colours.clone();
            colours.sort();
            colours.dedup();
            assert_eq!(colours.len(), used.count_ones() as usize);
        }
    }

    #[test]
    fn long_texts_keep_their_ends() {
        assert_eq!(tail("src/main.rs:1:1", 20), "src/main.rs:1:1");
        assert_eq!(tail("src/main.rs:1:1", 8), "….rs:1:1");
        assert_eq!(
            escape("\u{1b}[31m<x>'\""),
            "\u{fffd}[31m&lt;x&gt;&#39;&quot;"
        );
    }
}
